"""Sampling against known answers: the distribution, its truncations, and the noise's independence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from parity.engines.embedded.sampling import (
    LOGPROB_GRID,
    TOP_K_ALL,
    gumbel_noise,
    log_softmax,
    on_grid,
    sample,
)

PROBABILITIES = np.array([0.05, 0.5, 0.15, 0.3])


def draw(count, *, temperature=1.0, top_k=TOP_K_ALL, top_p=1.0, min_p=0.0, first_seed=0):
    logits = np.tile(np.log(PROBABILITIES) + 3.0, (count, 1))
    return sample(
        logits,
        np.full(count, temperature),
        np.full(count, top_k),
        np.full(count, top_p),
        np.full(count, min_p),
        np.arange(first_seed, first_seed + count, dtype=np.uint64),
        np.full(count, 7),
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_softmax_at_the_temperature(temperature):
    tokens, logprobs = draw(20_000, temperature=temperature)
    expected = PROBABILITIES ** (1 / temperature)
    expected /= expected.sum()
    assert np.allclose(np.exp(logprobs[0]), expected)
    assert stats.chisquare(np.bincount(tokens, minlength=4), 20_000 * expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.7}, {1, 3}),
        ({"top_p": 0.9}, {1, 2, 3}),
        ({"min_p": 0.2}, {1, 2, 3}),
        ({"min_p": 0.5}, {1, 3}),
        ({"top_k": 3, "top_p": 0.7, "min_p": 0.2}, {1, 3}),
    ],
)
def test_truncation_keeps_the_known_tokens_renormalised_and_leaves_the_logprobs(cut, kept):
    tokens, logprobs = draw(4_000, **cut)
    counts = np.bincount(tokens, minlength=4)
    assert set(np.flatnonzero(counts)) == kept
    expected = np.where(np.isin(range(4), list(kept)), PROBABILITIES, 0.0)
    if len(kept) > 1:
        share = expected[expected > 0] / expected.sum()
        assert stats.chisquare(counts[expected > 0], 4_000 * share).pvalue > 1e-3
    assert np.allclose(np.exp(logprobs), PROBABILITIES)


def test_the_noise_is_gumbel_and_independent_over_seeds_positions_and_ids():
    count = 20_000
    seeds = np.arange(count, dtype=np.uint64)
    here = gumbel_noise(seeds, np.full(count, 3), 2)
    assert stats.kstest(here[:, 0], stats.gumbel_r.cdf).pvalue > 1e-3
    neighbours = {
        "id": here[:, 1],
        "seed": gumbel_noise(seeds + np.uint64(1), np.full(count, 3), 1)[:, 0],
        "position": gumbel_noise(seeds, np.full(count, 4), 1)[:, 0],
        "seed and position": gumbel_noise(seeds + np.uint64(1), np.full(count, 4), 1)[:, 0],
    }
    for name, other in neighbours.items():
        assert abs(stats.spearmanr(here[:, 0], other).statistic) < 4 / count**0.5, name


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31)), min_size=2, max_size=6), st.integers(1, 40)
)
def test_a_rows_noise_does_not_depend_on_the_other_rows_or_the_vocabulary(rows, vocabulary):
    seeds = np.array([seed for seed, _ in rows], dtype=np.uint64)
    positions = np.array([position for _, position in rows])
    together = gumbel_noise(seeds, positions, vocabulary)
    for row in range(len(rows)):
        alone = gumbel_noise(seeds[row : row + 1], positions[row : row + 1], vocabulary + 5)
        assert np.array_equal(alone[0, :vocabulary], together[row])
    assert np.isfinite(together).all()


def test_log_softmax_and_its_grid():
    values = log_softmax(np.array([[1000.0, 1000.0], [0.0, np.log(3.0)]]))
    assert np.allclose(values, np.log([[0.5, 0.5], [0.25, 0.75]]))
    rounded = on_grid(values)
    assert np.array_equal(rounded, np.rint(rounded / LOGPROB_GRID) * LOGPROB_GRID)
    assert np.abs(rounded - values).max() <= LOGPROB_GRID / 2
    assert not np.signbit(on_grid(np.array([-0.0, -1e-9]))).any()


def test_logits_that_are_not_finite_show_in_the_logprobs():
    logits = np.array([[0.0, np.nan], [0.0, 1.0]])
    one = np.ones(2)
    _, logprobs = sample(
        logits, one, np.full(2, TOP_K_ALL), one, 0 * one, np.zeros(2, np.uint64), np.zeros(2, np.int64)
    )
    assert np.isnan(logprobs[0]).all()
    assert np.isfinite(logprobs[1]).all()
