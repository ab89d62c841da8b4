"""Named faults: planted defects, each taken from a real bug, that show whether the checks would notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from parity.errors import UsageError
from parity.samples import Sample

AfterScoring = Callable[[int, list[Sample]], None]
"""What the trainer calls with a step and its samples, after rewards are set and before advantages."""

_OUTPUT_FIELDS = (
    "output_ids", "logprobs", "text", "finish_reason", "status", "loss_mask", "response_length", "weight_versions",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted defect: its name, what goes wrong, and where that happened in life."""

    name: str
    description: str
    plant: Callable[[list[Sample]], None]


def _exchange_outputs(samples: list[Sample]) -> None:
    """Exchanges the outputs of the first two neighbours of a group whose rewards differ, and leaves the rewards."""
    for first, second in pairwise(samples):
        if first.group_index == second.group_index and first.reward != second.reward:
            for name in _OUTPUT_FIELDS:
                ours, theirs = getattr(first, name), getattr(second, name)
                setattr(first, name, theirs)
                setattr(second, name, ours)
            return


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "exchanged-outputs",
            "two outputs of a group are exchanged after scoring, so that each is trained on the other's reward",
            _exchange_outputs,
        ),
    )
}


def parse_plant(text: str) -> tuple[Fault, int]:
    """Reads ``NAME@STEP``: which fault to plant, and at which training step (from 0).

    Raises:
        UsageError: The text is not of that form, or names no fault.
    """
    name, _, step = text.partition("@")
    if name not in FAULTS or not step.isdecimal():
        raise UsageError(f"--plant takes NAME@STEP with one of {sorted(FAULTS)}, not {text!r}")
    return FAULTS[name], int(step)


def planting(plants: Sequence[str]) -> AfterScoring:
    """A hook that plants each ``NAME@STEP`` when its step has been scored.

    Raises:
        UsageError: One of the texts names no fault or step.
    """
    parsed = [parse_plant(text) for text in plants]

    def after_scoring(step: int, samples: list[Sample]) -> None:
        for fault, at in parsed:
            if at == step:
                fault.plant(samples)

    return after_scoring
