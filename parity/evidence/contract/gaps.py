"""What trainer and engine, or two engines, differ by, token by token, as sums over each sample.

With d = the other's log-prob - the engine's of a token that the engine sampled, |d| is the absolute gap, k1 = -d and
k3 = e^d - 1 - d are estimates of KL(engine || other) whose mean is the same (Schulman 2020, "Approximating KL
Divergence"): k1 has the larger variance, k3 is never negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow.compute as pc

from parity.evidence.contract.columns import Floats
from parity.records.samples import TRAINER_LOGPROBS, Ragged, Rollout

POSITIONS = (32, 128, 512, 2048)
"""Places in a response, in tokens, at which a new class of positions begins."""

PROBABILITIES = (0.01, 0.1, 0.5, 0.9)
"""Probabilities of the engine at which a new class of tokens begins."""

MEASURES = ("tokens", "abs", "k1", "k3", "beyond_0.1", "beyond_1")
POSITION_CLASSES = len(POSITIONS) + 1
PROBABILITY_CLASSES = len(PROBABILITIES) + 1

COLUMNS = len(MEASURES) + 2 * (POSITION_CLASSES + PROBABILITY_CLASSES)
"""Of each sample: the sums of `MEASURES`, then tokens and absolute gap of each class of positions and probabilities."""

Z = 1.959963984540054
"""Standard normal quantile of 0.975."""

LARGEST_STEP = 50.0
"""A gap is cut to so many nats before it is exponentiated, so that one broken token leaves k3 finite."""


def trainer_gaps(rollout: Rollout, logprobs: Ragged, mask: Ragged) -> Floats:
    """Sums over the trained tokens of each sample, (rows, COLUMNS); zeros where the trainer's log-probs are not known.

    Tokens count where the mask, if it is as long as the response, is 1 and both log-probs are finite.
    """
    table = np.zeros((len(rollout), COLUMNS))
    column = rollout.table.column("extra")
    marked = pc.match_substring(column, f'"{TRAINER_LOGPROBS}"').fill_null(False).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(marked).tolist():
        values = orjson.loads(column[row].as_py())[TRAINER_LOGPROBS]
        engine = logprobs[row]
        if isinstance(values, list) and len(values) == len(engine):
            trained = mask[row] == 1 if len(mask[row]) == len(engine) else np.ones(len(engine), dtype=np.bool_)
            table[row] = gap_sums(np.asarray(values, dtype=np.float64), engine, trained)
    return table


def gap_sums(other: Floats, engine: Floats, counted: npt.NDArray[np.bool_]) -> Floats:
    """The sums over one sample, (COLUMNS,), of log-probs by token, each (tokens,); what is not finite is left out."""
    kept = counted & np.isfinite(other) & np.isfinite(engine)
    places, engine = np.flatnonzero(kept), engine[kept]
    gap = np.clip(other[kept] - engine, -LARGEST_STEP, LARGEST_STEP)
    size = np.abs(gap)
    sums = [len(gap), size.sum(), -gap.sum(), (np.expm1(gap) - gap).sum(), (size > 0.1).sum(), (size > 1.0).sum()]
    by_class = [
        np.bincount(classes, weights, minlength=count)
        for classes, count in (
            (np.searchsorted(POSITIONS, places, side="right"), POSITION_CLASSES),
            (np.searchsorted(PROBABILITIES, np.exp(engine), side="right"), PROBABILITY_CLASSES),
        )
        for weights in (None, size)
    ]
    return np.concatenate([sums, *by_class])


def measured_gaps(by_group: Floats) -> dict[str, Any]:
    """Means over all tokens, and absolute gaps by position and by probability, each with a 95 % interval.

    Args:
        by_group: Sums of `gap_sums` over each group, (groups, COLUMNS), none without a token.
    """
    measured: dict[str, Any] = {"tokens": int(by_group[:, 0].sum()), "groups": len(by_group)}
    for place, name in enumerate(MEASURES[1:], start=1):
        measured[name] = ratio_with_interval(by_group[:, place], by_group[:, 0])
    # The sums of classes follow those of MEASURES: tokens of each class, then absolute gaps of each.
    start = len(MEASURES)
    for name, edges, count in (
        ("abs by position", POSITIONS, POSITION_CLASSES),
        ("abs by probability", PROBABILITIES, PROBABILITY_CLASSES),
    ):
        labels = [f"below {edges[0]}", *(f"from {edge}" for edge in edges)]
        columns = [(by_group[:, start + count + place], by_group[:, start + place]) for place in range(count)]
        measured[name] = {
            label: ratio_with_interval(gaps, tokens)
            for label, (gaps, tokens) in zip(labels, columns, strict=True)
            if tokens.any()
        }
        start += 2 * count
    return measured


def ratio_with_interval(sums: Floats, tokens: Floats) -> dict[str, Any]:
    """A mean over tokens, and its 95 % interval by the delta method with groups (groups,) as independent units."""
    mean = float(sums.sum() / tokens.sum())
    if np.count_nonzero(tokens) < 2:
        return {"mean": mean}
    residuals = sums - mean * tokens
    error = float(np.sqrt(len(sums) * residuals.var(ddof=1)) / tokens.sum())
    return {"mean": mean, "interval": [mean - Z * error, mean + Z * error]}
