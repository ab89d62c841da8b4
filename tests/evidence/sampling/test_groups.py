"""Tests by prompt group: known answers, error rates on clustered rewards, planted faults beside their controls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from parity.errors import InputError, UsageError
from parity.findings import Verdict
from parity.stats import (
    GroupValues,
    groups_needed,
    neighbour_test,
    paired_events,
    paired_groups,
    slot_test,
)


def groups_of(values: np.ndarray | list[list[float]], metric: str = "reward") -> GroupValues:
    table = np.array(values, dtype=np.float64)
    return GroupValues(metric, tuple(range(len(table))), table)


def rewards(rng: np.random.Generator, groups: int, difficulty: np.ndarray | None = None) -> np.ndarray:
    """0/1 rewards (groups, 8) of prompts of very unequal difficulty."""
    difficulty = rng.beta(0.6, 0.6, (groups, 1)) if difficulty is None else difficulty
    return (rng.random((groups, 8)) < difficulty).astype(np.float64)


def test_the_paired_equivalence_p_is_that_of_statsmodels() -> None:
    baseline, experiment = [4, 7, 8, 6, 3, 2], [6, 8, 7, 10, 11, 9]
    assert ttost_paired(np.array(baseline), np.array(experiment), -0.5, 0.5)[0] == pytest.approx(0.9548543554)
    result = paired_groups(groups_of([[b] for b in baseline]), groups_of([[e] for e in experiment]), 0.5)
    assert result.p_equivalence == pytest.approx(0.9548543554)
    assert result.p_difference == pytest.approx(stats.ttest_rel(experiment, baseline).pvalue)


def test_sign_flips_of_five_pairs_reach_one_in_sixteen() -> None:
    result = paired_groups(groups_of([[0.0]] * 5), groups_of([[1.0], [2.0], [3.0], [4.0], [5.0]]), 1.0)
    assert result.p_sign_flip == pytest.approx(0.0625)


def test_sign_flips_of_the_worked_example() -> None:
    baseline, experiment = [0.50, 0.52, 0.54, 0.51, 0.53], [0.51, 0.55, 0.52, 0.56, 0.53]
    result = paired_groups(groups_of([[b] for b in baseline]), groups_of([[e] for e in experiment]), 1.0)
    assert result.p_sign_flip == pytest.approx(0.375)


def test_a_constant_difference_has_no_width_and_is_judged_by_its_size() -> None:
    inside = paired_groups(groups_of([[0.0]] * 4), groups_of([[0.5]] * 4), 1.0)
    assert inside.verdict is Verdict.PARITY and inside.ci95 == (0.5, 0.5)
    beyond = paired_groups(groups_of([[0.0]] * 4), groups_of([[2.0]] * 4), 1.0)
    assert beyond.verdict is Verdict.INCONCLUSIVE
    assert paired_groups(groups_of([[0.0]] * 40), groups_of([[2.0]] * 40), 1.0).verdict is Verdict.DIFFERENT


def test_groups_of_other_prompts_cannot_be_paired() -> None:
    with pytest.raises(InputError, match="same prompts"):
        paired_groups(groups_of([[1.0], [2.0]]), GroupValues("reward", (1, 0), np.ones((2, 1))), 0.1)
    with pytest.raises(UsageError):
        paired_groups(groups_of([[1.0]]), groups_of([[1.0]]), 0.1)


def test_error_rates_and_power_of_paired_groups_on_clustered_rewards() -> None:
    rng = np.random.default_rng(0)
    verdicts = {"equal": [], "shifted": [], "at margin": []}
    for _ in range(300):
        difficulty = rng.beta(0.6, 0.6, (256, 1))
        baseline, experiment = rewards(rng, 256, difficulty), rewards(rng, 256, difficulty)
        for name, shift in (("equal", 0.0), ("shifted", -0.06), ("at margin", -0.03)):
            shifted = groups_of(experiment + shift)
            verdicts[name].append(paired_groups(groups_of(baseline), shifted, 0.03).verdict)
    error = 3 * math.sqrt(0.05 * 0.95 / 300)
    assert verdicts["equal"].count(Verdict.DIFFERENT) / 300 <= 0.05 + error
    assert verdicts["at margin"].count(Verdict.PARITY) / 300 <= 0.05 + error
    assert verdicts["shifted"].count(Verdict.DIFFERENT) / 300 > 0.95


def test_groups_needed_for_a_margin() -> None:
    assert groups_needed(0.185, 0.02) == pytest.approx(733, abs=1)


def test_mcnemar_counts_only_groups_that_disagree() -> None:
    baseline = np.array([True] * 10 + [False] * 10)
    experiment = np.array([True] * 10 + [True] * 5 + [False] * 5)
    result = paired_events(baseline, experiment)
    assert result.p == pytest.approx(2 * 0.5**5)
    assert result.estimate == 0.25
    assert paired_events(baseline, baseline).p == 1.0
    with pytest.raises(InputError):
        paired_events(baseline, experiment[:3])


def test_known_slot_tests() -> None:
    binary = slot_test(groups_of([[1, 1, 0], [1, 1, 0], [0, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]]))
    assert binary.method == "Cochran's Q"
    assert binary.p == pytest.approx(0.0407622, abs=5e-8)
    columns = [[72, 96, 88, 92, 74], [75, 99, 91, 90, 77], [80, 102, 85, 95, 79]]
    ranked = slot_test(groups_of(np.array(columns).T))
    assert ranked.method == "Friedman's test"
    assert ranked.p == pytest.approx(0.1652989, abs=5e-8)


def test_constant_groups_leave_slots_open() -> None:
    result = slot_test(groups_of(np.repeat([[0.0], [1.0]], 8, axis=1)))
    assert result.p is None and "constant" in result.warnings[0]
    assert neighbour_test(groups_of(np.ones((3, 8))), np.random.default_rng(0)).p is None


def test_a_favoured_slot_is_found_and_equal_slots_are_not() -> None:
    rng = np.random.default_rng(7)
    rejected, repetitions = {"equal": 0, "favoured": 0}, 300
    for _ in range(repetitions):
        difficulty = np.repeat(rng.beta(0.6, 0.6, (256, 1)), 8, axis=1)
        favoured = difficulty.copy()
        favoured[:, 0] = np.minimum(favoured[:, 0] + 0.1, 1)
        for name, chances in (("equal", difficulty), ("favoured", favoured)):
            rejected[name] += slot_test(groups_of((rng.random(chances.shape) < chances) * 1.0)).p < 0.05
    assert rejected["equal"] / repetitions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)
    assert rejected["favoured"] / repetitions == pytest.approx(0.8, abs=0.1)


def test_slots_that_copy_their_neighbour_are_found_and_independent_ones_are_not() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(64, 8))
    assert neighbour_test(groups_of(values), rng, 499).p > 0.05
    values[:, 1:] += 0.7 * values[:, :-1]
    assert neighbour_test(groups_of(values), rng, 499).p <= 0.01
