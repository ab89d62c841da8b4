"""The table of running sequences: a slab row with its keys and values, tokens, log-probs and sampling parameters each.

Running sequences hold the first rows, so that a step works on views.
"""

from __future__ import annotations

import numpy as np
import torch

from parity.engines.embedded.model import Model
from parity.engines.embedded.protocol import SamplingParameters

SLAB_BYTES = 512 << 20
"""Key-value memory for running sequences; what does not fit waits."""
MIN_COLUMNS = 64

_STATE = np.dtype(
    [
        ("prompt", np.int64),
        ("length", np.int64),
        ("end", np.int64),
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("seed", np.uint64),
        ("watched", np.bool_),
        ("shift", np.int64),
        ("raw", np.bool_),
    ]
)


def columns_for(model: Model, tokens: int) -> int:
    """Columns of a table whose longest sequence has this many tokens: a power of two, or the whole context."""
    return min(model.context_length, max(MIN_COLUMNS, 1 << (tokens - 1).bit_length()))


def rows_for(model: Model, tokens: int, most: int) -> int:
    """Rows that fit into `SLAB_BYTES` beside a sequence of this many tokens: at least 1, `most` at most."""
    fit: int = SLAB_BYTES // (columns_for(model, tokens) * model.token_bytes)
    return max(1, min(most, fit))


class Rows:
    """Rows for sequences of at most `tokens` tokens, prompt included.

    `state` holds a row's prompt tokens, its `length` (tokens whose keys and values are in the slab), the length to
    `end` at, and how to sample; `watched` rows need a look in Python at every token, `raw` ones have log-probs of
    temperature 1, and `shift` is what leads from the column of a token after the prompt to its position. `tokens`
    (rows, columns + 1) and `logprobs` are by position. `stops` (rows, K) holds the ids that end a row, filled up with
    -1.
    """

    def __init__(self, model: Model, tokens: int, most: int) -> None:
        self.columns = columns_for(model, tokens)
        self.count = rows_for(model, tokens, most)
        self.slab: torch.Tensor = model.new_slab(self.count, self.columns)
        self.tokens = np.zeros((self.count, self.columns + 1), dtype=np.int64)
        self.logprobs = np.zeros((self.count, self.columns + 1))
        self.state = np.zeros(self.count, dtype=_STATE)
        self.stops = np.full((self.count, 1), -1, dtype=np.int64)

    def take(self, other: Rows, count: int) -> None:
        """Copies the first rows of a table with no more columns than this one."""
        width = other.columns
        self.slab[:, :, :count, :, :width] = other.slab[:, :, :count]
        self.tokens[:count, : width + 1] = other.tokens[:count]
        self.logprobs[:count, : width + 1] = other.logprobs[:count]
        self.state[:count] = other.state[:count]
        self._widen_stops(other.stops.shape[1])
        self.stops[:count] = other.stops[:count]

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Copies rows onto others."""
        if not sources:
            return
        width = int(self.state["length"][sources].max())
        self.slab[:, :, targets, :, :width] = self.slab[:, :, sources, :, :width]
        for array in (self.tokens, self.logprobs, self.state, self.stops):
            array[targets] = array[sources]

    def fill(
        self,
        row: int,
        context: tuple[int, ...],
        prompt: int,
        logprobs: tuple[float, ...],
        sampling: SamplingParameters,
        seed: int,
        stops: frozenset[int],
        watched: bool,
        shift: int,
    ) -> None:
        """Starts a row whose `context` is in the slab: `prompt` tokens, and output with these log-probs."""
        self.tokens[row, : len(context)] = context
        self.logprobs[row, prompt : len(context)] = logprobs
        self._widen_stops(len(stops))
        self.stops[row] = -1
        self.stops[row, : len(stops)] = sorted(stops)
        end = prompt + sampling.max_new_tokens
        how = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        self.state[row] = (prompt, len(context), end, *how, seed, watched, shift, sampling.raw_logprobs)

    def produced(self, row: int) -> int:
        """Output tokens of a row."""
        return int(self.state["length"][row]) + 1 - int(self.state["prompt"][row])

    def output(self, row: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Output ids and log-probs of a row."""
        place = slice(int(self.state["prompt"][row]), int(self.state["length"][row]) + 1)
        return tuple(self.tokens[row, place].tolist()), tuple(self.logprobs[row, place].tolist())

    def tail(self, row: int, count: int) -> list[int]:
        """The last output ids of a row, `count` at most."""
        end = int(self.state["length"][row]) + 1
        ids: list[int] = self.tokens[row, max(int(self.state["prompt"][row]), end - count) : end].tolist()
        return ids

    def _widen_stops(self, width: int) -> None:
        missing = width - self.stops.shape[1]
        if missing > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, missing)), constant_values=-1)
