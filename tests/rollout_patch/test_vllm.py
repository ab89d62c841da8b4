"""vLLM's dialect, held to what the real vLLM 0.32.0 was seen to take and to answer."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_patch import (
    ARMS,
    CONDITIONS,
    SGLANG,
    VLLM,
    Capabilities,
    GroupReport,
    PlannedRequest,
    RequestFailed,
    ResponseRefused,
    SampleRequest,
    generate_group,
    plan_requests,
)
from rollout_patch.dialects.vllm import RULES, read_response, without_media
from rollout_patch.eligibility import conditions

NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
EXAMPLES = ["single", "native-n8", "native-n4-seed", "per-sample-seed-2", "temperature-half", "top-k-2", "stop-token"]


def asked_in(request: Mapping[str, Any]) -> list[SampleRequest]:
    """What each slot of a recorded request asked for, prompt-major."""
    params = request.get("sampling_params", request)
    own = ("max_tokens", "temperature", "seed", "top_k", "top_p", "stop", "stop_token_ids", "ignore_eos", "logit_bias")
    words = {NAMES.get(name, name): params[name] for name in own if name in params}
    prompts = [request["token_ids"]] if "token_ids" in request else request["prompt"]
    images = [part["url"] for part in request.get("content_parts", ())]
    options = {"return_logprob": params.get("logprobs") is not None}
    options |= {name: request[name] for name in ("model",) if name in request}
    options |= {"rid": request["request_id"]} if "request_id" in request else {}
    return [
        SampleRequest(words, input_ids=prompt, media={"image_data": images}, options=options)
        for prompt in prompts
        for _ in range(int(params.get("n", 1)))
    ]


@pytest.mark.parametrize("case", [*EXAMPLES, "abort-by-id-n4", "image-n4", "two-images-n2", "image-per-sample-0"])
def test_bodies_of_generate_are_the_recorded_ones(case: str) -> None:
    sent = recording()[case]["request"]
    (planned,) = plan_requests("native", asked_in(sent), dialect=VLLM)
    assert (planned.payload, VLLM.path_of(planned.payload)) == (sent, recording()[case]["url"])


def test_a_list_is_asked_for_as_recorded_with_the_ids_of_its_log_probs() -> None:
    sent = recording()["completions-2-prompts-n2-seed"]["request"]
    asked = asked_in({name: value for name, value in sent.items() if name != "n"})
    (planned,) = plan_requests("batched", asked, dialect=VLLM)
    one_each = {name: value for name, value in sent.items() if name != "n"}
    assert planned.payload == {**one_each, "return_tokens_as_token_ids": True}
    assert VLLM.path_of(planned.payload) == COMPLETIONS


def test_text_goes_to_completions_in_every_arm() -> None:
    sample = SampleRequest({"max_new_tokens": 4, "stop": ["x"]}, text="two plus two")
    plans = {arm: plan_requests(arm, [sample] * 2, dialect=VLLM) for arm in ARMS}
    paths = {VLLM.path_of(planned.payload) for plan in plans.values() for planned in plan}
    native = plans["native"][0].payload
    assert (paths, native["prompt"], native["n"]) == ({COMPLETIONS}, "two plus two", 2)
    assert plans["batched"][0].payload["prompt"] == ["two plus two"] * 2


def test_no_payload_shares_a_list_with_the_sample() -> None:
    sample = SampleRequest({"max_new_tokens": 4, "stop_token_ids": [7]}, input_ids=[1])
    for arm in ARMS:
        for planned in plan_requests(arm, [sample] * 2, dialect=VLLM):
            planned.payload.get("sampling_params", planned.payload)["stop_token_ids"].append(9)
    assert sample.sampling_params["stop_token_ids"] == [7]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling_params": {"max_new_tokens": 4, "regex": "a*"}}, "regex"),
        ({"sampling_params": {"max_new_tokens": 4, "max_tokens": 4}}, "max_tokens"),
        ({"sampling_params": {"temperature": 1.0}}, "max_new_tokens"),
        ({"options": {"lora_path": "a"}}, "lora_path"),
        ({"options": {"logprob_start_len": 0}}, "logprob_start_len"),
        ({"media": {"video_data": ["clip"]}}, "video_data"),
    ],
)
def test_what_vllm_would_ignore_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    asks = {"sampling_params": {"max_new_tokens": 4}, "input_ids": [1, 2], **changes}
    with pytest.raises(ValueError, match=named):
        plan_requests("native", [SampleRequest(**asks)] * 2, dialect=VLLM)


@functools.cache
def recording() -> dict[str, dict[str, Any]]:
    """The recorded exchanges, for tests that take no fixtures."""
    lines = (Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu.exchanges.jsonl").read_text().splitlines()
    return {row["case"]: row for row in map(json.loads, lines)}


def planned_of(row: Mapping[str, Any], slots: int) -> PlannedRequest:
    return PlannedRequest(row["request"], {}, tuple(range(slots)))


def read(row: Mapping[str, Any], **options: Any) -> list[Any]:
    asked = asked_in(row["request"])
    return read_response(planned_of(row, len(asked)), row["response"], asked, **options)


def test_every_recorded_answer_is_read() -> None:
    unread = {"stream-n2", "stop-string", "weight-version-two-spans"}  # read in another way, or not at all
    cases = [
        case
        for case, row in recording().items()
        if row["url"] in (GENERATE, COMPLETIONS) and row["status"] == 200 and case not in unread
    ]
    for case in cases:
        outputs, choices = read(recording()[case]), recording()[case]["response"]["choices"]
        assert [output.output_ids for output in outputs] == [choice["token_ids"] for choice in choices]
        assert [output.finish_reason for output in outputs] == [choice["finish_reason"] for choice in choices]
        assert len({output.id for output in outputs}) == len(outputs)
    assert len(cases) == 31


def test_a_recorded_answer_is_read_field_by_field() -> None:
    (output,) = read(recording()["stop-token"])
    assert (output.output_ids, output.finish_reason, output.matched) == ([192, 207, 243], "stop", 243)
    assert output.logprobs == [-5.070248126983643, -5.891310691833496, -4.648226737976074]
    assert (output.prompt_tokens, output.cached_tokens, output.weight_version) == (11, 0, "default")
    assert (output.text, output.id) == (None, "generate-tokens-a36552a466624430-0")


def test_native_with_a_seed_is_what_single_requests_gave_for_the_seeds_after_it() -> None:
    native = read(recording()["native-n4-seed"])
    singles = [read(recording()[f"per-sample-seed-{slot}"])[0] for slot in range(4)]
    assert [(one.output_ids, one.logprobs) for one in native] == [(one.output_ids, one.logprobs) for one in singles]


def test_a_list_restarts_each_prompt_at_the_seed() -> None:
    outputs = read(recording()["completions-2-prompts-n2-seed"])
    native = read(recording()["native-n4-seed"])
    assert [one.output_ids for one in outputs[:2]] == [one.output_ids[:4] for one in native[:2]]
    assert [output.prompt_tokens for output in outputs] == [11, 11, 3, 3]


def test_the_cache_count_of_several_samples_is_that_of_one_and_is_not_taken() -> None:
    assert read(recording()["stale-cache-after-reload"])[0].cached_tokens == 256
    assert {output.cached_tokens for output in read(recording()["native-n8"])} == {None}


def test_a_version_that_changed_amid_a_sample_is_a_doubt() -> None:
    with pytest.raises(ResponseRefused, match="2 weight versions"):
        read(recording()["weight-version-two-spans"])
    doubts: list[str] = []
    outputs = read(recording()["weight-version-two-spans"], doubt=lambda name, message: doubts.append(name))
    assert ({output.weight_version for output in outputs}, set(doubts)) == ({"v2"}, {"mixed_weight_versions"})


def drop_a_choice(answer: dict[str, Any]) -> None:
    """vllm#52398: with n > 1, choices that ended in one step are left out."""
    del answer["choices"][2]


def first(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a choice is dropped": (drop_a_choice, "asked for 4 samples, got 3"),
    "one choice of four": (lambda a: a["choices"].__delitem__(slice(0, 3)), "asked for 4 samples, got 1"),
    "a choice twice": (lambda a: a["choices"].__setitem__(1, copy.deepcopy(first(a))), "indices"),
    "choices in another order": (lambda a: a["choices"].reverse(), r"indices list \[3, 2, 1, 0\]"),
    "an index is true": (lambda a: a["choices"][1].update(index=True), "indices"),
    "a choice too many": (lambda a: a["choices"].append({**first(a), "index": 4}), "got 5"),
    "no choices": (lambda a: a.pop("choices"), "choices"),
    "unknown finish reason": (lambda a: first(a).update(finish_reason="repetition"), "finish_reason"),
    "no token ids": (lambda a: first(a).pop("token_ids"), "token_ids"),
    "an id too many": (lambda a: first(a)["token_ids"].append(5), "13 token_ids"),
    "another id": (lambda a: first(a)["token_ids"].__setitem__(3, 5), "token 3 is 5"),
    "an id is text": (lambda a: first(a)["token_ids"].__setitem__(3, "5"), "token 3"),
    "no log-probs": (lambda a: first(a).update(logprobs=None), "log-probabilities were asked for"),
    "a log-prob is null": (lambda a: first(a)["logprobs"]["content"][2].update(logprob=None), "token 2"),
    "a log-prob is NaN": (lambda a: first(a)["logprobs"]["content"][2].update(logprob=float("nan")), "token 2"),
    "a log-prob stands for NaN": (lambda a: first(a)["logprobs"]["content"][2].update(logprob=-9999.0), "-9999"),
    "a log-prob is positive": (lambda a: first(a)["logprobs"]["content"][2].update(logprob=0.5), "token 2"),
    "a log-prob has no id": (lambda a: first(a)["logprobs"]["content"][2].pop("token_id"), "KeyError"),
    "usage counts others": (lambda a: a["usage"].update(completion_tokens=36), "36 completion_tokens"),
    "another prompt by its length": (lambda a: a["usage"].update(prompt_tokens=10), "11 tokens"),
    "another prompt by its ids": (lambda a: a.update(prompt_token_ids=[1] * 11), "another prompt"),
    "no prompt count": (lambda a: a["usage"].pop("prompt_tokens"), "prompt_tokens"),
    "spans with a gap": (lambda a: first(a)["weight_versions"][0].update(end=11), "cover"),
    "no id": (lambda a: a.pop("request_id"), "id"),
    "stop reason is a list": (lambda a: first(a).update(stop_reason=[1]), "stop_reason"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_with_a_fault_is_refused_by_name(fault: str) -> None:
    plant, named = FAULTS[fault]
    row = copy.deepcopy(recording()["native-n4-seed"])
    plant(row["response"])
    with pytest.raises(ResponseRefused, match=named):
        read(row)


def test_choices_of_other_prompts_are_found_in_a_list() -> None:
    """trl#6673: from a dropped choice on, each completion stands under the prompt before."""
    row = copy.deepcopy(recording()["completions-2-prompts-n2-seed"])
    choices = row["response"]["choices"]
    choices[1]["prompt_token_ids"] = choices[2]["prompt_token_ids"]
    with pytest.raises(ResponseRefused, match="slot 1: the choice is of another prompt"):
        read(row)


def test_ids_of_a_lists_log_probs_are_compared_where_the_server_names_them() -> None:
    row = copy.deepcopy(recording()["completions-2-prompts-n2-seed"])
    for choice in row["response"]["choices"]:
        choice["logprobs"]["tokens"] = [f"token_id:{token}" for token in choice["token_ids"]]
    assert len(read(row)) == 4
    row["response"]["choices"][3]["logprobs"]["tokens"][1] = "token_id:9"
    with pytest.raises(ResponseRefused, match="slot 3: token 1 is 119"):
        read(row)


def test_a_recording_keeps_the_digest_of_an_image() -> None:
    sent = recording()["image-n4"]["request"]
    kept = without_media(sent)
    assert kept["content_parts"][0]["url"].startswith("sha256:")
    assert without_media(kept) == kept
    assert sent["content_parts"][0]["url"].startswith("data:")


JUNK: list[Any] = [None, True, -1, 0, 1.5, "", "token_id:x", "abort", [], [1], {}, {"index": 0}, float("nan"), 2**70]


def places_in(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in an answer."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, child in children for place in places_in(child, (*path, key)))]


@settings(derandomize=True, max_examples=400, deadline=None)
@given(data=st.data(), case=st.sampled_from(["native-n4-seed", "completions-2-prompts-n2-seed", "image-n4"]))
def test_a_damaged_answer_is_refused_or_read_whole(data: st.DataObject, case: str) -> None:
    """Whatever stands in place of any value: as many outputs as asked for with a log-prob a token, or a refusal."""
    row = copy.deepcopy(recording()[case])
    path = data.draw(st.sampled_from(places_in(row["response"])[1:]))
    holder = row["response"]
    for key in path[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        del holder[path[-1]]
    else:
        holder[path[-1]] = data.draw(st.sampled_from(JUNK))
    try:
        outputs = read(row)
    except ResponseRefused:
        return
    assert len(outputs) == len(asked_in(row["request"]))
    for output in outputs:
        assert len(output.output_ids) == len(output.logprobs)
        assert all(type(token) is int and 0 <= token < 2**31 for token in output.output_ids)
        assert all(-9999 < value <= 1e-4 for value in output.logprobs)
        assert output.finish_reason in ("stop", "length", "abort")


# --- groups


class VllmEngine:
    """Answers as vLLM does: a sample is a function of its prompt and seed, and n takes the seeds from the first on."""

    max_num_seqs = 64

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.unseeded = random.Random(0)

    async def post(self, payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
        self.sent.append(payload)
        params = payload.get("sampling_params", payload)
        n, seed = params.get("n", 1), params.get("seed")
        if params.get("temperature") == 0 and n > 1:
            raise RequestFailed(400, {"error": {"message": f"n must be 1 when using greedy sampling, got {n}."}})
        if "token_ids" in payload and n > self.max_num_seqs:
            raise RequestFailed(400, {"error": {"message": f"sampling_params.n must be at most {self.max_num_seqs}"}})
        prompts = [payload["token_ids"]] if "token_ids" in payload else payload["prompt"]
        draws = [
            random.Random(f"{prompt}/{self.unseeded.random() if seed is None else seed + child}")
            for prompt in prompts
            for child in range(n)
        ]
        samples = [[draw.randrange(256) for _ in range(params["max_tokens"])] for draw in draws]
        usage = {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": sum(map(len, samples))}
        name, number = f"tokens-{len(self.sent)}", len(prompts) * n
        choices = [
            {"index": index, "finish_reason": "length", "stop_reason": None, "token_ids": samples[index]}
            for index in range(number)
        ]
        if "token_ids" in payload:
            for choice in choices:
                content = [{"token_id": token, "logprob": -token / 256} for token in choice["token_ids"]]
                choice["logprobs"] = {"content": content}
            return {"request_id": name, "usage": usage, "choices": choices}
        for choice in choices:
            ids = choice["token_ids"]
            tokens = {
                "tokens": [f"token_id:{token}" for token in ids],
                "token_logprobs": [-token / 256 for token in ids],
            }
            choice |= {"logprobs": tokens, "prompt_token_ids": prompts[choice["index"] // n]}
        return {"id": name, "usage": usage, "choices": choices}


@pytest.fixture
def vllm() -> VllmEngine:
    return VllmEngine()


async def ask(
    vllm: VllmEngine, adapter: Any, arm: str, seeds: list[int | None], **changes: Any
) -> tuple[list[SimpleNamespace], GroupReport]:
    asked = [
        {"max_new_tokens": 5, **changes.get("params", {}), **({} if seed is None else {"sampling_seed": seed})}
        for seed in seeds
    ]
    requests = [SampleRequest(params, input_ids=[1, 2, 3], options={"return_logprob": True}) for params in asked]
    samples = [SimpleNamespace(asks=request, tokens=[], logprobs=None, status="pending") for request in requests]
    given = {name: value for name, value in changes.items() if name != "params"}
    report = await generate_group(arm, samples, adapter=adapter, post=vllm.post, dialect=VLLM, **given)
    return samples, report


async def test_arms_with_seeds_give_the_same_samples(vllm: VllmEngine, adapter: Any) -> None:
    native, of_native = await ask(vllm, adapter, "native", [20, 21, 22, 23])
    single, of_single = await ask(vllm, adapter, "per-sample", [20, 21, 22, 23])
    assert [vars(one) for one in native] == [vars(one) for one in single]
    assert (of_native.requests, of_single.requests, of_native.reasons) == (1, 4, ())
    assert len({tuple(sample.tokens) for sample in native}) == 4


async def test_a_group_above_the_servers_n_goes_in_several_requests(vllm: VllmEngine, adapter: Any) -> None:
    vllm.max_num_seqs = 3
    able = Capabilities(seeded=True, seed_per_slot=True, free_clones=False, most_samples=3)
    native, report = await ask(vllm, adapter, "native", list(range(40, 48)), capabilities=able)
    single, _ = await ask(vllm, adapter, "per-sample", list(range(40, 48)))
    assert (report.arm_used, report.requests) == ("native", 3)
    assert [sample.tokens for sample in native] == [sample.tokens for sample in single]


async def test_a_group_that_the_server_refuses_is_asked_for_another_way(vllm: VllmEngine, adapter: Any) -> None:
    vllm.max_num_seqs = 3
    _, report = await ask(vllm, adapter, "native", [None] * 4)
    assert (report.arm_used, report.reasons) == ("batched", ("refused_native",))


@pytest.mark.parametrize(
    ("seeds", "params", "arm", "used", "reasons"),
    [
        ([None] * 3, {}, "native", "native", ()),
        ([None] * 3, {}, "batched", "batched", ()),
        ([None] * 3, {"temperature": 0}, "native", "batched", ("greedy_with_n",)),
        ([5, 6, 7], {}, "batched", "per-sample", ("list_restarts_seed", "sampling_params_lists_refused")),
        ([5, 5, 5], {}, "batched", "per-sample", ("list_restarts_seed",)),
        ([5, 7, 9], {}, "native", "per-sample", ("seeds_not_per_slot", "list_restarts_seed")),
        ([5, 6, 7], {"temperature": 0}, "native", "per-sample", ("greedy_with_n", "list_restarts_seed")),
    ],
)
async def test_each_group_goes_a_way_that_vllm_serves(
    vllm: VllmEngine, adapter: Any, seeds: list[int | None], params: dict[str, Any], arm: str, used: str,
    reasons: tuple[str, ...],
) -> None:  # fmt: skip
    _, report = await ask(vllm, adapter, arm, seeds, params=params)
    assert report.arm_used == used
    assert set(reasons) <= set(report.reasons)
    assert bool(reasons) is bool(report.reasons)


def test_each_rule_of_the_dialect_has_a_group_that_breaks_it_in_this_dialect_alone() -> None:
    seeded = [SampleRequest({"sampling_seed": 5}, input_ids=[1])] * 2
    greedy = [SampleRequest({"temperature": 0}, input_ids=[1])] * 2
    mixed = [SampleRequest({"temperature": one}, input_ids=[1]) for one in (0.5, 1.0)]
    images = [SampleRequest({}, input_ids=[1], media={"image_data": ["a"]})] * 2
    named = [SampleRequest({}, input_ids=[1], options={"rid": "a"})] * 2
    groups = {
        "list_restarts_seed": seeded,
        "greedy_with_n": greedy,
        "sampling_params_lists_refused": mixed,
        "media_lists_refused": images,
        "client_request_id": named,
    }
    assert groups.keys() == RULES.keys() <= CONDITIONS.keys()
    for name, group in groups.items():
        by_dialect = [name in conditions(group, one.capabilities, rules=one.rules) for one in (SGLANG, VLLM)]
        assert by_dialect == [name == "client_request_id", name != "client_request_id"], name


async def test_a_dropped_choice_leaves_every_sample_as_it_was(vllm: VllmEngine, adapter: Any) -> None:
    async def dropping(payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
        answer = await vllm.post(payload, headers)
        drop_a_choice(answer)
        return answer

    requests = [SampleRequest({"max_new_tokens": 5}, input_ids=[1, 2, 3]) for _ in range(4)]
    samples = [SimpleNamespace(asks=request, tokens=[], logprobs=None, status="pending") for request in requests]
    rows: list[dict[str, Any]] = []
    with pytest.raises(ResponseRefused, match="asked for 4 samples, got 3"):
        await generate_group("native", samples, adapter=adapter, post=dropping, dialect=VLLM, recorder=rows.append)
    assert [(sample.tokens, sample.status) for sample in samples] == [([], "pending")] * 4
    assert [(row["url"], row["status"], len(row["response"]["choices"])) for row in rows] == [(GENERATE, 200, 3)]


async def test_adjacent_placeholders_are_two_media_as_vllm_expands_each(vllm: VllmEngine, adapter: Any) -> None:
    asked = SampleRequest({"max_new_tokens": 5}, input_ids=[1, 9, 9, 2], media={"image_data": ["data:a"]})
    samples = [SimpleNamespace(asks=asked, tokens=[], logprobs=None, status="pending")]
    with pytest.raises(ValueError, match="2 placeholders for 1 media"):
        await generate_group("native", samples, adapter=adapter, post=vllm.post, dialect=VLLM, placeholders=[9])
