"""Parity inside a margin: exact at every look, with rare and huge differences among the groups too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.evidence.sampling.margin import FACTORS, InsideMargin, groups_for_margin
from parity.evidence.sampling.means import CLIP, FIRST_GROUPS, Mean
from parity.evidence.sampling.sequential import ENOUGH

BLOCK = 32
ALONE = np.ones(1)


def watched(mean: Mean, baseline: np.ndarray, experiment: np.ndarray) -> bool:
    """Whether a sampling that looks after every block ever ends in PARITY."""
    for start in range(0, len(baseline), BLOCK):
        mean = mean.update(baseline[start : start + BLOCK], experiment[start : start + BLOCK])
        if mean.is_parity:
            return True
    return False


def test_a_process_worked_out_by_hand() -> None:
    inside = InsideMargin(factors=ALONE).update(np.array([-0.5, 1.5, 0.0]), np.full(3, 0.5), 2.0)
    # against a mean of 0.5 or more, x = 1, -1 and 0.5: the first bet is 0, the others 2 / 3 of 0.5 / 1 and of 1 / 2
    assert inside.log_wealth[0, 0] == pytest.approx(math.log1p(-1 / 3) + math.log1p(0.5 / 3))
    assert inside.largest[0, 0] == 0
    assert inside.squares[0, 0] == pytest.approx(2.25)


def test_bets_towards_a_set_number_of_groups_worked_out_by_hand() -> None:
    inside = InsideMargin(factors=ALONE, horizon=101).update(np.array([-0.5, 0.0]), np.full(2, 0.5), 1.0)
    # x = 1, then 0.5: 100 groups are left of size 1; of a wealth of 1 / 21 the normal quantile is -1.66839
    bet = math.exp(-(1.66839**2) / 2) / math.sqrt(2 * math.pi) * 21 / 10
    assert inside.log_wealth[0, 0] == pytest.approx(math.log1p(0.5 * bet), rel=1e-4)


def test_a_set_number_of_groups_has_about_the_power_of_a_t_test_and_its_error_rate() -> None:
    rng, groups = np.random.default_rng(12), 1024
    shares = {}
    for difference in (0.0, 0.02):
        drawn = rng.normal(difference, 0.185, (400, groups))
        watched, fixed = (InsideMargin(factors=ALONE, horizon=size) for size in (None, groups))
        shares[difference] = [one.update(drawn, np.array(0.02), 1.0).proven.mean() for one in (watched, fixed)]
    t_test = 0.93
    assert shares[0.0][1] == pytest.approx(t_test, abs=0.05)
    assert shares[0.0][1] > shares[0.0][0] + 0.05
    assert shares[0.02][1] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=60),
    st.integers(0, 60),
    st.floats(0.01, 0.5),
    st.sampled_from([None, 60, 200]),
)
def test_state_carries_over_any_split_and_exchanged_arms_are_the_other_side(
    values: list[float], cut: int, margin: float, horizon: int | None
) -> None:
    differences, margins = np.array(values), np.full(len(values), margin)
    nothing = InsideMargin(horizon=horizon)
    whole = nothing.update(differences, margins, 1.0)
    parts = nothing.update(differences[:cut], margins[:cut], 1.0)
    parts = parts.update(differences[cut:], margins[cut:], 1.0)
    assert parts.log_wealth == pytest.approx(whole.log_wealth)
    assert np.isfinite(whole.log_wealth).all()
    exchanged = nothing.update(-differences, margins, 1.0)
    assert exchanged.log_wealth == pytest.approx(whole.log_wealth[::-1])


def rewards(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Group means of eight rewards of 0 or 1 in two equal arms, of prompts that are mostly easy or hard."""
    chances = rng.beta(0.3, 0.3, shape)
    baseline, experiment = (rng.binomial(8, chances) / 8 for _ in range(2))
    return baseline, experiment


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_of_the_margin_is_hardly_ever_parity_and_half_of_it_nearly_always(sign: int) -> None:
    baseline, experiment = rewards(np.random.default_rng(5), (300, 1024))
    shares = []
    for shift in (0.05, 0.025):
        inside = InsideMargin(factors=ALONE).update(experiment - baseline + sign * shift, np.array(0.05), 1.05)
        shares.append(float(inside.proven.mean()))
    assert shares[0] <= 0.05
    assert shares[1] >= 0.95


@pytest.mark.parametrize("sign", [1, -1])
def test_rare_events_that_differ_by_their_margin_are_hardly_ever_parity(sign: int) -> None:
    rng = np.random.default_rng(6)
    rates = (0.0, 0.02) if sign > 0 else (0.02, 0.0)
    baseline, experiment = (rng.binomial(8, rate, (400, 1024)) / 8 for rate in rates)
    inside = InsideMargin(factors=ALONE).update(experiment - baseline, np.array(0.02), 1.0)
    assert inside.proven.mean() <= 0.05


def test_the_smallest_margin_is_proven_at_every_look_and_never_below_the_truth() -> None:
    rng, wrong = np.random.default_rng(7), 0
    sizes = []
    for _ in range(60):
        baseline, experiment = rewards(rng, (1024,))
        mean, missed = Mean(0.05), False
        for start in range(0, 1024, 128):
            mean = mean.update(baseline[start : start + 128], experiment[start : start + 128] * 0.96)
            truth = 0.04 * 0.5
            missed |= mean.smallest_margin is not None and mean.smallest_margin < truth
        wrong += missed
        sizes.append(mean.smallest_margin)
    assert wrong <= 3
    assert all(size is not None and size < 0.06 for size in sizes)


def test_parity_is_a_proven_margin_no_larger_than_the_stated_one() -> None:
    baseline, experiment = rewards(np.random.default_rng(8), (600,))
    mean = Mean(0.05).update(baseline, experiment)
    assert mean.is_parity and mean.smallest_margin is not None
    assert mean.smallest_margin <= 0.05
    assert Mean(mean.smallest_margin).update(baseline, experiment).is_parity, "a reader may apply their own"
    assert not Mean(mean.smallest_margin / 3).update(baseline, experiment).is_parity


def hard_prompts(rng: np.random.Generator, share: float, ratio: float, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Likelihoods of easy prompts, alike in both arms, and of a share of hard ones, 60 times as unlikely, that are not.

    The means of all prompts differ by `ratio`.
    """
    hard = rng.random(groups) < share
    level = np.where(hard, 12.0, 0.2)
    noise = rng.lognormal(0, 0.1, (2, groups))
    mean = share * 12.0 + (1 - share) * 0.2
    more = 1 + ratio * mean / (share * 12.0)
    return level * noise[0], level * noise[1] * np.where(hard, more, 1.0)


@pytest.mark.parametrize("share", [0.2, 0.05, 0.02])
def test_likelihoods_of_a_few_hard_prompts_that_differ_by_their_margin_are_no_parity(share: float) -> None:
    rng = np.random.default_rng(9)
    passed = [watched(Mean(0.05, True, None), *hard_prompts(rng, share, 0.05, 768)) for _ in range(40)]
    assert np.mean(passed) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 40)


def test_likelihoods_without_hard_prompts_reach_parity() -> None:
    rng = np.random.default_rng(10)
    levels = rng.lognormal(-1, 0.4, 1024)
    baseline, experiment = (levels * rng.lognormal(0, 0.1, 1024) for _ in range(2))
    mean = Mean(0.05, True, None)
    for start in range(0, 1024, BLOCK):
        mean = mean.update(baseline[start : start + BLOCK], experiment[start : start + BLOCK])
    assert mean.is_parity


def test_first_groups_say_where_later_ones_are_clipped_and_what_is_clipped_counts_against_parity() -> None:
    some = np.full(FIRST_GROUPS, 0.5)
    first = Mean(0.1, True, None).update(some, some + 0.1)
    assert first.clip == pytest.approx(CLIP * 0.1)
    assert first.log_e_parity == 0, "they say nothing else"
    later = first.update(some[:4], some[:4] + np.array([0.1, 0.1, 0.1, 8.5]))
    assert later.excess == pytest.approx(8.5 - CLIP * 0.1)
    assert later.clip == 1.25 * 8.5, "what was seen once is no surprise any more"
    assert Mean(0.1, True, None).update(np.zeros(4), np.zeros(4)).clip is None
    equal = Mean(0.1, True, None).update(some, some)
    assert equal.clip == 0.1 * 0.5, "no less than the margin, so that responses of one length can be at parity"


def test_what_was_shown_before_a_larger_difference_came_does_not_count() -> None:
    rng = np.random.default_rng(13)
    baseline = np.full(640, 0.5)
    experiment = baseline + rng.normal(0, 0.005, 640)
    mean = Mean(0.05, True, None).update(baseline[:FIRST_GROUPS], experiment[:FIRST_GROUPS])
    mean = mean.update(baseline[FIRST_GROUPS:480], experiment[FIRST_GROUPS:480])
    assert mean.is_parity
    surprised = mean.update(baseline[:1], baseline[:1] + 3.0)
    assert not surprised.is_parity
    assert mean.update(baseline[480:], experiment[480:]).is_parity


def test_a_mean_that_moves_through_its_margin_and_on_is_not_parity() -> None:
    rng = np.random.default_rng(3)
    noise, baseline = rng.normal(0, 0.1, 1600), np.full(1600, 0.5)
    # -0.2, then +0.2, with a margin of 0.1: each side of the test is right for a time, and neither mean is inside
    moved = np.clip(baseline + noise + np.where(np.arange(1600) < 100, -0.2, 0.2), 0, 1)
    for experiment, parity in ((moved, False), (np.clip(baseline + noise, 0, 1), True)):
        mean = Mean(0.1).update(baseline, experiment)
        assert mean.log_e_parity >= ENOUGH
        assert mean.is_parity is parity


def test_constants_ties_and_tiny_numbers_of_groups() -> None:
    constant = Mean(0.05).update(np.ones(400), np.ones(400))
    assert constant.is_parity and constant.difference.log_e == 0
    assert constant.deviation == 0
    apart = Mean(0.05).update(np.zeros(40), np.full(40, 0.5))
    assert not apart.is_parity and apart.difference.log_e >= ENOUGH
    single = Mean(0.05).update(np.zeros(1), np.ones(1))
    assert not single.is_parity and single.difference.log_e < ENOUGH
    # A mean of 1 of eight equal rewards may be 1 + 2e-16.
    assert Mean(0.05, bound=0.1).update(np.zeros(1), np.array([np.nextafter(0.1, 1)])).units == 1
    with pytest.raises(InputError):
        Mean(0.05).update(np.zeros(1), np.array([1.1]))
    assert Mean(0.05).update(np.zeros(0), np.zeros(0)).smallest_margin is None


def test_groups_for_a_margin_are_about_those_that_it_takes() -> None:
    rng = np.random.default_rng(11)
    expected = groups_for_margin(0.15, 0.03, 1.0)
    inside = InsideMargin(factors=ALONE).update(rng.normal(0, 0.15, (300, 2 * expected)), np.array(0.03), 1.5)
    early = InsideMargin(factors=ALONE).update(rng.normal(0, 0.15, (300, expected // 2)), np.array(0.03), 1.5)
    assert inside.proven.mean() > 0.9 > 0.5 > early.proven.mean()
    assert FACTORS[FACTORS == 1].size == 1
