"""From an experiment on disk to its report: every level's checks, in one place, from files alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.contract_checks import (
    CHECKS,
    Rules,
    check_accounting,
    check_arms,
    check_batches,
    check_curves,
    check_exchanges,
    check_metrics,
)
from parity.errors import InputError
from parity.exchanges import Exchange
from parity.experiment import ExperimentConfig, Pair, plan_pairs, weight_version
from parity.findings import Finding, Level, Severity, Status, Where
from parity.metrics import RunCurves, curves_of_run
from parity.replay import compare_requests, compare_twins
from parity.reports.document import Report, RunRecord, build_report
from parity.samples import Rollout, Sample
from parity.stats import collapse_finding, cost_findings, training_findings
from parity.store import RunStore, read_experiment, run_store
from parity.training.tasks import Task, get_task


@dataclass(frozen=True, slots=True)
class _StartedPair:
    """A pair of which something is on disk, and how many steps both runs have finished."""

    pair: Pair
    stores: tuple[RunStore, RunStore]
    steps: int


def assess(directory: Path) -> Report:
    """Checks all that an experiment has on disk and builds its report.

    Raises:
        InputError: The directory holds no experiment, a file of it cannot be read, or no step is there to check.
    """
    experiment = read_experiment(directory)
    config = ExperimentConfig.from_json(experiment["config"])
    planned = plan_pairs(config, experiment.get("designs", ()))
    started = list(_started_pairs(directory, planned))
    if not started:
        raise InputError(f"{directory}: no run has a step to check")
    pairs = [pair for pair in started if pair.steps]
    findings = [
        *_contract_findings(started, config, experiment),
        *_unfinished(directory, planned),
        *_replay_findings(pairs),
        *_training_findings(pairs, config),
        *_cost_findings(pairs),
    ]
    return build_report(experiment, [record for pair in started for record in _records(pair)], findings)


def _started_pairs(directory: Path, pairs: Sequence[Pair]) -> Iterator[_StartedPair]:
    for pair in pairs:
        first, second = (run_store(directory, name) for name in pair.names)
        if first.written_steps() or second.written_steps():
            steps = min(first.finished_steps(), second.finished_steps())
            yield _StartedPair(pair, (first, second), steps)


def _unfinished(directory: Path, planned: Sequence[Pair]) -> Iterator[Finding]:
    """Pairs that have not gone as far as was asked: what they would have shown is open."""
    for pair in planned:
        stores = [run_store(directory, name) for name in pair.names]
        steps = min(store.finished_steps() for store in stores)
        if steps < pair.steps:
            level = Level.TRAINING if pair.design == "paired" else Level.REPLAY
            message = f"{steps} of {pair.steps} steps of {' and '.join(pair.names)} are finished; go on with --resume"
            if why := next((str(text) for store in stores if (text := store.outcome().get("message"))), None):
                message = f"{message} ({why})"
            yield Finding(
                "steps_finished", level, Status.INCONCLUSIVE, message, Where(pair.names[1]), pair.steps, steps
            )


def _records(finished: _StartedPair) -> Iterator[RunRecord]:
    pair = finished.pair
    for store, arm in zip(finished.stores, pair.arms, strict=True):
        yield RunRecord(store.name, arm, pair.seed, pair.design, store.metrics(), store.outcome(), store.events())


def _rules(config: ExperimentConfig, policy: Mapping[str, Any], task: Task, store: RunStore, design: str) -> Rules:
    training = config.training
    steps = range(store.written_steps())

    def reward(sample: Sample) -> float:
        return task.reward(sample.extra["prompt"], sample.text or "")

    return Rules(
        group_size=training.group_size,
        max_new_tokens=task.max_new_tokens,
        context_length=policy["context_length"],
        vocab_size=policy["vocab_size"],
        stop_token_ids=frozenset(policy["stop_token_ids"]),
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
        steps = min(store.written_steps() for store in finished.stores)
        baseline, changed = (_rollouts(store, steps) for store in finished.stores)
        found += [finding.in_run(finished.stores[1].name) for finding in check_arms(baseline, changed)]
    curves = list(_curves(pairs, {"twin", "replay", "paired"}))
    return [*merge(found), *check_curves([first for first, _ in curves], [second for _, second in curves])]


def _run_findings(store: RunStore, rules: Rules) -> list[Finding]:
    steps = store.written_steps()
    rollouts = [store.rollout(step) for step in range(steps)]
    return [
        *check_batches(rollouts, rules),
        *check_exchanges(_exchanges(store, steps), rules),
        *check_accounting(Rollout.concatenate(rollouts), _exchanges(store, steps)),
        *check_metrics(dict(enumerate(rollouts)), store.metrics()),
    ]


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
    if alike[0].status is Status.PASS:
        message = f"{counts['checked']} checked in {runs} runs: {_RULE_OF_CHECK[check]}"
    else:
        message = f"in {runs} runs: {alike[0].message}"
    return [replace(alike[0], where=Where(), message=message, evidence={**counts, "runs": runs})]


def _replay_findings(pairs: Sequence[_StartedPair]) -> list[Finding]:
    """L2 of each twin and replay pair, or that there is none."""
    found: list[Finding] = []
    for finished in pairs:
        if finished.pair.design == "paired":
            continue
        first, second = finished.stores
        # A recording answers whatever is asked, so what was asked is compared by itself.
        requests = compare_requests(_exchanges(first, finished.steps), _exchanges(second, finished.steps))
        found += [
            finding.in_run(second.name) if finding.status is Status.FAIL else finding
            for finding in compare_twins(
                _rollouts(first, finished.steps),
                _rollouts(second, finished.steps),
                first.metrics()[: finished.steps],
                second.metrics()[: finished.steps],
            )
            + requests
        ]
    if not found:
        message = "no twin and no replay was run, so no two runs have the same responses to compare"
        found.append(Finding("twin", Level.REPLAY, Status.NOT_COMPARED, message, severity=Severity.ERROR))
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
