"""Watched sampling: faults found under their own name within their groups, controls that pass, error rates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from parity.errors import InputError, UsageError
from parity.evidence.sampling.sequential import ENOUGH
from parity.evidence.sampling.watched import Evidence, sampling_findings
from parity.findings import Finding, Status
from parity.records.samples import Rollout

SIZE, BLOCK = 8, 32
WIDE = {"reward": 0.1, "response_length": 0.1, "negative_log_likelihood": 0.1, "truncated": 0.1}


@dataclass
class Draw:
    """What one arm drew in a block: rewards and likelihoods (G, 8), and token ids (G, 8, 3)."""

    rng: np.random.Generator
    rewards: np.ndarray
    likelihoods: np.ndarray
    ids: np.ndarray
    levels: np.ndarray

    def copy_slot(self, groups: np.ndarray, source: int, target: int) -> None:
        for values in (self.rewards, self.likelihoods, self.ids):
            values[groups, target] = values[groups, source]

    def rollout(self, start: int) -> Rollout:
        groups, size = self.rewards.shape
        rows = groups * size
        offsets = np.arange(0, 3 * rows + 1, 3, dtype=np.int32)
        columns = {
            "rollout_id": np.zeros(rows, np.int64),
            "group_index": np.repeat(np.arange(start, start + groups), size),
            "index": np.tile(np.arange(size), groups),
            "output_ids": pa.ListArray.from_arrays(offsets, pa.array(self.ids.ravel())),
            "logprobs": pa.ListArray.from_arrays(offsets, pa.array(-np.repeat(self.likelihoods.ravel(), 3))),
            "finish_reason": ["stop"] * rows,
            "reward": self.rewards.ravel(),
        }
        return Rollout.from_table(pa.table(columns), "draw")


def draw(rng: np.random.Generator, chances: np.ndarray, levels: np.ndarray) -> Draw:
    groups = len(chances)
    rewards = (rng.random((groups, SIZE)) < chances[:, None]) * 1.0
    likelihoods = levels[:, None] + rng.normal(0, 0.05, (groups, SIZE))
    return Draw(rng, rewards, likelihoods, rng.integers(0, 1 << 20, (groups, SIZE, 3)), levels)


def nothing(_: Draw) -> None:
    """The control."""


def watched(
    change: Callable[[Draw], object] = nothing,
    groups: int = 512,
    seed: int = 0,
    margins: dict[str, float] = WIDE,
    both: Callable[[Draw], object] = nothing,
    until: Callable[[set[Status]], bool] = lambda statuses: Status.FAIL in statuses or statuses == {Status.PASS},
) -> tuple[int, dict[tuple[str, str | None], Finding]]:
    """Groups until something fails or everything passes, and the findings then."""
    rng = np.random.default_rng(seed)
    evidence = Evidence.start(margins)
    found: dict[tuple[str, str | None], Finding] = {}
    for start in range(0, groups, BLOCK):
        chances, levels = rng.beta(0.6, 0.6, BLOCK), rng.normal(0.5, 0.1, BLOCK)
        baseline, experiment = draw(rng, chances, levels), draw(rng, chances, levels)
        for arm in (baseline, experiment):
            both(arm)
        change(experiment)
        evidence = evidence.update(baseline.rollout(start), experiment.rollout(start), rng)
        found = {(one.check, one.where.field): one for one in evidence.findings()}
        statuses = {one.status for one in found.values()} - {Status.NOT_COMPARED}
        if until(statuses):
            break
    return evidence.groups, found


def failed(found: dict[tuple[str, str | None], Finding]) -> set[tuple[str, str | None]]:
    return {name for name, finding in found.items() if finding.status is Status.FAIL}


def test_equal_arms_are_at_parity_as_soon_as_there_are_enough_groups() -> None:
    groups, found = watched()
    assert groups <= 320
    assert {one.status for one in found.values()} == {Status.PASS}
    json.dumps([one.to_json() for one in found.values()], allow_nan=False)


def clone_all(drawn: Draw) -> None:
    for slot in range(1, SIZE):
        drawn.copy_slot(np.arange(BLOCK), 0, slot)


def clone_half(drawn: Draw) -> None:
    for slot in range(1, SIZE // 2):
        drawn.copy_slot(np.arange(BLOCK), 0, slot)


def clone_a_pair(drawn: Draw) -> None:
    drawn.copy_slot(np.arange(BLOCK), 2, 5)


def clone_a_pair_in_a_tenth(drawn: Draw) -> None:
    drawn.copy_slot(np.flatnonzero(drawn.rng.random(BLOCK) < 0.1), 2, 5)


@pytest.mark.parametrize(
    ("clones", "most"), [(clone_all, 32), (clone_half, 32), (clone_a_pair, 32), (clone_a_pair_in_a_tenth, 160)]
)
def test_clones_are_found_as_dependence_within_their_groups_and_are_no_shift(
    clones: Callable[[Draw], object], most: int
) -> None:
    for seed in range(3):
        groups, found = watched(clones, seed=seed)
        assert groups <= most
        assert {check for check, _ in failed(found)} <= {"sampling_independence", "sampling_spread", "sampling_shape"}
        assert "sampling_independence" in {check for check, _ in failed(found)}


def test_a_temperature_that_was_dropped_is_a_shift_of_likelihood_within_128_groups() -> None:
    def sharpen(drawn: Draw) -> None:
        drawn.likelihoods *= 0.95

    groups, found = watched(sharpen, margins={**WIDE, "negative_log_likelihood": 0.01})
    assert groups <= 128
    assert failed(found) == {("sampling_marginal", "negative_log_likelihood")}


def test_a_greedy_slot_is_found_as_a_slot() -> None:
    def be_greedy(drawn: Draw) -> None:
        drawn.likelihoods[:, 0] = 0.4 * drawn.likelihoods[:, 0]

    groups, found = watched(be_greedy)
    assert groups <= 64
    assert ("sampling_slot", "negative_log_likelihood") in failed(found)
    assert {metric for _, metric in failed(found)} == {"negative_log_likelihood"}


def test_a_slot_whose_reward_is_a_tenth_higher_is_found_within_1024_groups() -> None:
    def favour(drawn: Draw) -> None:
        drawn.rewards[:, 0] = np.maximum(drawn.rewards[:, 0], drawn.rng.random(BLOCK) < 0.25)

    _, found = watched(favour, groups=1024, until=lambda statuses: Status.FAIL in statuses)
    assert ("sampling_slot", "reward") in failed(found)


def test_a_shift_inside_its_margin_is_parity_and_is_said() -> None:
    def lower_a_little(drawn: Draw) -> None:
        drawn.likelihoods *= 0.97

    _, found = watched(lower_a_little)
    marginal = found["sampling_marginal", "negative_log_likelihood"]
    assert marginal.status is Status.PASS
    assert marginal.evidence["log_e_corrected"] > ENOUGH, "seen, but smaller than the margin"
    assert abs(marginal.evidence["estimate"]) < marginal.evidence["smallest_margin"] <= marginal.evidence["margin"]
    assert "inside the margin" in marginal.message


def test_a_difference_inside_its_margin_is_never_different_however_many_groups_see_it() -> None:
    rng = np.random.default_rng(6)
    evidence, margins = Evidence.start({"reward": 0.1}), []
    for start in range(0, 1024, 128):
        chances, levels = rng.beta(0.6, 0.6, 128), rng.normal(0.5, 0.1, 128)
        baseline, experiment = draw(rng, chances, levels), draw(rng, chances, levels)
        experiment.rewards = np.minimum(experiment.rewards + (rng.random((128, SIZE)) < 0.1), 1.0)
        evidence = evidence.update(baseline.rollout(start), experiment.rollout(start), rng)
        margins += [one for one in evidence.findings() if one.check in ("sampling_marginal", "sampling_spread")]
    assert margins[-3].evidence["log_e_corrected"] > ENOUGH
    assert Status.FAIL not in {one.status for one in margins if one.where.field == "reward"}


def test_the_longest_response_there_can_be_leaves_nothing_to_be_clipped() -> None:
    rng = np.random.default_rng(5)
    arms = [draw(rng, np.full(512, 0.5), np.full(512, 0.5)).rollout(0) for _ in range(2)]
    evidence = Evidence.start(WIDE, max_new_tokens=6).update(arms[0], arms[1], rng)
    found = {(one.check, one.where.field): one for one in evidence.findings()}
    length = found["sampling_marginal", "response_length"]
    assert (length.status, length.evidence["units"]) == (Status.PASS, 512)
    assert "clip" not in length.evidence
    assert "clip" in found["sampling_marginal", "negative_log_likelihood"].evidence


def test_what_is_not_seen_says_from_which_size_on_it_would_have_been() -> None:
    _, found = watched()
    slot, copies = found["sampling_slot", "reward"], found["sampling_independence", "output_ids"]
    for finding in (slot, found["sampling_shape", "negative_log_likelihood"]):
        assert finding.status is Status.PASS
        assert finding.evidence["seen_from"] > 0
    assert copies.status is Status.PASS and copies.evidence["seen_from"] == 0, "no two responses are alike"
    assert 0.05 < slot.evidence["seen_from"] < 0.5
    _, few = watched(groups=64)
    assert few["sampling_slot", "reward"].evidence["seen_from"] > slot.evidence["seen_from"]


def sort_by_likelihood(drawn: Draw) -> None:
    drawn.likelihoods = np.sort(drawn.likelihoods, axis=1)


def test_slots_that_both_arms_sort_alike_are_no_difference_and_one_arm_that_sorts_is() -> None:
    assert ("sampling_slot", "negative_log_likelihood") in failed(watched(sort_by_likelihood)[1])
    _, found = watched(groups=320, both=sort_by_likelihood)
    assert not failed(found)


def copy_values(drawn: Draw) -> None:
    """The likelihoods of half of the slots once more, under tokens of their own."""
    drawn.likelihoods[:, SIZE // 2 :] = drawn.likelihoods[:, : SIZE // 2]


def balance_likelihoods(drawn: Draw) -> None:
    """Samples that lie as far below their prompt's level as others lie above it."""
    drawn.likelihoods[:, SIZE // 2 :] = 2 * drawn.levels[:, None] - drawn.likelihoods[:, : SIZE // 2]


def widen_likelihoods(drawn: Draw) -> None:
    level = drawn.likelihoods.mean(axis=1, keepdims=True)
    drawn.likelihoods = level + 1.3 * (drawn.likelihoods - level)


@pytest.mark.parametrize(
    ("change", "most", "checks"),
    [
        (copy_values, 160, {"sampling_independence", "sampling_shape"}),
        (balance_likelihoods, 320, {"sampling_independence", "sampling_shape"}),
        (widen_likelihoods, 160, {"sampling_shape"}),
    ],
)
def test_dependence_without_equal_tokens_and_another_spread_are_found(
    change: Callable[[Draw], object], most: int, checks: set[str]
) -> None:
    groups, found = watched(change, seed=4)
    assert groups <= most
    assert {name for name, _ in failed(found)} <= checks
    assert {metric for _, metric in failed(found)} == {"negative_log_likelihood"}


def test_more_groups_that_it_would_take_are_said() -> None:
    groups, found = watched(groups=64, margins={"reward": 0.02})
    assert groups == 64
    reward = found["sampling_marginal", "reward"]
    assert (reward.status, reward.evidence["units"]) == (Status.INCONCLUSIVE, 64)
    assert reward.evidence["groups_needed"] > 64
    assert f"{reward.evidence['groups_needed'] - 64:,}" in reward.message
    assert found["sampling_independence", "output_ids"].status is Status.INCONCLUSIVE


def test_what_a_sample_lacks_stays_not_compared() -> None:
    evidence, rng = Evidence.start(WIDE), np.random.default_rng(0)
    drawn = [draw(rng, np.full(4, 0.5), np.full(4, 0.5)) for _ in range(4)]
    drawn[1].rewards[2, 3] = np.nan
    lacking = drawn[1].rollout(0)
    column = lacking.table.schema.get_field_index("reward")
    rewards = [None if math.isnan(value) else value for value in drawn[1].rewards.ravel().tolist()]
    lacking = Rollout(lacking.table.set_column(column, "reward", pa.array(rewards, pa.float64())))
    evidence = evidence.update(drawn[0].rollout(0), lacking, rng)
    evidence = evidence.update(drawn[2].rollout(4), drawn[3].rollout(4), rng)
    found = {(one.check, one.where.field): one.status for one in evidence.findings()}
    assert found["sampling_marginal", "reward"] is Status.NOT_COMPARED
    assert found["sampling_spread", "constant_reward"] is Status.NOT_COMPARED
    assert found["sampling_marginal", "negative_log_likelihood"] is Status.INCONCLUSIVE


def test_no_group_decides_nothing_and_wrong_questions_are_refused() -> None:
    assert [one.status for one in Evidence.start(WIDE).findings()] == [Status.INCONCLUSIVE]
    for margins in ({"beauty": 1.0}, {"reward": -1.0}, {"reward": math.nan}):
        with pytest.raises(UsageError):
            Evidence.start(margins)
    with pytest.raises(UsageError, match="range"):
        Evidence.start(WIDE, (1.0, 0.0))
    rng = np.random.default_rng(0)
    baseline, experiment = (draw(rng, np.full(4, 0.5), np.full(4, 0.5)) for _ in range(2))
    experiment.rewards += 5
    with pytest.raises(InputError, match="not between -1 and 1"):
        Evidence.start(WIDE).update(baseline.rollout(0), experiment.rollout(0), rng)


def test_groups_of_a_set_number_are_looked_at_once_whatever_their_order() -> None:
    rng = np.random.default_rng(7)
    chances, levels = rng.beta(0.6, 0.6, 320), rng.normal(0.5, 0.1, 320)
    baseline, experiment = (draw(rng, chances, levels).rollout(0) for _ in range(2))
    order = rng.permutation(len(experiment))
    shuffled = Rollout(experiment.table.take(pa.array(order)))
    first, second = (sampling_findings(baseline, arm, WIDE, np.random.default_rng(0)) for arm in (experiment, shuffled))
    assert [one.to_json() for one in first] == [one.to_json() for one in second]
    assert {one.status for one in first} == {Status.PASS}


def test_arms_that_are_not_of_the_same_groups_are_refused() -> None:
    rng = np.random.default_rng(0)
    whole = draw(rng, np.full(4, 0.5), np.full(4, 0.5)).rollout(0)
    cases = {
        "7 to 8": whole.table.slice(1),
        "in one arm only": whole.table.slice(SIZE),
        "more than once": pa.concat_tables([whole.table.slice(1), whole.table.slice(1, 1)]),
        "no samples": whole.table.slice(0, 0),
    }
    for words, table in cases.items():
        with pytest.raises(InputError, match=words):
            sampling_findings(whole, Rollout(table), WIDE, rng)
    with pytest.raises(UsageError, match="beauty"):
        sampling_findings(whole, whole, {"beauty": 1.0}, rng)
