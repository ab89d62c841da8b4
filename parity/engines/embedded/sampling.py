"""Logits to tokens and log-probs, reproducible whatever else is in the batch.

The noise of a token is a pure function of (seed, position, vocabulary id): a counter, not a stream, so that no other
sequence and no order of arrival can move it. Everything here works on whole batches; B is the number of rows, V the
vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Seeds = NDArray[np.uint64]

LOGPROB_GRID = 2.0**-16
"""Log-probs are rounded to this, so that they are equal bit for bit whatever else was in the batch.

What the shape of the batch does to a float64 log-prob was at most 2.5e-13 on the default policy (weights as
initialised, and four times as large), over batches of 1 to 512, whole and token-wise prefill, and one and two threads.
At that worst difference, the chance that a value straddles a boundary of the grid, or that the two best scores change
places, is below 2e-8 a token. Half a step, 7.6e-6, is far below what training notices.
"""

TOP_K_ALL = 1 << 30
"""The `top_k` that keeps the whole vocabulary (`sampling_params.py` of SGLang 0.5.23)."""

_WEYL = np.uint64(0x9E3779B97F4A7C15)


def gumbel_noise(seeds: Seeds, positions: Integers, vocabulary: int) -> Floats:
    """Standard Gumbel noise (B, V) for the token at each absolute position (B,) of sequences with these seeds (B,).

    A row is the SplitMix64 stream (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") that
    the mixed pair (seed, position) starts, indexed by vocabulary id; 52 bits of each word make a uniform number
    strictly inside (0, 1).
    """
    row = _mix(_mix(seeds + _WEYL) + positions.astype(np.uint64) * _WEYL)
    ids = np.arange(1, vocabulary + 1, dtype=np.uint64) * _WEYL
    words = _mix(row[:, None] + ids[None, :])
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities of logits (..., V) along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def on_grid(logprobs: Floats) -> Floats:
    """Log-probs rounded to `LOGPROB_GRID`; never -0.0."""
    rounded: Floats = np.rint(logprobs / LOGPROB_GRID) * LOGPROB_GRID + 0.0
    return rounded


def sample(
    logits: Floats,
    temperature: Floats,
    top_k: Integers,
    top_p: Floats,
    min_p: Floats,
    seeds: Seeds,
    positions: Integers,
) -> tuple[Integers, Floats]:
    """Tokens (B,) and the log-probs (B, V) of the distribution at each row's temperature, before any truncation.

    The token is the argmax of log-prob plus Gumbel noise over what top-k, top-p and min-p keep (the Gumbel-max trick:
    Maddison, Tarlow, Minka 2014, "A* sampling"), which draws from the renormalised truncated distribution; top_k = 1
    is greedy and takes no noise. The log-probs are those that SGLang reports: of the temperature-scaled, untruncated
    distribution. A row whose logits are not all finite has NaN log-probs.
    """
    logprobs = log_softmax(logits / temperature[:, None])
    greedy = top_k == 1
    scores = logprobs + gumbel_noise(seeds, positions, logits.shape[1])
    cut = ~greedy & ((top_k < logits.shape[1]) | (top_p < 1.0) | (min_p > 0.0))
    if cut.any():
        kept = _kept(logprobs[cut], top_k[cut], top_p[cut], min_p[cut])
        scores[cut] = np.where(kept, scores[cut], -np.inf)
    tokens = scores.argmax(axis=1)
    if greedy.any():
        tokens[greedy] = logits[greedy].argmax(axis=1)
    return tokens, logprobs


def _kept(logprobs: Floats, top_k: Integers, top_p: Floats, min_p: Floats) -> NDArray[np.bool_]:
    """Which tokens (B, V) survive all three cuts.

    A token's rank must be below top_k, the mass ranked before it at most top_p, its probability at least min_p of the
    best. All three look at the untruncated probabilities, as `top_k_top_p_min_p_sampling_from_probs_torch` of SGLang
    0.5.23 does; ties rank by vocabulary id.
    """
    order = np.argsort(-logprobs, axis=1, kind="stable")
    ranked = np.exp(np.take_along_axis(logprobs, order, axis=1))
    before = np.cumsum(ranked, axis=1) - ranked
    keep = np.arange(ranked.shape[1])[None, :] < top_k[:, None]
    keep &= before <= top_p[:, None]
    keep &= ranked >= ranked[:, :1] * min_p[:, None]
    result = np.empty_like(keep)
    np.put_along_axis(result, order, keep, axis=1)
    return result


def _mix(words: Seeds) -> Seeds:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
