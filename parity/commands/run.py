"""From an experiment on disk to its report: every level's checks, in one place, from files alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.commands.question import check_experiment
from parity.contract_checks import (
    CHECKS,
    Rules,
    check_arms,
    check_curves,
    check_metrics,
    check_recording,
    check_requests,
)
from parity.errors import InputError
from parity.evidence.replay import compare_twins
from parity.findings import Finding, Level, Severity, Status, Where, quantity
from parity.metrics import RunCurves, curves_of_run, rollout_metrics
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
from parity.records.samples import Rollout, Sample
from parity.records.store import RunStore, read_experiment, run_store
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord
from parity.stats import (
    TRAJECTORY_MARGINS,
    GroupBounds,
    Trajectory,
    collapse_finding,
    cost_findings,
    drawn_groups,
    of_drawn_arm,
    training_findings,
    trajectory_findings,
)
from parity.trainer.tasks import Task, get_task

_LEVEL_OF_DESIGN = {"paired": Level.TRAINING, "switchback": Level.SAMPLING, "probe": Level.SAMPLING}


@dataclass(frozen=True, slots=True)
class _StartedPair:
    """A pair of which something is on disk, and how many steps all its runs have finished."""

    pair: Pair
    stores: tuple[RunStore, ...]
    steps: int


def assess(directory: Path) -> Report:
    """Checks all that an experiment has on disk and builds its report.

    Raises:
        InputError: The directory holds no experiment, a file of it cannot be read, or no step is there to check.
        UsageError: What was asked for is nothing that can be run.
    """
    experiment = read_experiment(directory)
    config = ExperimentConfig.from_json(experiment.get("config"))
    check_experiment(config)
    _check_facts(experiment, directory)
    planned = plan_pairs(config, experiment.get("designs", ()))
    started = list(_started_pairs(directory, planned))
    if not started:
        raise InputError(f"{directory}: no run has a step to check")
    pairs = [pair for pair in started if pair.steps]
    findings = [
        *_contract_findings(started, config, experiment),
        *_unfinished(directory, planned),
        *_trajectory_findings(pairs, config),
        *_replay_findings(pairs),
        *_training_findings(pairs, config),
        *_cost_findings(pairs),
    ]
    return build_report(experiment, [record for pair in started for record in _records(pair)], findings)


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
    "engine_determinism": dict,
    "commands": list,
    "versions": dict,
    "seeds": list,
    "steps": int,
    "margins": dict,
}
"""Types of what ``experiment.json`` holds beside the configuration."""


def _started_pairs(directory: Path, pairs: Sequence[Pair]) -> Iterator[_StartedPair]:
    for pair in pairs:
        stores = tuple(run_store(directory, name) for name in pair.names)
        if any(store.written_steps() for store in stores):
            yield _StartedPair(pair, stores, min(store.finished_steps() for store in stores))


def _unfinished(directory: Path, planned: Sequence[Pair]) -> Iterator[Finding]:
    """Pairs that have not gone as far as was asked: what they would have shown is open."""
    for pair in planned:
        stores = [run_store(directory, name) for name in pair.names]
        steps = min(store.finished_steps() for store in stores)
        if steps < pair.steps:
            level = _LEVEL_OF_DESIGN.get(pair.design, Level.REPLAY)
            finished = f"{steps} of {quantity(pair.steps, 'steps')}"
            message = f"{' and '.join(pair.names)} finished {finished}; go on with --resume"
            if why := next((str(text) for store in stores if (text := store.outcome().get("message"))), None):
                message = f"{message} ({why})"
            # Evidence from inside a run holds at every look, so that a run which goes on leaves nothing open.
            status = Status.NOT_COMPARED if pair.mixed and steps else Status.INCONCLUSIVE
            yield Finding("steps_finished", level, status, message, Where(pair.names[-1]), pair.steps, steps)


def _records(finished: _StartedPair) -> Iterator[RunRecord]:
    pair = finished.pair
    for store, arm in zip(finished.stores, pair.run_arms, strict=True):
        metrics = store.metrics()
        by_arm = {drawn: _arm_metrics(store, drawn, metrics) for drawn in pair.arms} if pair.mixed else {}
        yield RunRecord(store.name, arm, pair.seed, pair.design, metrics, store.outcome(), store.events(), by_arm)


def _arm_metrics(store: RunStore, arm: str, metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a mixed run's samples of one arm measure, step by step; steps without a group of that arm have no line.

    Both arms share the time of a step, so that neither has a time, a speed or a load of its own.
    """
    lines = []
    for row in metrics:
        of_arm = of_drawn_arm(_drawn_rollout(store, row["step"]), arm)
        if len(of_arm):
            measured = rollout_metrics(of_arm, seconds=1.0)
            known = {name: value for name, value in measured.items() if not name.startswith("perf/")}
            lines.append({"step": row["step"], **known})
    return lines


def _drawn_rollout(store: RunStore, step: int) -> Rollout:
    """A mixed run's samples of a step, those that were only compared included."""
    compared = [store.compared.rollout(step)] if store.compared.rollout_path(step).exists() else []
    return Rollout.concatenate([store.rollout(step), *compared])


def _rules(config: ExperimentConfig, policy: Mapping[str, Any], task: Task, store: RunStore, design: str) -> Rules:
    training = config.training
    steps = range(store.written_steps())

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
        temperature=training.temperature,
        reward=reward,
        advantage="grpo",
        # A replayed rollout keeps the version of the recording.
        weight_versions={} if design == "replay" else {step: weight_version(store.name, step) for step in steps},
    )


def _contract_findings(
    pairs: Sequence[_StartedPair], config: ExperimentConfig, experiment: Mapping[str, Any]
) -> list[Finding]:
    """Contract checks of each run and of each pair; what passes in all is one finding, what fails names its run."""
    task = get_task(config.task)
    found = []
    for finished in pairs:
        for store in (store for store in finished.stores if store.written_steps()):
            rules = _rules(config, experiment["policy"], task, store, finished.pair.design)
            found += [finding.in_run(store.name) for finding in _run_findings(store, rules)]
            metrics = check_metrics(
                {step: store.rollout(step) for step in range(store.written_steps())}, store.metrics()
            )
            found += [finding.in_run(store.name) for finding in metrics]
            if store.compared.written_steps():
                found += [finding.in_run(f"{store.name}/compared") for finding in _run_findings(store.compared, rules)]
        found += [finding.in_run(finished.stores[-1].name) for finding in _arms_findings(finished)]
    return [*merge(found), *_curve_findings(pairs)]


def _run_findings(store: RunStore, rules: Rules) -> list[Finding]:
    steps = store.written_steps()
    rollouts = [store.rollout(step) for step in range(steps)]
    return [
        *check_recording(rollouts, _exchanges(store, steps), rules),
    ]


def _arms_findings(finished: _StartedPair) -> list[Finding]:
    """Whether both arms were asked for the same, where they were asked the same prompts."""
    steps = min(store.written_steps() for store in finished.stores)
    if finished.pair.design == "switchback":
        return []
    if finished.pair.design == "probe":
        drawn = Rollout.concatenate([_drawn_rollout(finished.stores[0], step) for step in range(steps)])
        baseline, changed = (of_drawn_arm(drawn, arm) for arm in finished.pair.arms)
        return check_arms(baseline, changed)
    requests = check_requests(*(_exchanges(store, steps) for store in finished.stores))
    return check_arms(*(_rollouts(store, steps) for store in finished.stores)) + requests


def _curve_findings(pairs: Sequence[_StartedPair]) -> list[Finding]:
    curves = list(_curves(pairs, {"twin", LIST_TWIN, "replay", "paired"}))
    mixed = [_curves_of(store) for finished in pairs if finished.pair.mixed for store in finished.stores]
    if not curves:
        return check_curves(mixed, mixed)
    return check_curves([first for first, _ in curves], [second for _, second in curves])


def _curves_of(store: RunStore) -> RunCurves:
    return curves_of_run(store.name, store.metrics())


def _rollouts(store: RunStore, steps: int) -> Rollout:
    return Rollout.concatenate([store.rollout(step) for step in range(steps)])


def _exchanges(store: RunStore, steps: int) -> Iterator[Exchange]:
    return (exchange for step in range(steps) for exchange in store.exchanges(step))


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
    runs = len({finding.where.run for finding in alike})
    unit, in_runs = str(alike[0].evidence.get("unit", "samples")), f"in {quantity(runs, 'runs')}"
    if alike[0].status is Status.PASS:
        message = f"{quantity(counts['checked'], unit)} {in_runs}: {_RULE_OF_CHECK[check]}"
    else:
        of_all = f"{counts['not_compared']:,} of {quantity(counts['checked'] + counts['not_compared'], unit)}"
        what = f"{of_all} {in_runs} not compared" if counts["not_compared"] else f"not compared {in_runs}"
        message = f"{what}: {alike[0].message.partition(': ')[2]}"
    return [replace(alike[0], where=Where(), message=message, evidence={**counts, "unit": unit, "runs": runs})]


def _trajectory_findings(pairs: Sequence[_StartedPair], config: ExperimentConfig) -> list[Finding]:
    """L1 of the mixed runs of each design: all their groups are evidence on the same question."""
    found = []
    bounds = GroupBounds(max_new_tokens=get_task(config.task).max_new_tokens)
    margins = {name: config.margins.get(name, margin) for name, margin in TRAJECTORY_MARGINS.items()}
    for design in MIXED_DESIGNS:
        of_design = [finished for finished in pairs if finished.pair.design == design]
        trajectory = Trajectory(design, (config.baseline, config.experiment), margins)
        for finished in of_design:
            for step in range(finished.steps):
                trajectory = trajectory.update(drawn_groups(_drawn_rollout(finished.stores[0], step), bounds)[0])
        if of_design:
            found += trajectory_findings(trajectory)
    return found


def _replay_findings(pairs: Sequence[_StartedPair]) -> list[Finding]:
    """L2 of each twin and replay pair, or that there is none."""
    found: list[Finding] = []
    for finished in pairs:
        if finished.pair.design == "paired" or finished.pair.mixed:
            continue
        first, second = finished.stores
        found += [
            finding.in_run(second.name) if finding.status is Status.FAIL else finding
            for finding in compare_twins(
                _rollouts(first, finished.steps),
                _rollouts(second, finished.steps),
                first.metrics()[: finished.steps],
                second.metrics()[: finished.steps],
            )
        ]
    if not found:
        message = "no twin and no replay was run, so no two runs have the same responses to compare"
        found.append(Finding("twin", Level.REPLAY, Status.NOT_COMPARED, message, severity=Severity.ERROR))
    if {finished.pair.design for finished in pairs} == {LIST_TWIN}:
        message = "native was not asked for once: lists stood in for it, which says nothing of native itself"
        found.append(Finding("twin", Level.REPLAY, Status.INCONCLUSIVE, message))
    return found


def _training_findings(pairs: Sequence[_StartedPair], config: ExperimentConfig) -> list[Finding]:
    curves = list(_curves(pairs, {"paired"}))
    if not curves:
        message = "no freely sampled pair was run, so no curves are compared"
        return [Finding("curves", Level.TRAINING, Status.NOT_COMPARED, message)]
    baseline, changed = zip(*curves, strict=True)
    return [*training_findings(baseline, changed, config.margins), collapse_finding(baseline, changed)]


def _cost_findings(pairs: Sequence[_StartedPair]) -> list[Finding]:
    """L4 of every pair that an engine answered; a twin's arms make the same tokens, so their times compare best."""
    curves = list(_curves(pairs, {"twin", "paired"}))
    if not curves:
        return [Finding("cost", Level.COST, Status.NOT_COMPARED, "no pair was run on an engine")]
    return cost_findings(curves)


def _curves(pairs: Sequence[_StartedPair], designs: Collection[str]) -> Iterator[tuple[RunCurves, RunCurves]]:
    """The curves of each pair of these designs, by run, over the steps that both have finished."""
    for started in pairs:
        if started.pair.design in designs:
            first, second = (curves_of_run(store.name, store.metrics()[: started.steps]) for store in started.stores)
            yield first, second
