"""From what the runs of a launch have written so far to one report, level by level as `parity run` judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from parity.commands.check import check_paths
from parity.commands.compare import Question, judge_curves, margins_of, record_of, run_findings
from parity.commands.launch.alarms import ALARM
from parity.commands.launch.drawn_groups import DrawnEvidence
from parity.commands.launch.setups import setup_findings
from parity.commands.launch.twins import twin_findings
from parity.commands.run import merge
from parity.commands.watch import of_last, unread_findings
from parity.contract_checks import Part, Rules, check_arms_of_parts, part_of
from parity.errors import InputError
from parity.findings import Finding, Level, Message, Severity, Status, Where, judge, listed, quantity, status_of_level
from parity.launch import ENDED, Launched, LaunchFile
from parity.records.margins import by_curve
from parity.records.store import RunStore
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord
from parity.sources.curves.recorded_runs import RecordedRun
from parity.sources.directories import find_sources
from parity.sources.registry import read_runs

_BELOW = (Level.CONTRACT, Level.SAMPLING, Level.REPLAY)


def judge_launch(launch: LaunchFile, runs: Sequence[Launched], experiment: str) -> Report:
    """The report of one arm against the baseline, from whatever its runs have written so far.

    A run that went on from a checkpoint has a curve of several pieces and is left out of the comparison of curves; one
    that was given up counts as one that ended early.
    """
    baseline = next(iter(launch.arms))
    both = [run for run in runs if launch.mixed or run.plan.arm in (baseline, experiment)]
    curves, problems = _curves(launch, both)
    evidence = DrawnEvidence(launch, keeps=True)
    stated = by_curve(launch.margins)
    question = Question(
        margins_of(stated, history=False),
        ended={name: _ending(run) for run in both if (name := run.plan.name) in curves},
        stated=stated,
    )
    counts: Counter[str] = Counter()
    findings = [
        *_contract(launch, both, counts),
        *(() if launch.mixed else _pairs(launch, both, baseline)),
        *(evidence.findings(both) if launch.mixed else ()),
        *(_twins(launch, both, curves, baseline) if launch.design == "twin" else ()),
        *(
            _training(both, curves, question, (baseline, experiment))
            if launch.design == "paired"
            else _not_between_runs(launch)
        ),
        *problems,
        *(finding for run in both for finding in _run_findings(launch, run)),
        *(() if launch.mixed else setup_findings(launch, both, _level(launch))),
    ]
    facts = {
        **msgspec.to_builtins(launch.scope),
        "baseline": baseline,
        "experiment": experiment,
        "seeds": list(launch.seeds),
        "steps": launch.steps or None,
        "commands": [launch.command.strip()],
        "margins": launch.margins,
        "default_margins": question.defaults,
        "counts": dict(counts),
    }
    compared = any(status_of_level(findings, level) is not Status.NOT_COMPARED for level in _BELOW[1:])
    failed = any(status_of_level(findings, level) is Status.FAIL for level in _BELOW)
    judgement = judge(findings) if compared or failed else judge_curves(findings, question.defaults)
    records = [_record(launch, run, curves, evidence) for run in both]
    return build_report(facts, records, findings, judgement)


def _is_spliced(launch: LaunchFile, run: Launched) -> bool:
    """Whether a run's curve is of several pieces; one started again from zero has a directory of its own."""
    return launch.restart.policy == "checkpoint" and run.attempt > 1


def _curves(launch: LaunchFile, runs: Sequence[Launched]) -> tuple[dict[str, RecordedRun], list[Finding]]:
    """The whole curves by run, and what keeps others from being read."""
    curves: dict[str, RecordedRun] = {}
    problems = []
    for run in runs:
        if run.step is None or _is_spliced(launch, run):
            continue
        try:
            recorded = read_runs(run.plan.curves)
            if len(recorded) != 1:
                held = quantity(len(recorded), "runs")
                raise InputError(f"{run.plan.curves} holds {held}; results.curves names one run")
        except InputError as error:
            message = Message("its curves cannot be read: {problem}", problem=str(error))
            problems.append(Finding("curves_read", Level.TRAINING, Status.INCONCLUSIVE, message, Where(run.plan.name)))
            continue
        curves[run.plan.name] = replace(recorded[0], name=run.plan.name)
    return curves, problems


def _ending(run: Launched) -> str:
    return run.status if run.status == "completed" else f"{run.status}: {run.message}" if run.message else run.status


def _record(launch: LaunchFile, run: Launched, curves: dict[str, RecordedRun], evidence: DrawnEvidence) -> RunRecord:
    """A run as the report shows it, with every restart; a curve of several pieces is not shown as one."""
    name, store = run.plan.name, RunStore(run.plan.directory)
    design = "recorded" if launch.design == "paired" else launch.design
    lines = _lines(curves.get(name))
    outcome = {"status": run.status, "message": run.message}
    events = store.events() if run.attempt else []
    return RunRecord(name, run.plan.arm, run.plan.seed, design, lines, outcome, events, evidence.by_arm.get(name, {}))


def _contract(launch: LaunchFile, runs: Sequence[Launched], counts: Counter[str]) -> Iterator[Finding]:
    """The contract of each run's dumps and recordings: what passes in all is one finding, what fails names its run."""
    rules = Rules(group_size=launch.results.group_size or None)
    found: list[Finding] = []
    for run in runs:
        paths = [Path(text) for text in run.plan.samples if Path(text).exists()]
        if not paths:
            if run.plan.samples and run.attempt:
                message = Message("no dump or recording at {paths}", paths=listed(run.plan.samples))
                yield Finding("samples", Level.CONTRACT, Status.NOT_COMPARED, message, Where(run.plan.name))
            continue
        try:
            checked = check_paths(paths, rules)
        except InputError as error:
            message = Message("what it recorded cannot be checked: {problem}", problem=str(error))
            yield Finding("samples", Level.CONTRACT, Status.INCONCLUSIVE, message, Where(run.plan.name))
            continue
        counts.update({name: count for name, count in checked.counts.items() if name not in ("files", "runs")})
        every = [*checked.findings, *unread_findings(checked)]
        if run.status not in ENDED:
            last = max((part for one in every if (part := one.where.rollout_id) is not None), default=None)
            every = [of_last(last, finding) for finding in every]
        found += [_placed(finding, run.plan.name) for finding in every if finding.level is Level.CONTRACT]
    yield from (finding for finding in found if finding.status is Status.INCONCLUSIVE)
    yield from merge(finding for finding in found if finding.status is not Status.INCONCLUSIVE)


def _placed(finding: Finding, run: str) -> Finding:
    """A finding of a run, or of one of the run's data sets."""
    return finding.in_run(f"{run}/{finding.where.run}" if finding.where.run else run)


def _pairs(launch: LaunchFile, runs: Sequence[Launched], baseline: str) -> Iterator[Finding]:
    """Whether both arms of each seed were asked for the same, where both wrote samples of one format."""
    for seed in launch.seeds:
        pair = sorted((run for run in runs if run.plan.seed == seed), key=lambda run: run.plan.arm != baseline)
        if len(pair) != 2 or not all(run.plan.samples and run.attempt for run in pair):
            continue
        name = pair[1].plan.name
        try:
            first, second = (_parts(launch, run) for run in pair)
        except InputError:
            continue  # the contract of that run says why
        form = next((form for form in first if form in second), None)
        if form is None:
            held = [
                f"{run.plan.name}: {', '.join(parts) or 'none'}"
                for run, parts in zip(pair, (first, second), strict=True)
            ]
            message = Message("no samples of one format in both arms ({held})", held=listed(held, "; "))
            yield Finding("arms_same_prompts", Level.CONTRACT, Status.NOT_COMPARED, message, Where(name))
            continue
        for finding in check_arms_of_parts(first[form], second[form]):
            # Filters, oversampling and runs that are not at the same step leave groups that only one arm has.
            kept = replace(finding, severity=Severity.WARNING) if finding.check == "arms_same_groups" else finding
            yield kept.in_run(name)


def _parts(launch: LaunchFile, run: Launched) -> dict[str, list[Part]]:
    """What the contract keeps of a run's samples, by their format."""
    found = find_sources(
        [path for at in run.plan.samples if (path := Path(at)).exists()], launch.results.group_size or None
    )
    parts: dict[str, list[Part]] = {}
    for source in found.sources:
        if source.samples and source.path.parent.name != "compared":
            parts.setdefault(source.format, []).extend(part_of(rollout, Rules()) for rollout in source.samples())
    return parts


def _twins(
    launch: LaunchFile, runs: Sequence[Launched], curves: dict[str, RecordedRun], baseline: str
) -> Iterator[Finding]:
    """L2 of each seed whose arms have both been started."""
    for seed in launch.seeds:
        first, second = sorted((run for run in runs if run.plan.seed == seed), key=lambda run: run.plan.arm != baseline)
        if first.attempt and second.attempt:
            lines = tuple(_lines(curves.get(run.plan.name)) for run in (first, second))
            yield from twin_findings(launch, (first, second), lines)


def _lines(run: RecordedRun | None) -> Sequence[Any]:
    return record_of(run, "", 0, {}).metrics if run else ()


def _not_between_runs(launch: LaunchFile) -> Iterator[Finding]:
    if launch.mixed:
        message = Message("both arms are inside each run ({design}), so no curves are compared", design=launch.design)
    else:
        message = Message(
            "the arms of a twin sample with the same seeds, so that their curves are no runs of their own"
        )
    yield Finding("curves", Level.TRAINING, Status.NOT_COMPARED, message)


def _training(
    runs: Sequence[Launched], curves: dict[str, RecordedRun], question: Question, arms: tuple[str, str]
) -> Iterable[Finding]:
    """L3 and L4 of the runs with whole curves."""
    sides = [[curves[run.plan.name] for run in runs if run.plan.arm == arm and run.plan.name in curves] for arm in arms]
    lacking = [arm for arm, side in zip(arms, sides, strict=True) if not side]
    if not lacking:
        return run_findings(sides[0], sides[1], [], question)
    message = Message("no run of {arms} has a whole curve yet", arms=listed(lacking, " and "))
    return [Finding("curves", Level.TRAINING, Status.NOT_COMPARED, message)]


def _level(launch: LaunchFile) -> Level:
    """The rung that a launch's runs as such speak of."""
    return {"paired": Level.TRAINING, "twin": Level.REPLAY}.get(launch.design, Level.SAMPLING)


def _run_findings(launch: LaunchFile, run: Launched) -> Iterator[Finding]:
    """What happened to a run that its curve does not say."""
    where, level = Where(run.plan.name, run.step), _level(launch)
    if _is_spliced(launch, run) and not launch.mixed:
        message = Message(
            "went on from a checkpoint {restarts}: its curve is of several pieces and is left out",
            restarts=quantity(run.attempt - 1, "times"),
        )
        yield Finding("whole_curve", level, Status.FAIL, message, where, 1, run.attempt, Severity.WARNING)
    for event in RunStore(run.plan.directory).events() if run.attempt else ():
        if event["event"] == ALARM:
            message, kind = Message("alarm: {alarm}", alarm=str(event["message"])), str(event.get("kind"))
            yield Finding("alarm", level, Status.FAIL, message, where, None, kind, Severity.WARNING)
    if run.status == "completed":
        return
    # Evidence from inside a run holds at every look, so that a run which goes on leaves nothing open.
    status = Status.NOT_COMPARED if launch.mixed else Status.INCONCLUSIVE
    if run.status in ENDED:
        message = Message("{status}: {reason}", status=run.status, reason=run.message)
    else:
        steps = quantity(0 if run.step is None else run.step + 1, "steps")
        message = Message("{status}, {step} so far", status=run.status, step=steps)
    yield Finding("run_ended", level, status, message, where, "completed", run.status)
