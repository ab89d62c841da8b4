"""Arm labels dealt inside prompts: known answers, and statistics that see dependence and spread but no shift."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import InputError
from parity.evidence.sampling.permutation import (
    PairMeans,
    dealt_labels,
    distance_kernel,
    equality_kernel,
    mean_excess,
)

SIZE = 8


def test_the_observed_deal_comes_first() -> None:
    a, b, c, d, e, f = range(6)
    labels = dealt_labels(1, 4, 500, np.random.default_rng(0))
    pairs = PairMeans.of(equality_kernel(np.array([[a, d, e, f, a, a, b, c]])), labels)
    assert (pairs.of_experiment[0, 0], pairs.of_baseline[0, 0], pairs.across[0, 0]) == pytest.approx((1 / 6, 0, 2 / 16))
    assert pairs.inside[0, 0] == pytest.approx(1 / 24)
    assert pairs.inside[0, 1:].mean() == pytest.approx(0, abs=0.02)
    assert pairs.between[0, 1:].mean() == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("size", [2, SIZE, 20])
def test_every_deal_gives_each_arm_as_many_samples(size: int) -> None:
    labels = dealt_labels(3, size, 50, np.random.default_rng(1))
    assert labels.shape == (3, 2 * size, 51)
    assert (labels.sum(axis=1) == size).all()
    assert (labels[:, size:, 0] == 1).all() and (labels[:, :size, 0] == 0).all()


def test_kernels_of_another_shape_are_refused() -> None:
    labels = dealt_labels(1, 2, 3, np.random.default_rng(0))
    for shape in ((1, 4), (1, 4, 3), (1, 3, 3), (1, 2, 2)):
        with pytest.raises(InputError, match="pair kernel"):
            PairMeans.of(np.ones(shape, np.float32), labels)


def observed(values: np.ndarray) -> tuple[float, float]:
    """Excess of the arms' means, and how much further apart the experiment's samples lie, over what labels give."""
    labels = dealt_labels(len(values), SIZE, 200, np.random.default_rng(2))
    excess = mean_excess(values, labels)
    between = PairMeans.of(distance_kernel(values), labels).between
    return float(excess[:, 0].mean() - 1), float(between[:, 0].mean())


def test_copies_balanced_samples_and_wider_ones_are_told_apart_and_a_shift_is_none_of_them() -> None:
    rng = np.random.default_rng(3)
    baseline, experiment = rng.normal(size=(2, 600, SIZE))
    half = SIZE // 2
    changed = {
        "equal": experiment,
        "copies": np.concatenate([experiment[:, :half]] * 2, axis=1),
        "balanced": np.concatenate([experiment[:, :half], -experiment[:, :half]], axis=1),
        "wider": 1.5 * experiment,
        "shifted": experiment + 0.3,
    }
    excess = {name: observed(np.concatenate([baseline, values], axis=1)) for name, values in changed.items()}
    assert excess["copies"][0] > 0.3
    assert excess["balanced"][0] < -0.3
    assert excess["wider"][1] > 0.2
    for name in ("equal", "shifted"):
        assert abs(excess[name][0]) < 0.15 and abs(excess[name][1]) < 0.06


def test_groups_without_spread_and_an_odd_last_group_say_nothing() -> None:
    labels = dealt_labels(3, 2, 5, np.random.default_rng(0))
    assert mean_excess(np.ones((3, 4)), labels) == pytest.approx(np.ones((1, 6)))
    assert (distance_kernel(np.ones((3, 4))) == 0).all()
