"""JSON documents: ``trainer_state.json`` of Transformers and TRL, and records exported as one list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parity.errors import InputError, OverBudget
from parity.metrics import Point
from parity.records.budgets import check_elements, check_regular, exceeded, unpacked_bytes
from parity.sources.curves.metric_lines import numbered, read_records
from parity.sources.curves.recorded_runs import COMPLETED, RecordedCurves, points_of, sentences

TRAINER_STATE = "trainer_state.json"
SUMMARY = "train_runtime"
"""The record that a trainer writes at its end, of the run as a whole."""


def is_document(path: Path) -> bool:
    """Whether a file is one JSON document of a kind that is read here."""
    try:
        content = _load(path)
    except OverBudget:
        raise
    except InputError:
        return False
    return isinstance(content, list) or (isinstance(content, dict) and isinstance(content.get("log_history"), list))


def read_document(path: Path) -> list[RecordedCurves]:
    """The run in a document.

    Raises:
        InputError: It cannot be read, or a record is no object.
    """
    content = _load(path)
    return [_of_trainer(content, path) if isinstance(content, dict) else read_records(numbered(content, path))]


def newest_state(directory: Path) -> Path | None:
    """The state that a trainer wrote last; it holds the records of all steps before."""
    found = [*directory.glob(TRAINER_STATE), *directory.glob(f"checkpoint-*/{TRAINER_STATE}")]
    return max(found, key=lambda path: _steps_of(_load(path)), default=None)


def _load(path: Path) -> Any:
    check_regular(path)
    try:
        if path.stat().st_size > (limit := unpacked_bytes()):
            raise OverBudget(f"{path}: {exceeded('its size', limit, 'bytes')}")
        content = path.read_bytes()
        check_elements(content, str(path))
        return json.loads(content)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error


def _steps_of(state: Any) -> int:
    steps = state.get("global_step") if isinstance(state, dict) else None
    return steps if isinstance(steps, int) else -1


def _of_trainer(state: dict[str, Any], path: Path) -> RecordedCurves:
    left_out: dict[str, str] = {"epoch": "counts the data, not a metric"}
    points: list[Point] = []
    history = numbered(state["log_history"], path)
    for _, row in history:
        if SUMMARY not in row:
            values = {name: value for name, value in row.items() if name != "epoch"}
            points += points_of(values, left_out)
    summaries = sum(SUMMARY in row for _, row in history)
    skipped = [*sentences(left_out), *([f"{summaries} summaries of whole runs"] if summaries else [])]
    finished = isinstance(state.get("max_steps"), int) and 0 < state["max_steps"] <= _steps_of(state)
    return RecordedCurves("", "trainer state", points, tuple(skipped), COMPLETED if finished else None)
