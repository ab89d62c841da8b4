"""What trainer and engine differ by, token by token, as sums over each sample.

With d = trainer's log-prob - engine's of a token that the engine sampled, |d| is the absolute gap, k1 = -d and
k3 = e^d - 1 - d are estimates of KL(engine || trainer) whose mean is the same (Schulman 2020, "Approximating KL
Divergence"): k1 has the larger variance, k3 is never negative.
"""

from __future__ import annotations

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
            table[row] = _sums(np.asarray(values, dtype=np.float64), engine, trained)
    return table


def _sums(trainer: Floats, engine: Floats, trained: npt.NDArray[np.bool_]) -> Floats:
    """One row of `trainer_gaps` of log-probs by token, each (tokens,)."""
    kept = trained & np.isfinite(trainer) & np.isfinite(engine)
    places, engine = np.flatnonzero(kept), engine[kept]
    gap = np.clip(trainer[kept] - engine, -LARGEST_STEP, LARGEST_STEP)
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
