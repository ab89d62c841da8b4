"""ClearML's tasks: offline sessions, as a folder or zip, and tasks of a server through the SDK.

A task keeps NaN as 0 unless it was told otherwise, and splits names at the first slash into title and series. Tasks
that this package made keep what is not finite under a title of its own.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from parity.errors import InputError, UsageError, install_hint
from parity.metrics import Point
from parity.records.budgets import check_elements, check_unpacked
from parity.records.json_lines import LONGEST_LINE
from parity.sources.curves.recorded_runs import LARGEST_STEP, RecordedCurves, number, sentences

FORMAT = "ClearML"
TASK_FILE, METRICS_FILE = "task.json", "metrics.jsonl"
SCALAR = "training_stats_scalar"
SINGLE_VALUE = -(2**31)
"""The iteration that ClearML gives values which belong to no step."""
NOT_FINITE = "not finite"
"""The title under which this package keeps values that are not finite: 0 for NaN, 1 and -1 for the infinities; the
series is the metric."""
NOT_FINITE_COUNT = "not finite values"
"""A value of the whole run that this package's tasks have: the zeros of such a task are zeros."""


def is_session(directory: Path) -> bool:
    """Whether a folder is an offline session."""
    return (directory / TASK_FILE).is_file() and (directory / METRICS_FILE).is_file()


def is_session_zip(path: Path) -> bool:
    """Whether a file is an offline session's zip."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return {TASK_FILE, METRICS_FILE} <= set(archive.namelist())


def read_session(directory: Path) -> list[RecordedCurves]:
    """The run in an offline session's folder.

    Raises:
        InputError: A line is damaged.
    """
    path = directory / METRICS_FILE
    with path.open("rb") as file:
        return [_recording(_events(file, str(path)))]


def read_session_zip(path: Path) -> list[RecordedCurves]:
    """The run in an offline session's zip, which is not unpacked.

    Raises:
        InputError: The zip or a line is damaged, or it unpacks to more than budgets allow.
    """
    check_unpacked(path)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(METRICS_FILE) as file:
            return [_recording(_events(file, f"{path}/{METRICS_FILE}"))]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as a zip: {error}") from error


def read_task(task_id: str) -> list[RecordedCurves]:
    """The run in a task of the server that the SDK is configured for; every reported value is asked for.

    Raises:
        UsageError: The package clearml is not installed or not configured, or there is no such task.
    """
    try:
        from clearml import Task
    except ImportError as error:
        message = f"a task of a server is read by the package clearml: {install_hint('clearml')}"
        raise UsageError(f"clearml:{task_id}: {message}") from error
    try:
        scalars: Mapping[str, Any] = Task.get_task(task_id=task_id).get_all_reported_scalars(x_axis="iter")
    except ValueError as error:  # no such task, or no configuration
        raise UsageError(f"clearml:{task_id}: {error}") from error
    return [_recording(_of_scalars(scalars))]


def _events(file: IO[bytes], place: str) -> Iterator[Mapping[str, Any]]:
    """Events in the order they were reported; each line is a list of them."""
    for line, content in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
        check_elements(content, f"{place}:{line}")
        try:
            events = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}:{line}: not JSON: {error}") from error
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise InputError(f"{place}:{line}: a list of events is expected")
        yield from events


def _of_scalars(scalars: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for title, of_title in scalars.items():
        for series, axes in of_title.items():
            for step, value in zip(axes["x"], axes["y"], strict=True):
                yield {"type": SCALAR, "metric": title, "variant": series, "iter": step, "value": value}


def _recording(events: Iterable[Mapping[str, Any]]) -> RecordedCurves:
    left_out: dict[str, str] = {}
    points = []
    zero_may_be_nan = True
    for event in events:
        title, series = event.get("metric"), event.get("variant")
        name = f"{title}/{series}"
        step, value = event.get("iter"), number(event.get("value"))
        if event.get("type") != SCALAR:
            left_out.setdefault(name, f"of type {event.get('type')!r}, not a scalar")
        elif series == NOT_FINITE_COUNT:
            zero_may_be_nan = False
        elif not isinstance(step, int) or not -LARGEST_STEP <= step <= LARGEST_STEP or step == SINGLE_VALUE:
            left_out.setdefault(name, "a value of the whole run")
        elif value is None:
            left_out.setdefault(name, "not a number")
        elif title == NOT_FINITE:
            metric = str(series)
            points.append(Point(metric.partition("/")[0], step, {metric: value * math.inf}))  # 0 * inf is NaN
        else:
            points.append(Point(str(title), step, {name: value}))
    return RecordedCurves("", FORMAT, points, skipped=sentences(left_out), zero_may_be_nan=zero_may_be_nan)
