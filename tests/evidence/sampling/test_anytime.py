"""Evidence without bounds, on exchangeability and for many hypotheses: known values, and error rates under peeking."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.evidence.sampling.anytime import (
    SHIFTS,
    ExchangeProcess,
    NormalProcess,
    adjusted_log_e,
    normal_log_e_at,
    normal_sequence,
)

ENOUGH = math.log(20)


def lengths(rng: np.random.Generator, repetitions: int, groups: int) -> np.ndarray:
    """Mean lengths of two arms' groups of eight responses, (2, repetitions, groups): skewed, of unequal prompts."""
    scale = rng.lognormal(6, 0.5, (repetitions, groups, 1))
    return np.stack([(scale * rng.lognormal(0, 0.35, (repetitions, groups, 8))).mean(axis=2) for _ in range(2)])


def test_a_process_worked_out_by_hand() -> None:
    process = NormalProcess(np.array([0.5])).update(np.tile([3.0, 1.0], 50))
    # t = 100, S = 200, V = 500: 0.5 * 200 / sqrt(5) - 0.125 * 100
    assert process.log_e == pytest.approx(100 / math.sqrt(5) - 12.5)
    assert NormalProcess().update(np.ones(99)).log_e == 0, "before the warm-up it says nothing"


def test_the_unit_of_differences_does_not_matter_and_constants_are_no_evidence_unless_they_differ() -> None:
    differences = np.random.default_rng(0).normal(0.3, 1, 200)
    assert NormalProcess().update(differences).log_e == pytest.approx(NormalProcess().update(1e6 * differences).log_e)
    assert NormalProcess().update(np.zeros(500)).log_e == 0
    assert NormalProcess().update(np.full(500, 1e-9)).largest_log_e > ENOUGH


def test_state_carries_over_any_split_of_the_stream() -> None:
    differences = np.random.default_rng(1).normal(0, 1, 300)
    whole, parts = NormalProcess().update(differences), NormalProcess()
    for part in np.split(differences, [0, 7, 150]):
        parts = parts.update(part)
    assert parts.log_e == pytest.approx(whole.log_e)
    assert parts.largest_log_e == pytest.approx(whole.largest_log_e)
    (at_ends,) = normal_log_e_at(SHIFTS, differences[None], 100)
    assert at_ends[-1] == pytest.approx(whole.log_e)


def test_looking_after_every_group_at_skewed_lengths_rejects_equal_arms_at_most_one_time_in_twenty() -> None:
    baseline, experiment = lengths(np.random.default_rng(2), 400, 800)
    path = normal_log_e_at(SHIFTS, experiment - baseline, 1)
    assert (path.max(axis=1) >= ENOUGH).mean() <= 0.05


def test_the_asymptotic_sequence_is_that_of_ville() -> None:
    ville = pytest.importorskip("ville", reason="ville is not installed")
    values = np.random.default_rng(4).normal(0.1, 1, 700)
    theirs = ville.AsymptoticCS()
    theirs.update(values)
    assert normal_sequence(700, values.mean(), values.std(ddof=1)) == pytest.approx(tuple(theirs.interval()))


def test_the_asymptotic_sequence_as_it_was_computed_once() -> None:
    # ville 0.1.0, AsymptoticCS() after numpy.random.default_rng(0).normal(.1, 1, 700)
    values = np.random.default_rng(0).normal(0.1, 1, 700)
    assert normal_sequence(700, values.mean(), values.std(ddof=1)) == pytest.approx((-0.0333617, 0.196076), abs=1e-6)
    assert normal_sequence(99, 0.0, 1.0) == (-math.inf, math.inf)


def test_a_group_is_no_more_evidence_than_its_relabelings() -> None:
    alone = ExchangeProcess().update(np.array([[1.0, *[0.0] * 127]]))
    assert 0 < alone.log_e <= math.log(128)
    assert ExchangeProcess().update(np.zeros((5, 128))).log_e == 0
    # Equal but for rounding is equal.
    assert ExchangeProcess().update(np.array([[0.1 + 0.2, 0.3, 0.3]])).log_e == 0


def test_the_mean_e_value_over_which_relabeling_is_the_observed_one_is_one() -> None:
    statistics = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    rolled = [np.roll(statistics, -place)[None] for place in range(len(statistics))]
    assert np.mean([math.exp(ExchangeProcess().update(one).log_e) for one in rolled]) == pytest.approx(1)


def test_looking_at_exchangeable_groups_rejects_at_most_one_time_in_twenty() -> None:
    rng = np.random.default_rng(5)
    rejected, repetitions = 0, 200
    for _ in range(repetitions):
        process, largest = ExchangeProcess(), 0.0
        for _ in range(10):
            # few, tied and skewed values, as pair kernels have them
            process = process.update(rng.poisson(0.3, (8, 64)).astype(float))
            largest = max(largest, process.log_e)
        rejected += largest >= ENOUGH
    assert rejected / repetitions <= 0.05


logs = st.floats(-20, 20)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), logs, min_size=1))
def test_correction_is_the_least_mean_of_any_set(log_e: dict[str, float]) -> None:
    e_values = {name: math.exp(value) for name, value in log_e.items()}
    sets = [one for size in range(1, len(e_values) + 1) for one in itertools.combinations(e_values, size)]
    means = {one: sum(e_values[name] for name in one) / len(one) for one in sets}
    for name, value in adjusted_log_e(log_e).items():
        assert math.exp(value) == pytest.approx(min(mean for one, mean in means.items() if name in one))


def test_of_many_watched_hypotheses_hardly_ever_one_is_rejected_wrongly() -> None:
    rng = np.random.default_rng(6)
    rejected, repetitions = 0, 200
    for _ in range(repetitions):
        # Twelve streams that share half of their noise, looked at ten times.
        shared = rng.normal(size=(1, 600))
        paths = normal_log_e_at(SHIFTS, shared + rng.normal(size=(12, 600)), 60)
        looks = [adjusted_log_e(dict(enumerate(look))) for look in paths.T.tolist()]
        rejected += max(max(look.values()) for look in looks) >= ENOUGH
    assert rejected / repetitions <= 0.05


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_difference_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="not a number"):
        NormalProcess().update(np.array([0.1, bad]))
