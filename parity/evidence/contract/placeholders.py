"""Placeholders of media in token ids: which tokens may be placeholders, and where they stand.

An engine puts what it sees of one medium in place of one placeholder, or of one run of them where the prompt holds as
many as the medium takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parity.evidence.contract.columns import Ints, Objects
from parity.records.samples import Ragged

KNOWN_TOKENS = frozenset({151655, 151656, 248056, 248057, 262144})
"""Images and videos of Qwen2-VL, Qwen2.5-VL and Qwen3-VL (151655, 151656), of Qwen3.5 (248056, 248057), and Gemma 3's
(262144), by the `config.json` of each."""

KNOWN_TEXTS = ("<|image_pad|>", "<image>", "<start_of_image>", "[IMG]")
"""The same in text prompts: of Qwen, of LLaVA and InternVL, of Gemma 3 and of Pixtral."""

BRACKETS = {151655: (151652, 151653), 151656: (151652, 151653), 262144: (255999, 256000)}
"""What stands right before and after a run, by placeholder."""

LONG_RUN = 4
"""A token of no known family that a prompt repeats so often in a row may be an expanded placeholder."""

MOST_TOKENS = 8
"""Tokens kept of each sample."""


class Runs(NamedTuple):
    """A token that may be a placeholder: its runs in one prompt, its tokens in them, and runs cut off at one side."""

    token: int
    runs: int
    tokens: int
    cut: int


def runs_in(ids: npt.NDArray[np.int32], declared: frozenset[int]) -> tuple[Runs, ...]:
    """The tokens of one prompt (tokens,) that may be placeholders: declared, of a known family, or long repeated."""
    if not len(ids):
        return ()
    # A run starts where a token differs from the one before it: token, start and length of each run, (runs,).
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    tokens, lengths = ids[starts], np.diff(np.append(starts, len(ids)))
    wanted = np.isin(tokens, list(declared or KNOWN_TOKENS))
    if not declared:
        wanted |= np.isin(tokens, tokens[lengths >= LONG_RUN])
    found = []
    for token in np.unique(tokens[wanted])[:MOST_TOKENS].tolist():
        at = np.flatnonzero(tokens == token)
        cut = 0
        if token in BRACKETS:
            opening, closing = BRACKETS[token]
            before = np.where(at > 0, tokens[at - 1], -1)
            after = np.where(at + 1 < len(tokens), tokens[np.minimum(at + 1, len(tokens) - 1)], -1)
            cut = int(((before == opening) != (after == closing)).sum())
        found.append(Runs(token, len(at), int(lengths[at].sum()), cut))
    return tuple(found)


def prompt_runs(prompts: Ragged, media: Objects, declared: frozenset[int]) -> Objects:
    """What `runs_in` finds in the prompt of each sample with media, or of all with declared placeholders, (rows,)."""
    rows = np.full(len(prompts.valid), None, dtype=object)
    for row in range(len(rows)):
        rows[row] = runs_in(prompts[row], declared) if declared or media[row] else ()
    return rows


def generated_tokens(
    outputs: Ragged, mask: Ragged, runs: Iterable[Sequence[Runs]], declared: frozenset[int]
) -> Objects:
    """The sampled tokens of each response that may be placeholders, by what prompts of this part have, (rows,).

    What a mask leaves out was not sampled: a tool may honestly answer with an image.
    """
    suspects = declared or frozenset(item.token for row in runs for item in row)
    rows = np.full(len(outputs.valid), None, dtype=object)
    for row in range(len(rows)):
        rows[row] = ()
    if not suspects:
        return rows
    suspects = suspects if declared else suspects | KNOWN_TOKENS
    places = np.flatnonzero(np.isin(outputs.values, list(suspects)))
    owners = np.searchsorted(outputs.offsets, places, side="right") - 1
    for place, row, token in zip(places.tolist(), owners.tolist(), outputs.values[places].tolist(), strict=True):
        masked = len(mask[row]) == len(outputs[row]) and mask[row][place - outputs.offsets[row]] == 0
        if not masked and token not in rows[row] and len(rows[row]) < MOST_TOKENS:
            rows[row] = (*rows[row], token)
    return rows


def total_runs(rows: Objects, tokens: frozenset[int]) -> tuple[Ints, Ints, Ints]:
    """Runs, tokens in runs and cut runs of the placeholders named, over each prompt; each (rows,)."""
    table = np.zeros((len(rows), 3), dtype=np.int64)
    for place, row in enumerate(rows):
        for item in row:
            if item.token in tokens:
                table[place] += item[1:]
    return table[:, 0], table[:, 1], table[:, 2]
