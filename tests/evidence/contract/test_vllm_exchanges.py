"""Exchanges in vLLM's dialect: recorded ones pass, and each fault is found by its check."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.contract_checks import Rules, check_exchanges, check_recording, samples_of
from parity.evidence.contract.requests import same_requests
from parity.findings import Status
from parity.records.exchanges import Exchange, output_ids, read_exchanges
from parity.records.samples import Rollout

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0-cpu.exchanges.jsonl"
ROWS = {row["case"]: row for row in map(json.loads, RECORDED.read_text().splitlines())}


def failed(*rows: dict[str, Any], rules: Rules = Rules()) -> dict[str, Any]:  # noqa: B008 (frozen)
    exchanges = [Exchange.from_json(row, "a row") for row in rows]
    return {finding.check: finding for finding in check_exchanges(exchanges, rules) if finding.status is Status.FAIL}


def test_a_recording_is_written_as_it_was_read() -> None:
    for exchange, row in zip(read_exchanges(RECORDED), ROWS.values(), strict=True):
        assert exchange.to_json() == row


# what these cases were recorded to show: a coerced n, a parameter that is dropped, two versions in one answer
ODD = {
    "n-string": {
        "exchange_response_shape",
        "exchange_output_count",
        "exchange_request_honoured",
        "exchange_usage_counts",
    },
    "unknown-sampling-key": {"exchange_request_honoured"},
    "weight-version-two-spans": {"exchange_one_weight_version"},
}


@pytest.mark.parametrize("case", ROWS)
def test_recorded_exchanges_pass_but_for_what_they_were_recorded_to_show(case: str) -> None:
    expected = ODD.get(case, set() if ROWS[case]["status"] == 200 else {"exchange_status"})
    assert failed(ROWS[case]).keys() == expected


def test_the_rules_have_something_to_check() -> None:
    findings = check_exchanges(read_exchanges(RECORDED), Rules())
    checked = {finding.check: finding.evidence["checked"] for finding in findings if "checked" in finding.evidence}
    for check in ("rollout_log_probs_length", "logprob_values", "finish_reason", "finish_length", "finish_stop"):
        assert checked[f"exchange_{check}"] >= 60, check
    assert checked["exchange_usage_counts"] >= 30


def test_answers_become_samples() -> None:
    (sample,) = samples_of([Exchange.from_json(ROWS["stop-token"], "")])
    assert (sample.output_ids, sample.finish_reason, sample.max_new_tokens) == ([192, 207, 243], "stop", 12)
    assert (sample.weight_versions, sample.prompt_tokens, sample.temperature) == (["default"], 11, 1.0)
    native = list(samples_of([Exchange.from_json(ROWS["native-n8"], "")]))
    assert [(one.group_index, one.index) for one in native] == [(0, slot) for slot in range(8)]


def first(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]


FAULTS: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], object]]] = {
    "vllm#52398, a choice is dropped": ("exchange_output_count", lambda q, a: a["choices"].pop(2)),
    "a choice twice": ("exchange_unique_ids", lambda q, a: a["choices"].__setitem__(1, copy.deepcopy(first(a)))),
    "choices in another order": ("exchange_output_order", lambda q, a: a["choices"].reverse()),
    "an id without its log-prob": ("exchange_rollout_log_probs_length", lambda q, a: first(a)["token_ids"].append(4)),
    "a log-prob of another id": (
        "exchange_rollout_log_probs_length",
        lambda q, a: first(a)["logprobs"]["content"][3].update(token_id=1),
    ),
    "a log-prob that stands for NaN": (
        "exchange_logprob_values",
        lambda q, a: first(a)["logprobs"]["content"][3].update(logprob=-9999.0),
    ),
    "no log-probs": ("exchange_logprobs_returned", lambda q, a: first(a).update(logprobs=None)),
    "usage of other tokens": ("exchange_usage_counts", lambda q, a: a["usage"].update(completion_tokens=47)),
    "usage counts the prompt for each": ("exchange_output_order", lambda q, a: a["usage"].update(prompt_tokens=44)),
    "another prompt": ("exchange_output_order", lambda q, a: a.update(prompt_token_ids=[1] * 11)),
    "a gap between spans": ("exchange_version_spans", lambda q, a: first(a)["weight_versions"][0].update(end=9)),
    "another version": (
        "exchange_one_weight_version",
        lambda q, a: first(a)["weight_versions"][0].update(version="v2"),
    ),
    "an unknown way to end": ("exchange_finish_reason", lambda q, a: first(a).update(finish_reason="repetition")),
    "length before the cap": ("exchange_finish_length", lambda q, a: q["sampling_params"].update(max_tokens=20)),
    "SGLang's name of the cap": (
        "exchange_request_honoured",
        lambda q, a: q["sampling_params"].update(max_new_tokens=12),
    ),
    "n beside the parameters": ("exchange_request_honoured", lambda q, a: q.update(n=4)),
    "a stop token that nobody asked for": (
        "exchange_finish_stop",
        lambda q, a: first(a).update(finish_reason="stop", stop_reason=9),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_check(fault: str) -> None:
    check, plant = FAULTS[fault]
    row = copy.deepcopy(ROWS["native-n4-seed"])
    assert failed(row) == {}
    plant(row["request"], row["response"])
    assert check in failed(row)


def test_completions_of_other_prompts_are_found() -> None:
    """trl#6673: a choice is dropped, and those after it slide to the prompts before."""
    row = copy.deepcopy(ROWS["completions-2-prompts-n2-seed"])
    choices = row["response"]["choices"]
    choices[0]["prompt_token_ids"] = choices[0]["prompt_token_ids"][::-1]
    assert failed(row)["exchange_output_order"].observed == [0]
    del choices[0]
    found = failed(row)
    assert found["exchange_output_count"].observed == 3
    assert "exchange_output_order" in found


def test_a_stream_is_read_as_the_answer_it_adds_up_to() -> None:
    exchange = Exchange.from_json(ROWS["stream-n2"], "")
    native = Exchange.from_json(ROWS["native-n4-seed"], "")
    assert [one["output_ids"] for one in exchange.outputs] == [one["output_ids"][:3] for one in native.outputs[:2]]
    cut = {**ROWS["stream-n2"], "response": ROWS["stream-n2"]["response"].replace('"index":1', '"index":0')}
    assert "exchange_output_count" in failed(cut)


def test_both_arms_ask_for_the_same_in_either_endpoint() -> None:
    """One request with n takes the seeds after the first; n requests name them; a list has none."""

    def asked(request: dict[str, Any]) -> Exchange:
        return Exchange(request, 200, None, rollout_id=0, group_index=0)

    params = {"max_tokens": 3, "temperature": 1.0, "logprobs": 0}
    native = asked({"token_ids": [1, 2], "sampling_params": {**params, "n": 2, "seed": 5}})
    singles = [asked({"token_ids": [1, 2], "sampling_params": {**params, "seed": seed}}) for seed in (5, 6)]
    assert same_requests(singles, [native]).failed == 0
    assert same_requests([singles[0]] * 2, [native]).failed == 1
    listed = asked({"prompt": [[1, 2], [1, 2]], **params, "return_token_ids": True})
    free = asked({"token_ids": [1, 2], "sampling_params": {**params, "n": 2}})
    assert same_requests([free], [listed]).failed == 0


def test_samples_and_exchanges_account_for_each_other() -> None:
    rows = [{**ROWS[case], "rollout_id": 0, "group_index": at, "arm": "native"} for at, case in enumerate(
        ["native-n8", "native-n4-seed"]
    )]  # fmt: skip
    exchanges = [Exchange.from_json(row, "") for row in rows]
    samples = list(samples_of(exchanges))

    def failing() -> set[str]:
        findings = check_recording([Rollout.from_samples(samples)], exchanges, Rules())
        return {finding.check for finding in findings if finding.status is Status.FAIL}

    assert failing() == set()
    samples[9].output_ids, samples[10].output_ids = samples[10].output_ids, samples[9].output_ids
    assert "samples_received" in failing()


def test_outputs_are_named_in_either_dialect() -> None:
    native = ROWS["native-n4-seed"]["response"]
    assert output_ids(native) == [f"{native['request_id']}-{index}" for index in range(4)]
    assert output_ids([{"meta_info": {"id": "a"}}, {"meta_info": {}}]) == ["a"]
    assert output_ids({"error": {}}) == []


@pytest.mark.parametrize(
    "response",
    [None, "no", [], {"choices": None}, {"choices": [None]}, {"choices": [{"index": [], "token_ids": {}}], "usage": 3},
     {"choices": [{"index": 0, "logprobs": {"tokens": [["a"]], "token_logprobs": [None, 1]}, "weight_versions": "x"}]}],
)  # fmt: skip
@pytest.mark.parametrize(
    "request_",
    [
        *(ROWS[case]["request"] for case in ("single", "completions-2-prompts-n2-seed", "stream-n2")),
        {"prompt": None},
        {"token_ids": {}, "sampling_params": []},
    ],
)
def test_nonsense_becomes_findings_and_no_exception(request_: dict[str, Any], response: Any) -> None:
    assert failed({"request": request_, "status": 200, "response": response})


JUNK: list[Any] = [None, True, -1, 1.5, 10**25, "", "token_id:x", [], [None], {}, {"a": 1}, "\ud800"]


def places_in(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value below a node."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, child in children for place in places_in(child, (*path, key)))]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    data=st.data(), case=st.sampled_from(["native-n4-seed", "completions-2-prompts-n2-seed", "image-n4", "stop-string"])
)
def test_damaged_exchanges_become_findings_and_no_exception(data: st.DataObject, case: str) -> None:
    """Whatever stands in place of any value of a request or an answer."""
    row = {name: copy.deepcopy(ROWS[case][name]) for name in ("request", "response", "status")}
    path = data.draw(
        st.sampled_from([*places_in(row["request"], ("request",)), *places_in(row["response"], ("response",))])
    )
    holder: Any = row
    for key in path[:-1]:
        holder = holder[key]
    junk = data.draw(st.sampled_from(JUNK))
    if path == ("request",) and not isinstance(junk, dict):
        return
    holder[path[-1]] = junk
    exchanges = [Exchange.from_json({**row, "rollout_id": 0, "group_index": 0}, "a row")]
    assert exchanges[0].to_json()["response"] == row["response"]
    list(samples_of(exchanges))
    check_recording([], exchanges, Rules())
