"""What else the engine does: aborts, pauses, weights, limits, streams; on small HTTP exchanges."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import torch
from safetensors.torch import load_file, save_file

LONG = {"max_new_tokens": 1900, "ignore_eos": True}


class Background:
    """A request under way on a thread."""

    def __init__(self, ask, url, body):
        self._thread = threading.Thread(target=self._run, args=(ask, url, body))
        self._thread.start()

    def _run(self, ask, url, body):
        self._answer = ask(url, "/generate", body)

    def answer(self):
        self._thread.join(timeout=100)
        assert not self._thread.is_alive()
        return self._answer


def running(ask, url):
    return ask(url, "/v1/loads")[1]["loads"][0]["num_running_reqs"]


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def generated(ask, url):
    text = ask(url, "/metrics")[1]
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("sglang:generation_tokens_total")))


@pytest.fixture
def own_engine(tiny_checkpoint, serving):
    with serving(tiny_checkpoint, max_running=8) as (url, _):
        yield url


def test_abort_by_rid_matches_prefixes_and_reaches_list_items_by_their_own_ids(engine_url, ask):
    one = Background(ask, engine_url, {"rid": "abc", "input_ids": [1], "sampling_params": LONG})
    two = Background(ask, engine_url, {"rid": "abcd", "input_ids": [2], "sampling_params": LONG})
    batch = Background(ask, engine_url, {"rid": "bg", "input_ids": [[3], [4]], "sampling_params": LONG})
    wait_for(lambda: running(ask, engine_url) == 4)
    ask(engine_url, "/abort_request", {"rid": "abc"})
    for request in (one, two):
        assert request.answer()[1]["meta_info"]["finish_reason"]["type"] == "abort"
    ask(engine_url, "/abort_request", {"rid": "bg_1"})
    wait_for(lambda: running(ask, engine_url) == 1)
    ask(engine_url, "/abort_request", {"rid": "nobody"})
    assert running(ask, engine_url) == 1
    ask(engine_url, "/abort_request", {"abort_all": True})
    first, second = batch.answer()[1]
    assert [item["meta_info"]["id"] for item in (first, second)] == ["bg_0", "bg_1"]
    assert first["meta_info"]["completion_tokens"] > second["meta_info"]["completion_tokens"]


def test_with_n_above_1_the_rid_is_replaced_so_abort_by_rid_does_nothing(engine_url, ask):
    params = {"max_new_tokens": 40, "ignore_eos": True, "n": 2}
    request = Background(ask, engine_url, {"rid": "mine", "input_ids": [1], "sampling_params": params})
    for _ in range(5):
        ask(engine_url, "/abort_request", {"rid": "mine"})
    items = request.answer()[1]
    assert [item["meta_info"]["finish_reason"] for item in items] == [{"type": "length", "length": 40}] * 2
    assert len({item["meta_info"]["id"] for item in items} - {"mine"}) == 2


def test_weights_change_whole_and_wrong_checkpoints_leave_them(
    own_engine, ask, tmp_path, tiny_checkpoint, other_checkpoint, save_checkpoint, serving
):
    greedy = {
        "input_ids": [9, 8, 7],
        "sampling_params": {"max_new_tokens": 12, "temperature": 0},
        "return_logprob": True,
    }

    def answer(url):
        item = ask(url, "/generate", greedy)[1]
        return item["output_ids"], item["meta_info"]["output_token_logprobs"]

    def update(path, **more):
        return ask(own_engine, "/update_weights_from_disk", {"model_path": str(path)} | more)

    before = answer(own_engine)
    status, body = update(other_checkpoint, weight_version="v2")
    assert (status, body["success"], body["num_paused_requests"]) == (200, True, 0)
    assert body["message"] == "Succeeded to update model weights. Weight version updated to v2."
    with serving(other_checkpoint, max_running=8) as (fresh, _):
        assert answer(own_engine) == answer(fresh) != before
    assert ask(own_engine, "/model_info")[1]["weight_version"] == "v2"

    broken = tmp_path / "broken"
    save_checkpoint(broken, seed=1)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    lacking = tmp_path / "lacking"
    save_checkpoint(lacking, seed=1)
    del weights["model.norm.weight"]
    save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})
    wide = save_checkpoint(tmp_path / "wide", seed=1, intermediate_size=160)
    cut, odd, untied = (save_checkpoint(tmp_path / name, seed=1) for name in ("cut", "odd", "untied"))
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    (odd / "config.json").write_text('{"model_type": "qwen2", "hidden_size": "wide"}')
    weights = load_file(untied / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros_like(weights["model.embed_tokens.weight"])
    save_file(weights, untied / "model.safetensors", metadata={"format": "pt"})
    there = answer(own_engine)
    for path, word in (
        (tmp_path / "nowhere", "config.json"),
        (tmp_path / ("long" * 1000), "too long"),
        (cut, "header"),
        (odd, "hidden_size"),
        (untied, "lm_head.weight is tied"),
        (wide, "intermediate_size"),
        (broken, "not finite"),
        (lacking, "model.norm.weight"),
    ):
        status, body = update(path, weight_version="v3")
        assert (status, body["success"]) == (400, False)
        assert word in body["message"]
        assert answer(own_engine) == there
    assert ask(own_engine, "/model_info")[1]["weight_version"] == "v2"
    # Without a version the label stays.
    assert update(tiny_checkpoint)[0] == 200
    assert answer(own_engine) == before
    assert ask(own_engine, "/model_info")[1]["weight_version"] == "v2"


def test_an_update_waits_for_what_runs_and_what_comes_later_waits_for_the_update(own_engine, ask, other_checkpoint):
    params = {"max_new_tokens": 300, "ignore_eos": True}
    early = Background(ask, own_engine, {"input_ids": [1], "sampling_params": params})
    wait_for(lambda: running(ask, own_engine) == 1)
    update = threading.Thread(
        target=ask,
        args=(own_engine, "/update_weights_from_disk", {"model_path": str(other_checkpoint), "weight_version": "b"}),
    )
    update.start()
    time.sleep(0.2)
    late = Background(ask, own_engine, {"input_ids": [1], "sampling_params": {"max_new_tokens": 3}})
    assert early.answer()[1]["meta_info"]["weight_versions"] == [{"version": "default", "start": 0, "end": 300}]
    assert late.answer()[1]["meta_info"]["weight_versions"] == [{"version": "b", "start": 0, "end": 3}]
    update.join()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_paused_sequence_spans_two_weight_versions(own_engine, ask, other_checkpoint, mode):
    params = {"max_new_tokens": 300, "ignore_eos": True, "sampling_seed": 4}
    request = Background(ask, own_engine, {"input_ids": [1, 2], "sampling_params": params, "return_logprob": True})
    wait_for(lambda: generated(ask, own_engine) > 5)
    assert ask(own_engine, "/pause_generation", {"mode": mode})[0] == 200
    stands = generated(ask, own_engine)
    late = Background(ask, own_engine, {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}})
    time.sleep(0.1)
    assert generated(ask, own_engine) == stands
    flushed = ask(own_engine, "/flush_cache", {})[0]
    status, body = ask(
        own_engine, "/update_weights_from_disk", {"model_path": str(other_checkpoint), "weight_version": "v2"}
    )
    assert (flushed, status, body["success"]) == ((200, 200, True) if mode == "retract" else (400, 400, False))
    assert ask(own_engine, "/continue_generation", {})[0] == 200
    item, other = request.answer()[1], late.answer()[1]
    spans = item["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "v2"]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 300)
    assert 0 < spans[0]["end"] < 300
    assert item["meta_info"]["num_retractions"] == (mode == "retract")
    assert len(item["meta_info"]["output_token_logprobs"]) == len(item["output_ids"]) == 300
    assert other["meta_info"]["weight_version"] == "v2"


@pytest.mark.bits
def test_a_retracted_seeded_sequence_under_the_same_weights_is_unchanged(own_engine, ask):
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 100, "ignore_eos": True, "sampling_seed": 4}}
    body["return_logprob"] = True
    undisturbed = ask(own_engine, "/generate", body)[1]
    before = generated(ask, own_engine)
    request = Background(ask, own_engine, body)
    wait_for(lambda: generated(ask, own_engine) > before + 20)
    ask(own_engine, "/pause_generation", {"mode": "retract"})
    ask(own_engine, "/continue_generation", {})
    item = request.answer()[1]
    assert item["meta_info"]["num_retractions"] == 1
    assert item["output_ids"] == undisturbed["output_ids"]
    assert item["meta_info"]["output_token_logprobs"] == undisturbed["meta_info"]["output_token_logprobs"]


def test_pause_by_abort_ends_what_runs_and_holds_what_comes(own_engine, ask):
    request = Background(ask, own_engine, {"input_ids": [1], "sampling_params": LONG})
    wait_for(lambda: running(ask, own_engine) == 1)
    answer = {"message": "Generation paused successfully.", "status": "ok"}
    assert ask(own_engine, "/pause_generation", {}) == (200, answer)
    assert request.answer()[1]["meta_info"]["finish_reason"]["message"] == "Aborted"
    held = Background(ask, own_engine, {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}})
    time.sleep(0.1)
    assert ask(own_engine, "/v1/loads")[1]["loads"][0]["num_waiting_reqs"] == 1
    ask(own_engine, "/continue_generation", {})
    assert held.answer()[0] == 200
    assert ask(own_engine, "/pause_generation", {"mode": "gently"})[0] == 400


@pytest.mark.parametrize("path", ["/abort_request", "/flush_cache?timeout=9", "/continue_generation"])
def test_a_client_that_goes_away_from_a_control_request_leaves_the_engine_running(own_engine, ask, path):
    host, port = own_engine.removeprefix("http://").split(":")
    busy = Background(ask, own_engine, {"input_ids": [[1]] * 8, "sampling_params": LONG | {"max_new_tokens": 400}})
    wait_for(lambda: running(ask, own_engine) == 8)
    for _ in range(30):
        with socket.create_connection((host, int(port))) as connection:
            kind = "Content-Type: application/json\r\n"
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{kind}Content-Length: 2\r\n\r\n"
            connection.sendall(head.encode() + b"{}")
            time.sleep(0.002)
    assert ask(own_engine, "/health") == (200, "")
    assert len(busy.answer()[1]) == 8


def test_stop_ids_that_are_no_tokens_change_nothing_and_hurt_nobody(engine_url, ask):
    """Ids beyond 64 bits included, which must not end in a failed turn that takes every other sequence with it."""
    params = {"max_new_tokens": 6, "sampling_seed": 5, "ignore_eos": False}
    plain = ask(engine_url, "/generate", {"input_ids": [1], "sampling_params": params})[1]
    odd = params | {"stop_token_ids": [-1, 10**6, 2**63, 2**64 - 1]}
    status, item = ask(engine_url, "/generate", {"input_ids": [1], "sampling_params": odd})
    assert status == 200
    assert item["output_ids"] == plain["output_ids"]


def test_a_client_that_goes_away_ends_its_sequences(engine_url, ask):
    host, port = engine_url.removeprefix("http://").split(":")
    body = json.dumps({"input_ids": [1], "sampling_params": LONG | {"n": 4}}).encode()
    with socket.create_connection((host, int(port))) as connection:
        kind = "Content-Type: application/json\r\n"
        head = f"POST /generate HTTP/1.1\r\nHost: {host}\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_for(lambda: running(ask, engine_url) == 4)
    wait_for(lambda: running(ask, engine_url) == 0)


def test_a_stream_grows_and_ends_like_the_whole_response(engine_url, ask):
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 5, "sampling_seed": 3, "n": 2, "ignore_eos": True}}
    whole = ask(engine_url, "/generate", body)[1]
    sent = json.dumps(body | {"stream": True}).encode()
    request = urllib.request.Request(engine_url + "/generate", sent, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        events = [line.removeprefix("data: ") for line in response.read().decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    for index in (0, 1):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert [len(chunk["output_ids"]) for chunk in mine] == [1, 2, 3, 4, 5]
        assert [chunk["meta_info"]["finish_reason"] is None for chunk in mine] == [True] * 4 + [False]
        assert (mine[-1]["output_ids"], mine[-1]["text"]) == (whole[index]["output_ids"], whole[index]["text"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": [1, 272]}, "outside the vocabulary"),
        ({"input_ids": [-1]}, "outside the vocabulary"),
        ({"input_ids": [[1], [2**60]]}, "outside the vocabulary"),
        ({"input_ids": [[1], [2**70]]}, "expected i64"),
        ({"input_ids": [1], "sampling_params": {"n": 10**9}}, "exceed the limit"),
        ({"input_ids": [1], "sampling_params": {"n": None}}, "expected i64"),
        ({"input_ids": [1], "sampling_params": {"n": True}}, "expected i64"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 2048}}, "maximum context length of 2048"),
        ({"input_ids": [1], "sampling_params": {"top_p": 0.0}}, "top_p must be in"),
        ({"input_ids": [1], "sampling_params": {"top_k": 0}}, "top_k must be"),
        ({"input_ids": [1], "sampling_params": {"min_p": 1.5}}, "min_p must be in"),
        ({"input_ids": [1], "sampling_params": {"sampling_seed": 2**63}}, "sampling_seed must be in"),
        ({"input_ids": [1], "sampling_params": {"regex": "a+"}}, "not served"),
        (
            {"input_ids": [1], "return_logprob": True, "logprob_start_len": 2},
            "is higher than the number of input tokens",
        ),
        ({"input_ids": [[1], [2]], "return_logprob": [True]}, "length of return_logprob"),
        ({"input_ids": [[1], [2]], "rid": ["a"]}, "rids length mismatch"),
        ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "length of sampling_params"),
        ({"input_ids": [[1], [2]], "sampling_params": [{"n": 1}, {"n": 2}]}, "parallel_sample_num should be the same"),
        ({"input_ids": [[1]], "return_logprob": [True], "sampling_params": {"n": 2}}, "Cannot use list return_logprob"),
        ({"text": "a", "image_data": ["x"]}, "image_data is not served"),
        ({"sampling_params": {}}, "should be provided"),
        (b"{", "not JSON"),
        ([], "invalid type"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_reason_and_the_engine_goes_on(engine_url, ask, body, message):
    status, answer = ask(engine_url, "/generate", body)
    assert status == 400
    error = answer["error"]
    assert message in (error if isinstance(error, str) else error["message"])
    assert ask(engine_url, "/health_generate") == (200, "")


def test_a_batch_with_one_bad_item_runs_nothing(engine_url, ask):
    before = generated(ask, engine_url)
    assert ask(engine_url, "/generate", {"input_ids": [[1], [999]]})[0] == 400
    assert generated(ask, engine_url) == before


def test_it_names_itself_as_a_router_names_its_workers(engine_url, ask):
    status, body = ask(engine_url, "/workers")
    assert (status, [worker["url"] for worker in body["workers"]]) == (200, [engine_url])


def test_information_and_metrics(engine_url, ask, tiny_checkpoint):
    info = ask(engine_url, "/server_info")[1]
    assert (info["engine"], info["deterministic"], info["seed_per_slot"]) == ("parity-embedded", True, True)
    assert ask(engine_url, "/get_server_info")[1] == info
    model = ask(engine_url, "/model_info")[1]
    assert (model["model_path"], model["weight_version"]) == (str(tiny_checkpoint), "default")
    assert ask(engine_url, "/get_model_info")[1] == model
    assert ask(engine_url, "/health") == (200, "")
    before = generated(ask, engine_url)
    ask(
        engine_url,
        "/generate",
        {"input_ids": [1], "sampling_params": {"n": 3, "max_new_tokens": 4, "ignore_eos": True}},
    )
    assert generated(ask, engine_url) == before + 12


def test_the_default_length_is_128_and_null_is_the_context(engine_url, ask):
    params = {"ignore_eos": True}
    reason = ask(engine_url, "/generate", {"input_ids": [1], "sampling_params": params})[1]["meta_info"][
        "finish_reason"
    ]
    assert reason == {"type": "length", "length": 128}
    request = {"input_ids": [1] * 2000, "sampling_params": params | {"max_new_tokens": None}}
    assert ask(engine_url, "/generate", request)[1]["meta_info"]["completion_tokens"] == 48


@pytest.mark.slow
def test_the_command_serves_says_its_port_and_ends_on_sigterm(tiny_checkpoint, tmp_path, ask):
    port = tmp_path / "port"
    command = [sys.executable, "-m", "parity.engines.embedded", "--model-path", str(tiny_checkpoint), "--port", "0"]
    with subprocess.Popen([*command, "--port-file", str(port)], stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline().strip()
            url = line.removeprefix("listening on ")
            wait_for(port.exists)
            assert url.endswith(f":{port.read_text().strip()}")
            request = Background(ask, url, {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}})
            assert request.answer()[0] == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    wrong = subprocess.run([*command[:4], str(tmp_path / "none")], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "config.json" in wrong.stderr
