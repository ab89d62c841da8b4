"""vLLM's endpoints, held to what was recorded of the real vLLM: statuses, fields, seeds, aborts, control."""

import json
import threading
import time
from pathlib import Path

import pytest
from answers import described

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0-cpu.exchanges.jsonl"
ROWS = {row["case"]: row for row in map(json.loads, RECORDED.read_text().splitlines())}
GENERATE = "/inference/v1/generate"
DIFFERENT = {
    "n-over-max-num-seqs": "this engine runs 12 at once, the recorded one ran 64",
    "stream-n2": "nothing is streamed",
    "eos": "logit_bias is not served",
    "eos-ignored": "logit_bias is not served",
    "image-uuid-first": "an image is known by its content, not by the id that it is sent with",
}
"""Recorded cases that this engine answers otherwise, and why; aborts, pauses and weights have tests of their own."""
STEERED = {"abort-by-id-n4", "abort-wrong-id-n2", "pause-abort-n4", "weight-version-two-spans"}
PLAIN = [
    row
    for case, row in ROWS.items()
    if row["url"] in (GENERATE, "/v1/completions") and case not in DIFFERENT | dict.fromkeys(STEERED)
]
SEEING = "vllm-0.32.0-cpu-qwen2.5-vl"
PROMPT = ROWS["single"]["request"]["token_ids"]


def fields(answer):
    """An answer without what weights and clocks decide: fields in order, and types where their number is fixed."""
    choices = [dict(choice) for choice in answer["choices"]]
    for choice in choices:
        # weights decide whether a stop is met
        choice["finish_reason"] = choice["stop_reason"] = None
        choice["logprobs"] = None if choice["logprobs"] is None else sorted(choice["logprobs"])
        choice["token_ids"] = None if choice["token_ids"] is None else "ids"
        choice["weight_versions"] = [sorted(span) for span in choice.get("weight_versions") or []]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    fixed = {key: described(value) for key, value in answer.items() if key not in ("choices", "usage")}
    return sorted(fixed.items()), [sorted(described(choice)) for choice in choices], sorted(usage)


def without_model(body):
    return {key: value for key, value in body.items() if key != "model" or value == "nope"}


@pytest.mark.parametrize("row", PLAIN, ids=lambda row: row["case"])
def test_a_recorded_request_gets_the_recorded_status_and_fields(engine_url, vision_url, ask, row):
    url = vision_url if row["engine_id"] == SEEING else engine_url
    status, answer = ask(url, row["url"], without_model(row["request"]))
    assert status == row["status"], answer
    if status != 200:
        assert sorted(answer["error"]) == sorted(row["response"]["error"])
        assert answer["error"]["code"] == status
        return
    assert fields(answer) == fields(row["response"])
    for ours, theirs in zip(answer["choices"], row["response"]["choices"], strict=True):
        if ours["finish_reason"] == theirs["finish_reason"] == "length":
            assert len(ours["token_ids"]) == len(theirs["token_ids"])
            assert ours.get("prompt_token_ids") == theirs.get("prompt_token_ids")
    assert answer["usage"]["prompt_tokens"] == row["response"]["usage"]["prompt_tokens"]
    assert answer.get("mm_placeholders") == row["response"].get("mm_placeholders")
    assert answer.get("prompt_token_ids") == row["response"].get("prompt_token_ids")


@pytest.mark.parametrize("case", ["stream-n2", "eos", "eos-ignored"])
def test_what_is_not_served_is_refused(engine_url, ask, case):
    status, answer = ask(engine_url, GENERATE, ROWS[case]["request"])
    assert status == 400 and "not served" in answer["error"]["message"]


def test_more_samples_than_run_at_once_are_refused_by_generate_alone(engine_url, ask):
    params = {"n": 13, "max_tokens": 1}
    assert ask(engine_url, GENERATE, {"token_ids": PROMPT, "sampling_params": params})[0] == 400
    status, answer = ask(engine_url, "/v1/completions", {"prompt": PROMPT, **params})
    assert (status, len(answer["choices"])) == (200, 13)


def tokens(answer):
    return [(choice["token_ids"], choice["logprobs"]) for choice in answer["choices"]]


def asked(engine_url, ask, params, **body):
    sampling = {"max_tokens": 8, "logprobs": 0, "ignore_eos": True, **params}
    status, answer = ask(engine_url, GENERATE, {"token_ids": PROMPT, "sampling_params": sampling, **body})
    assert status == 200, answer
    return answer


def test_choice_i_of_n_is_the_sample_of_the_seed_plus_i(engine_url, ask):
    alone = [tokens(asked(engine_url, ask, {"seed": 7 + i}))[0] for i in range(4)]
    assert tokens(asked(engine_url, ask, {"seed": 7, "n": 4})) == alone
    assert len({tuple(ids) for ids, _ in alone}) == 4
    assert tokens(asked(engine_url, ask, {"seed": 2**63 + 7})) == alone[:1], "seeds are taken modulo 2^63"


def test_every_prompt_of_a_list_restarts_at_the_seed(engine_url, ask):
    body = {"prompt": [PROMPT, PROMPT], "n": 2, "seed": 7, "max_tokens": 8, "logprobs": 0, "return_token_ids": True}
    _, answer = ask(engine_url, "/v1/completions", body | {"ignore_eos": True, "return_tokens_as_token_ids": True})
    ids = [choice["token_ids"] for choice in answer["choices"]]
    assert ids == [choice for choice, _ in tokens(asked(engine_url, ask, {"seed": 7, "n": 2}))] * 2
    assert answer["choices"][3]["logprobs"]["tokens"] == [f"token_id:{token}" for token in ids[3]]


def test_log_probs_are_those_of_temperature_1(engine_url, ask):
    cold, hot = (asked(engine_url, ask, {"temperature": t, "logprobs": 3, "max_tokens": 1}) for t in (0.5, 2.0))
    (first,), (second,) = (answer["choices"][0]["logprobs"]["content"] for answer in (cold, hot))
    known = {one["token_id"]: one["logprob"] for one in first["top_logprobs"]}
    assert len(first["top_logprobs"]) == len(second["top_logprobs"]) == 3
    shared = [one for one in second["top_logprobs"] if one["token_id"] in known]
    assert shared and all(known[one["token_id"]] == one["logprob"] for one in shared)


def test_a_temperature_above_2_is_refused(engine_url, ask):
    sampling = {"max_tokens": 1, "temperature": 2.5}
    assert ask(engine_url, GENERATE, {"token_ids": PROMPT, "sampling_params": sampling})[0] == 400


def test_ignore_eos_leaves_stop_token_ids_in_force(engine_url, ask):
    ids, _ = tokens(asked(engine_url, ask, {"seed": 7}))[0]
    (choice,) = asked(engine_url, ask, {"seed": 7, "stop_token_ids": [ids[2]]})["choices"]
    end = ids.index(ids[2]) + 1
    assert (choice["token_ids"], choice["finish_reason"], choice["stop_reason"]) == (ids[:end], "stop", ids[2])


# --- aborts and pauses


LONG = {"max_tokens": 400, "n": 4, "seed": 5}


@pytest.fixture
def running(engine_url, shared_engine, ask):
    """`running(**body)` → a function that returns the answer to a long request, which runs now."""
    threads = []

    def start(**body):
        box = []
        threads.append(threading.Thread(target=lambda: box.append(asked(engine_url, ask, LONG, **body))))
        threads[-1].start()
        wait_for(lambda: len(shared_engine[1].scheduler.running) == 4)

        def answer():
            wait_for(lambda: box)
            return box[0]

        return answer

    yield start
    ask(engine_url, "/resume", {})
    ask(engine_url, "/abort_requests", {})
    for thread in threads:
        thread.join()


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def kinds(answer):
    return [choice["finish_reason"] for choice in answer["choices"]]


def test_an_id_is_aborted_by_its_whole_name_alone(engine_url, shared_engine, ask, running):
    answer = running(request_id="job1")
    for case, left in (("abort-requests-unprefixed", 4), ("abort-requests", 0)):
        row = ROWS[case]
        ids = ["job1"] if left else row["request"]["request_ids"]
        assert ask(engine_url, row["url"], {"request_ids": ids}) == (row["status"], row["response"])
        assert len(shared_engine[1].scheduler.running) == left
    assert fields(answer()) == fields(ROWS["abort-by-id-n4"]["response"])
    assert kinds(answer()) == kinds(ROWS["abort-by-id-n4"]["response"]) == ["abort"] * 4


@pytest.mark.parametrize(("mode", "ends"), [("abort", "abort"), ("keep", "length")])
def test_a_pause_ends_or_keeps_what_runs_and_holds_what_comes(engine_url, ask, running, mode, ends):
    answer = running()
    assert ask(engine_url, f"/pause?mode={mode}", {}) == (200, ROWS["pause-abort"]["response"])
    assert ask(engine_url, "/is_paused") == (200, {"is_paused": True})
    box = []
    waiting = threading.Thread(target=lambda: box.append(asked(engine_url, ask, {})))
    waiting.start()
    waiting.join(0.3)
    assert not box
    assert ask(engine_url, "/resume", {}) == (200, ROWS["resume"]["response"])
    waiting.join()
    assert kinds(answer()) == [ends] * 4 and kinds(box[0]) == ["length"]


def test_a_pause_by_wait_answers_when_what_ran_has_ended(engine_url, shared_engine, ask, running):
    answer = running()
    assert ask(engine_url, "/pause?mode=wait", {})[0] == 200
    assert shared_engine[1].scheduler.running == []
    assert ask(engine_url, "/pause?mode=wait", {})[0] == 200, "a second one has nothing to wait for"
    assert ask(engine_url, "/pause?mode=gently", {})[0] == 400
    assert kinds(answer()) == ["length"] * 4


# --- weights


def scores(engine_url, ask):
    """Log-probs of the prompt's tokens but the first."""
    rows = asked(engine_url, ask, {"prompt_logprobs": 0, "max_tokens": 1})["prompt_logprobs"]
    assert rows[0] is None and [int(key) for row in rows[1:] for key in row] == PROMPT[1:]
    return [row[str(token)]["logprob"] for row, token in zip(rows[1:], PROMPT[1:], strict=True)]


def test_weights_are_reloaded_and_labelled_apart(engine_url, ask, tiny_checkpoint, other_checkpoint):
    before = scores(engine_url, ask)
    try:
        assert reload(engine_url, ask, other_checkpoint) == (200, {"results": [None]})
        assert scores(engine_url, ask) != before
        label = ROWS["update-weight-version"]
        assert ask(engine_url, "/weight_info") == (200, {"weight_version": "default"}), "the label is not the weights'"
        assert ask(engine_url, label["url"], label["request"]) == (200, label["response"])
        assert asked(engine_url, ask, {})["choices"][0]["weight_versions"] == [{"version": "v1", "start": 0, "end": 8}]
        assert reload(engine_url, ask, other_checkpoint / "missing")[0] == 500
    finally:
        reload(engine_url, ask, tiny_checkpoint)
        ask(engine_url, "/update_weight_version", {"new_version": "default"})
    assert scores(engine_url, ask) == before
    row = ROWS["reset-prefix-cache"]
    assert ask(engine_url, row["url"], row["request"]) == (row["status"], row["response"])


def reload(engine_url, ask, path):
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    return ask(engine_url, "/collective_rpc", body)


def test_a_label_changes_within_a_sample(engine_url, ask, running):
    answer = running()
    ask(engine_url, "/update_weight_version", {"new_version": "next"})
    ask(engine_url, "/abort_requests", {})
    try:
        for choice in answer()["choices"]:
            versions = [span["version"] for span in choice["weight_versions"]]
            assert versions in (["default", "next"], ["default"])
    finally:
        ask(engine_url, "/update_weight_version", {"new_version": "default"})


def test_unknown_methods_and_models_are_named(engine_url, ask):
    assert ask(engine_url, "/collective_rpc", {"method": "nope"})[0] == 500
    (model,) = ask(engine_url, "/v1/models")[1]["data"]
    assert model["owned_by"] == "parity-embedded" and model["max_model_len"] == 2048
