"""Samples boiled down to a few numbers each, so that every check is an operation on arrays of rows.

The token columns are read once, here, and may be read one row group at a time: what is kept of each sample does not
grow with its length. The checks then see all samples of a stream together, so that a group may lie across row groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from parity.evidence.contract.columns import (
    NULL,
    Bools,
    Floats,
    Ints,
    Objects,
    entries_at,
    integer_lists,
    integers,
    row_counts,
    row_ends,
    row_hashes,
    row_lengths,
    row_prefixes,
    row_sums,
    text_lists,
    texts,
)
from parity.evidence.contract.gaps import trainer_gaps
from parity.evidence.contract.outcomes import NOTHING, SHOWN, Case, Outcome
from parity.evidence.contract.placeholders import generated_tokens, prompt_runs
from parity.evidence.contract.rules import Rules
from parity.findings import Message, Where
from parity.records.samples import ASSIGNED, Ragged, Rollout

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
    stop tokens after which a turn went on. `ends_amid` and `stop_amid` are what stop tokens are inferred from (see
    `_stop_marks`). `logprob_sum` and `prefix_logprob_sum` are over the output and its first `PREFIX` tokens.
    `reward_again` is `rules.reward` of the sample. `removed`: its host keeps it out of training. `media_runs` and
    `generated` are tuples of what may be placeholders in prompt and response (see `placeholders`), `arrays` the lengths
    of lists that the source keeps beside the tokens, as pairs of name and length. `gaps` (rows, `gaps.COLUMNS`) are
    sums over tokens of what trainer and engine differ by. `assigned` names the fields that the reader made up.
    """

    rollout_id: Ints
    group_index: Ints
    index: Ints
    prompt_hash: Ints
    prompt_length: Ints
    output_length: Ints
    output_hash: Ints
    prefix_hash: Ints
    text_hash: Ints
    text_length: Ints
    last_id: Ints
    last_sampled: Ints
    turns: Ints
    longest_turn: Ints
    bad_ids: Ints
    stops: Ints
    ends_amid: Bools
    stop_amid: Ints
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
    media_runs: Objects
    generated: Objects
    arrays: Objects
    encoded_media: Bools
    removed: Bools
    arm: Objects
    gaps: Floats
    assigned: Objects

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def concatenate(cls, parts: Sequence[Facts]) -> Facts:
        """The facts of a stream's parts, one after the other."""
        columns = {item.name: [getattr(part, item.name) for part in parts] for item in fields(cls)}
        return cls(**{name: np.concatenate(arrays) for name, arrays in columns.items()})

    def sample_keys(self) -> list[tuple[int | None, int, int]]:
        """What names each sample: rollout, where it is known, group and slot."""
        steps = (None if step == NULL else step for step in self.rollout_id.tolist())
        return list(zip(steps, self.group_index.tolist(), self.index.tolist(), strict=True))

    def recorded(self, name: str) -> Bools:
        """Where a field was not made up by the reader, (rows,)."""
        return np.fromiter((name not in names for names in self.assigned), np.bool_, len(self))

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
    field: str | Callable[[int], str],
    case: Callable[[int], tuple[Any, Any, Message]],
    missing: Message = NOTHING,
    concerns: Bools | None = None,
    groups: Groups | None = None,
) -> Outcome:
    """Counts a rule over units, and describes the first that break it.

    Args:
        facts: All samples.
        known: (units,) the unit's data is there.
        fails: (units,) the unit breaks the rule; read where it is known and concerned.
        field: The field that the rule is about, or from a unit to the field that breaks it.
        case: From a unit to what is expected, what is observed, and a sentence.
        missing: What is missing where a unit is not known.
        concerns: (units,) the rule is about the unit at all; all by default.
        groups: Given if the units are these groups and not rows; a case then names no slot.
    """
    concerned = np.ones(len(known), dtype=np.bool_) if concerns is None else concerns
    wrong = np.flatnonzero(concerned & known & fails)
    cases = []
    for unit in wrong[:SHOWN].tolist():
        name = field if isinstance(field, str) else field(unit)
        if groups is None:
            where = facts.where(unit, name)
        else:
            where = replace(facts.where(int(groups.first[unit]), name), index=None)
        cases.append(Case(where, *case(unit)))
    return Outcome(int((concerned & known).sum()), len(wrong), tuple(cases), int((concerned & ~known).sum()), missing)


def known_objects(values: Objects) -> Bools:
    """Where a column of objects has a value, (rows,)."""
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def one_of(values: Objects, names: Collection[str]) -> Bools:
    """Where a column of objects has one of the values named, (rows,)."""
    return np.fromiter((value in names for value in values), np.bool_, len(values))


@dataclass(frozen=True, slots=True)
class _Turns:
    """How the masks of responses part them into turns, between which others' tokens stand, such as a tool's.

    `count` and `longest` (in tokens) are by response, `last` is the place of its last sampled token among all (-1 where
    it has no token). Without a mask, or with one that is no mask of this response, all of it is one turn. `goes_on`
    (tokens,) marks the sampled tokens after which the same turn goes on.
    """

    count: Ints
    longest: Ints
    last: Ints
    goes_on: Bools


def _turns_of(outputs: Ragged, mask: Ragged) -> _Turns:
    lengths, last = outputs.lengths, row_ends(outputs)
    # edges (tokens + 1,): a response begins at this place, so that the token before it is the last of its response
    edges = np.zeros(len(outputs.values) + 1, dtype=np.bool_)
    edges[outputs.offsets] = True
    kept = row_sums(mask, mask.values)
    parted = (mask.lengths == lengths) & (kept > 0) & (kept < lengths)
    if not parted.any():
        return _Turns((lengths > 0).astype(np.int64), lengths, last, ~edges[1:])
    sampled = np.ones(len(outputs.values), dtype=np.bool_)
    for row in np.flatnonzero(parted).tolist():
        sampled[outputs.offsets[row] : outputs.offsets[row + 1]] = mask[row] != 0
    # a turn begins at a sampled token whose neighbour before is not sampled, or of another response; it ends likewise
    begins = np.flatnonzero(sampled & (edges[:-1] | ~np.append(False, sampled[:-1])))
    ends = np.flatnonzero(sampled & (edges[1:] | ~np.append(sampled[1:], False)))
    row_of = np.searchsorted(outputs.offsets, begins, side="right") - 1  # (turns,)
    longest, last = np.zeros(len(lengths), dtype=np.int64), np.full(len(lengths), -1, dtype=np.int64)
    np.maximum.at(longest, row_of, ends - begins + 1)
    last[row_of] = ends  # turns stand in order, so that the last one stays
    goes_on = sampled.copy()
    goes_on[ends] = False
    return _Turns(np.bincount(row_of, minlength=len(lengths)), longest, last, goes_on)


def _bad_ids(ragged: Ragged, vocab_size: int | None) -> Ints:
    values = ragged.values
    if not len(values) or (values.min() >= 0 and (vocab_size is None or values.max() < vocab_size)):
        return np.zeros(len(ragged.valid), dtype=np.int64)
    bad = values < 0
    return row_counts(ragged, bad if vocab_size is None else bad | (values >= vocab_size))


def _stop_counts(ragged: Ragged, turns: _Turns, stop_token_ids: frozenset[int]) -> Ints:
    """Stop tokens of each row after which the same turn goes on, (rows,)."""
    if not stop_token_ids:
        return np.zeros(len(ragged.valid), dtype=np.int64)
    return row_counts(ragged, np.isin(ragged.values, sorted(stop_token_ids)) & turns.goes_on)


RARELY = 0.1
"""A token that ends responses is a stop token if it stands amid turns at most so often as it ends one."""


def _stop_marks(ragged: Ragged, turns: _Turns, stopped: Bools) -> tuple[Bools, Ints]:
    """What stop tokens are inferred from: nothing follows a stop token, so one that stands amid turns is none.

    Returns:
        (rows,) whether a response that says `stop` ends on a token that stands amid turns; and (rows,) a token that
        ends others and after which this response goes on all the same, `NULL` where there is none.
    """
    last = entries_at(ragged, turns.last)
    tokens, ends = np.unique(last[stopped & (last != NULL)], return_counts=True)
    ends_amid, stop_amid = np.zeros(len(last), dtype=np.bool_), np.full(len(last), NULL)
    places = np.flatnonzero(np.isin(ragged.values, tokens) & turns.goes_on)
    amid = np.bincount(np.searchsorted(tokens, ragged.values[places]), minlength=len(tokens))
    common = amid > RARELY * ends
    ends_amid[:] = stopped & np.isin(last, tokens[common])
    rare = places[np.isin(ragged.values[places], tokens[~common])]
    stop_amid[np.searchsorted(ragged.offsets, rare, side="right") - 1] = ragged.values[rare]
    return ends_amid, stop_amid


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
    return row_counts(ragged, bad), worst


def _zero_tails(ragged: Ragged) -> Ints:
    """Entries of exactly 0.0 at the end of each row, (rows,)."""
    tails = np.zeros(len(ragged.valid), dtype=np.int64)
    rows = np.flatnonzero(ragged.lengths > 0)
    while len(rows):
        places = ragged.offsets[1:][rows] - 1 - tails[rows]
        rows = rows[(places >= ragged.offsets[:-1][rows]) & (ragged.values[np.maximum(places, 0)] == 0.0)]
        tails[rows] += 1
    return tails


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


def _arrays(rollout: Rollout) -> Objects:
    """Lists that a source keeps beside the tokens: pairs of name and length of the first axis, (rows,)."""
    rows = np.full(len(rollout), None, dtype=object)
    for row, text in enumerate(rollout.table.column("extra").to_pylist()):
        extra = orjson.loads(text) if text and ("[" in text or '"length"' in text or '"shape"' in text) else {}
        lengths = {name: _first_axis(value) for name, value in extra.items()}
        rows[row] = tuple((name, length) for name, length in lengths.items() if length is not None)
    return rows


def _first_axis(value: Any) -> int | None:
    """The length of a list, or of one that a reader described by its `length` or `shape`; `None` for other values."""
    if isinstance(value, list):
        return len(value) if value and not isinstance(value[0], (str, dict)) else None
    if not isinstance(value, dict):
        return None
    shape = value.get("shape") or [value.get("length")]
    return shape[0] if isinstance(shape, list) and isinstance(shape[0], int) else None


def _text_hashes(rollout: Rollout) -> tuple[Ints, Ints]:
    """A hash of each text and its length in characters, both (rows,), `NULL` where a sample has none."""
    column = rollout.table.column("text").to_pylist()
    hashes = [NULL if text is None else hash(text) for text in column]
    return np.asarray(hashes, np.int64), np.asarray([NULL if text is None else len(text) for text in column], np.int64)


def _assigned(rollout: Rollout) -> Objects:
    """The fields that the reader made up, a frozenset shared by all rows, (rows,)."""
    names = (rollout.table.schema.metadata or {}).get(ASSIGNED, b"").decode()
    rows = np.empty(len(rollout), dtype=object)
    rows[:] = [frozenset(names.split(",")) if names else frozenset()] * len(rollout)
    return rows


def without(facts: Facts, parameters: Collection[str]) -> Facts:
    """The same samples as if these sampling parameters were not recorded."""
    columns: dict[str, Any] = {name: getattr(facts, name) for name in parameters}
    unknown = {name: np.full_like(of, np.nan if of.dtype.kind == "f" else NULL) for name, of in columns.items()}
    return replace(facts, **unknown)


def facts_of(rollout: Rollout, rules: Rules) -> Facts:
    """Reads every column of a rollout once."""
    prompts, outputs = integer_lists(rollout, "prompt_ids"), integer_lists(rollout, "output_ids")
    logprobs, mask = rollout.ragged("logprobs"), integer_lists(rollout, "loss_mask")
    output_prefix, logprob_prefix = row_prefixes(outputs), row_prefixes(logprobs)
    bad_logprobs, worst_logprob = _bad_logprobs(logprobs)
    bad_mask = (mask.values != 0) & (mask.values != 1)
    turns, ends = _turns_of(outputs, mask), row_ends(outputs)
    finish_reason, media = texts(rollout, "finish_reason"), text_lists(rollout, "media_sha256")
    declared = frozenset(item for item in rules.media_placeholders if isinstance(item, int))
    media_runs = prompt_runs(prompts, media, declared)
    ends_amid, stop_amid = _stop_marks(outputs, turns, finish_reason == "stop")
    text_hash, text_length = _text_hashes(rollout)
    numbers: Mapping[str, tuple[Floats, Bools]] = {
        name: rollout.numbers(name) for name in ("reward", "advantage", "temperature", "top_p")
    }
    return Facts(
        rollout_id=integers(rollout, "rollout_id"),
        group_index=integers(rollout, "group_index"),
        index=integers(rollout, "index"),
        prompt_hash=row_hashes(prompts),
        prompt_length=row_lengths(prompts),
        output_length=row_lengths(outputs),
        output_hash=row_hashes(outputs),
        prefix_hash=row_hashes(output_prefix),
        text_hash=text_hash,
        text_length=text_length,
        last_id=entries_at(outputs, ends),
        last_sampled=entries_at(outputs, turns.last),
        turns=turns.count,
        longest_turn=turns.longest,
        bad_ids=_bad_ids(outputs, rules.vocab_size) + _bad_ids(prompts, rules.vocab_size),
        stops=_stop_counts(outputs, turns, rules.stop_token_ids),
        ends_amid=ends_amid,
        stop_amid=stop_amid,
        logprobs_length=row_lengths(logprobs),
        bad_logprobs=bad_logprobs,
        worst_logprob=worst_logprob,
        zero_tail=np.where(turns.last == ends, _zero_tails(logprobs), 0),
        logprob_sum=row_sums(logprobs, logprobs.values, np.float64),
        prefix_logprob_sum=row_sums(logprob_prefix, logprob_prefix.values, np.float64),
        mask_length=row_lengths(mask),
        mask_sum=row_sums(mask, mask.values),
        bad_mask=row_counts(mask, bad_mask),
        response_length=integers(rollout, "response_length"),
        max_new_tokens=integers(rollout, "max_new_tokens"),
        prompt_tokens=integers(rollout, "prompt_tokens"),
        cached_tokens=integers(rollout, "cached_tokens"),
        sampling_seed=integers(rollout, "sampling_seed"),
        top_k=integers(rollout, "top_k"),
        temperature=numbers["temperature"][0],
        top_p=numbers["top_p"][0],
        reward=numbers["reward"][0],
        has_reward=numbers["reward"][1],
        reward_again=_rewards_again(rollout, rules),
        advantage=numbers["advantage"][0],
        has_advantage=numbers["advantage"][1],
        finish_reason=finish_reason,
        status=texts(rollout, "status"),
        weight_versions=text_lists(rollout, "weight_versions"),
        media=media,
        media_runs=media_runs,
        generated=generated_tokens(outputs, mask, media_runs, declared),
        arrays=_arrays(rollout),
        encoded_media=_encoded_media(rollout),
        removed=_removed(rollout),
        arm=texts(rollout, "arm"),
        gaps=trainer_gaps(rollout, logprobs, mask),
        assigned=_assigned(rollout),
    )
