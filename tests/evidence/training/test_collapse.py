"""Collapse detection on drawn curves, and exact tests of its rates against published values."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import UsageError
from parity.metrics import Curve
from parity.stats import collapse_rates, detect_collapse


def reward(values: np.ndarray) -> Curve:
    return Curve("run", "rollout/raw_reward", np.arange(len(values)) * 2, np.asarray(values, np.float64))


def climb(steps: int) -> np.ndarray:
    return np.linspace(0.3, 0.8, steps) + np.random.default_rng(0).normal(0, 0.03, steps)


def test_a_healthy_run_does_not_collapse() -> None:
    found = detect_collapse(reward(climb(100)))
    assert found.onset is None and not found.suspect


def test_a_fall_to_a_fifth_is_dated_within_the_running_median() -> None:
    values = climb(100)
    values[60:] *= 0.2
    assert detect_collapse(reward(values)).onset in {2 * step for step in range(57, 64)}


def test_a_slump_to_six_tenths_and_a_short_dip_are_no_collapse() -> None:
    slump, dip = climb(100), climb(100)
    slump[60:] *= 0.7
    dip[60:67] *= 0.1
    assert detect_collapse(reward(slump)).onset is None
    assert detect_collapse(reward(dip)).onset is None


def test_a_fall_just_before_the_end_is_suspect() -> None:
    values = climb(100)
    values[94:] *= 0.1
    found = detect_collapse(reward(values))
    assert found.onset is None and found.suspect


@pytest.mark.parametrize("samples", [8, 32, 64])
@pytest.mark.parametrize("mean", [0.05, 0.1, 0.5, 0.9])
def test_a_stationary_reward_is_hardly_ever_called_collapsed(samples: int, mean: float) -> None:
    rng = np.random.default_rng(samples)
    found = [detect_collapse(reward(rng.binomial(samples, mean, 200) / samples)) for _ in range(150)]
    assert sum(run.onset is not None for run in found) <= 4


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (20.0, -3.0), (0.01, -1.0)])
@pytest.mark.parametrize("samples", [8, 32, 64])
def test_a_fall_that_stays_is_found_within_20_steps_whatever_the_unit_and_the_zero(
    samples: int, scale: float, shift: float
) -> None:
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(40):
        values = np.concatenate([rng.binomial(samples, 0.5, 100), rng.binomial(samples, 0.05, 20)]) / samples
        onset = detect_collapse(reward(scale * values + shift)).onset
        missed += onset is None or not 184 <= onset <= 216
    assert missed <= 2


def test_an_improving_run_does_not_collapse() -> None:
    """Means of sixths of a real run, which was called collapsed at step 17."""
    rng = np.random.default_rng(6)
    means = np.repeat([0.24, 0.46, 0.67, 0.69, 0.67, 0.69], 20)
    found = [detect_collapse(reward(rng.binomial(16, means) / 16)).onset for _ in range(40)]
    assert found.count(None) == 40


def test_nan_rewards_count_as_collapsed() -> None:
    values = climb(60)
    values[30:] = np.nan
    assert detect_collapse(reward(values)).onset is not None


def test_a_run_shorter_than_its_warm_up_says_nothing() -> None:
    found = detect_collapse(reward(np.zeros(10)))
    assert found.onset is None and not found.suspect


@pytest.mark.parametrize(
    ("experiment", "baseline", "p"),
    [
        ((1, 1), (0, 1), 0.5),
        ((1, 2), (0, 2), 0.625),
        ((1, 3), (0, 3), 0.510),
        ((2, 3), (0, 3), 0.219),
        ((3, 3), (0, 3), 0.03125),
        ((5, 10), (0, 10), 0.013),
        ((5, 10), (1, 10), 0.062),
    ],
)
def test_barnard_p_values(experiment: tuple[int, int], baseline: tuple[int, int], p: float) -> None:
    assert collapse_rates(experiment, baseline).p == pytest.approx(p, abs=5e-4)


def test_one_collapse_against_none_says_nothing() -> None:
    result = collapse_rates((1, 3), (0, 3))
    assert result.ci95 == pytest.approx((-0.2905069, 0.7923404), abs=5e-8)
    assert result.p_harm == pytest.approx(0.344, abs=1e-3)
    assert "not shown" in result.sentence


def test_arms_without_any_or_with_nothing_but_collapse_agree() -> None:
    assert collapse_rates((0, 3), (0, 3)).p == 1.0
    assert collapse_rates((3, 3), (3, 3)).p_harm == 1.0


@pytest.mark.parametrize("counts", [(2, 1), (-1, 3), (0, 0)])
def test_impossible_counts_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        collapse_rates(counts, (0, 3))


def test_a_fall_within_the_first_steps_is_a_collapse() -> None:
    """A learning rate that is too high ends a run before ten steps are over."""
    falling = [0.25, 0.2, 0.12, 0.05, *([0.0] * 16)]
    collapse = detect_collapse(Curve("a", "rollout/raw_reward", np.arange(20), np.asarray(falling)))
    assert collapse.onset is not None
    steady = [0.25, 0.2, 0.22, 0.26, *([0.25] * 16)]
    assert detect_collapse(Curve("a", "rollout/raw_reward", np.arange(20), np.asarray(steady))).onset is None
