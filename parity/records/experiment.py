"""What an experiment asks for, and the runs that it is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from parity.errors import InputError, UsageError, without_secrets
from parity.records.margins import PROBE_SHARE, RUN, check_margin
from parity.records.training_config import TrainingConfig

ARMS = ("per-sample", "batched", "native")
"""The ways of asking for a group: n requests, one request with a list of n prompts, one request with `n`."""

ENGINES = ("embedded", "sglang")
"""Engines that can be started here; a URL names one that somebody else runs."""

MIXED_DESIGNS = ("switchback", "probe")
"""Both arms inside one run: each group in an arm drawn by a coin; prompts in both arms, of which one is trained on."""

LIST_TWIN = "list-twin"
"""A twin for engines where one seed makes all n samples of a native request equal: lists stand in for native."""

DESIGNS = ("twin", LIST_TWIN, "replay", "paired", *MIXED_DESIGNS)
"""How runs are made: seeded sampling in both arms; one recording for both; free sampling in both; one mixed run."""


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """What an experiment asks for.

    Attributes:
        baseline: The arm compared with.
        experiment: The arm in question.
        task: The task's name.
        engine: ``embedded``, ``sglang``, or the URL of a deployment.
        workers: How many engines to start.
        router: The policy of the sglang-router in front of them; empty: `round_robin` for several, no router for one.
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

    baseline: str
    experiment: str
    task: str = "arithmetic"
    engine: str = "embedded"
    workers: int = 1
    router: str = ""
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
        """The configuration as ``experiment.json`` holds it: without the password in an engine's URL."""
        return {**asdict(self), "engine": without_secrets(self.engine)}

    @classmethod
    def from_json(cls, row: object) -> ExperimentConfig:
        """The configuration that `to_json` wrote.

        Raises:
            InputError: It is no such configuration.
            UsageError: A setting of the trainer is out of its range.
        """
        standard = cls("", "")
        parts = _settings(row, standard, "config")
        parts["training"] = TrainingConfig(**_settings(parts["training"], TrainingConfig(), "config.training"))
        for name in ("designs", "plants"):
            parts[name] = tuple(map(str, parts[name]))
        for name, margin in parts["margins"].items():
            if name not in RUN or type(margin) not in (float, int):
                raise InputError(
                    f"experiment.json: config.margins: {name} is {margin!r}, where {sorted(RUN)} have numbers"
                )
            try:
                check_margin(name, margin)
            except UsageError as error:
                raise InputError(f"experiment.json: config.margins: {error}") from error
        return cls(**parts)


def _settings(row: object, standard: object, place: str) -> dict[str, Any]:
    """Settings by name, each of the type of the standard one, which stands for what is not there."""
    if not isinstance(row, dict):
        raise InputError(f"experiment.json: {place} is {type(row).__name__}, not an object")
    usual = asdict(standard)  # type: ignore[call-overload]
    if unknown := sorted(row.keys() - usual.keys()):
        raise InputError(f"experiment.json: {place} has unknown settings: {', '.join(unknown)}")
    for name, value in row.items():
        kinds = _KINDS.get(type(usual[name]), (type(usual[name]),))
        if type(value) not in kinds:
            raise InputError(f"experiment.json: {place}.{name} is {value!r}, not {kinds[0].__name__}")
    return {**usual, **row}


_KINDS: dict[type, tuple[type, ...]] = {float: (float, int), tuple: (list, tuple)}
"""What JSON holds for a setting, where that may be of another type than the standard one."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A baseline run and an experiment run with the same seed: same initial weights, same prompts in the same order.

    In a mixed design one run, named after the design, has groups of both arms.
    """

    design: str
    seed: int
    steps: int
    arms: tuple[str, str]

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
        return (self.design,) if self.mixed else self.arms

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the runs, baseline first."""
        prefix = f"{self.design}-" if self.design in ("replay", LIST_TWIN) else ""
        return tuple(f"{prefix}{arm}-seed{self.seed}" for arm in self.run_arms)


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


def twin_by_lists(arms: tuple[str, str]) -> tuple[str, str]:
    """The arms of a twin in which a list with a seed an item stands in for native."""
    first, second = ("batched" if arm == "native" else arm for arm in arms)
    return first, second


def plan_pairs(config: ExperimentConfig, designs: Sequence[str]) -> list[Pair]:
    """The pairs of an experiment in the order they run; twins have seed 0, the seeds of the others count from 1.

    A replay pair replays the first paired baseline, so it runs after it.
    """
    arms = (config.baseline, config.experiment)
    pairs = [Pair("twin", 0, config.twin_steps, arms)] if "twin" in designs else []
    if LIST_TWIN in designs:
        pairs.append(Pair(LIST_TWIN, 0, config.twin_steps, twin_by_lists(arms)))
    if "paired" in designs:
        pairs += [Pair("paired", seed, config.steps, arms) for seed in range(1, config.seeds + 1)]
    if "replay" in designs:
        pairs.insert(1 if pairs and pairs[0].design == "paired" else len(pairs), Pair("replay", 1, config.steps, arms))
    mixed = [design for design in MIXED_DESIGNS if design in designs]
    return pairs + [Pair(design, seed, config.steps, arms) for design in mixed for seed in range(1, config.seeds + 1)]
