"""The cost ratio: exact cases, coverage of its interval by simulation, and series that have no logarithm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.errors import InputError
from parity.metrics import AlignedRuns, Curve, align
from parity.stats import paired_log_ratio


def pair_of(baseline: np.ndarray, experiment: np.ndarray, name: str = "0") -> AlignedRuns:
    steps = np.arange(len(baseline))
    return align([Curve(arm + name, "time", steps, values) for arm, values in (("a", baseline), ("b", experiment))])


def test_a_constant_ratio_is_found_exactly() -> None:
    times = np.linspace(1, 3, 20)
    result = paired_log_ratio([pair_of(times, times * 0.8)])
    assert result.ratio == pytest.approx(0.8)
    assert result.ci95 == pytest.approx((0.8, 0.8))
    assert result.p == pytest.approx(0.0, abs=1e-12)


def test_equal_series_have_ratio_one_and_p_one() -> None:
    times = np.linspace(1, 3, 20)
    result = paired_log_ratio([pair_of(times, times)])
    assert (result.ratio, result.p, result.units, result.pairs) == (1.0, 1.0, 20, 1)


def test_exchanging_the_arms_inverts_the_ratio_and_its_interval() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.lognormal(size=(2, 30))
    forth, back = paired_log_ratio([pair_of(first, second)]), paired_log_ratio([pair_of(second, first)])
    assert back.ratio == pytest.approx(1 / forth.ratio)
    assert back.ci95 == pytest.approx((1 / forth.ci95[1], 1 / forth.ci95[0]))


def test_a_few_steps_give_a_ratio_without_interval() -> None:
    result = paired_log_ratio([pair_of(np.ones(3), np.full(3, 2.0))])
    assert result.ratio == pytest.approx(2.0)
    assert result.ci95 is None and result.p is None
    assert len(result.warnings) == 1


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_logarithm_is_refused_with_its_step(bad: float) -> None:
    values = np.ones(10)
    values[4] = bad
    with pytest.raises(InputError, match="step 4"):
        paired_log_ratio([pair_of(np.ones(10), values)])


@pytest.mark.parametrize(("steps", "phi", "pairs"), [(10, 0.0, 1), (40, 0.6, 1), (40, 0.9, 1), (24, 0.3, 3)])
def test_the_interval_covers_the_truth_for_independent_and_drifting_steps(steps: int, phi: float, pairs: int) -> None:
    rng = np.random.default_rng(4)
    repetitions = 400
    noise = rng.normal(0, 0.05, (steps, repetitions, pairs))
    logs = np.empty_like(noise)
    logs[0] = noise[0] / math.sqrt(1 - phi**2)
    for step in range(1, steps):
        logs[step] = phi * logs[step - 1] + noise[step]
    covered = 0
    for repetition in range(repetitions):
        series = np.exp(logs[:, repetition] + math.log(0.9))
        result = paired_log_ratio([pair_of(np.ones(steps), series[:, one], str(one)) for one in range(pairs)])
        covered += result.ci95[0] <= 0.9 <= result.ci95[1]
    assert covered / repetitions >= 0.95 - 0.02 * (phi > 0) - 3 * math.sqrt(0.05 * 0.95 / repetitions)


def test_pairs_that_disagree_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.01, (3, 20))
    agreeing = paired_log_ratio([pair_of(np.ones(20), np.exp(noise[one]), str(one)) for one in range(3)])
    shift = np.array([-0.2, 0.0, 0.2])
    apart = paired_log_ratio([pair_of(np.ones(20), np.exp(noise[one] + shift[one]), str(one)) for one in range(3)])
    assert apart.ci95[1] - apart.ci95[0] > 3 * (agreeing.ci95[1] - agreeing.ci95[0])
