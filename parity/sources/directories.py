"""Directories: every file of a known format below them, and what else lies there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from parity.errors import InputError, NotRecognised, UsageError
from parity.records.store import EXPERIMENT_FILE, SAMPLING_FILE, RunStore
from parity.sources.registry import OF_SAMPLES, Source, open_source

_PARTS_OF_A_RUN = ("rollouts", "exchanges")


@dataclass(frozen=True, slots=True)
class Omission:
    """A file that was not read, and why; `damaged` if it claims to be of a known format."""

    path: Path
    reason: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What lies at some paths."""

    sources: tuple[Source, ...]
    omissions: tuple[Omission, ...]


def find_sources(paths: Iterable[Path], group_size: int | None = None) -> Found:
    """The sources at paths: a file is one, a directory stands for all files below it, in order of their names.

    Of an experiment, only finished steps are taken. Dumps of evaluations are left out of directories, since their
    groups are not those of training; a file that is named itself is always read.

    Raises:
        InputError: A path does not exist, or a file that is named itself cannot be read or is not recognised.
    """
    sources: list[Source] = []
    omissions: list[Omission] = []
    finished = cache(lambda run: RunStore(run).finished_steps())
    for path in paths:
        if not path.is_dir():
            sources.append(_named(path, group_size))
            continue
        for file in _files(path):
            try:
                if reason := _reason_to_leave(file, path, finished):
                    omissions.append(Omission(file, reason, damaged=False))
                else:
                    sources.append(open_source(file, group_size))
            except InputError as error:
                omissions.append(omission(file, error))
    return Found(tuple(sources), tuple(omissions))


def _named(path: Path, group_size: int | None) -> Source:
    try:
        return open_source(path, group_size)
    except NotRecognised as error:
        raise NotRecognised(f"{error}; what is read: {', '.join(form.name for form in OF_SAMPLES)}") from error


def omission(path: Path, error: InputError | UsageError) -> Omission:
    """A file as left out because of an error."""
    reason = str(error).removeprefix(str(path)).removeprefix(": ")
    if reason.startswith(":"):
        reason = f"line {reason[1:]}"
    return Omission(path, reason, damaged=not isinstance(error, (NotRecognised, UsageError)))


def dataset_of(path: Path) -> Path:
    """The directory whose files belong together: of a run, the one above its rollouts and exchanges."""
    parent = path.absolute().parent
    return parent.parent if parent.name in _PARTS_OF_A_RUN else parent


def _files(directory: Path, depth: int = 0) -> Iterator[Path]:
    """Files below a directory, hidden ones and checkpoints of runs apart, by the numbers in their names."""
    if depth > _DEEPEST:
        raise InputError(f"{directory}: more than {_DEEPEST} folders deep")
    try:
        paths = sorted(directory.iterdir(), key=_in_order)
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror or error}") from error
    for path in paths:
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from () if _is_checkpoints(path) else _files(path, depth + 1)
        else:
            yield path


_DEEPEST = 100
"""Folders inside folders that are looked through."""


def _in_order(path: Path) -> tuple[int, str]:
    digits = "".join(filter(str.isdecimal, path.stem))
    return int(digits or -1), path.name


def _is_checkpoints(path: Path) -> bool:
    return path.name == "checkpoints" and (path.parent / "metrics.jsonl").exists()


_RECORDS = (EXPERIMENT_FILE, SAMPLING_FILE, "run.json", "events.jsonl")
"""Files of an experiment besides its samples, exchanges and curves."""


_GROUPS_OF_THE_PATCH = "rollout.groups.jsonl"
"""What the recorder of `rollout_patch` writes beside samples and exchanges."""


def _is_of_experiment(file: Path) -> bool:
    """Whether a file lies in an experiment, or in one of its runs."""
    directories = (file.parent, file.parent.parent.parent)
    return any((path / name).exists() for path in directories for name in (EXPERIMENT_FILE, SAMPLING_FILE))


def _reason_to_leave(file: Path, directory: Path, finished_steps: Callable[[Path], int]) -> str | None:
    if not file.is_file():
        return "a link or no file; name it itself to check it"
    if file.stem.startswith("eval_") or "eval" in file.relative_to(directory).parts[:-1]:
        return "an evaluation; name the file itself to check it"
    if file.name in _RECORDS and _is_of_experiment(file):
        return "a record of parity itself, which `parity report` reads"
    if file.name == _GROUPS_OF_THE_PATCH:
        return "which way each group went, as the patch records it; what came of it is checked"
    if file.parent.name == "report" and (file.parent / "report.json").exists():
        return "a report of parity itself"
    run = file.parent.parent
    if file.parent.name in _PARTS_OF_A_RUN and (run.parent.parent / EXPERIMENT_FILE).exists():
        step = "".join(filter(str.isdecimal, file.name.partition(".")[0]))
        if step and int(step) >= finished_steps(run):
            return "a step that is not finished"
    return None
