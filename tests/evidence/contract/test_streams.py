"""A streamed answer is checked as the answer that it ends with, and must not take back what it showed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.contract_checks import Rules, check_accounting, check_exchanges, samples_of
from parity.findings import Status
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import Rollout

RECORDED = {
    exchange.extra["case"]: exchange
    for exchange in read_exchanges(Path(__file__).parents[2] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl")
}


def streamed(case: str, parts: int = 3) -> Exchange:
    """A recorded answer as SGLang streams it: cumulative views, an index where there are several, and the end."""
    whole = copy.deepcopy(RECORDED[case])
    views: list[Any] = []
    for part in range(1, parts + 1):
        for index, body in enumerate(whole.outputs):
            view = copy.deepcopy(body) | ({"index": index} if isinstance(whole.response, list) else {})
            meta, kept = view["meta_info"], len(body["output_ids"]) * part // parts
            view["output_ids"] = body["output_ids"][:kept]
            meta["output_token_logprobs"] = meta["output_token_logprobs"][:kept]
            meta["completion_tokens"] = kept
            meta["finish_reason"] = meta["finish_reason"] if part == parts else None
            views.append(view)
    return replace(whole, request={**whole.request, "stream": True}, response=[*views, "[DONE]"])


def failing(*exchanges: Exchange) -> dict[str, Any]:
    findings = check_exchanges(exchanges, Rules())
    return {finding.check: finding.observed for finding in findings if finding.status is Status.FAIL}


@pytest.mark.parametrize("case", ["single", "native-n8", "batched-distinct-3", "native-n1"])
def test_a_stream_passes_as_its_last_view_does(case: str) -> None:
    (views,) = (
        finding for finding in check_exchanges([streamed(case)], Rules()) if finding.check == "exchange_views_grow"
    )
    assert (views.status, views.evidence["checked"]) == (Status.PASS, 1)
    assert failing(streamed(case)) == {}


def test_a_stream_has_the_samples_of_the_answer_it_ends_with() -> None:
    placed = [replace(item, group_index=0) for item in (streamed("native-n8"), RECORDED["native-n8"])]
    first, second = (list(samples_of([exchange])) for exchange in placed)
    assert first == second
    findings = check_accounting(Rollout.from_samples(first), [placed[0]])
    assert {finding.check for finding in findings if finding.status is Status.FAIL} == set()


def other(event: dict[str, Any]) -> None:
    event["output_ids"][0] += 1


def count_less(event: dict[str, Any]) -> None:
    event["meta_info"]["completion_tokens"] = 1


@pytest.mark.parametrize(
    ("change", "also"),
    [
        (lambda event: event["output_ids"].clear(), set()),
        (other, {"exchange_rollout_log_probs_length"}),
        (count_less, {"exchange_rollout_log_probs_length"}),
    ],
)
@pytest.mark.parametrize("view", [1, 2])
def test_a_view_that_takes_something_back_is_found(
    view: int, change: Callable[[dict[str, Any]], None], also: set[str]
) -> None:
    exchange = streamed("native-n8")
    change(exchange.response[8 * view + 5])
    failed = failing(exchange)
    assert "exchange_views_grow" in failed
    if view == 1:  # what the last view lacks is another rule's
        assert set(failed) == {"exchange_views_grow"}
    else:
        assert set(failed) >= also


def test_a_view_may_come_twice() -> None:
    exchange = streamed("native-n8")
    exchange.response[8:8] = copy.deepcopy(exchange.response[:8])
    assert failing(exchange) == {}


def test_an_output_of_a_stream_without_an_end_or_without_a_view_is_found() -> None:
    exchange = streamed("native-n8")
    exchange.response[-2]["meta_info"]["finish_reason"] = None
    assert set(failing(exchange)) == {"exchange_finish_reason"}
    lost = streamed("native-n8")
    lost.response[:] = [event for event in lost.response if event == "[DONE]" or event["index"] != 3]
    assert set(failing(lost)) == {"exchange_output_count", "exchange_output_order"}
    assert set(failing(replace(lost, response=["[DONE]"]))) == {"exchange_output_count"}


def test_one_output_of_several_is_a_list_of_one_and_two_for_one_request_are_a_list() -> None:
    for case in ("native-n2-fresh-prompt", "native-n8"):
        alone = streamed(case)
        alone.response[:] = [event for event in alone.response if event == "[DONE]" or event["index"] == 0]
        assert set(failing(alone)) == {"exchange_output_count"}
    double = streamed("single")
    double.response[:-1] = [event | {"index": index} for event in double.response[:-1] for index in (0, 1)]
    assert {"exchange_response_shape", "exchange_output_count"} <= set(failing(double))


def test_what_is_no_stream_is_not_taken_for_one() -> None:
    (views,) = (
        finding
        for finding in check_exchanges([RECORDED["native-n8"]], Rules())
        if finding.check == "exchange_views_grow"
    )
    assert views.status is Status.NOT_COMPARED
