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
from parity.evidence.sampling.permutation import dealt_contrasts, equality_kernel
from parity.evidence.sampling.watched import ENOUGH, Evidence, Mean
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
    return Draw(rng, rewards, likelihoods, rng.integers(0, 1 << 20, (groups, SIZE, 3)))


def nothing(_: Draw) -> None:
    """The control."""


def watched(
    change: Callable[[Draw], object] = nothing, groups: int = 512, seed: int = 0, margins: dict[str, float] = WIDE
) -> tuple[int, dict[tuple[str, str | None], Finding]]:
    """Groups until something fails or everything passes, and the findings then."""
    rng = np.random.default_rng(seed)
    evidence = Evidence.start(margins)
    found: dict[tuple[str, str | None], Finding] = {}
    for start in range(0, groups, BLOCK):
        chances, levels = rng.beta(0.6, 0.6, BLOCK), rng.normal(0.5, 0.1, BLOCK)
        baseline, experiment = draw(rng, chances, levels), draw(rng, chances, levels)
        change(experiment)
        evidence = evidence.update(baseline.rollout(start), experiment.rollout(start), rng)
        found = {(one.check, one.where.field): one for one in evidence.findings()}
        statuses = {one.status for one in found.values()} - {Status.NOT_COMPARED}
        if Status.FAIL in statuses or statuses == {Status.PASS}:
            break
    return evidence.groups, found


def failed(found: dict[tuple[str, str | None], Finding]) -> set[tuple[str, str | None]]:
    return {name for name, finding in found.items() if finding.status is Status.FAIL}


def test_equal_arms_are_at_parity_as_soon_as_there_are_enough_groups() -> None:
    groups, found = watched()
    assert groups <= 320
    assert {one.status for name, one in found.items() if name[0] != "sampling_shape"} == {Status.PASS}
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
        assert {check for check, _ in failed(found)} <= {"sampling_independence", "sampling_spread"}
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
    assert failed(found) == {("sampling_slot", "negative_log_likelihood")}


def test_a_slot_whose_reward_is_a_tenth_higher_is_found_within_1024_groups() -> None:
    def favour(drawn: Draw) -> None:
        drawn.rewards[:, 0] = np.maximum(drawn.rewards[:, 0], drawn.rng.random(BLOCK) < 0.25)

    assert ("sampling_slot", "reward") in failed(watched(favour, groups=1024)[1])


def test_a_shift_inside_its_margin_is_parity() -> None:
    def lower_a_little(drawn: Draw) -> None:
        drawn.likelihoods *= 0.97

    _, found = watched(lower_a_little)
    marginal = found["sampling_marginal", "negative_log_likelihood"]
    assert marginal.status is Status.PASS
    assert marginal.evidence["log_e_difference"] > ENOUGH, "detectable, but smaller than the margin"
    assert "betting on means up to" in marginal.evidence["method"]
    # a tenth of the mean, in groups that are clipped at eight times the mean: a share of about 0.1 / 7
    assert "1.5%" in marginal.message
    assert found["sampling_marginal", "truncated"].evidence["method"] == "betting on bounded differences"


def test_the_longest_response_there_can_be_leaves_nothing_to_be_clipped() -> None:
    rng = np.random.default_rng(5)
    arms = [draw(rng, np.full(512, 0.5), np.full(512, 0.5)).rollout(0) for _ in range(2)]
    evidence = Evidence.start(WIDE, max_new_tokens=6).update(*arms, rng)
    found = {(one.check, one.where.field): one for one in evidence.findings()}
    length = found["sampling_marginal", "response_length"]
    assert (length.status, length.evidence["units"]) == (Status.PASS, 512)
    assert "betting on means up to 6" in length.evidence["method"]
    assert "%" not in length.message.replace("95 %", ""), "no share of groups is beyond what parity speaks of"


def test_a_huge_difference_that_was_seen_and_clipped_is_not_parity() -> None:
    def derail(drawn: Draw) -> None:
        if drawn.rng.random() < 0.3:
            drawn.likelihoods[0] = 120.0

    groups, found = watched(derail, groups=1024)
    marginal = found["sampling_marginal", "negative_log_likelihood"]
    assert (groups, marginal.status) == (1024, Status.INCONCLUSIVE)
    assert marginal.evidence["log_e_parity"] < ENOUGH


def test_a_mean_that_moves_through_its_margin_and_on_is_not_parity() -> None:
    rng = np.random.default_rng(3)
    noise, baseline = rng.normal(0, 0.1, 1600), np.full(1600, 0.5)
    # -0.2, then +0.2, with a margin of 0.1: each side of the test is right for a time, and neither mean is inside
    moved = np.clip(baseline + noise + np.where(np.arange(1600) < 100, -0.2, 0.2), 0, 1)
    for experiment, parity in ((moved, False), (np.clip(baseline + noise, 0, 1), True)):
        mean = Mean.of(0.1, relative=False, bound=1.0).update(baseline, experiment)
        assert mean.log_e_parity is not None and mean.log_e_parity >= ENOUGH
        assert mean.is_parity is parity


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
    with pytest.raises(InputError, match="scale it first"):
        Evidence.start(WIDE).update(baseline.rollout(0), experiment.rollout(0), rng)


def reward_means(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Means of eight rewards of 0 or 1 in two arms, of prompts of unequal difficulty."""
    chances = rng.beta(0.6, 0.6, groups)
    baseline, experiment = rng.binomial(SIZE, chances, (2, groups)) / SIZE
    return baseline, experiment


@pytest.mark.parametrize("shift", [0.0, -0.05])
def test_looked_at_after_every_group_verdicts_on_clustered_rewards_keep_their_error_rates(shift: float) -> None:
    rng, repetitions = np.random.default_rng(8), 100
    parity = different = 0
    for _ in range(repetitions):
        baseline, experiment = reward_means(rng, 300)
        # Rewards stay in [-1, 2], where the shift is exact.
        mean = Mean.of(0.05, False, 3.0).update(baseline, experiment + shift)
        parity += mean.is_parity
        different += mean.difference.largest_log_e >= ENOUGH
    if shift:
        assert parity / repetitions <= 0.05, "called equal at the margin"
    else:
        assert different / repetitions <= 0.05, "called different when equal"


def test_constants_ties_and_tiny_numbers_of_groups() -> None:
    constant = Mean.of(0.05, False, 1.0).update(np.ones(400), np.ones(400))
    assert constant.is_parity and constant.difference.largest_log_e == 0
    assert constant.deviation == 0
    apart = Mean.of(0.05, False, 1.0).update(np.zeros(40), np.full(40, 0.5))
    assert not apart.is_parity and apart.difference.largest_log_e >= ENOUGH
    one = Mean.of(0.05, False, 1.0).update(np.zeros(1), np.ones(1))
    assert not one.is_parity and one.difference.largest_log_e < ENOUGH
    # A mean of 1 of eight equal rewards may be 1 + 2e-16.
    assert Mean.of(0.05, False, 0.1).update(np.zeros(1), np.array([np.nextafter(0.1, 1)])).units == 1


def test_the_observed_deal_comes_first() -> None:
    a, b, c, d, e, f = range(6)
    kernel = equality_kernel(np.array([[a, d, e, f, a, a, b, c]]))
    statistics = dealt_contrasts(kernel, np.random.default_rng(0), 500)
    assert statistics.shape == (1, 501)
    assert statistics[0, 0] == pytest.approx(1 / 24)
    assert statistics[0, 1:].mean() == pytest.approx(0, abs=0.02)
