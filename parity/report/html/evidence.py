"""What a page shows beside its report, read from disk: events, and samples and requests of both arms by step."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from parity.errors import InputError
from parity.records.exchanges import Exchange
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
_EQUAL_DESIGNS = ("twin", LIST_TWIN, "replay", "dump")
"""Designs whose arms must be equal, or are compared for that, so that where a sample first differs says something."""


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Samples of one side in one file, and the row that each has in it."""

    file: str
    rows: Sequence[int]
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class PairOfRuns:
    """Runs whose samples are shown side by side, and how they are read.

    Attributes:
        design: Their design.
        seed: Their seed; a number that makes the name unique.
        runs: Their names, baseline first; one where it is mixed or alone.
        steps: From 0 up to which step there may be samples.
        samples: The samples of a side (0: baseline, 1: experiment) at a step.
        requests: The exchanges of a side at a step.
        sides: How many sides are shown.
    """

    design: str
    seed: int
    runs: tuple[str, ...]
    steps: int
    samples: Callable[[int, int], Iterable[SampleRows]]
    requests: Callable[[int, int], Iterable[Exchange]] = lambda side, step: ()
    sides: int = 2

    @property
    def name(self) -> str:
        """Unique in a page."""
        return f"{self.design}-{self.seed}"

    @property
    def equal(self) -> bool:
        """Whether the sides are held to be equal, so that where they differ says something."""
        return self.design in _EQUAL_DESIGNS


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
    """Reads events and samples of an experiment; see `pack` for which steps are held.

    Raises:
        InputError: A file cannot be read.
    """
    pairs = tuple(_pairs(report, directory))
    events = {run.run: run_store(directory, run.run).events() for run in report.outcomes}
    return PageEvidence(str(directory), events, pairs, pack(report, pairs, limit), token_texts(directory))


def pack(report: Report, pairs: Sequence[PairOfRuns], limit: int = LIMIT) -> dict[tuple[str, int], str]:
    """Samples by pair and step; where not all fit into `limit` characters, those of the steps that matter.

    Steps at which something fails come first, then those with a restart, resume, abort or collapse, the first and the
    last, and then the others, spread evenly.
    """
    packed: dict[tuple[str, int], str] = {}
    room = limit
    for pair, step in _by_importance(report, pairs):
        content = _pack(pair, step)
        room -= len(content)
        if room < 0:
            break
        if content:
            packed[pair.name, step] = content
    return packed


def _pairs(report: Report, directory: Path) -> Iterator[PairOfRuns]:
    runs: dict[tuple[str, int], list[str]] = {}
    for run in sorted(report.outcomes, key=lambda run: run.arm == report.experiment):
        runs.setdefault((run.design, run.seed), []).append(run.run)
    for (design, seed), names in sorted(runs.items()):
        stores = [run_store(directory, name) for name in names]
        read = partial(_read_side, directory, stores, (report.baseline, report.experiment), design in MIXED_DESIGNS)
        steps = max(store.written_steps() for store in stores)
        yield PairOfRuns(design, seed, tuple(names), steps, read, partial(_exchanges_of_side, stores))


def _read_side(
    directory: Path, stores: Sequence[RunStore], arms: Sequence[str], mixed: bool, side: int, step: int
) -> Iterator[SampleRows]:
    """The files that may hold a side's samples of a step."""
    for store in _stores_of_side(stores, side):
        if store.rollout_path(step).exists():
            rollout = store.rollout(step)
            file = store.rollout_path(step).relative_to(directory).as_posix()
            part = SampleRows(file, range(len(rollout)), rollout)
            yield _of_arm(part, arms[side]) if mixed else part


def _exchanges_of_side(stores: Sequence[RunStore], side: int, step: int) -> Iterator[Exchange]:
    """The exchanges of a side at a step; of a mixed run, all of them stand on the first side."""
    if len(stores) == 1 and side:
        return
    for store in _stores_of_side(stores, side):
        if store.exchanges_path(step).exists():
            yield from store.exchanges(step)


def _stores_of_side(stores: Sequence[RunStore], side: int) -> list[RunStore]:
    if len(stores) == 1:
        return [stores[0], stores[0].compared]
    return [stores[side]]


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

    def key(place: tuple[PairOfRuns, int]) -> tuple[int, int]:
        first = rank(*place)
        return first, spread(place[1]) if first else place[1]

    return sorted(((pair, step) for pair in pairs for step in range(pair.steps)), key=key)


def _pack(pair: PairOfRuns, step: int) -> str:
    """The samples and requests of a step; empty where there are no samples."""
    parts = [list(pair.samples(side, step)) for side in range(2)]
    if not any(parts):
        return ""
    differs = _first_differences(parts) if pair.equal and pair.sides == 2 else {}
    requests = [[_request(exchange) for exchange in pair.requests(side, step)] for side in range(2)]
    content = ""
    for cut in (None, *CUTS):
        baseline, experiment = ([_columns(part, cut) for part in of_side] for of_side in parts)
        if len(baseline) == len(experiment) == 1:  # a column that is equal in both arms is written once
            experiment = [{name: values for name, values in experiment[0].items() if values != baseline[0][name]}]
        shown = {"cut": cut, "differs": differs, "baseline": baseline, "experiment": experiment, "requests": requests}
        content = base64.b64encode(gzip.compress(orjson.dumps(shown), mtime=0)).decode()
        if len(content) <= STEP_LIMIT:
            break
    return content


def _request(exchange: Exchange) -> list[Any]:
    """One request as a page shows it: group, when it was sent and answered, attempt, status, samples asked for, arm."""
    times = [None if time is None else plain(round(time, 4)) for time in (exchange.sent_at, exchange.received_at)]
    return [exchange.group_index, *times, exchange.attempt, exchange.status, exchange.n, exchange.arm]


def _of_arm(part: SampleRows, arm: str) -> SampleRows:
    rows = np.flatnonzero(part.rollout.strings("arm") == arm)
    return SampleRows(part.file, rows.tolist(), Rollout(part.rollout.table.take(pa.array(rows, pa.int64()))))


def _columns(part: SampleRows, cut: int | None) -> dict[str, Any]:
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


def _first_differences(parts: Sequence[Sequence[SampleRows]]) -> dict[str, int]:
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


def _sequences(parts: Sequence[SampleRows]) -> dict[tuple[int, int], tuple[list[Any], list[Any]]]:
    columns = ("group_index", "index", "output_ids", "logprobs")
    rows = (zip(*(part.rollout.table.column(name).to_pylist() for name in columns), strict=True) for part in parts)
    return {(group, slot): (ids or [], values or []) for part in rows for group, slot, ids, values in part}


def _first_difference(one: Sequence[Any], two: Sequence[Any]) -> int:
    pairs = zip(one, two, strict=False)  # after the shorter one, the longer one is alone
    return next((place for place, (first, second) in enumerate(pairs) if first != second), min(len(one), len(two)))
