"""Named faults, each taken from a real bug, and controls that look like faults: what the checks are tried with.

`faults.csv` and `controls.csv` say what each is and which check must catch it; the modules beside them hold, by name,
the operation that plants it in a scene. No check lives here.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from parity.errors import UsageError, did_you_mean
from parity.faults import control_plants, curve_faults, dump_faults, engine_faults, exchange_faults, sample_faults
from parity.faults.edits import Plant
from parity.faults.scenes import KINDS, Kind, Scene, name_of
from parity.findings import Level
from parity.records.samples import Sample

__all__ = ["CONTROLS", "FAULTS", "AfterScoring", "Control", "Fault", "Kind", "name_of", "parse_plant", "planting"]

AfterScoring = Callable[[int, list[Sample]], None]
"""Called by the trainer with a step and its samples, after rewards are set and before advantages."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted defect, and the check that must catch it.

    Attributes:
        name: Its name; `parity run --plant` takes it if `in_run`.
        kind: The kind of scene that it is planted in.
        plant: Changes a scene without faults in place.
        units: Size of a scene (groups, steps, runs) in which the check must catch it.
        level: The check's level.
        check: The check that must fail, as `name_of` names it.
        companions: Patterns of other checks that may fail too, because the same defect breaks their rule.
        place: Where it occurs: engine, router, patch, host, trainer or tracker.
        in_run: It can be planted in a training run: it works on any scored samples.
        origin: The public report of the bug, as ``owner/repository#number``, or ``constructed``.
        description: What goes wrong.
    """

    name: str
    kind: Kind
    plant: Plant
    units: int
    level: Level
    check: str
    companions: tuple[str, ...]
    place: str
    in_run: bool
    origin: str
    description: str

    @property
    def needs_images(self) -> bool:
        """Whether it changes nothing unless prompts show images."""
        return self.name.startswith("media-")


@dataclass(frozen=True, slots=True)
class Control:
    """Something that looks like a fault but is valid: no check may fail.

    Attributes:
        name: Its name.
        kind: The kind of scene that it is shown in.
        plant: Changes a scene without faults in place.
        units: Size of the scene.
        description: What it is, and why it is valid.
    """

    name: str
    kind: Kind
    plant: Plant
    units: int
    description: str


PLANTS = {
    **exchange_faults.PLANTS, **sample_faults.PLANTS, **dump_faults.PLANTS, **curve_faults.PLANTS,
    **control_plants.PLANTS, **engine_faults.PLANTS,
}  # fmt: skip
"""Every operation by name."""


def table_rows(table: str) -> Iterator[dict[str, str]]:
    """The rows of one of the tables beside this module."""
    text = resources.files(__name__).joinpath(table).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines(), strict=True)


def _operation(row: dict[str, str]) -> Plant:
    """The operation named in the row, or that of the row's own name."""
    return PLANTS[row["operation"] or row["name"]]


_LEVELS = {level.rung: level for level in Level}

FAULTS = {
    row["name"]: Fault(
        row["name"], KINDS[row["scene"]], _operation(row), int(row["size"]), _LEVELS[row["level"]], row["check"],
        tuple(row["also"].split()), row["place"], row["in_run"] == "yes", row["origin"], row["description"],
    )
    for row in table_rows("faults.csv")
}  # fmt: skip
CONTROLS = tuple(
    Control(row["name"], KINDS[row["scene"]], _operation(row), int(row["size"]), row["description"])
    for row in table_rows("controls.csv")
)


def parse_plant(text: str) -> tuple[Fault, int]:
    """Reads ``NAME@STEP``: which fault to plant, and at which training step (from 0).

    Raises:
        UsageError: The text is not of that form, or names no fault that can be planted in a run.
    """
    name, _, step = text.partition("@")
    names = sorted(fault.name for fault in FAULTS.values() if fault.in_run)
    if name not in names:
        raise UsageError(
            f"--plant {text}: a run takes no such fault, but {', '.join(names)}{did_you_mean(name, names)}"
        )
    if not step.isdecimal():
        raise UsageError(f"--plant {text}: expected NAME@STEP with a step counted from 0, such as {name}@7")
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
