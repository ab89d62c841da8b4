"""What a page shows of an experiment beside its report, read from disk: events, and samples of both arms by step."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from parity.errors import InputError
from parity.records.experiment import LIST_TWIN, MIXED_DESIGNS
from parity.records.samples import Rollout
from parity.records.store import RunStore, run_store
from parity.report.data import plain
from parity.report.document import Report
from parity.report.html.tokens import token_texts

LIMIT = 17_000_000
"""Characters of packed samples in a page."""

STEP_LIMIT = 1_000_000
"""Characters of packed samples of one step of a pair; where they are more, `CUTS` are made until they fit."""

CUTS = (1_024, 256, 64)
"""Tokens that cut responses keep."""

CHARACTERS_A_TOKEN = 4
"""How a cut in tokens is applied to text."""

_PLAIN = (
    "group_index",
    "index",
    "response_length",
    "finish_reason",
    "status",
    "sampling_seed",
    "weight_versions",
    "engine_id",
)
_EQUAL_DESIGNS = ("twin", LIST_TWIN, "replay")
"""Designs whose arms must be equal, so that where a sample first differs says something."""


@dataclass(frozen=True, slots=True)
class PairOfRuns:
    """The runs of one seed: their names, baseline first (one where it is mixed), and the steps that have samples."""

    design: str
    seed: int
    runs: tuple[str, ...]
    steps: int

    @property
    def name(self) -> str:
        """Unique in an experiment."""
        return f"{self.design}-{self.seed}"


@dataclass(frozen=True, slots=True)
class PageEvidence:
    """What lies on disk beside a report.

    Attributes:
        directory: The experiment's directory as it was given.
        events: By run, the lines of ``events.jsonl``.
        pairs: The runs whose samples are shown side by side.
        packed: By pair and step, the samples of both arms: JSON, compressed with gzip, in base64.
        tokens: By token id, its text; empty where no tokenizer is there.
    """

    directory: str = ""
    events: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    pairs: tuple[PairOfRuns, ...] = ()
    packed: Mapping[tuple[str, int], str] = field(default_factory=dict)
    tokens: Sequence[str | None] = ()


def gather(report: Report, directory: Path, limit: int = LIMIT) -> PageEvidence:
    """Reads events and samples; where not all samples fit into `limit` characters, those of the steps that matter.

    Steps at which something fails come first, then those with a restart, resume, abort or collapse, the first and the
    last, and then the others, spread evenly.

    Raises:
        InputError: A file cannot be read.
    """
    pairs = tuple(_pairs(report, directory))
    packed: dict[tuple[str, int], str] = {}
    room = limit
    for pair, step in _by_importance(report, pairs):
        content = _pack(report, pair, step, directory)
        room -= len(content)
        if room < 0:
            break
        packed[pair.name, step] = content
    events = {run.run: run_store(directory, run.run).events() for run in report.outcomes}
    return PageEvidence(str(directory), events, pairs, packed, token_texts(directory))


def _pairs(report: Report, directory: Path) -> Iterator[PairOfRuns]:
    runs: dict[tuple[str, int], list[str]] = {}
    for run in sorted(report.outcomes, key=lambda run: run.arm == report.experiment):
        runs.setdefault((run.design, run.seed), []).append(run.run)
    for (design, seed), names in sorted(runs.items()):
        steps = max(run_store(directory, name).written_steps() for name in names)
        yield PairOfRuns(design, seed, tuple(names), steps)


def _by_importance(report: Report, pairs: Sequence[PairOfRuns]) -> list[tuple[PairOfRuns, int]]:
    places = [finding.where for finding in report.failing]
    failing = {(str(where.run).partition("/")[0], where.rollout_id) for where in places}
    marked = {(mark.run, mark.step) for mark in report.marks}

    def rank(pair: PairOfRuns, step: int) -> int:
        here = {(run, step) for run in pair.runs}
        return 0 if here & failing else 1 if here & marked else 2 if step in (0, pair.steps - 1) else 3

    def spread(step: int) -> int:
        """Reversed bits: the first k steps in this order are spread evenly, whatever k."""
        return int(f"{step:032b}"[::-1], 2)

    every = [(pair, step) for pair in pairs for step in range(pair.steps)]
    return sorted(every, key=lambda place: (rank(*place), spread(place[1]) if rank(*place) else place[1]))


def _pack(report: Report, pair: PairOfRuns, step: int, directory: Path) -> str:
    arms = (report.baseline, report.experiment)
    parts = [list(_parts(pair, arm, step, directory)) for arm in range(2)]
    if pair.design in MIXED_DESIGNS:
        parts = [[_of_arm(part, arm) for part in of_arm] for of_arm, arm in zip(parts, arms, strict=True)]
    differs = _first_differences(parts) if pair.design in _EQUAL_DESIGNS else {}
    content = ""
    for cut in (None, *CUTS):
        baseline, experiment = ([_columns(part, cut) for part in of_arm] for of_arm in parts)
        if len(baseline) == len(experiment) == 1:  # a column that is equal in both arms is written once
            experiment = [{name: values for name, values in experiment[0].items() if values != baseline[0][name]}]
        shown = {"cut": cut, "differs": differs, "baseline": baseline, "experiment": experiment}
        content = base64.b64encode(gzip.compress(orjson.dumps(shown), mtime=0)).decode()
        if len(content) <= STEP_LIMIT:
            break
    return content


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples of one arm in one file, and the row that each has in it."""

    file: str
    rows: Sequence[int]
    rollout: Rollout


def _parts(pair: PairOfRuns, arm: int, step: int, directory: Path) -> Iterator[_Part]:
    """The files that may hold an arm's samples of a step."""
    if len(pair.runs) == 1:
        store = run_store(directory, pair.runs[0])
        stores = [store, store.compared]
    else:
        stores = [run_store(directory, pair.runs[arm])]
    for store in stores:
        if store.rollout_path(step).exists():
            yield _read(store, step, directory)


def _read(store: RunStore, step: int, directory: Path) -> _Part:
    rollout = store.rollout(step)
    return _Part(store.rollout_path(step).relative_to(directory).as_posix(), range(len(rollout)), rollout)


def _of_arm(part: _Part, arm: str) -> _Part:
    rows = np.flatnonzero(part.rollout.strings("arm") == arm)
    return _Part(part.file, rows.tolist(), Rollout(part.rollout.table.take(pa.array(rows, pa.int64()))))


def _columns(part: _Part, cut: int | None) -> dict[str, Any]:
    """The columns that a page shows: log-probs in thousandths of a nat, and null for a mask of ones."""
    table = part.rollout.table
    tokens = table.column("output_ids").to_pylist()
    return {
        "file": part.file,
        "row": list(part.rows),
        **{name: table.column(name).to_pylist() for name in _PLAIN},
        **{name: _rounded(table.column(name).to_pylist()) for name in ("reward", "advantage")},
        "prompt": _shared([_prompt(extra, part.file) for extra in table.column("extra").to_pylist()]),
        "prompt_ids": _shared(table.column("prompt_ids").to_pylist()),
        "text": [_cut(text, cut and cut * CHARACTERS_A_TOKEN) for text in table.column("text").to_pylist()],
        "characters": [None if text is None else len(text) for text in table.column("text").to_pylist()],
        "tokens": [None if ids is None else len(ids) for ids in tokens],
        "output_ids": [_cut(ids, cut) for ids in tokens],
        "logprobs": [_thousandths(_cut(values, cut)) for values in table.column("logprobs").to_pylist()],
        "loss_mask": [
            mask and (None if all(mask) else _cut(mask, cut)) for mask in table.column("loss_mask").to_pylist()
        ],
    }


def _rounded(values: Iterable[float | None]) -> list[Any]:
    """Values to six significant digits, which take a third of the room and are more than a page shows."""
    return [None if value is None else plain(float(f"{value:.6g}")) for value in values]


def _prompt(extra: str | None, file: str) -> str | None:
    """The prompt as text, if the source held one; a conversation as its JSON."""
    try:
        fields = orjson.loads(extra) if extra else None
    except orjson.JSONDecodeError as error:
        raise InputError(f"{file}: column 'extra' holds {str(extra)[:60]!r}, which is not JSON: {error}") from error
    prompt = fields.get("prompt") if isinstance(fields, dict) else None
    return prompt if prompt is None or isinstance(prompt, str) else orjson.dumps(prompt).decode()


def _shared(values: Iterable[Any]) -> list[Any]:
    """Values with 0 in place of one that repeats the one before, as the prompts of a group do."""
    shown: list[Any] = []
    last: Any = 0
    for value in values:
        shown.append(0 if shown and value == last else value)
        last = value
    return shown


def _cut(value: Any, limit: int | None) -> Any:
    return value if value is None or limit is None else value[:limit]


def _thousandths(values: list[float] | None) -> list[int | str] | None:
    if values is None:
        return None
    return [round(1_000 * value) if math.isfinite(value) else plain(value) for value in values]


def _first_differences(parts: Sequence[Sequence[_Part]]) -> dict[str, int]:
    """By ``group/slot``, the first token at which the arms' ids or log-probs differ in any bit."""
    baseline, experiment = (_sequences(of_arm) for of_arm in parts)
    differs = {}
    for slot in sorted(baseline.keys() & experiment.keys()):
        places = [
            _first_difference(one, two) for one, two in zip(baseline[slot], experiment[slot], strict=True) if one != two
        ]
        if places:
            differs[f"{slot[0]}/{slot[1]}"] = min(places)
    return differs


def _sequences(parts: Sequence[_Part]) -> dict[tuple[int, int], tuple[list[Any], list[Any]]]:
    columns = ("group_index", "index", "output_ids", "logprobs")
    rows = (zip(*(part.rollout.table.column(name).to_pylist() for name in columns), strict=True) for part in parts)
    return {(group, slot): (ids or [], values or []) for part in rows for group, slot, ids, values in part}


def _first_difference(one: Sequence[Any], two: Sequence[Any]) -> int:
    pairs = zip(one, two, strict=False)  # after the shorter one, the longer one is alone
    return next((place for place, (first, second) in enumerate(pairs) if first != second), min(len(one), len(two)))
