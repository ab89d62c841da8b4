"""The sources that are read, and which one a path is: by its content."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from parity.errors import InputError, NotRecognised
from parity.metrics import curves_of_points
from parity.sources.curves import clearml, documents, experiments, logs, metric_lines, tables, tensorboard, wandb
from parity.sources.curves.names import Names
from parity.sources.curves.recorded_runs import RecordedCurves, RecordedRun
from parity.sources.json_lines import compression_of, open_plain, read_lines

HEAD = 1 << 20
"""Bytes of a file's beginning that it is recognised by; a log may print much before its first metrics."""

ADDRESSES: dict[str, Callable[[str], list[RecordedCurves]]] = {"clearml": clearml.read_task, "wandb": wandb.read_api}
"""Runs on servers, given as ``<scheme>:<id>``."""

READ = (
    "experiments and runs of parity, TensorBoard, W&B and ClearML (offline, or as wandb:ENTITY/PROJECT/ID and "
    "clearml:ID), logs of slime, Miles, Relax and verl, verl's file logger, Miles' events, trainer_state.json, CSV, "
    "JSON and JSON lines with a step"
)


def read_runs(source: str, names: Names | None = None, side: str = "baseline") -> list[RecordedRun]:
    """The runs in a source, under slime's names.

    Args:
        source: A path, or a run on a server (`ADDRESSES`).
        names: Names that go before those of the source's map.
        side: ``baseline`` or ``experiment``: the arm to read of an experiment of this package, which holds both.

    Raises:
        NotRecognised: The source is of no kind that is read.
        InputError: It cannot be read, or holds no metrics.
        UsageError: It needs a package that is not installed.
    """
    scheme, _, rest = source.partition(":")
    if scheme in ADDRESSES and not Path(source).exists():
        recordings = ADDRESSES[scheme](rest)
    else:
        recordings = _read_path(Path(source), side)
    return [_named(recording, source.rstrip("/"), names or Names()) for recording in recordings]


def _read_path(path: Path, side: str) -> list[RecordedCurves]:
    try:
        return _read_directory(path, side) if path.is_dir() else _read_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_directory(path: Path, side: str) -> list[RecordedCurves]:
    if experiments.is_experiment(path):
        return experiments.read_experiment_runs(path, side)
    if experiments.is_run(path):
        return experiments.read_run(path)
    if clearml.is_session(path):
        return clearml.read_session(path)
    if state := documents.newest_state(path):
        return documents.read_document(state)
    if found := tensorboard.event_directories(path):
        alone = found == [path]
        return [
            tensorboard.read_event_files(
                sorted(folder.glob(tensorboard.EVENT_FILE)), "" if alone else str(folder.relative_to(path))
            )
            for folder in found
        ]
    if offline := wandb.offline_files(path):
        return [wandb.read_offline(file, file.stem if len(offline) > 1 else "") for file in offline]
    for events in (path / "events", path):
        if any(events.glob("*.jsonl")):
            return metric_lines.read_event_logs(events)
    raise NotRecognised(f"{path}: a directory without runs; read are {READ}")


def _read_file(path: Path) -> list[RecordedCurves]:
    if not path.exists():
        raise InputError(f"{path}: no such file or directory")
    with path.open("rb") as file:
        magic = file.read(8)
    if "tfevents" in path.name:
        return [tensorboard.read_event_files([path])]
    if magic.startswith(wandb.MAGIC):
        return [wandb.read_offline(path)]
    if clearml.is_session_zip(path):
        return clearml.read_session_zip(path)
    if compression_of(magic) or magic.lstrip()[:1] in (b"{", b"["):
        return _read_json_or_log(path)
    return _read_text(path)


def _read_json_or_log(path: Path) -> list[RecordedCurves]:
    try:
        is_lines = any(metric_lines.is_metrics(row) for _, row in _first(read_lines(path)))
    except InputError:
        is_lines = False
    if is_lines:
        return metric_lines.read_jsonl(path)
    return documents.read_document(path) if documents.is_document(path) else _read_text(path)


def _first(rows: Iterable[tuple[str, dict[str, object]]]) -> list[tuple[str, dict[str, object]]]:
    """The first line, or none."""
    return [row for _, row in zip(range(1), rows, strict=False)]


def _read_text(path: Path) -> list[RecordedCurves]:
    with open_plain(path) as file:
        head = file.read(HEAD).decode(errors="replace")
    if tables.is_table(head):
        return tables.read_table(path)
    if logs.is_log(head) or len(head) >= HEAD:
        return logs.read_log(path)
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    raise NotRecognised(f"{path}: not recognised; read are {READ}")


def _named(recording: RecordedCurves, source: str, names: Names) -> RecordedRun:
    name = f"{source}:{recording.part}" if recording.part else source
    curves, left_out = names.apply(curves_of_points(name, recording.points), recording.names)
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
