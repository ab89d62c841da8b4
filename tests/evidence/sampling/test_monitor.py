"""Watching several statistics at once: what must hold at every look."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import InputError
from parity.findings import Verdict
from parity.stats import Monitor, Watched

FLAT = {"reward": np.zeros(1), "length": np.zeros(1)}


def monitor(margin: float = 0.1, scale: float = 1.0) -> Monitor:
    return Monitor({name: Watched(margin, scale) for name in FLAT})


def watch(increments: np.ndarray, margin: float, batch: int) -> Monitor:
    """Looks after every batch of (K, 2) increments, as a watcher of a live run does."""
    seen = monitor(margin)
    for start in range(0, len(increments), batch):
        rows = increments[start : start + batch]
        seen = seen.update({"reward": rows[:, 0], "length": rows[:, 1]})
        if seen.verdict is not Verdict.INCONCLUSIVE:
            break
    return seen


def test_equal_arms_are_called_different_in_at_most_a_twentieth_of_runs_however_often_one_looks() -> None:
    rng = np.random.default_rng(20)
    different = 0
    for _ in range(120):
        common = rng.normal(0, 0.15, (200, 1))  # the statistics of a group depend on each other
        increments = np.clip(common + rng.normal(0, 0.1, (200, 2)), -1, 1)
        different += watch(increments, 0.001, 10).verdict is Verdict.DIFFERENT
    assert different <= 120 * 0.05 + 2 * np.sqrt(120 * 0.05 * 0.95)


@pytest.mark.slow
def test_arms_that_differ_by_the_margin_are_called_equal_in_at_most_a_twentieth_of_runs() -> None:
    rng = np.random.default_rng(21)
    equal = 0
    for _ in range(100):
        increments = np.clip(rng.normal([0.1, 0.0], 0.2, (400, 2)), -1, 1)
        equal += watch(increments, 0.1, 20).verdict is Verdict.PARITY
    assert equal <= 100 * 0.05 + 2 * np.sqrt(100 * 0.05 * 0.95)


def test_equal_arms_end_as_parity_and_a_shift_of_one_statistic_as_a_difference_that_names_it() -> None:
    rng = np.random.default_rng(22)
    noise = np.clip(rng.normal(0, 0.15, (1500, 2)), -1, 1)
    assert watch(noise, 0.05, 50).verdict is Verdict.PARITY
    shifted = watch(np.clip(noise + np.array([0.1, 0.0]), -1, 1), 0.05, 50)
    assert shifted.verdict is Verdict.DIFFERENT
    low, high = shifted.watched["reward"].interval
    assert low > 0 and low <= 0.1 <= high


def test_the_difference_is_told_in_the_unit_of_the_statistic() -> None:
    one = monitor(scale=32.0).update({"reward": np.array([0.5, 0.25]), "length": np.zeros(2)}).watched["reward"]
    assert one.estimate == 12.0
    assert one.interval == (-32.0, 32.0)


def test_no_statistic_is_left_out_or_slipped_in() -> None:
    with pytest.raises(InputError, match="length"):
        monitor().update({"reward": np.zeros(1)})
    with pytest.raises(InputError, match="surprise"):
        monitor().update({**FLAT, "surprise": np.zeros(1)})
