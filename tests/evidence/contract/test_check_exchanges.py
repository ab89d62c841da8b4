"""Rules over exchanges: recorded answers of the real engine keep them, and each planted change is found."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.contract_checks import Rules, check_exchanges
from parity.findings import Finding, Status
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import Sample

Build = Callable[..., list[Sample]]
Record = Callable[[Sequence[Sample]], list[Exchange]]

DATA = Path(__file__).parents[2] / "data"
TEXT = DATA / "sglang-0.5.23-cpu.exchanges.jsonl"
IMAGES = DATA / "sglang-0.5.23-cpu-qwen2.5-vl.exchanges.jsonl"
SHAPES = DATA / "sglang-0.5.23-cpu-qwen2.5-vl-shapes.exchanges.jsonl"

DEVIATIONS = {
    "n-0": {"exchange_output_count", "exchange_request_honoured"},
    "n-minus-1": {"exchange_output_count", "exchange_request_honoured"},
    "unknown-top-level-key": {"exchange_request_honoured"},
    "extra-image": {"exchange_request_honoured"},
    "placeholder-without-image": {"exchange_request_honoured"},
    "list-of-none": {"exchange_request_honoured"},
    "no-placeholder": {"exchange_request_honoured"},
    "no-placeholder-broken": {"exchange_request_honoured"},
    "extra-broken": {"exchange_request_honoured"},
}
"""Recorded cases in which the engine says 200 and does something else than it was asked."""


def failed_checks(exchanges: Sequence[Exchange], rules: Rules) -> dict[str, Finding]:
    findings = check_exchanges(exchanges, rules)
    return {finding.check: finding for finding in findings if finding.status is Status.FAIL}


@pytest.mark.parametrize("path", [TEXT, IMAGES, SHAPES])
def test_recorded_answers_keep_every_rule_but_where_the_engine_deviates(path: Path) -> None:
    rules = Rules(media_placeholders=frozenset({"<|image_pad|>", 262}))
    for exchange in read_exchanges(path):
        case = exchange.extra["case"]
        wanted = {"exchange_status"} if exchange.status != 200 else DEVIATIONS.get(case, set())
        assert set(failed_checks([exchange], rules)) == wanted, case


def test_a_whole_recording_has_unique_ids_and_is_counted() -> None:
    exchanges = list(read_exchanges(TEXT))
    findings = {finding.check: finding for finding in check_exchanges(exchanges, Rules())}
    assert findings["exchange_unique_ids"].status is Status.PASS
    assert findings["exchange_status"].evidence["failed"] == sum(exchange.status != 200 for exchange in exchanges)
    twice = failed_checks([exchanges[1], exchanges[1]], Rules())
    assert set(twice) == {"exchange_unique_ids"}


def recorded(case: str, path: Path = TEXT) -> Exchange:
    return copy.deepcopy(next(item for item in read_exchanges(path) if item.extra["case"] == case))


def meta(exchange: Exchange, slot: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = exchange.outputs[slot]["meta_info"]
    return found


def in_meta(name: str, value: Any) -> Callable[[Exchange], None]:
    return lambda exchange: meta(exchange).update({name: value})


def triple(place: int, part: int, value: Any) -> Callable[[Exchange], None]:
    def plant(exchange: Exchange) -> None:
        meta(exchange)["output_token_logprobs"][place][part] = value

    return plant


def shift_logprobs(exchange: Exchange) -> None:
    triples = meta(exchange)["output_token_logprobs"]
    triples[:] = [[triples[0][0], triples[0][1], None], *triples[:-1]]


def drop_id(exchange: Exchange) -> None:
    exchange.outputs[1]["output_ids"].pop()


def same_ids(exchange: Exchange) -> None:
    meta(exchange)["id"] = meta(exchange, 0)["id"]


def asked(**params: Any) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.request["sampling_params"].update(params)


def finish(**reason: Any) -> Callable[[Exchange], None]:
    return in_meta("finish_reason", reason)


def spans(start: int, version: str) -> Callable[[Exchange], None]:
    return in_meta("weight_versions", [{"version": version, "start": start, "end": 12}])


def sample_major(exchange: Exchange) -> None:
    exchange.response[:] = [exchange.response[k] for k in (0, 3, 1, 4, 2, 5)]


def stop_inside(exchange: Exchange) -> None:
    exchange.outputs[2]["output_ids"][0] = 5


def no_tokens(exchange: Exchange) -> None:
    exchange.outputs[1]["output_ids"] = []
    meta(exchange).update(output_token_logprobs=[], completion_tokens=0)


PLANTED: list[tuple[str, str, str, Callable[[Exchange], None]]] = [
    ("native-n8", "output_count", "one of n missing", lambda e: e.response.pop()),
    ("native-n8", "output_count", "one of n twice", lambda e: e.response.append(copy.deepcopy(e.response[0]))),
    ("native-n8", "unique_ids", "one id for two", same_ids),
    ("native-n8", "response_shape", "no meta_info", lambda e: e.response[1].pop("meta_info")),
    ("native-n8", "response_shape", "a bare string", lambda e: e.response.__setitem__(1, "text")),
    ("batched-distinct-3", "output_order", "order of finishing", lambda e: e.response.reverse()),
    ("batched-2x-native-3", "output_order", "sample-major", sample_major),
    ("native-n8", "output_order", "a prompt encoded anew", in_meta("prompt_tokens", 10)),
    ("native-n8", "one_weight_version", "an update in between", spans(0, "v2")),
    ("native-n8", "version_spans", "spans with a gap", spans(1, "default")),
    ("native-n8", "logprobs_returned", "log-probs stripped", in_meta("output_token_logprobs", None)),
    ("native-n8", "rollout_log_probs_length", "shifted by one", shift_logprobs),
    ("native-n8", "rollout_log_probs_length", "an id cut", drop_id),
    ("native-n8", "rollout_log_probs_length", "another count", in_meta("completion_tokens", 11)),
    ("native-n8", "rollout_log_probs_length", "another id", triple(3, 1, 0)),
    ("native-n8", "logprob_values", "null", triple(3, 0, None)),
    ("native-n8", "logprob_values", "NaN", triple(3, 0, float("nan"))),
    ("native-n8", "logprob_values", "positive", triple(3, 0, 0.1)),
    ("native-n8", "logprob_values", "a sentinel", triple(3, 0, -9999.0)),
    ("native-n8", "finish_reason", "null at the end", in_meta("finish_reason", None)),
    ("native-n8", "finish_reason", "an unknown type", finish(type="eos")),
    ("native-n8", "finish_length", "length below the cap", asked(max_new_tokens=13)),
    ("native-n8", "finish_length", "above the cap", asked(max_new_tokens=11)),
    ("native-n8", "finish_stop", "stop on a token that is not last", finish(type="stop", matched=1)),
    ("native-n8", "finish_stop", "stop on nothing", finish(type="stop")),
    ("native-n8", "finish_stop", "a stop string never asked for", finish(type="stop", matched="x")),
    ("native-stop-token", "finish_stop", "tokens after a stop token", stop_inside),
    ("abort-running-n4", "abort_shape", "no message", finish(type="abort")),
    ("native-n8", "empty_output", "no tokens", no_tokens),
    ("native-n8", "cached_tokens", "more than the prompt", in_meta("cached_tokens", 12)),
    ("native-prompt-logprobs", "prompt_logprobs", "one dropped", lambda e: meta(e)["input_token_logprobs"].pop()),
]


@pytest.mark.parametrize(("case", "check", "what", "plant"), PLANTED, ids=[f"{c}: {w}" for _, c, w, _ in PLANTED])
def test_a_changed_answer_is_found(case: str, check: str, what: str, plant: Callable[[Exchange], None]) -> None:
    exchange = recorded(case)
    assert failed_checks([exchange], Rules()) == {}
    plant(exchange)
    failed = failed_checks([exchange], Rules())
    assert f"exchange_{check}" in failed
    assert failed[f"exchange_{check}"].expected != failed[f"exchange_{check}"].observed


def test_a_list_for_one_prompt_and_an_object_for_n_samples_are_found() -> None:
    """A router answered n = 2 by one object."""
    single = recorded("single")
    wrapped = replace(single, response=[single.response])
    assert set(failed_checks([wrapped], Rules())) == {"exchange_response_shape"}
    bare = replace(recorded("native-n2-fresh-prompt"), response={"text": "x", "meta_info": {}})
    assert {"exchange_response_shape", "exchange_output_count"} <= set(failed_checks([bare], Rules()))


def test_the_place_of_a_misaligned_log_prob_is_named() -> None:
    exchange = replace(recorded("native-n8"), rollout_id=3, group_index=5)
    wanted = exchange.outputs[1]["output_ids"][4]
    triple(4, 1, 0)(exchange)
    finding = failed_checks([exchange], Rules())["exchange_rollout_log_probs_length"]
    assert (finding.where.rollout_id, finding.where.group_index, finding.where.index) == (3, 5, 1)
    assert (finding.expected, finding.observed) == (wanted, 0)
    assert "4" in finding.message, "the token's place"


def test_an_early_end_token_of_the_model_is_found_when_it_is_known() -> None:
    exchange = recorded("native-n8")
    exchange.outputs[0]["output_ids"][3] = 299
    meta(exchange, 0)["output_token_logprobs"][3][1] = 299
    assert failed_checks([exchange], Rules()) == {}
    assert set(failed_checks([exchange], Rules(stop_token_ids=frozenset({299})))) == {"exchange_finish_stop"}
    exchange.request["sampling_params"]["ignore_eos"] = True
    assert failed_checks([exchange], Rules(stop_token_ids=frozenset({299}))) == {}


def test_the_trainers_weight_version_is_demanded(
    valid_samples: Callable[..., list[Sample]], valid_exchanges: Callable[[Sequence[Sample]], list[Exchange]]
) -> None:
    exchanges = valid_exchanges(valid_samples(steps=2, groups=2))
    assert failed_checks(exchanges, Rules(weight_versions={0: "v0", 1: "v1"})) == {}
    stale = failed_checks(exchanges, Rules(weight_versions={0: "v0", 1: "v2"}))
    assert set(stale) == {"exchange_one_weight_version"}
    assert stale["exchange_one_weight_version"].where.rollout_id == 1


@pytest.mark.parametrize("arm", ["native", "batched", "per-sample"])
def test_answers_of_every_arm_keep_the_rules(
    arm: str,
    valid_samples: Callable[..., list[Sample]],
    valid_exchanges: Callable[[Sequence[Sample]], list[Exchange]],
    rules: Rules,
) -> None:
    exchanges = valid_exchanges(valid_samples(steps=2, arm=arm))
    assert len(exchanges) == {"native": 8, "batched": 8, "per-sample": 32}[arm]
    assert failed_checks(exchanges, rules) == {}


def test_without_exchanges_nothing_passes() -> None:
    assert {finding.status for finding in check_exchanges([], Rules())} == {Status.NOT_COMPARED}


def test_alternatives_that_were_asked_for_are_there_token_by_token() -> None:
    exchange = recorded("native-top-logprobs")
    wanted = exchange.request["top_logprobs_num"]
    assert failed_checks([exchange], Rules()) == {}
    top = meta(exchange)["output_top_logprobs"]
    for broken in (None, top[:-1], [*top[:-1], top[-1][: wanted - 1]]):
        meta(exchange)["output_top_logprobs"] = broken
        assert set(failed_checks([exchange], Rules())) == {"exchange_top_logprobs"}


def test_alternatives_of_the_prompt_are_there_from_where_they_were_asked() -> None:
    prompt, pair = [5, 6, 7], [[-1.0, 5, None], [-2.0, 6, None]]
    request = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 1,
    }
    meta_info: dict[str, Any] = {
        "id": "a",
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "output_token_logprobs": [[-1.0, 5, None]],
        "output_top_logprobs": [pair],
        "input_top_logprobs": [None, pair],
    }
    response = {"text": "x", "output_ids": [5], "meta_info": meta_info}
    assert failed_checks([Exchange(request, 200, response)], Rules()) == {}
    meta_info["input_top_logprobs"] = [pair]
    finding = failed_checks([Exchange(request, 200, response)], Rules())["exchange_top_logprobs"]
    assert (finding.where.field, finding.expected, finding.observed) == ("input_top_logprobs", [2, 2], [1, 0])


def test_the_third_of_a_triple_is_a_text_or_null(valid_samples: Build, valid_exchanges: Record) -> None:
    for third, wanted in ((None, set()), ("x", set()), ([[-1.0, 5]], {"exchange_logprobs_returned"}), (7, None)):
        exchanges = valid_exchanges(valid_samples(groups=1))
        exchanges[0].response[1]["meta_info"]["output_token_logprobs"][0][2] = third
        assert set(failed_checks(exchanges, Rules())) == ({"exchange_logprobs_returned"} if wanted is None else wanted)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sampling_params": [{"max_new_tokens": 40}]}, "sampling_params"),
        ({"rid": ["a", "b"]}, "rid"),
        ({"return_logprob": [True]}, "return_logprob"),
        ({"image_data": ["a"]}, "image_data"),
    ],
)
def test_lists_of_a_batch_have_one_entry_a_prompt(changes: dict[str, Any], field: str) -> None:
    exchange = recorded("batched-distinct-3")
    assert failed_checks([exchange], Rules()) == {}
    prompts = len(exchange.request["input_ids"] if "input_ids" in exchange.request else exchange.request["text"])
    finding = failed_checks([replace(exchange, request={**exchange.request, **changes})], Rules())[
        "exchange_request_lists"
    ]
    assert (finding.where.field, finding.expected, finding.observed) == (field, prompts, len(changes[field]))


def test_log_probs_without_ids_are_not_compared_in_length() -> None:
    exchange = recorded("native-n8")
    del exchange.outputs[2]["output_ids"]
    findings = {f.check: f for f in check_exchanges([exchange], Rules())}
    length = findings["exchange_rollout_log_probs_length"]
    assert (length.status, length.evidence["checked"], length.evidence["not_compared"]) == (Status.NOT_COMPARED, 7, 1)


def test_a_failed_request_is_named_by_its_case_and_status() -> None:
    failed = recorded("too-long")
    finding = failed_checks([recorded("single"), failed], Rules())["exchange_status"]
    assert (finding.expected, finding.observed) == (200, 400)
    assert "too-long" in finding.message and "400" in finding.message
    plain = failed_checks([replace(failed, extra={})], Rules())["exchange_status"]
    assert "too-long" not in plain.message and "400" in plain.message


def test_one_alternative_a_token_is_asked_for_too() -> None:
    exchange = recorded("native-top-logprobs")
    exchange.request["top_logprobs_num"] = 1
    assert set(failed_checks([exchange], Rules())) == {"exchange_top_logprobs"}
    exchange.request["top_logprobs_num"] = 0
    assert failed_checks([exchange], Rules()) == {}


@pytest.mark.parametrize(
    ("media", "wanted"), [([["a"], []], [1, 0]), ([["a"]], [1, 0]), (["a", None], [1, 0]), ([["a"], ["b"]], [1, 1])]
)
def test_media_of_a_batch_are_counted_prompt_by_prompt(media: Any, wanted: list[int]) -> None:
    prompts = [[5, *[7] * count] for count in (1, 0)]
    request = {"input_ids": prompts, "sampling_params": {}, "image_data": media}
    found = failed_checks([Exchange(request, 200, [{}, {}])], Rules(media_placeholders=frozenset({7})))
    assert ("exchange_request_honoured" in found) is (wanted != [1, 0])


def test_prompt_tokens_are_held_to_the_ids_and_the_tokens_of_images() -> None:
    rules = Rules(media_placeholders=frozenset({262}))
    exchange = recorded("image-input-ids-native", IMAGES)
    assert failed_checks([exchange], rules) == {}
    meta(exchange)["prompt_tokens"] += 1
    assert set(failed_checks([exchange], rules)) == {"exchange_output_order"}
    assert failed_checks([exchange], Rules()) == {}  # what stands for an image is not known
    del meta(exchange)["image_tokens"]
    assert failed_checks([exchange], rules) == {}


def test_a_count_is_held_to_the_ids_without_log_probs() -> None:
    exchange = recorded("native-no-logprob")
    assert failed_checks([exchange], Rules()) == {}
    meta(exchange)["completion_tokens"] += 1
    assert set(failed_checks([exchange], Rules())) == {"exchange_rollout_log_probs_length"}
    del meta(exchange)["completion_tokens"]
    assert failed_checks([exchange], Rules()) == {}


@pytest.mark.parametrize("place", [-2, -3])
def test_a_stop_token_before_the_last_place_is_found(place: int) -> None:
    exchange = recorded("native-n8")
    exchange.outputs[0]["output_ids"][place] = 299
    meta(exchange, 0)["output_token_logprobs"][place][1] = 299
    finding = failed_checks([exchange], Rules(stop_token_ids=frozenset({299})))["exchange_finish_stop"]
    assert finding.observed == -place - 1


def test_the_context_cuts_the_cap_by_the_prompt() -> None:
    exchange = recorded("native-n8")
    prompt, tokens = len(exchange.request["input_ids"]), len(exchange.outputs[0]["output_ids"])
    exchange.request["sampling_params"]["max_new_tokens"] = 10 * tokens
    assert failed_checks([exchange], Rules(context_length=prompt + tokens)) == {}
    for context in (prompt + tokens - 1, prompt + tokens + 1):
        assert set(failed_checks([exchange], Rules(context_length=context))) == {"exchange_finish_length"}


def test_a_prompt_log_prob_without_an_id_is_of_another_id() -> None:
    exchange = recorded("native-prompt-logprobs")
    meta(exchange)["input_token_logprobs"][2] = [-1.0]
    assert "exchange_prompt_logprobs" in failed_checks([exchange], Rules())
