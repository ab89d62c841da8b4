"""What an experiment asks for, and the runs that it is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from parity.errors import InputError, UsageError
from parity.records.arms import ArmsAsked, check_names, read_settings
from parity.records.margins import PROBE_SHARE, RUN, check_margin
from parity.records.training_config import TrainingConfig

MIXED_DESIGNS = ("switchback", "probe")
"""Both arms inside one run: each group in an arm drawn by a coin; prompts in both arms, of which one is trained on."""

LIST_TWIN = "list-twin"
"""A twin for engines where one seed makes all n samples of a native request equal: lists stand in for native."""

DESIGNS = ("twin", LIST_TWIN, "replay", "paired", *MIXED_DESIGNS)
"""How runs are made: seeded sampling in both arms; one recording for both; free sampling in both; one mixed run."""


@dataclass(frozen=True, slots=True)
class ExperimentConfig(ArmsAsked):
    """What an experiment asks for.

    Attributes:
        task: The task's name.
        control: Whether weights may be pushed to a deployment at a URL, which training needs.
        designs: Which of `DESIGNS` to run, in order; empty: what the engine allows (`parity.engines.designs`).
        seeds: Number of paired seeds, and of mixed runs.
        steps: Training steps of each paired or mixed run.
        twin_steps: Training steps of each twin run.
        probe_share: The share of a probe's prompts that are asked in both arms.
        training: The trainer's settings.
        margins: The largest difference that counts as the same, by metric, as in `parity.records.margins`.
        plants: Faults planted in the experiment's arm, each ``NAME@STEP``.
        patience: Seconds without an answer or token until a request is given up.
    """

    task: str = "arithmetic"
    control: bool = False
    designs: tuple[str, ...] = ()
    seeds: int = 3
    steps: int = 40
    twin_steps: int = 20
    probe_share: float = PROBE_SHARE
    training: TrainingConfig = field(default_factory=TrainingConfig)
    margins: Mapping[str, float] = field(default_factory=lambda: dict(RUN))
    plants: tuple[str, ...] = ()
    patience: float = 600.0

    def to_json(self) -> dict[str, Any]:
        """The configuration as ``experiment.json`` holds it: without passwords and keys."""
        return {**asdict(self), **self.arms_to_json()}

    @classmethod
    def from_json(cls, row: object) -> ExperimentConfig:
        """The configuration that `to_json` wrote.

        Raises:
            InputError: It is no such configuration.
            UsageError: A setting of the trainer is out of its range.
        """
        place = "experiment.json: config"
        parts = row if isinstance(row, Mapping) else {}
        check_names(parts.get("training", {}), TrainingConfig, f"{place}.training")
        config = read_settings(row, cls, place)
        for name, margin in config.margins.items():
            if name not in RUN:
                raise InputError(f"{place}.margins: {name} is {margin!r}, where {sorted(RUN)} have numbers")
            try:
                check_margin(name, margin)
            except UsageError as error:
                raise InputError(f"{place}.margins: {error}") from error
        return config


@dataclass(frozen=True, slots=True)
class Pair:
    """Runs with the same seed, one an arm: same initial weights, same prompts in the same order.

    In a mixed design one run has groups of two arms.

    Attributes:
        design: One of `DESIGNS`.
        seed: The seed.
        steps: Training steps that are asked for.
        arms: Baseline and experiment, or the baseline and all that are compared with it.
        label: Tells mixed runs of several arms apart; empty where there is one.
    """

    design: str
    seed: int
    steps: int
    arms: tuple[str, ...]
    label: str = ""

    @property
    def mixed(self) -> bool:
        """Whether one run has groups of both arms."""
        return self.design in MIXED_DESIGNS

    @property
    def seeded(self) -> bool:
        """Whether each sample has a seed of its own, the same in both arms."""
        return self.design in ("twin", LIST_TWIN)

    @property
    def run_arms(self) -> tuple[str, ...]:
        """The arm of each run; a mixed run is called by its design."""
        return (f"{self.design}-{self.label}" if self.label else self.design,) if self.mixed else self.arms

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the runs, baseline first."""
        prefix = f"{self.design}-" if self.design in ("replay", LIST_TWIN) else ""
        return tuple(f"{prefix}{arm}-seed{self.seed}" for arm in self.run_arms)

    def against(self, arm: str) -> Pair | None:
        """The baseline and one of the other arms; None where that arm is not in it."""
        return replace(self, arms=(self.arms[0], arm)) if arm in self.arms[1:] else None


def weight_version(nonce: str, run: str, step: int) -> str:
    """The label that the engine gives the weights of a step; the nonce tells the experiment's from all others.

    An experiment of before there were nonces has none.
    """
    return f"{nonce}-{run}-step{step}" if nonce else f"{run}-step{step}"


def nonce_of_version(version: object) -> str:
    """The nonce of the experiment that gave weights their label; empty where it is no such label."""
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    return found[1] if found else ""


_VERSION = re.compile(r"([0-9a-f]{8})-.+-step\d+")


def twin_by_lists(arms: Sequence[str]) -> tuple[str, ...]:
    """The arms of a twin in which a list with a seed an item stands in for native."""
    return tuple("batched" if arm == "native" else arm for arm in arms)


def plan_pairs(config: ExperimentConfig, designs: Sequence[str]) -> list[Pair]:
    """The pairs of an experiment in the order they run; twins have seed 0, the seeds of the others count from 1.

    A replay pair replays the first paired baseline, so it runs after it. A mixed run has two arms, so that there is one
    for each arm that is compared with the baseline.
    """
    arms = config.arms
    pairs = [Pair("twin", 0, config.twin_steps, arms)] if "twin" in designs else []
    if LIST_TWIN in designs:
        pairs.append(Pair(LIST_TWIN, 0, config.twin_steps, twin_by_lists(arms)))
    if "paired" in designs:
        pairs += [Pair("paired", seed, config.steps, arms) for seed in range(1, config.seeds + 1)]
    if "replay" in designs:
        pairs.insert(1 if pairs and pairs[0].design == "paired" else len(pairs), Pair("replay", 1, config.steps, arms))
    return pairs + [
        Pair(design, seed, config.steps, (arms[0], arm), arm if len(arms) > 2 else "")
        for design in MIXED_DESIGNS
        if design in designs
        for seed in range(1, config.seeds + 1)
        for arm in arms[1:]
    ]
