"""An experiment on disk: append-only while it runs, readable at any moment, resumable after any death.

    <out>/experiment.json                 what was asked
    <out>/runs/<name>/run.json            how it ended
                      events.jsonl        start, retry, engine restart, resume, end: one object a line
                      metrics.jsonl       one line a finished step
                      rollouts/step-000012.parquet           one row a sample
                      exchanges/step-000012.exchanges.jsonl  one line a request
                      checkpoints/step-000012/               the weights that step 12 samples from, with digests

A step is finished when its line in ``metrics.jsonl`` is whole; everything else of the step is written before that line.
So a step cut off at any point is done again from its own checkpoint and never counted twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from parity.errors import InputError, UsageError
from parity.records.budgets import check_elements, check_regular
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import Rollout

EXPERIMENT_FILE = "experiment.json"
SAMPLING_FILE = "sampling.json"
DIGESTS_FILE = "digests.json"
"""SHA-256 by file of a checkpoint; each is refused whose files are not those that were saved."""


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that readers see the old content or the new one, whatever happens meanwhile."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Makes a file, or the names in a directory, outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        InputError: The file cannot be read or holds no JSON object.
    """
    check_regular(path)
    try:
        data = path.read_bytes()
        check_elements(data, str(path))
        content = json.loads(data)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is expected, not {type(content).__name__}")
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode())


def _dump_line(row: Mapping[str, Any]) -> bytes:
    """One JSON line; NaN and infinities stay themselves (`NaN`, `Infinity`), never null or zero."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def append(path: Path, lines: bytes) -> None:
    """Appends whole lines to a file, and returns when they outlive a loss of power."""
    new = not path.exists()
    with path.open("ab") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync(path.parent)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a last line without its newline was cut off while being written."""
    if not path.exists():
        return []
    check_regular(path)
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(_load_line(line))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(rows[-1], dict):
            raise InputError(f"{path}:{number}: a JSON object is expected, not {type(rows[-1]).__name__}")
    return rows


def _load_line(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # NaN and infinities, which the standard lacks
        return json.loads(line)


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a JSON-lines file, in a time that does not grow with the file; `None` where it has none.

    Raises:
        InputError: It is no JSON object.
    """
    if not path.exists():
        return None
    check_regular(path)
    tail = b""
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END)
        while start and tail.count(b"\n") < 2:
            step = min(start, 1 << 16)
            start = file.seek(start - step)
            tail = file.read(step) + tail
    lines = tail.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # cut off while it was written
    if not lines:
        return None
    try:
        row = _load_line(lines[-1])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, last line: not JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise InputError(f"{path}, last line: an object with a whole step is expected")
    return row


_Kinds = Mapping[str, type | tuple[type, ...]]
_EVENT: _Kinds = {"event": str, "time": (int, float), "step": int, "count": int, "message": str}
_OUTCOME: _Kinds = {"status": str, "message": str, "peak_memory_bytes": int, "counts": dict}


def _hold_to_types(row: Mapping[str, Any], kinds: _Kinds, place: str) -> None:
    for name, kind in kinds.items():
        if name in row and (not isinstance(row[name], kind) or isinstance(row[name], bool)):
            raise InputError(f"{place}: field {name!r} is {str(row[name])[:60]!r}, not of its type")


WEIGHTS_PARTED = "weights_parted"
"""The event of a step whose engines hold other weights than each other."""


@dataclass(frozen=True, slots=True)
class RunStore:
    """The files of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name: ``<arm>-seed<k>``, or the design's where it is mixed, with ``replay-`` where it replays."""
        return self.path.name

    @property
    def compared(self) -> RunStore:
        """Samples and exchanges of a probe's groups in the arm that is not trained on."""
        return RunStore(self.path / "compared")

    def create(self) -> None:
        """Makes the run's directories; harmless where they exist."""
        (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)

    def append_event(self, event: str, time: float, **details: Any) -> None:
        """Appends one event; `time` is in seconds since the epoch."""
        append(self.path / "events.jsonl", _dump_line({"event": event, "time": time, **details}))

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Appends a finished step's metrics; `row["step"]` must be the step after the last finished one.

        Raises:
            InputError: The step is not the next one, so that counting it would count a step twice or skip one.
        """
        expected = self.finished_steps()
        if row.get("step") != expected:
            raise InputError(f"{self.path / 'metrics.jsonl'}: step {row.get('step')} where step {expected} is next")
        append(self.path / "metrics.jsonl", _dump_line(row))

    def events(self) -> list[dict[str, Any]]:
        """All events, in the order they happened.

        Raises:
            InputError: An event is not of the form of events.
        """
        path = self.path / "events.jsonl"
        rows = _read_lines(path)
        for number, row in enumerate(rows, start=1):
            _hold_to_types(row, _EVENT, f"{path}:{number}")
        return rows

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of the finished steps, in order.

        Raises:
            InputError: The steps are not 0, 1, 2, … each once.
        """
        rows = _read_lines(self.path / "metrics.jsonl")
        for expected, row in enumerate(rows):
            if row.get("step") != expected:
                raise InputError(
                    f"{self.path / 'metrics.jsonl'}:{expected + 1}: step {row.get('step')}, expected {expected}"
                )
        return rows

    def finished_steps(self) -> int:
        """How many steps are finished, by the last whole line of the metrics."""
        row = _last_line(self.path / "metrics.jsonl")
        return 0 if row is None else int(row["step"]) + 1

    def written_steps(self) -> int:
        """How many steps have samples and exchanges: the finished ones, and one that could not be trained on."""
        steps = self.finished_steps()
        while self.exchanges_path(steps).exists():
            steps += 1
        return steps

    def drop_unfinished(self) -> None:
        """Removes what a step cut off by a death left behind: half lines, samples, exchanges, old checkpoints."""
        for name in ("metrics.jsonl", "events.jsonl"):
            path = self.path / name
            if path.exists():
                write_atomically(path, b"".join(_dump_line(row) for row in _read_lines(path)))
        finished = self.finished_steps()
        for folder in ("rollouts", "exchanges", "compared/rollouts", "compared/exchanges"):
            for path in (self.path / folder).glob("*"):
                if path.name.startswith(".") or _step_of(path) >= finished:
                    path.unlink()
        for path in (self.path / "checkpoints").iterdir():
            if path.name.startswith(".") or not finished - 1 <= _step_of(path) <= finished:
                shutil.rmtree(path)

    def write_step(self, step: int, rollout: Rollout, exchanges: Iterable[Exchange]) -> None:
        """Writes the samples and then the exchanges of one step."""
        for path in (self.rollout_path(step), self.exchanges_path(step)):
            path.parent.mkdir(parents=True, exist_ok=True)
        columns = pa.BufferOutputStream()
        pq.write_table(rollout.table, columns, compression="zstd")
        write_atomically(self.rollout_path(step), columns.getvalue())
        lines = b"".join(orjson.dumps(exchange.to_json()) + b"\n" for exchange in exchanges)
        write_atomically(self.exchanges_path(step), lines)

    def rollout_path(self, step: int) -> Path:
        """Where the samples of a step are."""
        return self.path / "rollouts" / f"step-{step:06d}.parquet"

    def exchanges_path(self, step: int) -> Path:
        """Where the exchanges of a step are."""
        return self.path / "exchanges" / f"step-{step:06d}.exchanges.jsonl"

    def checkpoint_path(self, step: int) -> Path:
        """Where the weights are that a step samples from."""
        return self.path / "checkpoints" / f"step-{step:06d}"

    def rollout(self, step: int) -> Rollout:
        """The samples of one step."""
        return Rollout.read_parquet(self.rollout_path(step))

    def exchanges(self, step: int) -> Iterator[Exchange]:
        """The exchanges of one step."""
        return read_exchanges(self.exchanges_path(step))

    def prune_checkpoints(self, keep_from: int) -> None:
        """Removes the checkpoints of steps before `keep_from`."""
        for path in (self.path / "checkpoints").iterdir():
            if not path.name.startswith(".") and _step_of(path) < keep_from:
                shutil.rmtree(path)

    def damage_of_checkpoint(self, step: int) -> str:
        """What is wrong with a checkpoint by its digests; empty where it is sound."""
        path = self.checkpoint_path(step)
        if not (path / DIGESTS_FILE).exists():
            return f"{path}: it has no {DIGESTS_FILE}"
        digests = read_json(path / DIGESTS_FILE)
        for name, digest in digests.items():
            if not (path / Path(name).name).is_file():
                return f"{path / Path(name).name}: it is missing"
            if _sha256(path / Path(name).name) != digest:
                return f"{path / Path(name).name}: its SHA-256 is not the one written when it was saved"
        return ""

    def rewind(self) -> None:
        """Takes the last finished step back, so that it is made again from the checkpoint before."""
        path = self.path / "metrics.jsonl"
        write_atomically(path, b"".join(_dump_line(row) for row in _read_lines(path)[:-1]))
        self.drop_unfinished()

    def write_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Writes how the run ended, or that it has not."""
        _write_json(self.path / "run.json", outcome)

    def outcome(self) -> dict[str, Any]:
        """How the run ended; `{}` while that is unknown.

        Raises:
            InputError: The file cannot be read, or is not of the form of outcomes.
        """
        path = self.path / "run.json"
        outcome = read_json(path) if path.exists() else {}
        _hold_to_types(outcome, _OUTCOME, str(path))
        _hold_to_types(outcome.get("counts", {}), dict.fromkeys(outcome.get("counts", {}), int), f"{path}: counts")
        return outcome


def seal_checkpoint(path: Path) -> None:
    """Writes the digests of a checkpoint's files beside them."""
    digests = {file.name: _sha256(file) for file in sorted(path.iterdir()) if file.is_file()}
    _write_json(path / DIGESTS_FILE, digests)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _step_of(path: Path) -> int:
    try:
        return int(path.name.partition("-")[2].partition(".")[0])
    except ValueError as error:
        raise InputError(f"{path}: not a file of a step (step-000012…)") from error


def create_experiment(path: Path, experiment: Mapping[str, Any]) -> None:
    """Starts an experiment's directory with what was asked.

    Raises:
        UsageError: The directory already holds an experiment.
    """
    path.mkdir(parents=True, exist_ok=True)
    if (path / EXPERIMENT_FILE).exists():
        raise UsageError(f"{path} already holds an experiment: continue it with --resume, or choose another --out")
    _write_json(path / EXPERIMENT_FILE, experiment)


def read_experiment(path: Path) -> dict[str, Any]:
    """What was asked, from ``experiment.json``.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    if not (path / EXPERIMENT_FILE).exists():
        if (path / SAMPLING_FILE).exists():
            again = shlex.join(["parity", "sample", "--out", str(path), "--resume"])
            raise InputError(f"{path} holds the samples of `parity sample`; its report is written again by: {again}")
        raise InputError(
            f"{path} is no experiment: it has no {EXPERIMENT_FILE}; give a directory that `parity run` wrote"
        )
    return read_json(path / EXPERIMENT_FILE)


def run_store(experiment: Path, name: str) -> RunStore:
    """The files of one run of an experiment."""
    return RunStore(experiment / "runs" / name)


def amend_experiment(path: Path, facts: Mapping[str, Any]) -> None:
    """Adds what became known after the start; what is known already must be the same.

    Raises:
        UsageError: A fact differs from the one on disk.
    """
    experiment = read_experiment(path)
    for name, value in json.loads(json.dumps(facts)).items():
        if experiment.setdefault(name, value) != value:
            raise UsageError(f"{path / EXPERIMENT_FILE}: {name} is {experiment[name]}, but now {value}")
    _write_json(path / EXPERIMENT_FILE, experiment)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds an experiment's directory against a second writer; the system lets go when the process dies.

    Raises:
        UsageError: Another process is writing to this experiment.
    """
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{path}: another process is writing to this experiment") from error
        yield
