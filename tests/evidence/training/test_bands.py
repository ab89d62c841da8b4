"""The simultaneous band: exact p by counting splits, error rate on correlated curves, and a difference located."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.errors import UsageError
from parity.metrics import AlignedRuns, Curve, align
from parity.stats import curve_band


def ar_curves(rng: np.random.Generator, runs: int, steps: int) -> np.ndarray:
    """AR(0.9) curves (runs, steps) with seed intercepts and one shock common to all."""
    noise = rng.normal(0, 0.03, (runs, steps))
    values = np.zeros((runs, steps))
    for step in range(1, steps):
        values[:, step] = 0.9 * values[:, step - 1] + noise[:, step]
    return np.asarray(values + rng.normal(0, 0.02, (runs, 1)) + rng.normal(0, 0.04, steps))


def aligned(values: np.ndarray) -> AlignedRuns:
    return align([Curve(f"run-{row}", "reward", np.arange(values.shape[1]), curve) for row, curve in enumerate(values)])


def test_a_separation_at_every_step_has_the_smallest_p_that_splits_allow() -> None:
    values = np.repeat(np.array([0, 1, 2, 3, 10, 11, 12, 13.0])[:, None], 20, axis=1)
    band = curve_band(aligned(values), 4, np.random.default_rng(0))
    assert band.p == pytest.approx(2 / 70)
    assert band.difference == pytest.approx(np.full(12, 10.0))
    assert band.outside == tuple(range(4, 16))


def test_a_difference_in_the_later_half_is_located_there() -> None:
    values = ar_curves(np.random.default_rng(1), 10, 100)
    values[5:, 60:] += 0.5
    band = curve_band(aligned(values), 5, np.random.default_rng(0))
    assert band.p < 0.05
    assert min(band.outside) >= 50 and max(band.outside) == 95


def test_equal_arms_leave_the_band_at_most_one_time_in_twenty() -> None:
    rng = np.random.default_rng(2)
    found = sum(curve_band(aligned(ar_curves(rng, 10, 60)), 5, rng).p < 0.05 for _ in range(200))
    assert found / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_random_splits_agree_with_all_splits() -> None:
    values = aligned(ar_curves(np.random.default_rng(3), 10, 40))
    every = curve_band(values, 5, np.random.default_rng(0))
    some = curve_band(values, 5, np.random.default_rng(0), permutations=251)
    assert some.p == pytest.approx(every.p, abs=0.12)


def test_constant_curves_have_p_one() -> None:
    assert curve_band(aligned(np.ones((8, 20))), 4, np.random.default_rng(0)).p == 1.0


def test_three_runs_an_arm_are_too_few() -> None:
    with pytest.raises(UsageError, match="4 runs"):
        curve_band(aligned(np.ones((6, 20))), 3, np.random.default_rng(0))
