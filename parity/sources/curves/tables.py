"""CSV: one row a step, or W&B's export of a chart, which has one column a run."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.errors import InputError
from parity.metrics import Point
from parity.sources.curves.recorded_runs import COUNTERS, RecordedCurves, number, points_of, sentences

_CHART = " - "
_BOUNDS = ("__MIN", "__MAX")


def is_table(head: str) -> bool:
    """Whether a text's first line is a CSV header with a column that counts steps."""
    try:
        columns = next(csv.reader(head.splitlines()[:1]), [])
    except csv.Error:  # a field of more characters than the module takes
        return False
    return len(columns) > 1 and bool(COUNTERS & set(columns))


def read_table(path: Path) -> list[RecordedCurves]:
    """The runs in a CSV file: several where it is W&B's chart, with columns ``<run> - <metric>``.

    An empty cell was not recorded.

    Raises:
        InputError: The file cannot be read, a row has more cells than the header, or a step is no whole number.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = list(rows.fieldnames or ())
            if twice := sorted({name for name in columns if columns.count(name) > 1}):
                raise InputError(f"{path}: columns {twice} are there more than once")
            places = list(_rows(rows, path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from error
    if {"Wall time", "Value"} <= set(columns):
        raise InputError(f"{path}: one chart of TensorBoard, which does not name its metric; give the event files")
    charted = [name for name in columns if _CHART in name]
    return _charts(charted, places) if charted else [_history(places)]


def _rows(rows: csv.DictReader[str], path: Path) -> Iterator[dict[str, Any]]:
    for line, row in enumerate(rows, start=2):
        if None in row:
            raise InputError(f"{path}:{line}: more cells than the header has columns")
        found: dict[str, Any] = {}
        for name, cell in row.items():
            if not name or not (cell or "").strip():
                continue
            value = _cell(cell)
            if name in COUNTERS and (value is None or not value.is_integer()):
                raise InputError(f"{path}:{line}: column {name!r} is {cell!r}, not a whole step")
            found[name] = cell if value is None else value
        yield found


def _cell(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return number(cell)


def _history(rows: list[dict[str, Any]]) -> RecordedCurves:
    left_out: dict[str, str] = {}
    points = [point for row in rows for point in points_of(row, left_out)]
    return RecordedCurves("", "CSV", points, skipped=sentences(left_out))


def _charts(columns: list[str], rows: list[dict[str, Any]]) -> list[RecordedCurves]:
    runs: dict[str, dict[str, str]] = {}
    for name in columns:
        run, _, metric = name.rpartition(_CHART)
        if not metric.endswith(_BOUNDS):
            runs.setdefault(run, {})[name] = metric
    return [
        RecordedCurves(
            run, "W&B chart (CSV)", _chart(metrics, rows), skipped=("columns of bounds (__MIN, __MAX): not used",)
        )
        for run, metrics in runs.items()
    ]


def _chart(metrics: Mapping[str, str], rows: list[dict[str, Any]]) -> list[Point]:
    left_out: dict[str, str] = {}
    steps = ({name: row[name] for name in COUNTERS & row.keys()} for row in rows)
    values = ({metric: row[column] for column, metric in metrics.items() if column in row} for row in rows)
    return [point for at, row in zip(steps, values, strict=True) for point in points_of({**at, **row}, left_out)]
