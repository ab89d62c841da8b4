"""Recorded answers as samples: grouped as they were asked for, and held to the rules over groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from parity.contract_checks import Rules, check_samples, samples_of
from parity.findings import Status
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import Rollout, Sample

RECORDED = Path(__file__).parents[2] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"


def recorded(*cases: str) -> list[Exchange]:
    return [exchange for exchange in read_exchanges(RECORDED) if exchange.extra["case"] in cases]


def failing(samples: Sequence[Sample]) -> set[str]:
    findings = check_samples(Rollout.from_samples(samples), Rules())
    return {finding.check for finding in findings if finding.status is Status.FAIL}


@pytest.mark.parametrize(
    ("case", "sizes"),
    [("native-n8", [8]), ("batched-8", [8]), ("batched-distinct-3", [1, 1, 1]), ("batched-2x-native-3", [3, 3])],
)
def test_a_request_for_one_prompt_is_a_group(case: str, sizes: list[int]) -> None:
    samples = list(samples_of(recorded(case)))
    assert list(Counter(sample.group_index for sample in samples).values()) == sizes
    assert failing(samples) == set()


def test_recorded_groups_keep_the_rules_and_greedy_copies_are_no_clones() -> None:
    assert failing(list(samples_of(recorded("native-greedy", "native-stop-token", "abort-running-n4")))) == set()


def test_copies_in_a_recorded_group_are_clones() -> None:
    exchange = recorded("native-n8")[0]
    exchange.response[5] = exchange.response[2]
    assert failing(list(samples_of([exchange]))) == {"clones"}


@pytest.mark.parametrize("arm", ["native", "batched", "per-sample"])
def test_stated_groups_come_back_whole(
    arm: str,
    valid_samples: Callable[..., list[Sample]],
    valid_exchanges: Callable[[Sequence[Sample]], list[Exchange]],
) -> None:
    samples = valid_samples(steps=2, arm=arm)
    again = list(samples_of(valid_exchanges(samples)))
    names = ("rollout_id", "group_index", "index", "prompt_ids", "output_ids", "logprobs", "finish_reason", "arm")
    for ours, theirs in zip(samples, again, strict=True):
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
