"""The power that the reference states for single tests at fixed weights, met within its simulation error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.errors import UsageError
from parity.evidence.sampling.power import simulate_fixed_groups, simulate_watched_groups
from parity.stats import (
    GroupValues,
    independence_tests,
    paired_groups,
    product_kernel,
    slot_test,
)

REPETITIONS = 100
TOLERANCE = 3 * math.sqrt(2 * 0.25 / REPETITIONS)  # both this and the stated power come from 100 repetitions


def of(values: np.ndarray) -> GroupValues:
    return GroupValues("metric", tuple(range(len(values))), np.asarray(values, dtype=np.float64))


def rewards(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray]:
    chances = rng.beta(0.6, 0.6, (groups, 1))
    baseline, experiment = ((rng.random((groups, 8)) < chances) * 1.0 for _ in range(2))
    return baseline, experiment


def lengths(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray]:
    scale = rng.lognormal(6, 0.5, (groups, 1))
    baseline, experiment = (scale * rng.lognormal(0, 0.35, (groups, 8)) for _ in range(2))
    return baseline, experiment


def likelihoods(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray]:
    level = rng.normal(0.5, 0.1, (groups, 1))
    baseline, experiment = (level + rng.normal(0, 0.05, (groups, 8)) for _ in range(2))
    return baseline, experiment


@pytest.mark.parametrize(
    ("draw", "change", "groups", "power"),
    [
        (rewards, lambda values: values, 256, 0.05),
        (rewards, lambda values: values - 0.02, 256, 0.38),
        (rewards, lambda values: values - 0.02, 1024, 0.92),
        (rewards, lambda values: values - 0.05, 64, 0.48),
        (rewards, lambda values: values - 0.05, 256, 0.98),
        (lengths, lambda values: values, 256, 0.05),
        (lengths, lambda values: values * 0.99, 1024, 0.46),
        (lengths, lambda values: values * 0.97, 256, 0.59),
        (lengths, lambda values: values * 0.97, 1024, 1.0),
        (likelihoods, lambda values: values * 0.95, 64, 1.0),
    ],
    ids=lambda value: str(value) if isinstance(value, (int, float)) else "",
)
def test_paired_means(draw, change, groups: int, power: float) -> None:
    rng = np.random.default_rng(groups)
    rejected = 0
    for _ in range(REPETITIONS):
        baseline, experiment = draw(rng, groups)
        rejected += paired_groups(of(baseline), of(change(experiment)), 1.0).p_difference < 0.05
    assert rejected / REPETITIONS == pytest.approx(power, abs=TOLERANCE)


@pytest.mark.parametrize(("rise", "groups", "power"), [(0.05, 256, 0.22), (0.05, 1024, 0.79), (0.10, 1024, 1.0)])
def test_a_favoured_slot(rise: float, groups: int, power: float) -> None:
    rng = np.random.default_rng(1)
    rejected = 0
    for _ in range(REPETITIONS):
        chances = np.repeat(rng.beta(0.6, 0.6, (groups, 1)), 8, axis=1)
        chances[:, 0] = np.minimum(chances[:, 0] + rise, 1)
        rejected += slot_test(of((rng.random(chances.shape) < chances) * 1.0)).p < 0.05
    assert rejected / REPETITIONS == pytest.approx(power, abs=TOLERANCE)


def test_clones_whose_text_was_not_kept_show_in_their_likelihood() -> None:
    rng, repetitions = np.random.default_rng(2), 12
    rejected = {"clones": 0, "control": 0}
    for _ in range(repetitions):
        baseline, experiment = likelihoods(rng, 1024)
        cloned = experiment.copy()
        cloned[:, 1] = cloned[:, 0]
        for name, values in (("control", experiment), ("clones", cloned)):
            centred = np.concatenate([baseline, values], axis=1)
            centred -= centred.mean(axis=1, keepdims=True)
            rejected[name] += independence_tests(product_kernel(centred), rng, 99)["distance"].p <= 0.05
    assert rejected["clones"] / repetitions == pytest.approx(0.77, abs=3 * math.sqrt(2 * 0.25 / repetitions))
    assert rejected["control"] / repetitions <= 0.05 + 3 * math.sqrt(0.05 / repetitions)


def test_power_of_a_set_size_and_of_watched_evidence() -> None:
    rng = np.random.default_rng(3)
    equal, apart = simulate_fixed_groups(0.185, 733, 0.02, (0.0, 0.02), rng)
    assert equal.parity == pytest.approx(0.8, abs=0.03)
    assert apart.parity == pytest.approx(0.05, abs=0.02)
    same, at_margin, beyond = simulate_watched_groups(0.185, 4096, 0.02, (0.0, 0.02, 0.05), rng, 1.0)
    assert same.parity > 0.9 and same.different <= 0.05
    assert at_margin.parity <= 0.05
    assert beyond.different == 1.0 and beyond.median_groups < 300
    for row in (equal, apart, same, at_margin, beyond):
        assert row.parity + row.different + row.inconclusive == pytest.approx(1)
    with pytest.raises(UsageError):
        simulate_fixed_groups(0.0, 733, 0.02, (0.0,), rng)
