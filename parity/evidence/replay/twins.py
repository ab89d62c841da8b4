"""L2, the replay: the same responses through both arms must give the same samples, advantages, loss and gradients.

Two ways to give both arms the same responses: a *twin*, where the engine samples with a seed for each (step, group,
slot), and a *recording*, which is served to both arms in place of an engine. Either way the arms are then compared bit
for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parity.errors import InputError
from parity.findings import Finding, Level, Message, Status, Where, quantity, short_repr
from parity.records.samples import SCHEMA, Rollout

COMPARED = (
    "prompt_ids",
    "media_sha256",
    "prompt_tokens",
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "sampling_seed",
    "output_ids",
    "logprobs",
    "text",
    "finish_reason",
    "response_length",
    "weight_versions",
    "status",
    "loss_mask",
    "reward",
    "advantage",
)
"""Sample fields that must be equal bit for bit, causes before effects: all but how it was asked, who answered, what was
cached, and `extra`.

Weight versions are compared by which samples share one: each run may name its own."""

NOT_REPLAYED = ("perf/", "rollout_patch/")
"""Prefixes of metrics of time and of requests, which are no evidence of replay; neither is the cache's hit rate."""

ARM_SPECIFIC_METRICS = ("rollout/prefix_cache_hit_rate", "rollout/avg_cached_tokens_per_sample")

_Keys = npt.NDArray[np.int64]


def compare_twins(
    baseline: Rollout,
    experiment: Rollout,
    metrics_baseline: Sequence[Mapping[str, Any]] = (),
    metrics_experiment: Sequence[Mapping[str, Any]] = (),
) -> list[Finding]:
    """Compares two arms that were given the same responses, bit for bit.

    Args:
        baseline: The samples of all steps; `rollout_id` is the step.
        experiment: The same of the other arm.
        metrics_baseline: One mapping a step, with its number under `step`; metrics of time and cache are left out.
        metrics_experiment: The same of the other arm.

    Returns:
        One finding a field and metric, `twin_<field>`, and `twin_samples` for the samples that only one arm has. Those
        that fail come first, ordered by the step, group, slot and field where each first differs, so that the first
        finding is the cause.
    """
    return compare_twin_steps([(baseline, experiment)], metrics_baseline, metrics_experiment)


def compare_twin_steps(
    steps: Iterable[tuple[Rollout, Rollout]],
    metrics_baseline: Sequence[Mapping[str, Any]] = (),
    metrics_experiment: Sequence[Mapping[str, Any]] = (),
) -> list[Finding]:
    """As `compare_twins`, given the samples of both arms step by step, of which one is in memory at a time."""
    tallies = dict.fromkeys(("samples", *COMPARED), _Tally())
    versions: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for step in steps:
        left, right = (_sorted(side, numbers) for side, numbers in zip(step, versions, strict=True))
        tallies["samples"] += _presence(left, right)
        left, right = _shared(left, right)
        for name in COMPARED:
            tallies[name] += _column(name, left, right)
    found = [_tallied(name, order, tallies[name]) for order, name in enumerate(tallies, start=-1)]
    found += _metrics(metrics_baseline, metrics_experiment)
    found.sort(key=lambda item: item[0])
    return [finding for _, finding in found]


_Placed = tuple[tuple[float, int, int, int, int], Finding]
_LAST = (float("inf"), 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Difference:
    """Where the arms first differ in a field: (step, group, slot), and what each has there."""

    key: tuple[int, int, int]
    entry: Message
    expected: Any
    observed: Any


@dataclass(frozen=True, slots=True)
class _Tally:
    """What the comparison of one field has come to: numbers of samples, and the first difference."""

    compared: int = 0
    differing: int = 0
    not_compared: int = 0
    first: _Difference | None = None

    def __add__(self, other: _Tally) -> _Tally:
        firsts = [tally.first for tally in (self, other) if tally.first]
        return _Tally(
            self.compared + other.compared,
            self.differing + other.differing,
            self.not_compared + other.not_compared,
            min(firsts, key=lambda first: first.key, default=None),
        )


def _tallied(name: str, order: int, tally: _Tally) -> _Placed:
    """The finding on one field of the samples, or on which samples there are."""
    samples = quantity(tally.compared, "samples")
    evidence = {"checked": tally.compared, "failed": tally.differing, "not_compared": tally.not_compared}
    if not tally.first:
        status = Status.PASS if tally.compared else Status.NOT_COMPARED
        equal = (
            "both arms have the same {samples}" if name == "samples" else "{field} is equal bit for bit in {samples}"
        )
        template = equal if tally.compared else "neither arm recorded {field}"
        return _LAST, _finding(name, status, Message(template, field=name, samples=samples), evidence=evidence)
    key, expected, observed = tally.first.key, tally.first.expected, tally.first.observed
    where = _where(key, "index" if name == "samples" else name)
    message = Message(
        "{differing} of {samples} are in one arm only, or twice in an arm"
        if name == "samples"
        else "{field} first differs{entry}: {expected} in the baseline, {observed} in the experiment "
        "({differing} of {samples} differ)",
        field=name,
        entry=tally.first.entry,
        expected=short_repr(expected),
        observed=short_repr(observed),
        differing=tally.differing,
        samples=samples,
    )
    finding = _finding(name, Status.FAIL, message, where, expected, observed, evidence=evidence)
    return (float(key[0]), 0, key[1], key[2], order), finding


def _sorted(rollout: Rollout, versions: dict[str, str]) -> Rollout:
    """The samples by step, group and slot, weight versions numbered as a run first has them; `versions` keeps them."""
    order = [("rollout_id", "ascending"), ("group_index", "ascending"), ("index", "ascending")]
    table = rollout.table.sort_by(order).combine_chunks()
    place = table.column_names.index("weight_versions")
    rows = table.column(place).to_pylist()
    numbered = [
        None if row is None else [versions.setdefault(name, f"#{len(versions)}") for name in row] for row in rows
    ]
    return Rollout(table.set_column(place, SCHEMA.field(place), pa.array(numbered, SCHEMA.field(place).type)))


def _keys(rollout: Rollout) -> _Keys:
    """(rows, 3): step, group and slot of each sample."""
    return np.stack([rollout.integers(name) for name in ("rollout_id", "group_index", "index")], axis=1)


def _where(key: Sequence[int], field: str) -> Where:
    return Where(None, int(key[0]) if key[0] >= 0 else None, int(key[1]), int(key[2]), field)


def _rows_by_key(rollout: Rollout) -> dict[tuple[int, int, int], int]:
    return {(step, group, slot): row for row, (step, group, slot) in enumerate(_keys(rollout).tolist())}


def _presence(left: Rollout, right: Rollout) -> _Tally:
    """Whether both arms have the same samples, each once."""
    a, b = _rows_by_key(left), _rows_by_key(right)
    lone = sorted(a.keys() ^ b.keys())
    repeated = len(left) - len(a) + len(right) - len(b)
    if not lone and not repeated:
        return _Tally(len(a))
    key = lone[0] if lone else (-1, 0, 0)
    has = ("one", "none") if key in a else ("none", "one")
    return _Tally(len(a.keys() | b.keys()), len(lone) + repeated, 0, _Difference(key, Message(""), *has))


def _shared(left: Rollout, right: Rollout) -> tuple[Rollout, Rollout]:
    """The samples that both arms have, in the same order."""
    a, b = _rows_by_key(left), _rows_by_key(right)
    if a.keys() == b.keys() and len(a) == len(left) and len(b) == len(right):
        return left, right
    keys = sorted(a.keys() & b.keys())
    return _take(left, [a[key] for key in keys]), _take(right, [b[key] for key in keys])


def _take(rollout: Rollout, rows: Sequence[int]) -> Rollout:
    return Rollout(rollout.table.take(pa.array(rows, pa.int64())))


def _column(name: str, left: Rollout, right: Rollout) -> _Tally:
    """Compares one column of the samples that both arms have."""
    has_left, has_right = (side.table.column(name).is_valid().to_numpy(zero_copy_only=False) for side in (left, right))
    differs = (has_left != has_right) | (has_left & has_right & _differing(name, left, right))
    compared = int((has_left | has_right).sum())
    if not differs.any():
        return _Tally(compared, 0, len(left) - compared)
    row = int(np.argmax(differs))
    step, group, slot = _keys(left)[row].tolist()
    values = (side.table.column(name)[row].as_py() for side in (left, right))
    return _Tally(
        compared,
        int(differs.sum()),
        len(left) - compared,
        _Difference((step, group, slot), *_first_entry(*values)),
    )


def _differing(name: str, left: Rollout, right: Rollout) -> npt.NDArray[np.bool_]:
    """Rows whose values are not the same bits, (rows,); those of a row that is null count for nothing."""
    kind = SCHEMA.field(name).type
    if pa.types.is_list(kind) and not pa.types.is_string(kind.value_type):
        a, b = left.ragged(name), right.ragged(name)
        differs: npt.NDArray[np.bool_] = a.lengths != b.lengths
        alike = np.flatnonzero(~differs & (a.lengths > 0))
        if len(a.values) == len(b.values) and not differs.any():
            # Every row has the same place in both, so that all values compare at once; offsets give back the row.
            unequal = np.flatnonzero(_bits(a.values) != _bits(b.values))
            differs[np.searchsorted(a.offsets, unequal, side="right") - 1] = True
        else:
            for row in alike.tolist():
                differs[row] = not np.array_equal(_bits(a[row]), _bits(b[row]))
        return differs
    a_rows, b_rows = (side.table.column(name) for side in (left, right))
    if pa.types.is_floating(kind):
        bits_differ: npt.NDArray[np.bool_] = _bits(left.numbers(name)[0]) != _bits(right.numbers(name)[0])
        return bits_differ
    return np.fromiter(
        (x != y for x, y in zip(a_rows.to_pylist(), b_rows.to_pylist(), strict=True)), np.bool_, len(left)
    )


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floats as the integers of their bits, so that -0.0 is not 0.0 and a NaN is itself."""
    return values.view(f"i{values.itemsize}") if values.dtype.kind == "f" else values


def _first_entry(a: Any, b: Any) -> tuple[Message, Any, Any]:
    """Where two values first differ, as words to append, and what each has there: lists at an entry, or in length."""
    if not isinstance(a, list) or not isinstance(b, list):
        return Message(""), a, b
    shorter = min(len(a), len(b))
    for place, (x, y) in enumerate(zip(a[:shorter], b[:shorter], strict=True)):
        if repr(x) != repr(y):
            return Message(" at entry {entry}", entry=place), x, y
    return Message(" in length"), len(a), len(b)


def _metrics(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> Iterator[_Placed]:
    """Compares every metric, step by step."""
    a, b = _by_step(left, "baseline"), _by_step(right, "experiment")
    names = sorted({name for rows in (a, b) for row in rows.values() for name in row if _replayable(name)})
    steps = sorted(a.keys() | b.keys())
    if not names:
        yield _LAST, _finding("metrics", Status.NOT_COMPARED, Message("no training metrics recorded"))
    for order, name in enumerate(names):
        yield _metric(name, order, steps, a, b)


_Steps = Mapping[int, Mapping[str, Any]]


def _metric(name: str, order: int, steps: Sequence[int], a: _Steps, b: _Steps) -> _Placed:
    pairs = [(step, a.get(step, {}).get(name), b.get(step, {}).get(name)) for step in steps]
    pairs = [(step, x, y) for step, x, y in pairs if x is not None or y is not None]
    wrong = [(step, x, y) for step, x, y in pairs if not _same(x, y)]
    evidence = {"checked": len(pairs), "failed": len(wrong)}
    if not wrong:
        template = "{metric} is equal bit for bit in {steps}"
        message = Message(template, metric=name, steps=quantity(len(pairs), "steps"))
        return _LAST, _finding(name, Status.PASS, message, evidence=evidence)
    step, x, y = wrong[0]
    where = Where(None, step, None, None, name)
    message = Message(
        "{metric} first differs: {expected} in the baseline, {observed} in the experiment ({differing} of {steps} "
        "differ)",
        metric=name,
        expected=short_repr(x),
        observed=short_repr(y),
        differing=len(wrong),
        steps=quantity(len(pairs), "steps"),
    )
    return (float(step), 1, 0, 0, order), _finding(name, Status.FAIL, message, where, x, y, evidence=evidence)


def _same(x: Any, y: Any) -> bool:
    """Equal numbers of one sign; a NaN equals nothing, itself included."""
    return type(x) is type(y) and x == y and repr(x) == repr(y)


def _replayable(name: str) -> bool:
    return name != "step" and not name.startswith(NOT_REPLAYED) and name not in ARM_SPECIFIC_METRICS


def _by_step(rows: Sequence[Mapping[str, Any]], side: str) -> dict[int, Mapping[str, Any]]:
    steps: dict[int, Mapping[str, Any]] = {}
    for number, row in enumerate(rows):
        step = row.get("step")
        if not isinstance(step, int) or step in steps:
            raise InputError(
                f"metrics of the {side}, record {number}: field 'step' is {step!r}, not a new whole number"
            )
        steps[step] = row
    return steps


def _finding(
    name: str,
    status: Status,
    message: Message,
    where: Where | None = None,
    expected: Any = None,
    observed: Any = None,
    evidence: Mapping[str, Any] | None = None,
) -> Finding:
    return Finding(
        f"twin_{name}", Level.REPLAY, status, message, where or Where(), expected, observed, evidence=evidence or {}
    )
