"""A training run as somebody's tracker or log recorded it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.metrics import Point, RunCurves

COMPLETED = "completed"
LARGEST_STEP = 1 << 53
"""A step above this is damage: no number beyond it is exact in every source."""
LARGEST_INTEGER = 1 << 1023
"""The largest power of 2 that a float holds."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The curves of one run, under slime's names, and what else its source says.

    Attributes:
        name: The run's name, unique among the runs compared: its source as given, with its part of it where it holds
            several.
        format: The name of the source's format.
        curves: The curves by metric.
        skipped: What the reader left out, and why, one sentence each.
        ending: How the run ended (``completed``, ``oom``, ``502``, ``killed``, …); `None` if the source does not say.
        incidents: How often something happened on the way, such as a retried request, by name.
        zero_may_be_nan: Whether the source stores NaN as 0.
    """

    name: str
    format: str
    curves: RunCurves
    skipped: tuple[str, ...] = ()
    ending: str | None = None
    incidents: Mapping[str, int] = field(default_factory=dict)
    zero_may_be_nan: bool = False


@dataclass(frozen=True, slots=True)
class RecordedCurves:
    """What a reader found of one run under its source's own names; fields as in `RecordedRun`.

    Attributes:
        part: The run's name inside its source; empty where the source is one run.
        points: What was recorded, in the order it was.
    """

    part: str
    format: str
    points: Iterable[Point]
    skipped: tuple[str, ...] = ()
    ending: str | None = None
    incidents: Mapping[str, int] = field(default_factory=dict)
    zero_may_be_nan: bool = False


_WORDS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf, "-infinity": -math.inf, "-inf": -math.inf}


def number(value: Any) -> float | None:
    """A recorded value as a number: null and the words for NaN and infinity count, other texts and flags do not."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if isinstance(value, float) or abs(value) <= LARGEST_INTEGER else None


STEP_OF_PREFIX = {
    "train": ("train/step", "train/global_step"),
    "rollout": ("rollout/step",),
    "perf": ("rollout/step",),
    "passrate": ("rollout/step",),
    "multi_turn": ("rollout/step",),
    "eval": ("eval/step",),
}
"""The fields that count the steps of metrics with a prefix, as slime, Miles, Relax and TRL name them."""

STEP_FIELDS = ("step", "Step", "global_step", "trainer/global_step", "train/global_step", "_step", "iteration", "iter")
"""The fields that count the steps of any metric, the most telling first."""

FRACTION = "global_step/max_steps"
"""ms-swift's counter of steps, a text such as ``10/438``."""

COUNTERS = {FRACTION, *STEP_FIELDS, *(name for names in STEP_OF_PREFIX.values() for name in names), "actor_fwd/step"}
"""All fields that count steps, which are no metrics."""


def points_of(record: Mapping[str, Any], left_out: dict[str, str]) -> list[Point]:
    """The points of one record: each metric at the step that is counted for it.

    Args:
        record: Values by name, with one or several fields that count steps.
        left_out: Takes the fields that are no metric, each with the reason.
    """
    values: dict[tuple[str, int], dict[str, float]] = {}
    for name, raw in record.items():
        if name in COUNTERS:
            continue
        value = number(raw)
        if value is None:
            left_out.setdefault(name, "not a number")
            continue
        candidates = (*STEP_OF_PREFIX.get(name.partition("/")[0], ()), *STEP_FIELDS, FRACTION)
        counter = next((field for field in candidates if _as_step(record.get(field)) is not None), None)
        if counter is None:
            left_out.setdefault(name, f"no step beside it ({', '.join(candidates[:3])}, …)")
            continue
        step = _as_step(record[counter])
        assert step is not None
        values.setdefault((counter, step), {})[name] = value
    return [Point(counter, step, found) for (counter, step), found in values.items()]


def step_of(record: Mapping[str, Any]) -> int | None:
    """The step that a record names for all of its metrics, if it does."""
    steps = (_as_step(record.get(field)) for field in (*STEP_FIELDS, FRACTION))
    return next((step for step in steps if step is not None), None)


def _as_step(value: Any) -> int | None:
    """A counter as a step: a whole number, or a text such as ``10/438``; `None` for anything else."""
    if isinstance(value, str) and (parts := value.split("/"))[0].isdecimal() and len(parts) == 2:
        value = int(parts[0])
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return int(value) if abs(value) <= LARGEST_STEP and float(value).is_integer() else None


def sentences(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """What was left out as one sentence a reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return tuple(
        f"{', '.join(sorted(names)[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}: {reason}"
        for reason, names in by_reason.items()
    )
