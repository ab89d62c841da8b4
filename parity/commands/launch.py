"""`parity launch`: what the runs of somebody's own trainer show, from their curves, dumps and recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from parity.commands.check import check_paths
from parity.commands.compare import Question, compare, margins_of
from parity.contract_checks import Rules
from parity.errors import InputError
from parity.findings import Finding, Level, Message, Severity, Status, Where, listed, quantity
from parity.launch import Launched, LaunchFile
from parity.records.margins import by_curve
from parity.records.store import RunStore
from parity.report.document import Report
from parity.sources.curves.recorded_runs import RecordedRun
from parity.sources.registry import read_runs


def judge_launch(launch: LaunchFile, runs: Sequence[Launched], experiment: str) -> Report:
    """The report of one arm against the baseline, from whatever its runs have written so far.

    A run that went on from a checkpoint has a curve of several pieces and is left out of the comparison of curves; one
    that was given up counts as one that ended early.

    Raises:
        InputError: A file of a run cannot be read, or an arm has no curve yet.
    """
    baseline = next(iter(launch.arms))
    sides = [[run for run in runs if run.plan.arm == arm] for arm in (baseline, experiment)]
    whole = [[run for run in side if run.step is not None and not _is_spliced(launch, run)] for side in sides]
    for arm, of_arm in zip((baseline, experiment), whole, strict=True):
        if not of_arm:
            raise InputError(f"{arm}: no run has a whole curve yet")
    both = [run for side in sides for run in side]
    first, second = ([_curve(run) for run in side] for side in whole)
    return compare(
        first,
        second,
        question=Question(
            margins_of(launch.margins, history=False),
            ended={run.plan.name: _ending(run) for side in whole for run in side},
            stated=by_curve(launch.margins),
        ),
        provenance={"seeds": list(launch.seeds), "commands": [launch.command.strip()]},
        arms=(baseline, experiment),
        further=[
            *_contract(both),
            *(finding for run in both for finding in _run_findings(launch, run)),
            _revision_finding(both),
        ],
    )


def _is_spliced(launch: LaunchFile, run: Launched) -> bool:
    """Whether a run's curve is of several pieces; one started again from zero has a directory of its own."""
    return launch.restart.policy == "checkpoint" and run.attempt > 1


def _curve(run: Launched) -> RecordedRun:
    recorded = read_runs(run.plan.curves)
    if len(recorded) != 1:
        raise InputError(f"{run.plan.curves} holds {quantity(len(recorded), 'runs')}; results.curves names one run")
    return replace(recorded[0], name=run.plan.name)


def _ending(run: Launched) -> str:
    return run.status if run.status == "completed" else f"{run.status}: {run.message}" if run.message else run.status


def _contract(runs: Sequence[Launched]) -> Iterator[Finding]:
    """The contract of each run's dumps and recordings, as far as they are there."""
    for run in runs:
        paths = [Path(text) for text in run.plan.samples if Path(text).exists()]
        if paths:
            yield from (finding.in_run(run.plan.name) for finding in check_paths(paths, Rules()).findings)
        elif run.plan.samples and run.attempt:
            message = Message("no dump or recording at {paths}", paths=listed(run.plan.samples))
            yield Finding("samples", Level.CONTRACT, Status.NOT_COMPARED, message, Where(run.plan.name))


def _run_findings(launch: LaunchFile, run: Launched) -> Iterator[Finding]:
    """What happened to a run that its curve does not say."""
    where = Where(run.plan.name, run.step)
    if _is_spliced(launch, run):
        message = Message(
            "went on from a checkpoint {restarts}: its curve is of several pieces and is left out",
            restarts=quantity(run.attempt - 1, "times"),
        )
        yield Finding("whole_curve", Level.TRAINING, Status.FAIL, message, where, 1, run.attempt, Severity.WARNING)
    if run.status in ("failed", "stopped"):
        message = Message("{status}: {reason}", status=run.status, reason=run.message)
        yield Finding("run_ended", Level.TRAINING, Status.INCONCLUSIVE, message, where, "completed", run.status)
    elif run.status != "completed":
        message = Message("{status}, {step} so far", status=run.status, step=quantity((run.step or -1) + 1, "steps"))
        yield Finding("run_ended", Level.TRAINING, Status.INCONCLUSIVE, message, where, "completed", run.status)


def _revision_finding(runs: Sequence[Launched]) -> Finding:
    """Whether all runs were started from the same revision of the code that the launch was made in."""
    starts = [
        event.get("commit")
        for run in runs
        for event in RunStore(run.plan.directory).events()
        if event.get("event") in ("start", "restart")
    ]
    revisions = sorted({str(revision) for revision in starts if revision is not None})
    if len(revisions) > 1:
        message = Message("runs were started from different revisions: {revisions}", revisions=listed(revisions))
        return Finding("same_code", Level.TRAINING, Status.FAIL, message, severity=Severity.WARNING, observed=revisions)
    if not revisions or None in starts:
        message = Message("the working directory is no git checkout, so the runs' revisions are not known")
        return Finding("same_code", Level.TRAINING, Status.NOT_COMPARED, message)
    message = Message(
        "{starts} from one revision, {revision}", starts=quantity(len(starts), "starts"), revision=revisions[0]
    )
    return Finding("same_code", Level.TRAINING, Status.PASS, message, observed=revisions)
