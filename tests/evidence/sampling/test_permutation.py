"""Dealing labels inside prompts: distances as scipy has them, kernels worked out by hand, clones beside controls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import energy_distance

from parity.errors import InputError
from parity.stats import (
    GroupValues,
    equality_kernel,
    independence_tests,
    pair_contrasts,
    prefix_kernel,
    product_kernel,
    shape_tests,
)


def groups_of(values: np.ndarray) -> GroupValues:
    return GroupValues("length", tuple(range(len(values))), np.asarray(values, dtype=np.float64))


def test_pair_contrasts_worked_out_by_hand() -> None:
    a, b, c, d, e, f = range(6)
    contrasts = pair_contrasts(equality_kernel(np.array([[a, d, e, f, a, a, b, c]])))
    assert contrasts.within_experiment == pytest.approx([1 / 6])
    assert contrasts.within_baseline == pytest.approx([0])
    assert contrasts.cross == pytest.approx([2 / 16])
    assert contrasts.within_minus_cross == pytest.approx([0.0416667], abs=1e-6)
    assert contrasts.distance == pytest.approx([-0.0833333], abs=1e-6)


def test_prefix_kernel_counts_up_to_the_first_difference() -> None:
    tokens = np.array([[[1, 2, 3, 4], [1, 2, 9, 4], [1, 2, 3, 0], [0, 0, 0, 0]]])
    kernel = prefix_kernel(tokens, np.array([[4, 4, 3, 0]]))[0]
    assert kernel[0] == pytest.approx([1, 0.5, 0.75, 0])
    assert kernel[2] == pytest.approx([0.75, 0.5, 1, 0])
    assert kernel[3, 3] == 1


def test_a_kernel_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError):
        pair_contrasts(np.zeros((3, 5, 5), np.float32))


@pytest.mark.parametrize("rounded", [False, True])
def test_distances_are_those_of_scipy_with_and_without_ties(rounded: bool) -> None:
    rng = np.random.default_rng(0)
    baseline, experiment = rng.normal(0, 3, (20, 4)), rng.normal(0.5, 3, (20, 4))
    if rounded:
        baseline, experiment = np.round(baseline), np.round(experiment)
    found = shape_tests(groups_of(baseline), groups_of(experiment), rng, 19)
    pooled = baseline.ravel(), experiment.ravel()
    assert found["kolmogorov_smirnov"].estimate == pytest.approx(stats.ks_2samp(*pooled).statistic)
    assert found["energy"].estimate == pytest.approx(energy_distance(*pooled), rel=1e-5)


def test_two_points_two_apart_have_energy_distance_two() -> None:
    found = shape_tests(groups_of(np.zeros((2, 2))), groups_of(np.full((2, 2), 2.0)), np.random.default_rng(0), 9)
    assert found["energy"].estimate == pytest.approx(2)


def test_constants_have_distance_zero_and_p_one() -> None:
    found = shape_tests(groups_of(np.ones((4, 3))), groups_of(np.ones((4, 3))), np.random.default_rng(0), 99)
    assert {result.p for result in found.values()} == {1.0}


def test_p_values_of_equal_arms_are_uniform_despite_clustered_prompts() -> None:
    rng = np.random.default_rng(1)
    p_values = {"kolmogorov_smirnov": [], "energy": [], "distance": []}
    for _ in range(150):
        centres = rng.normal(0, 1, (24, 1))
        baseline, experiment = centres + rng.normal(0, 0.5, (2, 24, 4))
        found = shape_tests(groups_of(baseline), groups_of(experiment), rng, 99)
        found |= independence_tests(product_kernel(np.concatenate([baseline, experiment], axis=1)), rng, 99)
        for name, kept in p_values.items():
            kept.append(found[name].p)
    for name, kept in p_values.items():
        assert np.mean(np.array(kept) <= 0.05) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150), name
        assert np.mean(kept) == pytest.approx(0.5, abs=0.08), name


def test_a_wider_arm_of_the_same_mean_is_found_by_its_shape() -> None:
    rng = np.random.default_rng(2)
    centres = rng.normal(0, 0.3, (128, 1))
    baseline, experiment = centres + rng.normal(0, 1, (128, 8)), centres + rng.normal(0, 1.5, (128, 8))
    found = shape_tests(groups_of(baseline), groups_of(experiment), rng, 199)
    assert {name for name, result in found.items() if result.p <= 0.01} == set(found)


def test_one_cloned_pair_in_a_tenth_of_the_groups_is_found_and_the_control_passes() -> None:
    rng = np.random.default_rng(3)
    codes = np.arange(64 * 16).reshape(64, 16)
    control = independence_tests(equality_kernel(codes), rng, 499)
    assert control["within_minus_cross"].p == 1.0
    codes[:7, 9] = codes[:7, 8]
    assert independence_tests(equality_kernel(codes), rng, 499)["within_minus_cross"].p <= 0.05


def test_duplicates_that_low_entropy_makes_in_both_arms_are_no_clones() -> None:
    rng = np.random.default_rng(4)
    found = independence_tests(equality_kernel(rng.integers(0, 3, (128, 16))), rng, 499)
    assert found["within_minus_cross"].p > 0.05
    assert found["distance"].p > 0.05


def test_cloned_rewards_are_dependence_and_not_a_shift() -> None:
    """Half of a group's samples repeat the other half: the mean stays, the spread inside the group shrinks."""
    rng = np.random.default_rng(5)
    baseline, experiment = rng.normal(size=(2, 256, 8))
    experiment[:, 4:] = experiment[:, :4]
    found = independence_tests(product_kernel(np.concatenate([baseline, experiment], axis=1)), rng, 199)
    assert found["within_minus_cross"].p <= 0.01


def test_large_groups_are_dealt_without_a_table_of_all_ways() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(size=(4, 32))
    result = independence_tests(product_kernel(values), rng, 99)["distance"]
    assert 0 < result.p <= 1
