"""The scenes that faults are planted in: how each is built without a fault, and which checks judge it.

A scene is what one stage of a rollout leaves behind: exchanges, samples with their exchanges, a twin, a tracker's
metrics, groups sampled at fixed weights or in a mixed run, what two engines draw, or the curves of whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

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
    CAP,
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
from parity.records.margins import SAMPLING
from parity.records.samples import Rollout, Sample


@dataclass(slots=True)
class Scene:
    """One rollout of the experiment, and the baseline's, which got the same responses."""

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
    """Groups that both arms sample from the same prompts at fixed weights."""

    rng: np.random.Generator
    prompts: list[list[int]]
    baseline: Rollout
    experiment: Rollout


@dataclass(slots=True)
class Engines:
    """Two engines at the same weights: the logits (G, T, V) that each gives every token of both arms' responses."""

    rng: np.random.Generator
    logits: npt.NDArray[np.float64]
    changed: npt.NDArray[np.float64]


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
        build: Makes a scene of a size without a fault.
        judge: Runs every check that applies to it.
        smallest: The smallest size that can be judged.
    """

    unit: str
    build: Callable[[np.random.Generator, int], Any]
    judge: Callable[[Any], list[Finding]]
    smallest: int = 1


def _varied(samples: Sequence[Sample]) -> bool:
    """Whether the first group has what most faults need: both finish reasons, both rewards, and several tokens each."""
    first = next(groups_of(samples))
    lengths = [len(sample.output_ids or ()) for sample in first]
    kinds = {(sample.finish_reason, sample.reward) for sample in first}
    return len(kinds) > 2 and len(set(lengths)) > 2 and min(lengths) > 2


def build_scene(rng: np.random.Generator, groups: int, *, steps: int = 1, media: bool = False) -> Scene:
    """A native rollout, its exchanges, and its twin by single requests."""
    samples: list[Sample] = []
    while not samples or not _varied(samples):
        prompts = clean_prompts(rng, groups * steps, media)
        samples = clean_samples(clean_rollout(rng, prompts, steps=steps))
    baseline = [replace(deepcopy(sample), arm="per-sample") for sample in samples]
    records = step_metrics(samples)
    for record in records:
        record |= {"train/loss": 0.01 + record["step"], "train/grad_norm": 1.5}
    return Scene(samples, clean_exchanges(samples), baseline, clean_exchanges(baseline), records, deepcopy(records))


def build_vllm(rng: np.random.Generator, groups: int) -> Scene:
    """A native rollout, whose exchanges are in vLLM's dialect."""
    scene = build_scene(rng, groups)
    scene.exchanges = list(map(_by_vllm, scene.exchanges))
    return scene


def _by_vllm(exchange: Exchange) -> Exchange:
    """A native exchange of SGLang as vLLM is asked for it, and answers."""
    request, params = exchange.request, exchange.request["sampling_params"]
    choices = []
    for index, body in enumerate(exchange.response):
        meta = body["meta_info"]
        reason, matched = meta["finish_reason"]["type"], meta["finish_reason"].get("matched")
        content = [{"token_id": token, "logprob": value} for value, token, _ in meta["output_token_logprobs"]]
        versions = {"weight_versions": meta["weight_versions"]} if "weight_versions" in meta else {}
        ending = {"finish_reason": reason, "stop_reason": matched}
        choices.append(
            {"index": index, **ending, "token_ids": body["output_ids"], "logprobs": {"content": content}, **versions}
        )
    tokens = len(request["input_ids"]), sum(len(choice["token_ids"]) for choice in choices)
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    sampling = {"n": params["n"], "max_tokens": params["max_new_tokens"], "temperature": params["temperature"]}
    row = {
        **exchange.to_json(),
        "url": "/inference/v1/generate",
        "request": {"token_ids": request["input_ids"], "sampling_params": {**sampling, "logprobs": 0}},
        "response": {"request_id": f"group-{exchange.group_index}", "choices": choices, "usage": usage},
    }
    return Exchange.from_json(row, "a clean exchange")


def judge_wire(scene: Scene) -> list[Finding]:
    """Every check of recorded exchanges alone."""
    rules = replace(scene.rules, reward=None, advantage=None)
    answers = Rollout.from_samples(samples_of(scene.exchanges))
    return [*check_exchanges(scene.exchanges, rules), *check_samples(answers, rules)]


def judge_rollout(scene: Scene) -> list[Finding]:
    """Every check of a rollout, of its exchanges and of both arms."""
    rollout = Rollout.from_samples(scene.samples)
    return [
        *check_samples(rollout, scene.rules),
        *check_accounting(rollout, scene.exchanges),
        *check_arms(Rollout.from_samples(scene.baseline), rollout),
        *check_requests(scene.baseline_exchanges, scene.exchanges),
    ]


def judge_twin(scene: Scene) -> list[Finding]:
    """Every check of a rollout, and a comparison with its twin bit for bit."""
    arms = (Rollout.from_samples(scene.baseline), Rollout.from_samples(scene.samples))
    return [*judge_rollout(scene), *compare_twins(*arms, scene.baseline_records, scene.records)]


def judge_tracker(scene: Scene) -> list[Finding]:
    """Recorded metrics against the samples of their steps."""
    steps: dict[int, list[Sample]] = {}
    for sample in scene.samples:
        steps.setdefault(sample.rollout_id or 0, []).append(sample)
    return check_metrics({step: Rollout.from_samples(rows) for step, rows in steps.items()}, scene.records)


ARMS = ("per-sample", "native")
BLOCK = 32
"""Groups between two looks of watched sampling."""


def build_draws(rng: np.random.Generator, groups: int) -> Draws:
    """Both arms' groups of the same prompts."""
    prompts = clean_prompts(rng, groups)
    return Draws(rng, prompts, *(clean_rollout(rng, prompts, arm=arm) for arm in ARMS))


def judge_draws(draws: Draws) -> list[Finding]:
    """The tests of sampling for a set number of groups."""
    from parity.stats import sampling_findings  # slow to import, and training runs need no such test

    return sampling_findings(draws.baseline, draws.experiment, SAMPLING, draws.rng)


def build_segments(rng: np.random.Generator, groups: int) -> Draws:
    """As `build_draws`, of two data sets, with images in a third of the prompts, each prompt as hard as it is drawn."""
    chances, images = rng.random(groups), rng.random(groups) < 1 / 3
    draws = build_draws(rng, groups)
    arms = []
    for rollout in (draws.baseline, draws.experiment):
        samples = list(rollout.samples())
        for sample in samples:
            group = sample.group_index
            sample.reward = float(rng.random() < chances[group])
            sample.media_sha256 = ["0" * 64] if images[group] else []
            sample.extra = {"data_source": "odd" if group % 2 else "even"}
        arms.append(Rollout.from_samples(samples))
    return Draws(rng, draws.prompts, *arms)


def judge_segments(draws: Draws) -> list[Finding]:
    """The differences by segment of the prompts."""
    from parity.stats import segment_findings  # as above

    return segment_findings(draws.baseline, draws.experiment)


RESPONSE, RESPONSES, CANDIDATES = 24, 8, 12
"""Tokens of a response, responses of a group, and tokens to choose from, between two engines."""


def build_engines(rng: np.random.Generator, groups: int) -> Engines:
    """Two engines that give the same logits."""
    logits = rng.normal(0, 1.5, (groups, RESPONSE * RESPONSES, CANDIDATES))
    return Engines(rng, logits, logits.copy())


def judge_engines(scene: Engines) -> list[Finding]:
    """What each engine draws, scored by both."""
    from parity.stats import Rescored, crossed_findings  # as above

    with np.errstate(divide="ignore"):
        laws = [z - np.logaddexp.reduce(z, axis=-1, keepdims=True) for z in (scene.logits, scene.changed)]
    own, crossed = [], []
    for side, law in enumerate(laws):
        drawn = (law + scene.rng.gumbel(size=law.shape)).argmax(axis=-1)[..., None]
        recorded, other = (np.take_along_axis(one, drawn, axis=-1)[..., 0] for one in (law, laws[1 - side]))
        lengths = [[RESPONSE] * RESPONSES] * len(law)
        own.append(Rescored(list(recorded), list(recorded), lengths))
        crossed.append(Rescored(list(recorded), list(other), lengths))
    margin = SAMPLING["reward"]
    return crossed_findings((own[0], own[1]), (crossed[0], crossed[1]), reward_margin=margin, arms=ARMS)


def judge_watched(draws: Draws) -> list[Finding]:
    """The evidence that `parity sample` watches, after the last block of groups."""
    from parity.stats import Evidence  # as above

    evidence = Evidence.start(SAMPLING, max_new_tokens=CAP)
    for start in range(0, len(draws.prompts), BLOCK):
        baseline, experiment = (
            _groups(arm, arm.integers("group_index") // BLOCK == start // BLOCK)
            for arm in (draws.baseline, draws.experiment)
        )
        evidence = evidence.update(baseline, experiment, draws.rng)
    return evidence.findings()


def judge_mixed(policy: str, draws: Draws) -> list[Finding]:
    """The evidence from inside a run that samples each group in both arms (probe) or in one at random (switchback)."""
    from parity.stats import GroupBounds, Trajectory, drawn_groups, trajectory_findings  # as above

    in_experiment = draws.rng.random(len(draws.prompts)) < 0.5
    parts = []
    for arm, rollout in zip(ARMS, (draws.baseline, draws.experiment), strict=True):
        assignment = {"assignment": {"policy": policy, "arm": arm, "probability": 0.5}}
        extra = pa.repeat(orjson.dumps(assignment).decode(), len(rollout))
        place = rollout.table.column_names.index("extra")
        assigned = Rollout(rollout.table.set_column(place, rollout.table.schema.field(place), extra))
        drawn = in_experiment == (arm == ARMS[1])
        kept = drawn[rollout.integers("group_index")]
        parts.append(assigned if policy == "probe" else _groups(assigned, kept))
    groups, _ = drawn_groups(Rollout.concatenate(parts), GroupBounds(max_new_tokens=CAP))
    ordered = sorted(groups, key=lambda group: group.group_index)
    return trajectory_findings(Trajectory(policy, ARMS).update(ordered))


def _groups(rollout: Rollout, kept: Any) -> Rollout:
    return Rollout(rollout.table.filter(pa.array(kept)))


RUN_STEPS = 60


def build_runs(rng: np.random.Generator, runs: int) -> Runs:
    """Runs of 60 steps, the same number in each arm."""
    baseline, experiment = ([clean_records(rng, RUN_STEPS) for _ in range(runs)] for _ in range(2))
    return Runs(baseline, experiment)


def judge_runs(runs: Runs) -> list[Finding]:
    """Every check of curves, and the comparison of both arms'."""
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


KINDS: Mapping[str, Kind] = {
    "exchanges": Kind("groups", build_scene, judge_wire),
    "vllm": Kind("groups", build_vllm, judge_wire),
    "rollout": Kind("groups", partial(build_scene, media=True), judge_rollout),
    "twin": Kind("groups", partial(build_scene, media=True), judge_twin),
    "tracker": Kind("steps", lambda rng, steps: build_scene(rng, 2, steps=steps), judge_tracker),
    "sampling": Kind("groups", build_draws, judge_draws, 64),
    "segments": Kind("groups", build_segments, judge_segments, 64),
    "engines": Kind("groups", build_engines, judge_engines, 8),
    "watched": Kind("groups", build_draws, judge_watched, 64),
    "probe": Kind("groups", build_draws, partial(judge_mixed, "probe"), 64),
    "switchback": Kind("groups", build_draws, partial(judge_mixed, "switchback"), 64),
    "runs": Kind("runs", build_runs, judge_runs),
}
"""Every kind of scene by its name in the tables of faults and controls."""


def name_of(finding: Finding) -> str:
    """A check's name; for statistical tests, one per metric, with the metric: ``training_parity:train/loss``."""
    of_metric = finding.level in (Level.SAMPLING, Level.TRAINING) and finding.where.field
    return f"{finding.check}:{finding.where.field}" if of_metric else finding.check
