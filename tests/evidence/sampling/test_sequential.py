"""Evidence that may be watched: known answers, state that carries over, exact error rates whatever the law."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.evidence.sampling.sequential import (
    ENOUGH,
    TILTS,
    ExchangeProcess,
    SignFlip,
    adjusted_log_e,
    bernoulli_log_e,
    detectable,
    normal_sequence,
)

REPETITIONS, GROUPS = 2000, 256
SLACK = 3 * math.sqrt(0.05 * 0.95 / REPETITIONS)


def test_a_sign_flip_process_worked_out_by_hand() -> None:
    process = SignFlip().update(np.array([3.0, -1.0, 4.0]))
    # the first difference only sets the size, 3; before the third it is sqrt((9 + 1) / 2)
    shifts = np.array([-1 / 3, 4 / math.sqrt(5)])
    cut = [np.clip(bet * shifts, -1, 1) for bet in [*TILTS, *-TILTS]]
    wealth = [np.prod(np.exp(shift) / np.cosh(shift)) for shift in cut]
    assert process.log_e == pytest.approx(math.log(np.mean(wealth)))
    assert (process.units, process.squares) == (3, 26.0)


def largest(differences: np.ndarray, look: int = 8) -> np.ndarray:
    """The largest log e-value at any look, (…,), from (…, K)."""
    process, found = SignFlip(), np.zeros(differences.shape[:-1])
    for start in range(0, differences.shape[-1], look):
        process = process.update(differences[..., start : start + look])
        found = np.maximum(found, process.log_e)
    return found


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e3, 1e3), max_size=60), st.integers(0, 60))
def test_state_carries_over_any_split(values: list[float], cut: int) -> None:
    differences = np.array(values)
    parts = SignFlip().update(differences[:cut]).update(differences[cut:])
    assert parts.log_e == pytest.approx(SignFlip().update(differences).log_e)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.floats(1e-3, 1e3))
def test_the_unit_and_the_names_of_the_arms_do_not_matter(values: list[float], factor: float) -> None:
    differences = np.round(values, 3)
    expected = SignFlip().update(differences).log_e
    assert SignFlip().update(factor * differences).log_e == pytest.approx(expected)
    assert SignFlip().update(-differences).log_e == pytest.approx(expected)


def test_many_streams_at_once_are_each_by_itself() -> None:
    streams = np.random.default_rng(0).normal(0.1, 1, (5, 40))
    together = SignFlip().update(streams[:, :7]).update(streams[:, 7:])
    alone = [float(SignFlip().update(stream).log_e) for stream in streams]
    assert together.log_e == pytest.approx(alone)


@pytest.mark.parametrize("law", ["normal", "rare", "cauchy"])
def test_differences_of_arms_that_sample_alike_reach_20_at_most_one_time_in_20(law: str) -> None:
    rng = np.random.default_rng(3)
    shape = (2, REPETITIONS, GROUPS)
    arms = {
        "normal": lambda: rng.normal(size=shape),
        "rare": lambda: rng.binomial(8, 0.002, shape) / 8,
        "cauchy": lambda: rng.standard_cauchy(shape),
    }[law]()
    assert np.mean(largest(arms[1] - arms[0]) >= ENOUGH) <= 0.05 + SLACK
    shifted = largest(arms[1] - arms[0] + (0.5 if law == "normal" else 0.01))
    if law != "cauchy":
        assert np.mean(shifted >= ENOUGH) > 0.9


def test_what_is_no_number_is_refused() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(InputError):
            SignFlip().update(np.array([0.1, bad]))


def test_constant_differences_are_seen_and_zeros_say_nothing() -> None:
    assert SignFlip().update(np.zeros(500)).log_e == 0
    assert SignFlip().update(np.full(60, 1e-9)).log_e > ENOUGH
    assert SignFlip().update(np.zeros(0)).units == 0


def test_an_exchange_process_is_exact_under_exchangeability_and_sees_either_direction() -> None:
    rng = np.random.default_rng(4)
    statistics = rng.exponential(size=(400, 64, 32))  # as skewed as squares are
    final = np.array([ExchangeProcess().update(rows).log_e for rows in statistics])
    assert np.mean(final >= ENOUGH) <= 0.05
    for shift in (2.0, -1.0):
        moved = statistics[0].copy()
        moved[:, 0] += shift
        assert ExchangeProcess().update(moved).log_e > ENOUGH


def test_a_statistic_that_no_relabeling_changes_is_no_evidence() -> None:
    rows = np.full((10, 8), 0.3)
    rows[:, 1] += 1e-16
    assert ExchangeProcess().update(rows).log_e == pytest.approx(0)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(-5, 8), min_size=1, max_size=6))
def test_closed_testing_is_the_least_mean_over_all_sets(values: list[float]) -> None:
    names = range(len(values))
    sets = [chosen for size in range(1, len(values) + 1) for chosen in combinations(names, size)]
    expected = {
        name: min(np.log(np.mean(np.exp([values[other] for other in chosen]))) for chosen in sets if name in chosen)
        for name in names
    }
    assert adjusted_log_e(dict(enumerate(values))) == pytest.approx(expected, abs=1e-9)
    assert adjusted_log_e({}) == {}


def test_the_confidence_sequence_of_the_published_formula() -> None:
    # ville 0.1.0, AsymptoticCS() of the same values
    values = np.random.default_rng(0).normal(0.1, 1, 700)
    low, high = normal_sequence(700, values.mean(), values.std(ddof=1))
    assert (low, high) == pytest.approx((-0.0333617, 0.196076), abs=1e-6)
    assert normal_sequence(99, 0.0, 1.0) == (-math.inf, math.inf)


def test_a_fair_coin_and_one_that_is_not() -> None:
    assert bernoulli_log_e(8, 8, 0.5) == pytest.approx(math.log(28.4444), abs=1e-4)
    assert bernoulli_log_e(50, 100, 0.5) < 0
    for counts in ((9, 8, 0.5), (-1, 8, 0.5), (1, 8, 0.0)):
        with pytest.raises(InputError):
            bernoulli_log_e(*counts)


def test_what_would_have_been_seen_is_seen_four_times_in_five() -> None:
    rng, groups, hypotheses = np.random.default_rng(5), 512, 13
    shift = detectable(hypotheses, groups)
    seen = largest(rng.normal(shift, 1, (1000, groups))) >= ENOUGH + math.log(hypotheses)
    assert 0.7 < np.mean(seen) < 0.95
