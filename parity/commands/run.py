"""From an experiment on disk to its report: every level's checks, in one place, from files alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parity.commands.validation import check_experiment
from parity.commands.weights import weights_finding
from parity.contract_checks import (
    CHECKS,
    Part,
    Rules,
    check_arms_of_parts,
    check_curves,
    check_measured,
    check_parts,
    check_requests,
    part_of,
)
from parity.engines.several import Weights
from parity.errors import InputError
from parity.evidence.replay import compare_twin_steps
from parity.findings import Finding, Level, Message, Status, Where, judge, listed, quantity, term
from parity.metrics import RunCurves, curves_of_run, rollout_metrics, sample_metrics
from parity.records.arms import read_settings, set_apart
from parity.records.exchanges import Exchange
from parity.records.experiment import (
    DESIGNS,
    LIST_TWIN,
    MIXED_DESIGNS,
    ExperimentConfig,
    Pair,
    plan_pairs,
    weight_version,
)
from parity.records.margins import RUN, WHOLE_RUNS, by_curve
from parity.records.samples import Rollout, Sample
from parity.records.store import WEIGHTS_PARTED, RunStore, read_experiment, run_store
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord
from parity.report.scope import REFERENCE_TRAINER
from parity.stats import (
    DrawnGroup,
    GroupBounds,
    Trajectory,
    collapse_finding,
    cost_findings,
    drawn_groups,
    margins_in_run,
    of_drawn_arm,
    over_arms,
    training_findings,
    trajectory_findings,
)
from parity.trainer.tasks import Task, get_task

_LEVEL_OF_DESIGN = {"paired": Level.TRAINING, "switchback": Level.SAMPLING, "probe": Level.SAMPLING}


@dataclass(slots=True)
class _Run:
    """What one reading of a run's samples leaves of them, which is what the checks of all levels need.

    Attributes:
        store: The run's files.
        steps: How many steps have samples.
        rules: What its samples are held to.
        metrics: Lines of ``metrics.jsonl``.
        parts: What the contract keeps of each step.
        compared: The same of samples that were not trained on.
        measured: What the samples of each step measure.
        drawn: Of a mixed run, by arm: what the contract keeps of each step.
        by_arm: Of a mixed run, by arm: a line of metrics for each finished step.
        groups: Of a mixed run: the groups whose arm was drawn, of finished steps.
    """

    store: RunStore
    steps: int
    rules: Rules
    metrics: list[dict[str, Any]]
    parts: list[Part] = field(default_factory=list)
    compared: list[Part] = field(default_factory=list)
    measured: dict[int, dict[str, float]] = field(default_factory=dict)
    drawn: dict[str, list[Part]] = field(default_factory=dict)
    by_arm: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    groups: list[DrawnGroup] = field(default_factory=list)

    @property
    def curves(self) -> RunCurves:
        """Its metrics as curves."""
        return curves_of_run(self.store.name, self.metrics)


@dataclass(frozen=True, slots=True)
class _ReadPair:
    """A pair of which something is on disk, how many steps all its runs have finished, and what L2 says of it."""

    pair: Pair
    runs: tuple[_Run, ...]
    steps: int
    replay: Sequence[Finding] = ()


def assess(directory: Path) -> list[Report]:
    """Checks all that an experiment has on disk: one report for each arm that is compared with the baseline.

    The samples of each step are read once for each of them. What tests found in several arms is corrected for their
    number.

    Raises:
        InputError: The directory holds no experiment, a file of it cannot be read, or no step is there to check.
        UsageError: What was asked for is nothing that can be run.
    """
    experiment = read_experiment(directory)
    config = ExperimentConfig.from_json(experiment.get("config"))
    check_experiment(config)
    _check_facts(experiment, directory)
    planned = plan_pairs(config, experiment.get("designs", ()))
    several = len(config.arms) > 2
    findings: dict[str, list[Finding]] = {}
    records: dict[str, list[RunRecord]] = {}
    for arm in config.arms[1:]:
        of_arm = [view for pair in planned if (view := pair.against(arm))] if several else planned
        started = [read for pair in of_arm if (read := _read_pair(pair, directory, config, experiment))]
        if not started:
            raise InputError(f"{directory}: no run of {arm} has a step to check")
        pairs = [pair for pair in started if pair.steps]
        findings[arm] = [
            *_contract_findings(started, config),
            *_weights_findings(started, config, experiment, arm),
            *_unfinished(directory, of_arm),
            *_trajectory_findings(pairs, config),
            *_replay_findings(pairs),
            *_training_findings(pairs, config),
            *_cost_findings(pairs),
        ]
        records[arm] = [record for pair in started for record in _records(pair)]
    defaults = {name: margin for name, margin in RUN.items() if config.margins.get(name) == margin}
    facts = {
        "trainer": REFERENCE_TRAINER,
        "model": experiment.get("policy", {}).get("model"),
        "default_margins": [*defaults, *by_curve(defaults)],
        **experiment,
        "baseline": config.arms[0],
        "engine": experiment.get("engines") or experiment.get("engine"),
    }
    return [
        build_report({**facts, "experiment": arm}, records[arm], of_arm, judge(of_arm))
        for arm, of_arm in over_arms(findings).items()
    ]


def _read_pair(
    pair: Pair, directory: Path, config: ExperimentConfig, experiment: Mapping[str, Any]
) -> _ReadPair | None:
    """Reads the samples of a pair's runs step by step; nothing where no step has any."""
    stores = [run_store(directory, name) for name in pair.names]
    written = [store.written_steps() for store in stores]
    if not any(written):
        return None
    task = get_task(config.task)
    runs = tuple(
        _Run(store, steps, _rules(config, experiment, task, store, pair, arm, steps), store.metrics())
        for store, arm, steps in zip(stores, pair.run_arms, written, strict=True)
    )
    finished = min(len(run.metrics) for run in runs)
    bounds = GroupBounds(max_new_tokens=task.max_new_tokens)
    steps = (_read_step(runs, pair, step, bounds) for step in range(max(written)))
    if pair.mixed or pair.design == "paired":
        deque(steps, maxlen=0)
        return _ReadPair(pair, runs, finished)
    first, second = (run.metrics[:finished] for run in runs)
    both = ((rollouts[0], rollouts[1]) for step, rollouts in enumerate(steps) if step < finished)
    return _ReadPair(pair, runs, finished, compare_twin_steps(both, first, second))


def _read_step(runs: Sequence[_Run], pair: Pair, step: int, bounds: GroupBounds) -> list[Rollout]:
    """The samples of one step of each run that has it; what the checks need of them is kept with the run."""
    rollouts = []
    for run in runs:
        if step >= run.steps:
            continue
        rollout = run.store.rollout(step)
        run.parts.append(part_of(rollout, run.rules))
        run.measured[step] = rollout_metrics(rollout, 1.0)
        rollouts.append(rollout)
        if pair.mixed:
            _keep_drawn(run, pair, step, rollout, bounds)
    return rollouts


def _keep_drawn(run: _Run, pair: Pair, step: int, trained: Rollout, bounds: GroupBounds) -> None:
    """What a mixed run's samples of one step show of each arm, those that were only compared included.

    Both arms share the time of a step, so that neither has a time, a speed or a load of its own.
    """
    store, rollouts = run.store.compared, [trained]
    if store.rollout_path(step).exists():
        rollouts.append(store.rollout(step))
        run.compared.append(part_of(rollouts[1], run.rules))
    every = Rollout.concatenate(rollouts)
    finished = step < len(run.metrics)
    if finished:
        run.groups += drawn_groups(every, bounds)[0]
    for arm in pair.arms:
        of_arm = of_drawn_arm(every, arm)
        if pair.design == "probe":
            run.drawn.setdefault(arm, []).append(part_of(of_arm, Rules()))
        if finished and len(of_arm):
            run.by_arm.setdefault(arm, []).append({"step": step, **sample_metrics(of_arm)})


def _check_facts(experiment: Mapping[str, Any], directory: Path) -> None:
    """Holds what is known of the experiment beside its configuration to its types."""
    for name, kind in _FACTS.items():
        if not isinstance(experiment.get(name, kind()), kind):
            raise InputError(f"{directory}: experiment.json: {name} is {experiment[name]!r}, not a {kind.__name__}")
    if not set(map(str, experiment.get("designs", ()))) <= set(DESIGNS):
        raise InputError(f"{directory}: experiment.json: designs {experiment['designs']} are not of {DESIGNS}")
    policy = experiment.get("policy", {})
    stops = policy.get("stop_token_ids")
    placeholders = policy.get("media_placeholders", [])
    lists = [ids if isinstance(ids, list) else [None] for ids in (stops, placeholders)]
    numbers = [*lists[0], *lists[1], policy.get("vocab_size"), policy.get("context_length")]
    if not all(type(number) is int for number in numbers):
        raise InputError(f"{directory}: experiment.json: policy is {policy!r}, which lacks what the checks need")


_FACTS = {
    "designs": list,
    "policy": dict,
    "weights": list,
    "engine_determinism": dict,
    "commands": list,
    "versions": dict,
    "seeds": list,
    "steps": int,
    "margins": dict,
}
"""Types of what ``experiment.json`` holds beside the configuration."""


def _unfinished(directory: Path, planned: Sequence[Pair]) -> Iterator[Finding]:
    """Pairs that have not gone as far as was asked: what they would have shown is open."""
    for pair in planned:
        stores = [run_store(directory, name) for name in pair.names]
        steps = min(store.finished_steps() for store in stores)
        if steps < pair.steps:
            level = _LEVEL_OF_DESIGN.get(pair.design, Level.REPLAY)
            message = Message(
                "{runs} finished {steps} of {planned}; go on with --resume",
                runs=listed(pair.names, " and "),
                steps=steps,
                planned=quantity(pair.steps, "steps"),
            )
            if why := next((str(text) for store in stores if (text := store.outcome().get("message"))), None):
                message = Message("{message} ({reason})", message=message, reason=why)
            # Evidence from inside a run holds at every look, so that a run which goes on leaves nothing open.
            status = Status.NOT_COMPARED if pair.mixed and steps else Status.INCONCLUSIVE
            yield Finding("steps_finished", level, status, message, Where(pair.names[-1]), pair.steps, steps)


def _records(read: _ReadPair) -> Iterator[RunRecord]:
    pair = read.pair
    for run, arm in zip(read.runs, pair.run_arms, strict=True):
        store = run.store
        by_arm = {drawn: run.by_arm.get(drawn, []) for drawn in pair.arms} if pair.mixed else {}
        yield RunRecord(store.name, arm, pair.seed, pair.design, run.metrics, store.outcome(), store.events(), by_arm)


def _rules(
    config: ExperimentConfig,
    experiment: Mapping[str, Any],
    task: Task,
    store: RunStore,
    pair: Pair,
    arm: str,
    steps: int,
) -> Rules:
    training, policy, nonce = config.training, experiment["policy"], str(experiment.get("nonce", ""))
    versions = (
        {} if pair.design == "replay" else {step: weight_version(nonce, store.name, step) for step in range(steps)}
    )

    def reward(sample: Sample) -> float:
        prompt = str(sample.extra.get("prompt"))
        try:
            return task.reward(prompt, sample.text or "")
        except ValueError as error:
            place = f"step {sample.rollout_id}, group {sample.group_index}, slot {sample.index}"
            raise InputError(f"{store.path}: {place}: {prompt!r} is no prompt of task {task.name}") from error

    return Rules(
        group_size=training.group_size,
        max_new_tokens=task.max_new_tokens,
        context_length=policy["context_length"],
        vocab_size=policy["vocab_size"],
        stop_token_ids=frozenset(policy["stop_token_ids"]),
        media_placeholders=frozenset(policy.get("media_placeholders", ())),
        temperature=training.temperature if pair.mixed else config.arm(arm).temperature or training.temperature,
        reward=reward,
        advantage="grpo",
        weight_versions=versions,  # a replayed rollout keeps those of the recording
    )


def _contract_findings(pairs: Sequence[_ReadPair], config: ExperimentConfig) -> list[Finding]:
    """Contract checks of each run and of each pair; what passes in all is one finding, what fails names its run."""
    findings = []
    chunk = {arm: config.arm(arm).chunk for arm in config.arms}
    for read in pairs:
        for run in (run for run in read.runs if run.parts):
            name, steps = run.store.name, len(run.parts)
            of_run = [
                *check_parts(run.parts, _exchanges(run.store, range(steps)), run.rules, chunk),
                *check_measured(run.measured, run.metrics),
            ]
            findings += [finding.in_run(name) for finding in of_run]
            probed = [step for step in range(run.steps) if run.store.compared.rollout_path(step).exists()]
            if probed:  # a step may have no prompt that is asked in both arms
                compared = check_parts(run.compared, _exchanges(run.store.compared, probed), run.rules, chunk)
                findings += [finding.in_run(f"{name}/compared") for finding in compared]
        findings += [
            finding.in_run(read.runs[-1].store.name)
            for finding in _arms_findings(read, set_apart(config, read.pair.arms))
        ]
    return [*merge(findings), *_curve_findings(pairs, config)]


def _weights_findings(
    pairs: Sequence[_ReadPair], config: ExperimentConfig, experiment: Mapping[str, Any], arm: str
) -> Iterator[Finding]:
    """Whether the engines of both arms held the same weights: at the start, and at each step of a mixed run."""
    if config.deployment(arm) == config.deployment(config.arms[0]):
        return
    place = "experiment.json: weights"
    said = [read_settings(row, Weights, place) for row in experiment.get("weights", ())]
    by_deployment = dict(zip(config.deployments, said, strict=False))  # none before the engines are up
    if other := by_deployment.get(config.deployment(arm)):
        yield weights_finding(by_deployment[config.deployment(config.arms[0])], other, one_checkpoint=True)
    for run in (run for read in pairs if read.pair.mixed for run in read.runs):
        for event in run.store.events():
            if event.get("event") == WEIGHTS_PARTED:
                message = Message("{engine}: {apart}", engine=event.get("engine_id"), apart=event.get("message"))
                where = Where(run.store.name, event.get("step"), field="weight_version")
                yield Finding("weights_equal", Level.CONTRACT, Status.FAIL, message, where)
                return


def _arms_findings(read: _ReadPair, apart: Collection[str]) -> list[Finding]:
    """Whether both arms were asked for the same, where they were asked the same prompts, but for what they set."""
    if read.pair.design == "switchback":
        return []
    if read.pair.design == "probe":
        first, second = (read.runs[0].drawn[arm] for arm in read.pair.arms)
        return check_arms_of_parts(first, second, apart)
    steps = min(len(run.parts) for run in read.runs)
    baseline, experiment = read.runs
    requests = check_requests(
        _exchanges(baseline.store, range(steps)), _exchanges(experiment.store, range(steps)), apart
    )
    return check_arms_of_parts(baseline.parts[:steps], experiment.parts[:steps], apart) + requests


def _curve_findings(pairs: Sequence[_ReadPair], config: ExperimentConfig) -> list[Finding]:
    curves = list(_curves(pairs, {"twin", LIST_TWIN, "replay", "paired"}))
    if len({config.arm(arm).workers for arm in config.arms}) > 1:  # one worker has no load of several to measure
        curves = [(_without_loads(first), _without_loads(second)) for first, second in curves]
    if not curves:
        mixed = [run.curves for read in pairs if read.pair.mixed for run in read.runs]
        return check_curves(mixed, mixed)
    return check_curves([first for first, _ in curves], [second for _, second in curves])


def _without_loads(run: RunCurves) -> RunCurves:
    return {name: curve for name, curve in run.items() if not name.startswith("perf/engine_")}


def _exchanges(store: RunStore, steps: Iterable[int]) -> Iterator[Exchange]:
    return (exchange for step in steps for exchange in store.exchanges(step))


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of many runs as one list: failures as they are, the rest one a check with the counts summed.

    Check by check in the order first met; a check that failed in one run does not also pass for the others.
    """
    by_check: dict[str, list[Finding]] = {}
    for finding in findings:
        by_check.setdefault(finding.check, []).append(finding)
    merged = []
    for check, of_check in by_check.items():
        failed = [finding for finding in of_check if finding.status is Status.FAIL]
        merged += failed or _sum(check, [finding for finding in of_check if finding.status is Status.PASS])
        merged += _sum(check, [finding for finding in of_check if finding.status is Status.NOT_COMPARED])
    return merged


_RULE_OF_CHECK = {check.name: check.rule for check in CHECKS}


def _sum(check: str, alike: Sequence[Finding]) -> list[Finding]:
    """One finding for several runs' findings of the same check and status; none for none."""
    if not alike:
        return []
    counts = {
        name: sum(int(finding.evidence.get(name, 0)) for finding in alike)
        for name in ("checked", "failed", "not_compared")
    }
    unit = str(alike[0].evidence.get("unit", "samples"))
    runs = len({finding.where.run for finding in alike})
    passed = alike[0].status is Status.PASS
    if passed:
        template = "{checked} in {runs}: {rule}"
    elif counts["not_compared"]:
        template = "{missing} of {all} in {runs} not compared: {reason}"
    else:
        template = "not compared in {runs}: {reason}"
    message = Message(
        template,
        checked=quantity(counts["checked"], unit),
        missing=f"{counts['not_compared']:,}",
        all=quantity(counts["checked"] + counts["not_compared"], unit),
        runs=quantity(runs, "runs"),
        rule=term(_RULE_OF_CHECK[check]) if passed else "",
        reason="" if passed else alike[0].message.values["missing"],
    )
    return [replace(alike[0], where=Where(), message=message, evidence={**counts, "unit": unit, "runs": runs})]


def _trajectory_findings(pairs: Sequence[_ReadPair], config: ExperimentConfig) -> list[Finding]:
    """L1 of the mixed runs of each design: all their groups are evidence on the same question."""
    findings = []
    margins = margins_in_run(config.margins)
    for design in MIXED_DESIGNS:
        of_design = [read for read in pairs if read.pair.design == design]
        if not of_design:
            continue
        baseline, experiment = of_design[0].pair.arms
        trajectory = Trajectory(design, (baseline, experiment), margins)
        for read in of_design:
            trajectory = trajectory.update(read.runs[0].groups)
        findings += trajectory_findings(trajectory)
    return findings


def _replay_findings(pairs: Sequence[_ReadPair]) -> list[Finding]:
    """L2 of each twin and replay pair, or that there is none."""
    findings = [
        finding.in_run(read.runs[-1].store.name) if finding.status is Status.FAIL else finding
        for read in pairs
        for finding in read.replay
    ]
    if not findings:
        message = Message("no twin and no replay was run, so no two runs have the same responses to compare")
        findings.append(Finding("twin", Level.REPLAY, Status.NOT_COMPARED, message))
    if {read.pair.design for read in pairs} == {LIST_TWIN}:
        message = Message("native was never exercised; batched lists replaced it")
        findings.append(Finding("twin", Level.REPLAY, Status.INCONCLUSIVE, message))
    return findings


def _training_findings(pairs: Sequence[_ReadPair], config: ExperimentConfig) -> list[Finding]:
    curves = list(_curves(pairs, {"paired"}))
    if not curves:
        message = Message("no freely sampled pair was run, so no curves are compared")
        return [Finding("curves", Level.TRAINING, Status.NOT_COMPARED, message)]
    baseline, changed = zip(*curves, strict=True)
    margins = by_curve({name: config.margins[name] for name in WHOLE_RUNS if name in config.margins})
    return [*training_findings(baseline, changed, margins), collapse_finding(baseline, changed)]


def _cost_findings(pairs: Sequence[_ReadPair]) -> list[Finding]:
    """L4 of every pair that an engine answered; a twin's arms make the same tokens, so their times compare best."""
    curves = list(_curves(pairs, {"twin", "paired"}))
    if not curves:
        return [Finding("cost", Level.COST, Status.NOT_COMPARED, Message("no pair was run on an engine"))]
    return cost_findings(curves)


def _curves(pairs: Sequence[_ReadPair], designs: Collection[str]) -> Iterator[tuple[RunCurves, RunCurves]]:
    """The curves of each pair of these designs, by run, over the steps that both have finished."""
    for read in pairs:
        if read.pair.design in designs:
            first, second = (curves_of_run(run.store.name, run.metrics[: read.steps]) for run in read.runs)
            yield first, second
