"""What a fault is planted in, how that is built sound, and which checks then look at it.

Each scene is what one place of a rollout's life leaves behind: answers on the wire, samples with the requests that
brought them, a twin of them, a tracker's records, groups drawn at fixed weights, or the curves of whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from parity.contract_checks import (
    Rules,
    check_accounting,
    check_arms,
    check_curves,
    check_exchanges,
    check_metrics,
    check_requests,
    check_samples,
    samples_of,
)
from parity.evidence.replay import compare_twins
from parity.faults.clean import (
    MARGINS,
    RULES,
    clean_exchanges,
    clean_prompts,
    clean_records,
    clean_rollout,
    clean_samples,
    groups_of,
    step_metrics,
)
from parity.findings import Finding, Level
from parity.metrics import curves_of_run
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample

Plant = Callable[[Any], object]
"""Changes a scene in place; what it returns is not looked at."""


@dataclass(slots=True)
class Scene:
    """One rollout as the experiment's arm left it, and the baseline's, which got the same responses."""

    samples: list[Sample]
    exchanges: list[Exchange] = field(default_factory=list)
    baseline: list[Sample] = field(default_factory=list)
    baseline_exchanges: list[Exchange] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    baseline_records: list[dict[str, Any]] = field(default_factory=list)
    rules: Rules = RULES

    def group(self, number: int = 0) -> list[Sample]:
        """The samples of one group."""
        return [sample for sample in self.samples if sample.group_index == number]


@dataclass(slots=True)
class Draws:
    """Groups that both arms draw at fixed weights from the same prompts."""

    rng: np.random.Generator
    prompts: list[list[int]]
    baseline: Rollout
    experiment: Rollout


@dataclass(slots=True)
class Runs:
    """The metrics of whole runs, lines of ``metrics.jsonl`` by run."""

    baseline: list[list[dict[str, Any]]]
    experiment: list[list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of scene.

    Attributes:
        unit: What a scene's size counts.
        build: A sound scene of a size.
        judge: All that is checked in it.
    """

    unit: str
    build: Callable[[np.random.Generator, int], Any]
    judge: Callable[[Any], list[Finding]]


def _varied(samples: Sequence[Sample]) -> bool:
    """Whether the first group holds what most faults need: stops and cuts, two rewards, responses of several tokens."""
    first = next(groups_of(samples))
    lengths = [len(sample.output_ids or ()) for sample in first]
    kinds = {(sample.finish_reason, sample.reward) for sample in first}
    return len(kinds) > 2 and len(set(lengths)) > 2 and min(lengths) > 2


def build_scene(rng: np.random.Generator, groups: int, *, steps: int = 1, media: bool = False) -> Scene:
    """A sound native rollout, its exchanges, and its twin by single requests."""
    samples: list[Sample] = []
    while not samples or not _varied(samples):
        prompts = clean_prompts(rng, groups * steps, media)
        samples = clean_samples(clean_rollout(rng, prompts, steps=steps))
    baseline = [replace(deepcopy(sample), arm="per-sample") for sample in samples]
    records = step_metrics(samples)
    for record in records:
        record |= {"train/loss": 0.01 + record["step"], "train/grad_norm": 1.5}
    return Scene(samples, clean_exchanges(samples), baseline, clean_exchanges(baseline), records, deepcopy(records))


def judge_wire(scene: Scene) -> list[Finding]:
    """All that recorded exchanges alone are held to."""
    rules = replace(scene.rules, reward=None, advantage=None)
    answers = Rollout.from_samples(samples_of(scene.exchanges))
    return [*check_exchanges(scene.exchanges, rules), *check_samples(answers, rules)]


def judge_rollout(scene: Scene) -> list[Finding]:
    """All that a rollout is held to beside its exchanges and the other arm."""
    rollout = Rollout.from_samples(scene.samples)
    return [
        *check_samples(rollout, scene.rules),
        *check_accounting(rollout, scene.exchanges),
        *check_arms(Rollout.from_samples(scene.baseline), rollout),
        *check_requests(scene.baseline_exchanges, scene.exchanges),
    ]


def judge_twin(scene: Scene) -> list[Finding]:
    """As a rollout, and bit for bit against its twin."""
    arms = (Rollout.from_samples(scene.baseline), Rollout.from_samples(scene.samples))
    return [*judge_rollout(scene), *compare_twins(*arms, scene.baseline_records, scene.records)]


def judge_tracker(scene: Scene) -> list[Finding]:
    """Recorded metrics against the samples of their steps."""
    steps: dict[int, list[Sample]] = {}
    for sample in scene.samples:
        steps.setdefault(sample.rollout_id or 0, []).append(sample)
    return check_metrics({step: Rollout.from_samples(rows) for step, rows in steps.items()}, scene.records)


def build_draws(rng: np.random.Generator, groups: int) -> Draws:
    """Both arms' sound groups of the same prompts."""
    prompts = clean_prompts(rng, groups)
    arms = [clean_rollout(rng, prompts, arm=arm) for arm in ("per-sample", "native")]
    return Draws(rng, prompts, *arms)


def judge_draws(draws: Draws) -> list[Finding]:
    """The tests of sampling at fixed weights."""
    from parity.stats import SAMPLING_MARGINS, sampling_findings  # slow to import, and a run needs no such test

    return sampling_findings(draws.baseline, draws.experiment, SAMPLING_MARGINS, draws.rng)


RUN_STEPS = 60


def build_runs(rng: np.random.Generator, runs: int) -> Runs:
    """Sound runs of 60 steps, as many in each arm."""
    baseline, experiment = ([clean_records(rng, RUN_STEPS) for _ in range(runs)] for _ in range(2))
    return Runs(baseline, experiment)


def judge_runs(runs: Runs) -> list[Finding]:
    """Curves by themselves, and those of both arms against each other."""
    from parity.stats import collapse_finding, cost_findings, training_findings  # as above

    baseline, experiment = (
        [curves_of_run(f"{arm}-seed{seed}", records) for seed, records in enumerate(of_arm)]
        for arm, of_arm in (("per-sample", runs.baseline), ("native", runs.experiment))
    )
    costs = cost_findings(list(zip(baseline, experiment, strict=True)))
    return [
        *check_curves(baseline, experiment),
        *training_findings(baseline, experiment, MARGINS),
        collapse_finding(baseline, experiment),
        *(finding for finding in costs if finding.check == "requests"),
    ]


WIRE = Kind("groups", build_scene, judge_wire)
ROLLOUT = Kind("groups", partial(build_scene, media=True), judge_rollout)
TWIN = Kind("groups", partial(build_scene, media=True), judge_twin)
TRACKER = Kind("steps", lambda rng, steps: build_scene(rng, 2, steps=steps), judge_tracker)
DRAWS = Kind("groups", build_draws, judge_draws)
RUNS = Kind("runs", build_runs, judge_runs)


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted defect, and what must notice it.

    Attributes:
        name: Its name, by which `parity run --plant` knows it too if `in_run`.
        origin: Where it happened: a repository and number, or the analysis that names it.
        place: Where it is planted: engine, router, patch, host, trainer or tracker.
        description: What goes wrong.
        kind: The scene it is planted in.
        plant: Changes a sound scene in place.
        check: The check that must fail, as `name_of` names it.
        level: That check's level.
        units: Size of a scene (groups, steps, runs) that suffices to catch it.
        companions: Patterns of other checks that may fail with it, because the same defect breaks their rule too.
        in_run: It may be planted in a training run: it works on any scored samples.
    """

    name: str
    origin: str
    place: str
    description: str
    kind: Kind
    plant: Plant
    check: str
    level: Level = Level.CONTRACT
    units: int = 1
    companions: tuple[str, ...] = ()
    in_run: bool = False

    @property
    def needs_images(self) -> bool:
        """Whether it changes nothing unless prompts show images."""
        return self.name.startswith("media-")


@dataclass(frozen=True, slots=True)
class Control:
    """Something that looks like a fault and is none: no check may fail.

    Attributes:
        name: Its name.
        description: What it is, and why it is sound.
        kind: The scene that it is shown in.
        plant: Changes a sound scene in place.
        units: Size of the scene.
    """

    name: str
    description: str
    kind: Kind
    plant: Plant
    units: int = 4


def name_of(finding: Finding) -> str:
    """A check's name; statistical tests, which are one a metric, with the metric: ``training_parity:train/loss``."""
    of_metric = finding.level in (Level.SAMPLING, Level.TRAINING)
    return f"{finding.check}:{finding.where.field}" if of_metric else finding.check
