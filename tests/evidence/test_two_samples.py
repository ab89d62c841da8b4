"""Comparing runs: published and hand-computed answers, error rates by simulation, and inputs that decide nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import ttost_ind

from parity.errors import InputError, UsageError
from parity.evidence.two_samples import runs_needed_jointly
from parity.findings import Verdict
from parity.stats import (
    RunComparison,
    RunValues,
    benjamini_hochberg,
    compare_runs,
    decide_many,
    holm,
    margin_from_history,
    runs_needed,
    simulate_power,
    tost_power,
)

BASELINE = [0.50, 0.52, 0.54, 0.51, 0.53]
EXPERIMENT = [0.51, 0.55, 0.52, 0.56, 0.53]


def runs(values: list[float] | np.ndarray, arm: str = "a") -> RunValues:
    return RunValues("reward", tuple(f"{arm}-{row}" for row in range(len(values))), np.array(values, dtype=np.float64))


def compare(baseline: list[float] | np.ndarray, experiment: list[float] | np.ndarray, margin: float) -> RunComparison:
    return compare_runs(runs(baseline, "baseline"), runs(experiment, "experiment"), margin)


def test_the_worked_example() -> None:
    result = compare(BASELINE, EXPERIMENT, 0.03)
    assert result.estimate == pytest.approx(0.014)
    assert result.p_difference == pytest.approx(0.2666018, abs=5e-8), "Welch's"
    reference = stats.ttest_ind(EXPERIMENT, BASELINE, equal_var=False)
    assert result.ci90 == pytest.approx(tuple(reference.confidence_interval(0.90)))
    assert result.ci95 == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert result.p_permutation == pytest.approx(1 / 3)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert (result.unit, result.units) == ("run", (5, 5))


def test_the_worked_example_is_parity_within_a_wider_margin() -> None:
    assert compare(BASELINE, EXPERIMENT, 0.04).verdict is Verdict.PARITY


def test_the_equivalence_p_is_that_of_statsmodels() -> None:
    baseline, experiment = [4, 7, 8, 6, 3, 2], [6, 8, 7, 10, 11, 9]
    assert ttost_ind(baseline, experiment, -1, 1)[0] == pytest.approx(0.9650973998), "pooled"
    unequal = ttost_ind(baseline, experiment, -1, 1, usevar="unequal")[0]
    assert compare(baseline, experiment, 1.0).p_equivalence == pytest.approx(unequal)


def test_published_student_t_from_summary_statistics() -> None:
    published = stats.ttest_ind_from_stats(15, math.sqrt(87.5), 13, 12, math.sqrt(39), 11)
    rng = np.random.default_rng(0)
    first, second = (
        mean + sd * stats.zscore(rng.normal(size=n), ddof=1)
        for mean, sd, n in [(12, math.sqrt(87.5), 13), (15, math.sqrt(87.5), 13)]
    )
    assert published.pvalue == pytest.approx(0.3751997, abs=5e-8)
    # Equal spreads and numbers: Welch's t is Student's.
    assert compare(first, second, 1.0).p_difference == pytest.approx(stats.ttest_ind(first, second).pvalue)


def test_unequal_numbers_of_runs_are_compared_by_welch() -> None:
    result = compare(BASELINE, EXPERIMENT[:3], 0.03)
    reference = stats.ttest_ind(EXPERIMENT[:3], BASELINE, equal_var=False)
    assert result.p_difference == pytest.approx(reference.pvalue)
    assert result.ci95 == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert "Welch" in result.method


@pytest.mark.parametrize(
    ("baseline", "experiment", "p"),
    [([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252), ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70)],
)
def test_the_exact_permutation_p_counts_splits(baseline: list[float], experiment: list[float], p: float) -> None:
    assert compare(baseline, experiment, 1.0).p_permutation == pytest.approx(p)


def test_below_four_runs_no_permutation_p_is_given() -> None:
    result = compare([1, 2, 3], [4, 5, 6], 1.0)
    assert result.p_permutation is None
    assert any("permutation" in warning for warning in result.warnings)


def test_one_run_an_arm_is_inconclusive_however_far_apart() -> None:
    result = compare([0.0], [1e9], 0.1)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.ci95 is None and result.p_difference is None and result.runs_needed is None


def test_one_run_against_many_is_their_prediction_t_and_never_parity() -> None:
    far = compare(BASELINE, [0.60], 0.03)
    assert far.p_difference == pytest.approx(0.0098900, abs=5e-8)
    assert far.verdict is Verdict.DIFFERENT
    assert compare(BASELINE, [0.52], 10.0).verdict is Verdict.INCONCLUSIVE


def test_constants_that_agree_are_parity_and_warn() -> None:
    result = compare([0.0] * 3, [0.0] * 3, 0.01)
    assert result.verdict is Verdict.PARITY
    assert any("no width" in warning for warning in result.warnings)


def test_constants_that_differ_are_inconclusive_until_a_permutation_can_tell() -> None:
    assert compare([0.0] * 3, [1.0] * 3, 0.01).verdict is Verdict.INCONCLUSIVE
    assert compare([0.0] * 4, [1.0] * 4, 0.01).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_that_is_not_positive_and_finite_is_refused(margin: float) -> None:
    with pytest.raises(UsageError, match="margin"):
        compare(BASELINE, EXPERIMENT, margin)


def test_steps_cannot_be_passed_as_runs() -> None:
    with pytest.raises(InputError, match="one value each"):
        RunValues("reward", ("run-0",), np.zeros(100))
    with pytest.raises(InputError, match="more than once"):
        RunValues("reward", ("run-0",) * 3, np.zeros(3))


def test_a_nan_is_refused_with_its_run() -> None:
    with pytest.raises(InputError, match="a-1"):
        runs([0.0, math.nan])


@pytest.mark.parametrize(("units", "factor"), [(3, 0.79), (5, 0.82), (10, 0.86), (20, 0.89)])
def test_a_margin_from_history_uses_the_lower_bound_of_the_spread(units: int, factor: float) -> None:
    margin = margin_from_history(runs(np.arange(units, dtype=np.float64)))
    assert margin.sigma_lower / margin.sigma == pytest.approx(factor, abs=0.005)
    assert margin.value == pytest.approx(2 * margin.sigma_lower)


def test_a_margin_from_history_stays_below_its_cap_and_needs_spread() -> None:
    assert margin_from_history(runs([0.0, 10.0, 20.0]), cap=0.5).value == 0.5
    with pytest.raises(UsageError):
        margin_from_history(runs([1.0, 1.0, 1.0]))
    with pytest.raises(UsageError):
        margin_from_history(runs([1.0, 2.0]))


@pytest.mark.parametrize(("units", "margin"), [(3, 3.1), (5, 2.04), (8, 1.54), (20, 0.94)])
def test_the_stated_power_is_that_of_the_comparison(units: int, margin: float) -> None:
    (simulated,) = simulate_power(1.0, units, margin, (0.0,), np.random.default_rng(units), 4000)
    assert tost_power(units, 1.0, margin) == pytest.approx(simulated.parity, abs=0.025)


@pytest.mark.parametrize("ratio", [1.0, 4.0, 10.0])
@pytest.mark.parametrize("units", [3, 5])
def test_arms_of_unequal_spread_are_rarely_called_different(units: int, ratio: float) -> None:
    rng = np.random.default_rng(2)
    baseline, experiment = rng.normal(0, 1, (4000, units)), rng.normal(0, ratio, (4000, units))
    _, different = decide_many(baseline, experiment, 1e-9)
    assert different.mean() <= 0.07


def test_several_metrics_together_need_more_runs_than_any_alone() -> None:
    alone, together = runs_needed(1.0, 2.0), runs_needed_jointly([(1.0, 2.0)] * 5)
    assert alone is not None and together is not None and together > alone
    power = tost_power(together, 1.0, 2.0) ** 5
    assert power >= 0.8 > tost_power(together - 1, 1.0, 2.0) ** 5


def test_runs_needed_is_the_first_number_with_enough_power() -> None:
    needed = runs_needed(1.0, 0.5)
    assert needed is not None
    assert tost_power(needed, 1.0, 0.5) >= 0.8 > tost_power(needed - 1, 1.0, 0.5)
    assert runs_needed(0.0, 1.0) is None
    assert runs_needed(1.0, 1e-6) is None


def test_adjusted_p_values_of_five_metrics() -> None:
    p_values = dict(zip("abcde", [0.01, 0.04, 0.03, 0.005, 0.2], strict=True))
    assert list(holm(p_values).values()) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.2])
    assert list(benjamini_hochberg(p_values).values()) == pytest.approx([0.025, 0.05, 0.05, 0.025, 0.2])
    assert holm({}) == {}


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-10, 10), min_size=2, max_size=5),
    st.lists(st.floats(-10, 10), min_size=2, max_size=5),
    st.floats(0.01, 5),
)
def test_exchanging_the_arms_turns_the_sign_and_nothing_else(
    baseline: list[float], experiment: list[float], margin: float
) -> None:
    forth, back = compare(baseline, experiment, margin), compare(experiment, baseline, margin)
    assert back.estimate == pytest.approx(-forth.estimate)
    assert back.verdict is forth.verdict
    assert back.ci90 == pytest.approx((-forth.ci90[1], -forth.ci90[0]), abs=1e-12)


def late_means_of_ar_curves(rng: np.random.Generator, repetitions: int, arms: int, steps: int = 100) -> np.ndarray:
    """Late means, (repetitions, arms), of curves with seed effects and AR(0.9) noise, in units of their sd."""
    curves = np.zeros((repetitions, arms, steps))
    noise = rng.normal(0, 0.03, curves.shape)
    state = rng.normal(0, 0.03 / math.sqrt(1 - 0.81), curves.shape[:2])
    for step in range(steps):
        state = 0.9 * state + noise[..., step]
        curves[..., step] = state
    curves += rng.normal(0, 0.02, (repetitions, arms, 1))
    curves += rng.normal(0, 0.04, (repetitions, arms, 1)) * np.linspace(0, 1, steps)
    late = curves[..., steps // 2 :].mean(axis=-1)
    return np.asarray(late / late.std())


@pytest.mark.parametrize("units", [2, 3, 5, 10])
def test_many_comparisons_at_once_reach_the_verdicts_of_single_ones(units: int) -> None:
    values = late_means_of_ar_curves(np.random.default_rng(1), 12, 2 * units)
    parity, different = decide_many(values[:, :units], values[:, units:] + 1.0, 2.0)
    single = [compare(row[:units], row[units:] + 1.0, 2.0).verdict for row in values]
    assert parity.tolist() == [verdict is Verdict.PARITY for verdict in single]
    assert different.tolist() == [verdict is Verdict.DIFFERENT for verdict in single]


@pytest.mark.parametrize(("units", "parity_at_0"), [(2, 0.105), (3, 0.316), (5, 0.763)])
def test_error_rates_on_correlated_curves_with_seed_effects(units: int, parity_at_0: float) -> None:
    """False DIFFERENT at no difference and false PARITY at the margin stay at 5 %; the power is what is known."""
    values = late_means_of_ar_curves(np.random.default_rng(2), 4000, 2 * units)
    error = 3 * math.sqrt(0.05 * 0.95 / len(values))
    parity, different = decide_many(values[:, :units], values[:, units:], 2.0)
    at_margin, _ = decide_many(values[:, :units], values[:, units:] + 2.0, 2.0)
    assert different.mean() <= 0.05 + error
    assert at_margin.mean() <= 0.05 + error
    assert parity.mean() == pytest.approx(parity_at_0, abs=0.04)


@pytest.mark.parametrize("units", [3, 5, 10])
def test_a_collapse_that_strikes_both_arms_alike_makes_no_difference(units: int) -> None:
    """Three runs in ten fall to a quarter in either arm; false DIFFERENT stays near 5 % on values far from normal."""
    rng = np.random.default_rng(3)
    values = rng.normal(0.6, 0.035, (4000, 2 * units))
    values[rng.random(values.shape) < 0.3] *= 0.25
    _, different = decide_many(values[:, :units], values[:, units:], 0.05)
    assert different.mean() <= 0.06


@pytest.mark.parametrize(
    ("units", "shares"),
    [
        # By scipy.stats.ttest_ind with equal_var=False, 20,000 comparisons each.
        (2, [(0.105, 0.005), (0.07, 0.022), (0.026, 0.089), (0.004, 0.188), (0.0, 0.304)]),
        (3, [(0.316, 0.007), (0.18, 0.055), (0.037, 0.298), (0.003, 0.657), (0.0, 0.885)]),
        (5, [(0.763, 0.001), (0.401, 0.055), (0.044, 0.487), (0.001, 0.937), (0.0, 0.999)]),
        (10, [(0.991, 0.0), (0.692, 0.012), (0.049, 0.502), (0.0, 0.988), (0.0, 1.0)]),
    ],
)
def test_the_table_of_verdicts(units: int, shares: list[tuple[float, float]]) -> None:
    rows = simulate_power(1.0, units, 2.0, (0, 1, 2, 3, 4), np.random.default_rng(4))
    for row, (parity, different) in zip(rows, shares, strict=True):
        assert (row.parity, row.different) == pytest.approx((parity, different), abs=0.035)
        assert row.parity + row.different + row.inconclusive == pytest.approx(1)


def test_power_of_one_run_is_refused() -> None:
    with pytest.raises(UsageError):
        simulate_power(1.0, 1, 2.0, (0.0,), np.random.default_rng(0))
