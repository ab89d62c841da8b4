"""Samples boiled down to a few numbers each, so that every check is an operation on arrays of rows.

The token columns are read once, here, and may be read one row group at a time: what is kept of each sample does not
grow with its length. The checks then see all samples of a stream together, so that a group may lie across row groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parity.evidence.contract.outcomes import SHOWN, Case, Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import Where
from parity.records.samples import Ragged, Rollout

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]

NULL = np.iinfo(np.int64).min
"""Stands for a null in integer facts; no integer of a sample takes it."""

PREFIX = 32
"""Tokens of the prefix that is compared between siblings."""

SENTINEL_LOGPROB = -1000.0
"""No sampled token has a log-probability below it: padding values do (-9999, -1e4, the lowest float)."""

ENCODED_MEDIA = re.compile(r"data:(?:image|video|audio)/|[A-Za-z0-9+/]{4096}")
"""A data URL, or 4 KB of base64's alphabet without a break."""

_ROWS_PER_REWARD_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Facts:
    """One entry a sample, (rows,). Integers are `NULL` and floats NaN where the sample has no value, objects `None`.

    Lengths are of the lists; `bad_*` count entries: `bad_ids` null, negative or beyond the vocabulary, `bad_logprobs`
    null, not finite, positive or a padding value, `bad_mask` neither 0 nor 1. `turns` counts what was sampled in one
    go, `longest_turn` the tokens of the longest; `last_sampled` is the last token of the last, and `stops` counts the
    stop tokens after which a turn went on. `logprob_sum` and `prefix_logprob_sum` are over the output and its first
    `PREFIX` tokens. `reward_again` is `rules.reward` of the sample. `removed`: its host keeps it out of training.
    """

    rollout_id: Ints
    group_index: Ints
    index: Ints
    prompt_hash: Ints
    prompt_length: Ints
    prompt_media: Ints
    output_length: Ints
    output_hash: Ints
    prefix_hash: Ints
    last_id: Ints
    last_sampled: Ints
    turns: Ints
    longest_turn: Ints
    bad_ids: Ints
    stops: Ints
    logprobs_length: Ints
    bad_logprobs: Ints
    worst_logprob: Floats
    zero_tail: Ints
    logprob_sum: Floats
    prefix_logprob_sum: Floats
    mask_length: Ints
    mask_sum: Ints
    bad_mask: Ints
    response_length: Ints
    max_new_tokens: Ints
    prompt_tokens: Ints
    cached_tokens: Ints
    sampling_seed: Ints
    top_k: Ints
    temperature: Floats
    top_p: Floats
    reward: Floats
    has_reward: Bools
    reward_again: Floats
    advantage: Floats
    has_advantage: Bools
    finish_reason: Objects
    status: Objects
    weight_versions: Objects
    media: Objects
    encoded_media: Bools
    removed: Bools
    arm: Objects

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def concatenate(cls, parts: Sequence[Facts]) -> Facts:
        """The facts of a stream's parts, one after the other."""
        return cls(**{item.name: np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(cls)})

    def where(self, row: int, field: str) -> Where:
        """The place of one sample's field."""
        rollout_id = int(self.rollout_id[row])
        return Where(
            None, None if rollout_id == NULL else rollout_id, int(self.group_index[row]), int(self.index[row]), field
        )


@dataclass(frozen=True, slots=True)
class Groups:
    """Which samples belong together: a group is `(rollout_id, group_index)`, whatever its prompt and row order.

    `code` (rows,) numbers the groups from 0; `order` (rows,) sorts rows by rollout, group, slot; group g is
    `order[starts[g]:starts[g] + sizes[g]]`; `first` (groups,) is the row of its lowest slot.
    """

    code: Ints
    order: Ints
    starts: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def first(self) -> Ints:
        """The row of each group's lowest slot, (groups,)."""
        return self.order[self.starts]

    def rows(self, group: int) -> Ints:
        """The rows of one group by slot."""
        return self.order[self.starts[group] : self.starts[group] + self.sizes[group]]

    def any(self, rows: Bools) -> Bools:
        """Per group, whether any of its rows is marked, (groups,)."""
        return np.bincount(self.code, rows, len(self)) > 0


def groups_of(facts: Facts) -> Groups:
    """Sorts samples into groups."""
    order = np.lexsort((facts.index, facts.group_index, facts.rollout_id))
    rollout_id, group_index = facts.rollout_id[order], facts.group_index[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (rollout_id[1:] != rollout_id[:-1]) | (group_index[1:] != group_index[:-1])
    starts = np.flatnonzero(new).astype(np.int64)
    code = np.empty(len(order), dtype=np.int64)
    code[order] = np.cumsum(new) - 1
    return Groups(code, order, starts, np.diff(np.append(starts, len(order))))


def over_rows(
    facts: Facts,
    *,
    known: Bools,
    fails: Bools,
    field: str,
    case: Callable[[int], tuple[Any, Any, str]],
    missing: str,
    concerns: Bools | None = None,
    groups: Groups | None = None,
) -> Outcome:
    """Counts a rule over units, and describes the first that break it.

    Args:
        facts: All samples.
        known: (units,) the unit's data is there.
        fails: (units,) the unit breaks the rule; read where it is known and concerned.
        field: The field that the rule is about.
        case: From a unit to what is expected, what is observed, and a sentence.
        missing: What is missing where a unit is not known.
        concerns: (units,) the rule is about the unit at all; all by default.
        groups: Given if the units are these groups and not rows; a case then names no slot.
    """
    concerned = np.ones(len(known), dtype=np.bool_) if concerns is None else concerns
    wrong = np.flatnonzero(concerned & known & fails)
    cases = []
    for unit in wrong[:SHOWN].tolist():
        if groups is None:
            where = facts.where(unit, field)
        else:
            where = replace(facts.where(int(groups.first[unit]), field), index=None)
        cases.append(Case(where, *case(unit)))
    return Outcome(int((concerned & known).sum()), len(wrong), tuple(cases), int((concerned & ~known).sum()), missing)


def known_objects(values: Objects) -> Bools:
    """Where a column of objects has a value, (rows,)."""
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def one_of(values: Objects, names: Collection[str]) -> Bools:
    """Where a column of objects has one of the values named, (rows,)."""
    return np.fromiter((value in names for value in values), np.bool_, len(values))


def _integers(rollout: Rollout, name: str) -> Ints:
    return rollout.integers(name, NULL)


def _sums(ragged: Ragged, values: npt.NDArray[Any], dtype: type[np.generic] = np.int64) -> npt.NDArray[Any]:
    """Sum of per-entry `values` over each row, (rows,); 0 for an empty row."""
    sums = np.zeros(len(ragged.valid), dtype=dtype)
    filled = np.flatnonzero(ragged.lengths)
    if len(filled):
        sums[filled] = np.add.reduceat(values, ragged.offsets[filled], dtype=dtype)
    return sums


def _count(ragged: Ragged, marked: Bools) -> Ints:
    """Marked entries of each row, (rows,); cheap when few are."""
    return np.bincount(
        np.searchsorted(ragged.offsets, np.flatnonzero(marked), side="right") - 1, minlength=len(ragged.valid)
    )


def _lengths(ragged: Ragged) -> Ints:
    return np.where(ragged.valid, ragged.lengths, NULL)


@dataclass(frozen=True, slots=True)
class _Turns:
    """How the masks of responses part them into turns, between which others' tokens stand, such as a tool's.

    `count` and `longest` (in tokens) are by response, `last` is the place of its last sampled token among all (-1 where
    it has no token). Without a mask, or with one that is no mask of this response, all of it is one turn.
    """

    count: Ints
    longest: Ints
    last: Ints
    sampled: Bools | None


def _turns_of(outputs: Ragged, mask: Ragged) -> _Turns:
    lengths = outputs.lengths
    whole = _Turns((lengths > 0).astype(np.int64), lengths, _ends(outputs), None)
    kept = _sums(mask, mask.values)
    parted = (mask.lengths == lengths) & (kept > 0) & (kept < lengths)
    if not parted.any():
        return whole
    sampled = np.ones(len(outputs.values), dtype=np.bool_)
    for row in np.flatnonzero(parted).tolist():
        sampled[outputs.offsets[row] : outputs.offsets[row + 1]] = mask[row] != 0
    edges = np.zeros(len(sampled) + 1, dtype=np.bool_)
    edges[outputs.offsets] = True
    begins = np.flatnonzero(sampled & (edges[:-1] | ~np.append(False, sampled[:-1])))
    ends = np.flatnonzero(sampled & (edges[1:] | ~np.append(sampled[1:], False)))
    row_of = np.searchsorted(outputs.offsets, begins, side="right") - 1
    longest, last = np.zeros(len(lengths), dtype=np.int64), np.full(len(lengths), -1, dtype=np.int64)
    np.maximum.at(longest, row_of, ends - begins + 1)
    last[row_of] = ends
    return _Turns(np.bincount(row_of, minlength=len(lengths)), longest, last, sampled)


def _ends(ragged: Ragged) -> Ints:
    """The place of each row's last entry among all entries, -1 where it has none, (rows,)."""
    return np.where(ragged.lengths > 0, ragged.offsets[1:] - 1, -1)


def _at(ragged: Ragged, places: Ints) -> Ints:
    """The entry of each row at a place among all entries, `NULL` at -1, (rows,)."""
    entries = np.full(len(ragged.valid), NULL, dtype=np.int64)
    entries[places >= 0] = ragged.values[places[places >= 0]]
    return entries


def _hashes(ragged: Ragged) -> Ints:
    """A hash of each row's entries and their number, (rows,)."""
    data = np.ascontiguousarray(ragged.values).view(np.uint8).data
    ends = (ragged.offsets * ragged.values.itemsize).tolist()
    checksums = np.fromiter((crc32(data[a:b]) for a, b in pairwise(ends)), np.int64, len(ragged.valid))
    return checksums | ragged.lengths << 32


def _prefix(ragged: Ragged) -> Ragged:
    """The first `PREFIX` entries of each row that has as many, copied; other rows are empty."""
    long = ragged.lengths >= PREFIX
    places = (ragged.offsets[:-1][long][:, None] + np.arange(PREFIX)).ravel()
    return Ragged(ragged.values[places], np.append(0, np.cumsum(long * PREFIX)), long)


def integer_lists(rollout: Rollout, name: str) -> Ragged:
    """An integer list column, with -1 (no token id, no mask value) in place of null entries."""
    ragged = rollout.ragged(name)
    if ragged.values.dtype.kind != "f":
        return ragged
    return Ragged(np.nan_to_num(ragged.values, nan=-1).astype(np.int32), ragged.offsets, ragged.valid)


def _bad_ids(ragged: Ragged, vocab_size: int | None) -> Ints:
    values = ragged.values
    if not len(values) or (values.min() >= 0 and (vocab_size is None or values.max() < vocab_size)):
        return np.zeros(len(ragged.valid), dtype=np.int64)
    bad = values < 0
    return _count(ragged, bad if vocab_size is None else bad | (values >= vocab_size))


def _stop_counts(ragged: Ragged, turns: _Turns, stop_token_ids: frozenset[int]) -> Ints:
    """Stop tokens of each row after which the same turn goes on, (rows,)."""
    goes_on = np.ones(len(ragged.values), dtype=np.bool_)
    if turns.sampled is not None:
        goes_on[:-1] = turns.sampled[1:]
    goes_on[ragged.offsets[1:][ragged.lengths > 0] - 1] = False
    counts = np.zeros(len(ragged.valid), dtype=np.int64)
    for token in sorted(stop_token_ids):
        counts += _count(ragged, (ragged.values == token) & goes_on)
    return counts


def _removed(rollout: Rollout) -> Bools:
    """Samples with `remove_sample`, by which slime and Miles mask a whole response."""
    if not rollout.has("extra"):
        return np.zeros(len(rollout), dtype=np.bool_)
    found = pc.match_substring_regex(rollout.table.column("extra"), '"remove_sample": ?true').fill_null(False)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _bad_logprobs(ragged: Ragged) -> tuple[Ints, Floats]:
    """How many entries of each row are no log-probability, and the worst of them (the lowest entry when none is)."""
    rows, values = len(ragged.valid), ragged.values
    worst = np.full(rows, np.nan)
    filled = np.flatnonzero(ragged.lengths)
    if len(filled):
        worst[filled] = np.minimum.reduceat(values, ragged.offsets[filled])
    if not len(values) or (values.max() <= 0 and np.nanmin(worst) >= SENTINEL_LOGPROB):
        return np.zeros(rows, dtype=np.int64), worst
    bad = ~((values <= 0) & (values >= SENTINEL_LOGPROB))
    places = np.flatnonzero(bad)[::-1]
    worst[np.searchsorted(ragged.offsets, places, side="right") - 1] = values[places]
    return _count(ragged, bad), worst


def _zero_tails(ragged: Ragged) -> Ints:
    """Entries of exactly 0.0 at the end of each row, (rows,)."""
    tails = np.zeros(len(ragged.valid), dtype=np.int64)
    rows = np.flatnonzero(ragged.lengths > 0)
    while len(rows):
        places = ragged.offsets[1:][rows] - 1 - tails[rows]
        rows = rows[(places >= ragged.offsets[:-1][rows]) & (ragged.values[np.maximum(places, 0)] == 0.0)]
        tails[rows] += 1
    return tails


def _media_in_prompts(ragged: Ragged, placeholders: frozenset[int | str]) -> Ints:
    """Runs of placeholder tokens in each prompt: one, or one medium's expanded run of them, is one medium."""
    tokens = [token for token in placeholders if isinstance(token, int)]
    if not tokens or not len(ragged.values):
        return np.zeros(len(ragged.valid), dtype=np.int64)
    marked = np.isin(ragged.values, tokens)
    before = np.append(False, marked[:-1])
    before[ragged.offsets[:-1][ragged.offsets[:-1] < len(before)]] = False
    return _count(ragged, marked & ~before)


def _joined(rollout: Rollout, name: str) -> Objects:
    """A column of text lists as tuples, `None` where null, (rows,)."""
    rows = np.empty(len(rollout), dtype=object)
    column = rollout.table.column(name)
    if column.null_count < len(rollout):
        rows[:] = [None if row is None else tuple(row) for row in column.to_pylist()]
    return rows


def _strings(rollout: Rollout, name: str) -> Objects:
    """A text column as shared objects, (rows,)."""
    column = rollout.table.column(name).combine_chunks().dictionary_encode()
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    words = np.asarray([*array.dictionary.to_pylist(), None], dtype=object)
    codes: Objects = words[array.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]
    return codes


def _encoded_media(rollout: Rollout) -> Bools:
    found = np.zeros(len(rollout), dtype=np.bool_)
    for name in ("text", "extra"):
        if rollout.has(name):
            column = rollout.table.column(name)
            long = pc.greater_equal(pc.binary_length(column), 4096)
            suspect = pc.or_(pc.match_substring(column, "data:"), long).fill_null(False)
            rows = np.flatnonzero(suspect.to_numpy(zero_copy_only=False))
            for row, text in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
                found[row] |= ENCODED_MEDIA.search(text) is not None
    return found


def _rewards_again(rollout: Rollout, rules: Rules) -> Floats:
    if rules.reward is None:
        return np.full(len(rollout), np.nan)
    return np.fromiter((rules.reward(sample) for sample in _in_chunks(rollout)), np.float64, len(rollout))


def _in_chunks(rollout: Rollout) -> Iterator[Any]:
    for start in range(0, len(rollout), _ROWS_PER_REWARD_CHUNK):
        yield from Rollout(rollout.table.slice(start, _ROWS_PER_REWARD_CHUNK)).samples()


def facts_of(rollout: Rollout, rules: Rules) -> Facts:
    """Reads every column of a rollout once."""
    prompts, outputs = integer_lists(rollout, "prompt_ids"), integer_lists(rollout, "output_ids")
    logprobs, mask = rollout.ragged("logprobs"), integer_lists(rollout, "loss_mask")
    output_prefix, logprob_prefix = _prefix(outputs), _prefix(logprobs)
    bad_logprobs, worst_logprob = _bad_logprobs(logprobs)
    bad_mask = (mask.values != 0) & (mask.values != 1)
    turns, ends = _turns_of(outputs, mask), _ends(outputs)
    numbers: Mapping[str, tuple[Floats, Bools]] = {
        name: rollout.numbers(name) for name in ("reward", "advantage", "temperature", "top_p")
    }
    return Facts(
        rollout_id=_integers(rollout, "rollout_id"),
        group_index=_integers(rollout, "group_index"),
        index=_integers(rollout, "index"),
        prompt_hash=_hashes(prompts),
        prompt_length=_lengths(prompts),
        prompt_media=_media_in_prompts(prompts, rules.media_placeholders),
        output_length=_lengths(outputs),
        output_hash=_hashes(outputs),
        prefix_hash=_hashes(output_prefix),
        last_id=_at(outputs, ends),
        last_sampled=_at(outputs, turns.last),
        turns=turns.count,
        longest_turn=turns.longest,
        bad_ids=_bad_ids(outputs, rules.vocab_size) + _bad_ids(prompts, rules.vocab_size),
        stops=_stop_counts(outputs, turns, rules.stop_token_ids),
        logprobs_length=_lengths(logprobs),
        bad_logprobs=bad_logprobs,
        worst_logprob=worst_logprob,
        zero_tail=np.where(turns.last == ends, _zero_tails(logprobs), 0),
        logprob_sum=_sums(logprobs, logprobs.values, np.float64),
        prefix_logprob_sum=_sums(logprob_prefix, logprob_prefix.values, np.float64),
        mask_length=_lengths(mask),
        mask_sum=_sums(mask, mask.values),
        bad_mask=_count(mask, bad_mask),
        response_length=_integers(rollout, "response_length"),
        max_new_tokens=_integers(rollout, "max_new_tokens"),
        prompt_tokens=_integers(rollout, "prompt_tokens"),
        cached_tokens=_integers(rollout, "cached_tokens"),
        sampling_seed=_integers(rollout, "sampling_seed"),
        top_k=_integers(rollout, "top_k"),
        temperature=numbers["temperature"][0],
        top_p=numbers["top_p"][0],
        reward=numbers["reward"][0],
        has_reward=numbers["reward"][1],
        reward_again=_rewards_again(rollout, rules),
        advantage=numbers["advantage"][0],
        has_advantage=numbers["advantage"][1],
        finish_reason=_strings(rollout, "finish_reason"),
        status=_strings(rollout, "status"),
        weight_versions=_joined(rollout, "weight_versions"),
        media=_joined(rollout, "media_sha256"),
        encoded_media=_encoded_media(rollout),
        removed=_removed(rollout),
        arm=_strings(rollout, "arm"),
    )
