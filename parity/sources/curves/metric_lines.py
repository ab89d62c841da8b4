"""Metrics as JSON lines: of verl's file logger, of Miles' events, of W&B's history, of anyone's records with a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.errors import CutOff, InputError
from parity.metrics import Point
from parity.records.json_lines import read_lines
from parity.sources.curves.recorded_runs import RecordedCurves, points_of, sentences
from parity.sources.dumps.miles import is_event

Row = Mapping[str, Any]


def is_metrics(row: Row) -> bool:
    """Whether a line holds metrics, with a step; an event of a run, which has a step too, does not."""
    if isinstance(row.get("event"), str):
        return False
    return is_event(dict(row)) or _is_verl(row) or bool(points_of(row, {}))


def _is_verl(row: Row) -> bool:
    return {"step", "data"} <= row.keys() and isinstance(row["data"], dict)


def read_jsonl(*paths: Path) -> list[RecordedCurves]:
    """The run in a file of JSON lines, or in the event logs of one run's processes, in the order of time.

    A last line that breaks off is left out, and said so.

    Raises:
        InputError: A line is damaged.
    """
    rows: list[tuple[str, dict[str, Any]]] = []
    cut = []
    for path in paths:
        try:
            for line in read_lines(path):
                rows.append(line)
        except CutOff as error:
            cut.append(str(error))
    if len(paths) > 1:
        rows.sort(key=lambda line: str(line[1].get("timestamp", "")))
    recording = read_records(rows)
    return [replace(recording, skipped=(*recording.skipped, *cut))]


def read_records(rows: list[tuple[str, dict[str, Any]]]) -> RecordedCurves:
    """The run in a list of records, each with its place.

    Raises:
        InputError: A metric event has no metrics.
    """
    left_out: dict[str, str] = {}
    form, values_of = _form_of(rows[0][1] if rows else {})
    points: list[Point] = []
    passed_over = 0
    for place, row in rows:
        values = values_of(row, place)
        passed_over += values is None
        points += points_of(values, left_out) if values is not None else []
    skipped = [*sentences(left_out), *([f"{passed_over} records of other kinds"] if passed_over else [])]
    return RecordedCurves("", form, points, tuple(skipped))


ValuesOf = Callable[[Row, str], "Row | None"]


def _form_of(row: Row) -> tuple[str, ValuesOf]:
    if is_event(dict(row)):
        return "Miles events", _of_event
    if _is_verl(row):
        return "verl file logger", _of_verl
    return "records (JSON)", _of_record


def _of_record(row: Row, place: str) -> Row | None:
    """Its own values; a summary of the whole run, which repeats its history, has none."""
    return None if "log_history" in row else row


def _of_event(row: Row, place: str) -> Row | None:
    if row.get("type") != "metric":
        return None
    if not isinstance(row.get("metrics"), dict):
        raise InputError(f"{place}: field 'metrics' is {type(row.get('metrics')).__name__}, not an object")
    step = {} if row.get("rollout_id") is None else {"step": row["rollout_id"]}
    return {**step, **row["metrics"]}


def _of_verl(row: Row, place: str) -> Row:
    if not isinstance(row.get("data"), dict):
        raise InputError(f"{place}: field 'data' is {type(row.get('data')).__name__}, not an object")
    return {**row["data"], "step": row.get("step")}


def numbered(rows: Iterator[Any] | list[Any], path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Records with their places.

    Raises:
        InputError: One is no object.
    """
    placed = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, record {number}: an object is expected, not {type(row).__name__}")
        placed.append((f"{path}, record {number}", row))
    return placed
