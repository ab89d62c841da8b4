"""Parity of lengths and likelihoods: exact at every look, with rare and huge faults among the groups too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.evidence.sampling.anytime import SHIFTS, normal_log_e_at
from parity.evidence.sampling.margin import (
    CLIP,
    ClippedMargin,
    InsideMargin,
    MarginProcess,
    groups_for_margin,
    margin_log_e_at,
)
from parity.evidence.sampling.watched import Mean

ENOUGH = math.log(20)
GROUPS, FIRST = 1536, 32


def test_a_process_worked_out_by_hand() -> None:
    process = MarginProcess(2.0).update(np.array([1.0, -1.0, 0.5]), np.array([0.5, 0.5, 0.5]))
    # before the second group the best bet is 0.5 / 1, above 0.98 / 2; before the third (0.5 + 0.5) / (1 + 1)
    assert process.log_e == pytest.approx(math.log1p(-0.49) + math.log1p(0.49 * 0.5))
    assert process.largest_log_e == 0
    assert (process.margins, process.squares, process.units) == (1.5, 2.25, 3)
    small = MarginProcess(2.0).update(np.array([2.0, 1.0]), np.array([0.1, 0.1]))
    assert small.log_e == pytest.approx(math.log1p(0.1 / 4))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 4), min_size=1, max_size=60), st.integers(0, 60), st.floats(0.01, 0.5))
def test_state_carries_over_any_split_and_wealth_stays_positive(means: list[float], cut: int, margin: float) -> None:
    baseline, experiment = np.array(means), np.array(means[::-1])
    whole = ClippedMargin(margin, 4.0, True).update(baseline, experiment)
    parts = ClippedMargin(margin, 4.0, True).update(baseline[:cut], experiment[:cut])
    parts = parts.update(baseline[cut:], experiment[cut:])
    assert whole.sides is not None and parts.sides is not None
    assert parts.sides.above.log_e == pytest.approx(whole.sides.above.log_e)
    assert parts.log_e == pytest.approx(whole.log_e)
    assert math.isfinite(whole.sides.above.log_e)


def rewards(rng: np.random.Generator, shape: tuple[int, int], spread: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    """Group means of eight rewards of 0 or 1 in two equal arms, of prompts that are mostly easy or hard."""
    chances = rng.beta(spread, spread, shape)
    return tuple(rng.binomial(8, chances) / 8 for _ in range(2))


@pytest.mark.parametrize("sign", [1, -1])
def test_rewards_that_differ_by_their_margin_are_hardly_ever_parity_at_any_look(sign: int) -> None:
    baseline, experiment = rewards(np.random.default_rng(5), (400, 1500))
    found = margin_log_e_at(experiment - baseline + sign * 0.05, 0.05, 1.05, 1)
    assert (found[:, -1] >= ENOUGH).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize(("spread", "margin"), [(0.6, 0.05), (0.05, 0.02), (0.01, 0.02)])
def test_equal_rewards_are_parity_within_the_groups_that_are_said(spread: float, margin: float) -> None:
    """Of few groups that differ too, where no bet may be as bold as it would be best."""
    baseline, experiment = rewards(np.random.default_rng(6), (400, 400), spread)
    groups = groups_for_margin(float((experiment - baseline).std()), margin, 1.0)
    shown = margin_log_e_at(experiment - baseline, margin, 1.0, 1)[:, groups - 1] >= ENOUGH
    assert 0.75 <= shown.mean() <= 0.95


def test_many_streams_are_watched_as_one_is() -> None:
    baseline, experiment = rewards(np.random.default_rng(7), (3, 96))
    found = margin_log_e_at(experiment - baseline, 0.1, 1.0, 32)
    for differences, looks in zip(experiment - baseline, found, strict=True):
        sides = InsideMargin.of(1.0)
        for block, expected in zip(np.split(differences, 3), looks, strict=True):
            sides = sides.update(block, np.full(32, 0.1))
            assert sides.log_e == pytest.approx(expected)


def likelihoods(rng: np.random.Generator, groups: int = GROUPS) -> tuple[np.ndarray, np.ndarray]:
    """Group means of the negative log-likelihood of eight responses in two equal arms, of unequal prompts."""
    level = 0.5 * np.exp(rng.normal(0, 0.3, (groups, 1)))
    return tuple(np.maximum(level * (1 + rng.normal(0, 0.15, (groups, 8))), 0).mean(axis=1) for _ in range(2))


def lengths(rng: np.random.Generator, cap: float, groups: int = GROUPS) -> tuple[np.ndarray, np.ndarray]:
    """Group means of the lengths of eight responses in two equal arms, skewed and cut at a cap."""
    scale = rng.lognormal(6, 0.5, (groups, 1))
    return tuple(np.minimum(scale * rng.lognormal(0, 0.35, (groups, 8)), cap).mean(axis=1) for _ in range(2))


def is_parity(found: ClippedMargin) -> bool:
    return found.log_e >= ENOUGH


def watched(baseline: np.ndarray, experiment: np.ndarray, margin: float, cap: float | None = None) -> ClippedMargin:
    """The evidence after all groups; what was reached at any look stays reached."""
    empty = ClippedMargin(margin, cap, cap is not None)
    first = empty.update(baseline[:FIRST], experiment[:FIRST])
    return first.update(baseline[FIRST:], experiment[FIRST:])


def stops_at_parity(baseline: np.ndarray, experiment: np.ndarray, margin: float) -> bool:
    """Whether sampling that is looked at after each block would stop and say parity."""
    mean = Mean.of(margin, True, None)
    for start in range(0, len(baseline), FIRST):
        block = slice(start, start + FIRST)
        mean = mean.update(baseline[block], experiment[block])
        if mean.is_parity:
            return True
    return False


def asymptotic(baseline: np.ndarray, experiment: np.ndarray, margin: float) -> bool:
    """What the self-normalised process says of the same groups: nearly normal sums, which rare groups are not in."""
    sides = np.stack([(1 + margin) * baseline - experiment, experiment - (1 - margin) * baseline])
    return bool(normal_log_e_at(SHIFTS[SHIFTS > 0], sides, 32).max(axis=1).min() >= ENOUGH)


@pytest.mark.parametrize(("share", "margins"), [(0.01, 1), (0.01, 2)])
def test_a_huge_fault_in_hardly_any_group_that_moves_the_mean_out_of_its_margin_is_not_parity(
    share: float, margins: int
) -> None:
    """And it was: evidence that takes sums for nearly normal calls it parity several times as often as it may."""
    rng, margin, repetitions = np.random.default_rng(1), 0.05, 200
    found = taken_for_normal = 0
    for _ in range(repetitions):
        baseline, experiment = likelihoods(rng)
        experiment = np.where(rng.random(GROUPS) < share, experiment * (1 + margins * margin / share), experiment)
        found += stops_at_parity(baseline, experiment, margin)
        taken_for_normal += asymptotic(baseline, experiment, margin)
    assert found / repetitions <= 0.07
    assert taken_for_normal / repetitions > 0.15


@pytest.mark.parametrize("share", [0.004, 0.1])
def test_no_fault_is_too_rare_where_the_largest_value_is_known(share: float) -> None:
    """Responses that run on to the cap in so few groups that the mean moves by its margin."""
    rng, margin, cap, repetitions = np.random.default_rng(2), 0.03, 4096.0, 200
    mean = float(np.mean(lengths(rng, cap, 20_000)[0]))
    found = 0
    for _ in range(repetitions):
        baseline, experiment = lengths(rng, cap, 2048)
        longer = experiment + margin * mean / share
        experiment = np.where(rng.random(2048) < share, np.minimum(longer, cap), experiment)
        found += is_parity(watched(baseline, experiment, margin, cap))
    assert found / repetitions <= 0.07


@pytest.mark.parametrize("sign", [1, -1])
def test_lengths_that_differ_by_their_margin_everywhere_are_hardly_ever_parity(sign: int) -> None:
    rng, margin, repetitions = np.random.default_rng(3), 0.05, 200
    found = 0
    for _ in range(repetitions):
        baseline, experiment = lengths(rng, math.inf)
        found += is_parity(watched(baseline, (1 + sign * margin) * experiment, margin))
    assert found / repetitions <= 0.05


def test_equal_arms_are_parity_within_the_groups_that_are_said() -> None:
    rng, margin, repetitions = np.random.default_rng(4), 0.05, 60
    sample = likelihoods(rng, 20_000)
    sigma, mean = float(np.std(sample[1] - sample[0])), float(sample[0].mean())
    groups = groups_for_margin(sigma, margin * mean, CLIP * mean) + FIRST
    parity = [is_parity(watched(*likelihoods(rng, groups), margin)) for _ in range(repetitions)]
    assert 450 < groups < 750
    assert np.mean(parity) >= 0.7
    # with noise that asks for more than the clip does
    noisy = rng.normal(1, 0.25, (2, repetitions, 1600))
    wanted = groups_for_margin(0.25 * math.sqrt(2), 0.05, 2.0)
    assert wanted < 1600
    shown = [
        is_parity(ClippedMargin(0.05, 2.0, True).update(a[:wanted], b[:wanted])) for a, b in zip(*noisy, strict=True)
    ]
    assert np.mean(shown) >= 0.7


def test_what_is_above_the_clip_counts_as_the_clip_and_is_counted() -> None:
    found = ClippedMargin(0.1).update(np.full(4, 0.5), np.full(4, 9.0))
    assert (found.clip, found.clipped, found.log_e) == (0.5 * CLIP, (0, 0), 0.0), "the first groups only set it"
    found = found.update(np.array([0.5, 6.0]), np.array([4.0, 4.1]))
    assert found.clipped == (1, 1)
    assert found.sides is not None and found.sides.above.squares == pytest.approx((0.55 - 4) ** 2 + 0.4**2)
    nothing = ClippedMargin(0.1).update(np.zeros(4), np.zeros(4))
    assert nothing.clip is None, "no response has a token yet"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.001])
def test_values_that_could_cost_more_than_all_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="value 1 of 2"):
        MarginProcess(1.0).update(np.array([0.0, value]), np.ones(2))
