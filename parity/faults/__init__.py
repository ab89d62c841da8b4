"""Named faults: planted defects, each taken from a real bug, that show whether the checks would notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parity.errors import UsageError
from parity.faults import curves, rollout, trainer, wire
from parity.faults.controls import CONTROLS
from parity.faults.scenes import Control, Fault, Kind, Scene, name_of
from parity.records.samples import Sample

__all__ = [
    "CONTROLS",
    "FAULTS",
    "AfterScoring",
    "Control",
    "Fault",
    "Kind",
    "name_of",
    "parse_plant",
    "planting",
]

AfterScoring = Callable[[int, list[Sample]], None]
"""What the trainer calls with a step and its samples, after rewards are set and before advantages."""

FAULTS = {fault.name: fault for fault in (*wire.FAULTS, *rollout.FAULTS, *trainer.FAULTS, *curves.FAULTS)}


def parse_plant(text: str) -> tuple[Fault, int]:
    """Reads ``NAME@STEP``: which fault to plant, and at which training step (from 0).

    Raises:
        UsageError: The text is not of that form, or names no fault that can be planted in a run.
    """
    name, _, step = text.partition("@")
    names = sorted(fault.name for fault in FAULTS.values() if fault.in_run)
    if name not in names or not step.isdecimal():
        raise UsageError(f"--plant takes NAME@STEP with one of {', '.join(names)}, not {text!r}")
    return FAULTS[name], int(step)


def planting(plants: Sequence[str]) -> AfterScoring:
    """A hook that plants each ``NAME@STEP`` when its step has been scored.

    Raises:
        UsageError: One of the texts names no such fault or step.
    """
    parsed = [parse_plant(text) for text in plants]

    def after_scoring(step: int, samples: list[Sample]) -> None:
        for fault, at in parsed:
            if at == step:
                fault.plant(Scene(samples))

    return after_scoring
