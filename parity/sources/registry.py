"""The sources that are read, and which one a path is: by its content, never by its name alone."""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from parity.errors import InputError, NotRecognised, OverBudget, UsageError
from parity.metrics import curves_of_points
from parity.records.budgets import exceeded, limited_memory, within_memory
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.json_lines import compression_of, open_plain, read_lines
from parity.records.samples import Rollout
from parity.sources.curves import clearml, documents, experiments, logs, metric_lines, tables, tensorboard, wandb
from parity.sources.curves.names import Names
from parity.sources.curves.recorded_runs import RecordedCurves, RecordedRun
from parity.sources.dumps import dumps, miles, relax, sample_lines, verl
from parity.sources.dumps.rows import DAMAGED_TABLE

SampleReader = Callable[[Path, int | None], Iterator[Rollout]]
RunReader = Callable[[Path], list[RecordedCurves]]

HEAD = 1 << 20
"""Bytes of a file's beginning that it is recognised by; a log may print much before its first metrics."""

FIRST_ROWS = 20
"""Lines of JSON among which the first metrics must be; a trainer may write its settings first."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name, and how what it holds is read; `None` for what it does not hold."""

    name: str
    samples: SampleReader | None = None
    exchanges: Callable[[Path], Iterator[Exchange]] | None = None
    runs: RunReader | None = None


DUMP = Format("dump of slime, Miles or Relax", samples=dumps.read_dump)
SESSION_ZIP = Format("ClearML session (zip)", runs=clearml.read_session_zip)
EVENT_FILE = Format("TensorBoard events", runs=lambda path: [tensorboard.read_event_files([path])])
OFFLINE_RUN = Format("W&B offline run", runs=lambda path: [wandb.read_offline(path)])
METRIC_LINES = Format("metrics (JSON lines)", runs=metric_lines.read_jsonl)
DOCUMENT = Format("trainer_state.json, or a list of records", runs=documents.read_document)
TABLE = Format("CSV", runs=tables.read_table)
LOG = Format("log of a trainer", runs=logs.read_log)

TABLES: tuple[tuple[Callable[[list[str]], bool], Format], ...] = (
    (sample_lines.is_sample_table, Format("samples (Parquet)", samples=sample_lines.read_sample_table)),
    (miles.is_dashboard, Format("Miles dashboard columns", samples=miles.read_dashboard)),
)

LINES: tuple[tuple[Callable[[dict[str, Any]], bool], Format], ...] = (
    (sample_lines.is_exchange, Format("exchanges (JSON lines)", exchanges=read_exchanges)),
    (sample_lines.is_sample, Format("samples (JSON lines)", samples=sample_lines.read_sample_lines)),
    (relax.is_relax_result, Format("Relax rollout results", samples=relax.read_relax_result)),
    (verl.is_verl_rollout, Format("verl rollout data", samples=verl.read_verl_rollout)),
)

OF_SAMPLES = (DUMP, *(form for _, form in TABLES), *(form for _, form in LINES))

ADDRESSES: dict[str, Callable[[str], list[RecordedCurves]]] = {"clearml": clearml.read_task, "wandb": wandb.read_api}
"""Runs on servers, given as ``<scheme>:<id>``."""

READ = (
    "experiments and runs of parity, TensorBoard, W&B and ClearML (offline, or as wandb:ENTITY/PROJECT/ID and "
    "clearml:ID), logs of slime, Miles, Relax, verl, TRL, ms-swift, OpenRLHF, NeMo-RL, prime-rl, AReaL and ROLL, "
    "verl's file logger, Miles' events, ms-swift's logging.jsonl, trainer_state.json, CSV, JSON and JSON lines with a "
    "step"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A file and what can be read of it; each call reads the file from its start.

    Attributes:
        path: The file.
        format: The format's name.
        samples: Its samples in parts, or `None` if its format has none.
        exchanges: Its exchanges, likewise.
        runs: The runs whose metrics it holds, likewise.
    """

    path: Path
    format: str
    samples: Callable[[], Iterator[Rollout]] | None = None
    exchanges: Callable[[], Iterator[Exchange]] | None = None
    runs: Callable[[], list[RecordedRun]] | None = None


def open_source(path: Path, group_size: int | None = None) -> Source:
    """Recognises a file; nothing but its beginning is read (of Parquet, the schema).

    Args:
        path: A file.
        group_size: Samples of each group, for formats that do not say which samples are one.

    Raises:
        NotRecognised: The file is in no format that is read.
        InputError: It cannot be opened, is damaged where its format would show, or is named like a dump and is none.
    """
    with limited_memory(path):
        form = _format_of(path)
    samples, exchanges = form.samples, form.exchanges
    return Source(
        path,
        form.name,
        (lambda: within_memory(path, samples(path, group_size))) if samples else None,
        (lambda: within_memory(path, exchanges(path))) if exchanges else None,
        partial(read_runs, str(path)) if form.runs else None,
    )


def _format_of(path: Path) -> Format:
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a file that can be read more than once")
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    try:
        return _by_head(path, head)
    except NotRecognised as error:
        if _is_named_like_a_dump(path):
            start = f"it begins with {head!r}" if head else "it is empty"
            raise InputError(f"{path}: not the dump that its name says: {start}") from error
        raise


def _is_named_like_a_dump(path: Path) -> bool:
    """Whether a name is one that dumps have; a full disk leaves such files empty."""
    kinds = {".samples", ".exchanges"} & set(path.suffixes)
    return path.suffix in (".pt", ".pth", ".parquet") or (".jsonl" in path.suffixes and bool(kinds))


def _by_head(path: Path, head: bytes) -> Format:
    if head.startswith(b"PAR1"):
        return _of_table(path)
    if head.startswith(b"\x80") or (head.startswith(b"PK\x03\x04") and _may_be_of_torch(path)):
        return DUMP
    if clearml.is_session_zip(path):
        return SESSION_ZIP
    if "tfevents" in path.name:
        return EVENT_FILE
    if head.startswith(wandb.MAGIC):
        return OFFLINE_RUN
    if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"[") or compression_of(head):
        return _of_json(path)
    return _of_text(path)


def _may_be_of_torch(path: Path) -> bool:
    """Whether a zip archive holds a pickle where `torch.save` puts it; PyTorch says what a damaged one is."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError):
        return True


def _of_table(path: Path) -> Format:
    try:
        metadata = pq.read_metadata(path)
        columns = metadata.schema.to_arrow_schema().names
    except MemoryError:
        raise
    except DAMAGED_TABLE as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    _check_counts(metadata, path)
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise InputError(f"{path}: columns {twice} are there more than once")
    if form := next((form for recognises, form in TABLES if recognises(columns)), None):
        return form
    raise NotRecognised(f"{path}: not recognised: Parquet with columns {columns[:12]}")


def _check_counts(metadata: pq.FileMetaData, path: Path) -> None:
    """Holds a table's rows and values to its size: a few bytes can stand for any number of equal ones."""
    size = path.stat().st_size
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
    limits = (metadata.num_rows, max(_ROWS, size), "rows"), (values, max(_VALUES, 16 * size), "values")
    for count, limit, unit in limits:
        if count > limit:
            raise OverBudget(f"{path}: {exceeded(f'its {count:,} {unit}', limit, unit)}")


_ROWS, _VALUES = 100_000, 16_000_000
"""Rows and values of a table that need no bytes of their own."""


def _of_json(path: Path) -> Format:
    """The format of JSON: by its first lines, as a whole, or as a log that happens to begin with a bracket."""
    rows: list[dict[str, Any]] = []
    damaged: InputError | None = None
    try:
        for _, row in islice(read_lines(path), FIRST_ROWS):
            rows.append(row)
    except OverBudget:
        raise
    except InputError as error:
        damaged = error
    if rows and (form := next((form for recognises, form in LINES if recognises(rows[0])), None)):
        return form
    if any(map(metric_lines.is_metrics, rows)):
        return METRIC_LINES
    if documents.is_document(path):
        return DOCUMENT
    try:
        return _of_text(path)
    except NotRecognised:
        if damaged and ".jsonl" in path.suffixes:
            raise damaged from None
        if rows:
            fields = sorted(rows[0])[:12]
            raise NotRecognised(f"{path}: not recognised: JSON lines with fields {fields}") from None
        raise


def _of_text(path: Path) -> Format:
    try:
        with open_plain(path) as file:
            head = file.read(HEAD).decode(errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if tables.is_table(head):
        return TABLE
    if logs.is_log(head):
        return LOG
    if not head.strip():
        raise NotRecognised(f"{path}: not recognised: the file is empty")
    raise NotRecognised(f"{path}: not recognised")


def read_runs(source: str, names: Names | None = None, side: str = "baseline") -> list[RecordedRun]:
    """The runs in a source, under slime's names.

    Of several runs in a source, one that cannot be read or has no metrics is left out, and the first of the others
    says so.

    Args:
        source: A path, a run on a server (`ADDRESSES`), or one run of a path that holds several: ``PATH:RUN``.
        names: Names that go before those of the source's map.
        side: ``baseline`` or ``experiment``: the arm to read of an experiment of this package, which holds both.

    Raises:
        NotRecognised: The source is of no kind that is read.
        InputError: It cannot be read, or holds no metrics.
        UsageError: It needs a package that is not installed, or has no such run.
    """
    scheme, _, rest = source.partition(":")
    path, part = _path_and_part(source)
    if scheme in ADDRESSES and not Path(source).exists():
        readers: list[Callable[[], list[RecordedCurves]]] = [partial(ADDRESSES[scheme], rest)]
        path, part = source, None
    else:
        try:
            with limited_memory(Path(path)):
                readers = _readers(Path(path), side)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    runs, problems = list[RecordedRun](), list[InputError]()
    for reader in readers:
        try:
            with limited_memory(Path(path)):
                recordings = reader()
        except InputError as error:
            problems.append(error)
            continue
        for recording in recordings:
            try:
                runs.append(_named(recording, path.rstrip("/"), names or Names()))
            except InputError as error:
                problems.append(error)
    if not runs:
        raise problems[0]
    if part is not None:
        return [_chosen(runs, f"{path.rstrip('/')}:{part}")]
    notes = (f"{error}: left out" for error in problems)
    return [replace(runs[0], skipped=(*runs[0].skipped, *notes)), *runs[1:]]


def _path_and_part(source: str) -> tuple[str, str | None]:
    """A path that is there, and the run of it that is named after a colon."""
    path, colon, part = source.rpartition(":")
    named = bool(colon) and not Path(source).exists() and Path(path).exists()
    return (path, part) if named else (source, None)


def _chosen(runs: Sequence[RecordedRun], name: str) -> RecordedRun:
    if run := next((run for run in runs if run.name == name), None):
        return run
    raise UsageError(f"{name}: no such run; there are {', '.join(run.name for run in runs[:12])}")


def _readers(path: Path, side: str) -> list[Callable[[], list[RecordedCurves]]]:
    """What reads each run of a path."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory")
    if not path.is_dir():
        return [partial(_reader_of(path), path)]
    if experiments.is_experiment(path):
        return [partial(experiments.read_experiment_runs, path, side)]
    if experiments.is_run(path):
        return [partial(experiments.read_run, path)]
    if clearml.is_session(path):
        return [partial(clearml.read_session, path)]
    if state := documents.newest_state(path):
        return [partial(documents.read_document, state)]
    if folders := tensorboard.event_directories(path):
        return [partial(_event_folder, folder, path, folders == [path]) for folder in folders]
    if offline := wandb.offline_files(path):
        return [partial(_offline_run, file, len(offline) == 1) for file in offline]
    return _readers_of_files(path)


def _reader_of(path: Path) -> RunReader:
    try:
        form = _format_of(path)
    except NotRecognised as error:
        raise NotRecognised(f"{error}; read are {READ}") from error
    if form.runs is None:
        raise NotRecognised(f"{path}: {form.name}, which has no metrics; read are {READ}")
    return form.runs


def _event_folder(folder: Path, path: Path, alone: bool) -> list[RecordedCurves]:
    files = sorted(folder.glob(tensorboard.EVENT_FILE))
    return [tensorboard.read_event_files(files, "" if alone else str(folder.relative_to(path)))]


def _offline_run(file: Path, alone: bool) -> list[RecordedCurves]:
    return [wandb.read_offline(file, "" if alone else file.stem)]


def _readers_of_files(path: Path) -> list[Callable[[], list[RecordedCurves]]]:
    """The files of a folder, each a run, but event logs of one run's processes."""
    folder = path / "events" if (path / "events").is_dir() else path
    files = {file: form for file in sorted(folder.iterdir()) if file.is_file() and (form := _run_format(file))}
    if not files:
        raise NotRecognised(f"{path}: a directory without runs; read are {READ}")
    if all(form is METRIC_LINES and miles.is_event(next(read_lines(file))[1]) for file, form in files.items()):
        return [partial(metric_lines.read_jsonl, *files)]
    return [partial(_file_of_folder, file, form, len(files) == 1) for file, form in files.items()]


def _run_format(file: Path) -> Format | None:
    """A file's format if it may hold a run; one that is damaged is read later, and named then."""
    try:
        form = _format_of(file)
    except NotRecognised:
        return None
    except InputError:
        return METRIC_LINES if ".jsonl" in file.suffixes else None
    return form if form.runs else None


def _file_of_folder(file: Path, form: Format, alone: bool) -> list[RecordedCurves]:
    assert form.runs is not None
    recordings = form.runs(file)
    parts = (file.stem if not one.part else f"{file.stem}:{one.part}" for one in recordings)
    return recordings if alone else [replace(one, part=part) for one, part in zip(recordings, parts, strict=True)]


def _named(recording: RecordedCurves, source: str, names: Names) -> RecordedRun:
    name = f"{source}:{recording.part}" if recording.part else source
    curves, left_out = names.apply(curves_of_points(name, recording.points))
    if not curves:
        reasons = "; ".join((*recording.skipped, *left_out)) or "it holds none"
        raise InputError(f"{name}: {recording.format} without any metric at a step: {reasons}")
    return RecordedRun(
        name,
        recording.format,
        curves,
        (*recording.skipped, *left_out),
        recording.ending,
        recording.incidents,
        recording.zero_may_be_nan,
    )
