"""Evidence under watch: known e-values, error rates under peeking at every group, and both ways to stop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.errors import InputError
from parity.evidence.sampling.sequential import bernoulli_log_e, betting_log_e_at, groups_for_sequence
from parity.findings import Verdict
from parity.stats import ConfidenceSequence, EProcess, average_e_value, bernoulli_e_value, sequential_verdict


def test_four_bets_worked_out_by_hand() -> None:
    process = EProcess(np.array([0.5]), np.zeros(1))
    values = []
    for outcome in (1, 1, 0, 1):
        process = process.update(np.array([2.0 * outcome - 1]))
        values.append(math.exp(process.log_e))
    assert values == pytest.approx([1.25, 1.5625, 1.171875, 1.46484375])
    assert process.units == 4
    assert math.exp(process.largest_log_e) == pytest.approx(1.5625)


def test_eight_events_in_eight_against_one_half() -> None:
    assert bernoulli_e_value(8, 8, 0.5) == pytest.approx(28.4444, abs=5e-5)
    with pytest.raises(InputError):
        bernoulli_e_value(9, 8, 0.5)


def test_an_e_value_that_no_float_holds_is_infinite_and_has_a_log() -> None:
    """2^5000 / 5001: all of 5,000 events against one half."""
    assert bernoulli_e_value(5000, 5000, 0.5) == np.inf
    assert bernoulli_log_e(5000, 5000, 0.5) == pytest.approx(5000 * np.log(2) - np.log(5001))


def test_the_mean_e_value_under_the_null_is_one() -> None:
    counts = np.arange(11)
    chances = [math.comb(10, k) * 0.3**k * 0.7 ** (10 - k) for k in counts]
    expected = sum(p * bernoulli_e_value(int(k), 10, 0.3) for k, p in zip(counts, chances, strict=True))
    assert expected == pytest.approx(1)
    assert average_e_value(30.0, 10.0, 2.0) == pytest.approx(14)


def test_state_carries_over_any_split_of_the_stream() -> None:
    differences = np.random.default_rng(0).uniform(-1, 1, 60)
    whole, parts = EProcess().update(differences), EProcess()
    sequence, in_parts = ConfidenceSequence().update(differences), ConfidenceSequence()
    for part in np.split(differences, [7, 7, 31]):
        parts, in_parts = parts.update(part), in_parts.update(part)
    assert parts.log_e == pytest.approx(whole.log_e)
    assert parts.largest_log_e == pytest.approx(whole.largest_log_e)
    assert in_parts.log_wealth == pytest.approx(sequence.log_wealth)


@pytest.mark.parametrize("bad", [1.01, -2.0, math.nan, math.inf])
def test_differences_outside_their_bounds_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="difference 1"):
        EProcess().update(np.array([0.0, bad]))


def group_differences(rng: np.random.Generator, groups: int, shift: float = 0.0) -> np.ndarray:
    """Differences of mean 0/1 rewards of 8 + 8 samples of prompts of unequal difficulty; `shift` moves the mean."""
    difficulty = rng.beta(0.6, 0.6, groups)
    baseline, experiment = rng.binomial(8, difficulty, (2, groups)) / 8
    return np.clip(experiment - baseline + shift, -1, 1)


def test_looking_after_every_group_rejects_equal_arms_at_most_one_time_in_twenty() -> None:
    rng = np.random.default_rng(1)
    rejected = sum(EProcess().update(group_differences(rng, 2000)).rejects for _ in range(600))
    assert rejected / 600 <= 0.05


def test_a_shift_of_five_points_is_found_within_a_thousand_groups() -> None:
    rng = np.random.default_rng(2)
    found = sum(EProcess().update(group_differences(rng, 1000, -0.05)).rejects for _ in range(60))
    assert found / 60 > 0.95


def test_the_sequence_covers_zero_and_narrows_to_parity() -> None:
    rng = np.random.default_rng(3)
    process, sequence = EProcess(), ConfidenceSequence()
    assert sequential_verdict(process, sequence, 0.05) is Verdict.INCONCLUSIVE
    for _ in range(4):
        differences = group_differences(rng, 300)
        process, sequence = process.update(differences), sequence.update(differences)
        assert sequence.interval[0] <= 0 <= sequence.interval[1]
    assert sequential_verdict(process, sequence, 0.05) is Verdict.PARITY


@pytest.mark.parametrize(("sigma", "margin"), [(0.185, 0.05), (0.075, 0.03)])
def test_the_sequence_of_equal_arms_is_inside_its_margin_by_the_groups_that_are_said(
    sigma: float, margin: float
) -> None:
    rng, groups = np.random.default_rng(5), groups_for_sequence(sigma, margin)
    inside = 0
    for _ in range(15):
        sequence = ConfidenceSequence()
        for look in np.array_split(rng.normal(0, sigma, groups).clip(-1, 1), 8):
            sequence = sequence.update(look)
        inside += -margin < sequence.interval[0] and sequence.interval[1] < margin
    assert 10 <= inside <= 15
    assert groups < 350


def test_many_streams_are_watched_as_one_is() -> None:
    streams = np.random.default_rng(6).uniform(-1, 1, (3, 96))
    for differences, looks in zip(streams, betting_log_e_at(streams, 32), strict=True):
        assert looks[-1] == pytest.approx(EProcess().update(differences).log_e)
        assert looks[0] == pytest.approx(EProcess().update(differences[:32]).log_e)


def test_a_difference_as_large_as_the_margin_is_different_and_not_parity() -> None:
    differences = group_differences(np.random.default_rng(4), 1000, 0.05)
    process, sequence = EProcess().update(differences), ConfidenceSequence().update(differences)
    assert sequential_verdict(process, sequence, 0.05) is Verdict.DIFFERENT


def test_a_mean_that_changes_sides_shows_no_parity() -> None:
    sequence = ConfidenceSequence().update(np.full(200, 0.5)).update(np.full(2000, -0.5))
    assert sequence.interval[0] >= sequence.interval[1]
    assert sequential_verdict(EProcess(), sequence, 0.9) is Verdict.INCONCLUSIVE
