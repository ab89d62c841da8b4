"""Runs that others made, compared: from recorded runs to findings, verdict and report. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from parity.contract_checks import GAP_CHECKS, check_run_curves
from parity.errors import UsageError
from parity.findings import (
    Finding,
    Judgement,
    Level,
    Message,
    Severity,
    Status,
    Verdict,
    Where,
    judge,
    listed,
    quantity,
    status_of_level,
)
from parity.metrics import RunCurves
from parity.records.margins import RUN_CURVES, Unit, by_curve, metric_named
from parity.records.metric_names import REWARD
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord
from parity.sources.curves.recorded_runs import COMPLETED, RecordedRun
from parity.stats import (
    COMPLETE,
    EARLY,
    Ending,
    censoring_finding,
    collapse_finding,
    detect_collapse,
    odd_zeros,
    recording_findings,
    run_cost_findings,
    secondary_findings,
    training_findings,
    without_odd_zeros,
    worst_case_finding,
)

BASELINE, EXPERIMENT = "baseline", "experiment"
DESIGN = "recorded"
MINIMUM_STEPS = 30
SHOWN = 6
"""Names that a message lists."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a comparison is held to, stated before the runs are looked at.

    Attributes:
        margins: Largest difference that does not matter, by curve, in the unit of `parity.records.margins`; `None`
            takes it from the history.
        minimum_steps: Fewest common steps that a statement is made from.
        ended: How runs ended, by run, where the user knows more than their sources.
        stated: The curves whose margin the user stated.
    """

    margins: Mapping[str, float | None] = field(default_factory=lambda: dict(RUN_CURVES))
    minimum_steps: int = MINIMUM_STEPS
    ended: Mapping[str, str] = field(default_factory=dict)
    stated: Collection[str] = ()

    @property
    def defaults(self) -> list[str]:
        """The curves whose margin is a default."""
        return [curve for curve, margin in self.margins.items() if margin is not None and curve not in self.stated]


def margins_of(stated: Mapping[str, float], history: bool) -> dict[str, float | None]:
    """The margin of each deciding curve: the one stated, else twice the spread of the history, else the default."""
    return {**{curve: None if history else margin for curve, margin in RUN_CURVES.items()}, **by_curve(stated)}


def compare(
    baseline: Sequence[RecordedRun],
    experiment: Sequence[RecordedRun],
    history: Sequence[RecordedRun] = (),
    question: Question | None = None,
    provenance: Mapping[str, Any] | None = None,
    arms: tuple[str, str] = (BASELINE, EXPERIMENT),
    further: Sequence[Finding] = (),
) -> Report:
    """Compares the runs of two arms and builds the report.

    Args:
        baseline: Runs of the baseline.
        experiment: Runs of the experiment; for costs, run i belongs to run i of the baseline if there are as many.
        history: Earlier runs of the baseline, which give margins and the scatter of single runs.
        question: Margins and what else is stated first.
        provenance: Commands, versions and the like, as ``experiment.json`` holds them.
        arms: The names of the arms.
        further: What else is known of the runs, such as the contract of their samples.

    Raises:
        UsageError: An arm has no run, a run is given twice, `ended` names a run that is not there, or a margin a
            metric.
    """
    asked = question or Question()
    findings = [*run_findings(baseline, experiment, history, asked), *further]
    facts = {
        **(provenance or {}),
        "baseline": arms[0],
        "experiment": arms[1],
        "default_margins": asked.defaults,
        "margins": {metric: margin for metric, margin in asked.margins.items() if margin is not None},
    }
    records = [
        record_of(run, arm, seed, asked.ended)
        for arm, runs in zip(arms, (baseline, experiment), strict=True)
        for seed, run in enumerate(runs)
    ]
    below = {status_of_level(findings, level) for level in (Level.CONTRACT, Level.SAMPLING, Level.REPLAY)}
    judgement = judge(findings) if Status.FAIL in below else judge_curves(findings, asked.defaults)
    return build_report(facts, records, findings, judgement)


def run_findings(
    baseline: Sequence[RecordedRun],
    experiment: Sequence[RecordedRun],
    history: Sequence[RecordedRun],
    asked: Question,
) -> list[Finding]:
    """What the curves of both arms' runs show: L3, L4, and what is odd about the recordings.

    Raises:
        UsageError: As `compare`.
    """
    _check_names([*baseline, *experiment, *history], asked.ended)
    _check_margins([*baseline, *experiment], asked.margins)
    curves_of_arms = [[_curves(run) for run in runs] for runs in (baseline, experiment, history)]
    findings = [
        *_source_findings([*baseline, *experiment, *history]),
        *_margin_findings([*curves_of_arms[0], *curves_of_arms[1]], asked),
        *_reward_findings([*curves_of_arms[0], *curves_of_arms[1]]),
        *_endings(baseline, experiment, asked.ended),
        *run_cost_findings(*curves_of_arms[:2]),
        *(
            finding
            for finding in check_run_curves([*curves_of_arms[0], *curves_of_arms[1]])
            if finding.check in GAP_CHECKS
        ),
    ]
    recordings = recording_findings(*curves_of_arms)
    curves = _curve_findings(curves_of_arms[0], curves_of_arms[1], curves_of_arms[2], asked)
    if any(finding.check == "runs_distinct" and finding.status is not Status.PASS for finding in recordings):
        # A run that counts several times makes every test of runs wrong, either way.
        curves = [replace(finding, severity=Severity.WARNING) for finding in curves]
    return [*findings, *recordings, *curves]


def judge_curves(findings: Sequence[Finding], defaults: Collection[str] = ()) -> Judgement:
    """The verdict on curves alone, which can contradict parity and never show it.

    DIFFERENT if a deciding metric or the collapse rate differs; CURVES_AGREE if every deciding metric that was recorded
    is within a margin that somebody stated or the history gives, the reward among them, and nothing is left open; else
    INCONCLUSIVE.

    Args:
        findings: All findings.
        defaults: The metrics whose margin nobody stated.
    """
    training = [finding for finding in findings if finding.level is Level.TRAINING]
    status = status_of_level(training, Level.TRAINING)
    decided = [finding for finding in training if finding.check in ("training_parity", "conditional_parity")]
    reasons = [
        Message("{status}: {message}", status=finding.status.words, message=finding.message) for finding in decided
    ]
    reasons += [finding.message for finding in training if finding.check == "worst_case"]
    if status is Status.FAIL:
        return Judgement(Verdict.DIFFERENT, reasons)
    if gaps := [finding.message for finding in findings if finding.level is Level.CONTRACT and finding.fails]:
        return Judgement(Verdict.INCONCLUSIVE, [*reasons, *gaps])
    passed = {str(finding.where.field) for finding in decided if finding.status is Status.PASS}
    if status is not Status.PASS or REWARD not in passed:
        return Judgement(Verdict.INCONCLUSIVE, reasons)
    if unstated := sorted(passed & set(defaults)):
        open_question = Message(
            "The curves agree within default margins, which nobody stated for these runs: state those that matter with "
            "--margin METRIC=VALUE, or give earlier runs with --history ({metrics}).",
            metrics=listed(unstated),
        )
        return Judgement(Verdict.INCONCLUSIVE, reasons, open_question)
    return Judgement(Verdict.CURVES_AGREE, reasons)


def _check_names(runs: Sequence[RecordedRun], ended: Mapping[str, str]) -> None:
    names = [run.name for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"given more than once: {', '.join(twice)}; a run counts once, in one arm")
    if unknown := sorted(set(ended) - set(names)):
        raise UsageError(f"--ended names no run: {', '.join(unknown)}; the runs are {', '.join(names)}")


def _check_margins(runs: Sequence[RecordedRun], margins: Mapping[str, float | None]) -> None:
    """Refuses a margin of a metric that no run has, which would pass for one that was held to."""
    known = {metric for run in runs for metric in run.curves}
    if unknown := sorted(margins.keys() - known - RUN_CURVES.keys()):
        alike = get_close_matches(unknown[0], known, cutoff=0.3) or sorted(known)[:SHOWN]
        raise UsageError(f"--margin {unknown[0]}: no run has this metric; the nearest names are {', '.join(alike)}")


def _margin_findings(runs: Sequence[RunCurves], asked: Question) -> list[Finding]:
    """Warnings of margins that nobody stated, and of stated ones that no difference of these runs could reach."""
    found = []
    margins = asked.margins
    unstated = [
        Message("{metric} ±{margin:g}", metric=curve, margin=margin)
        for curve, margin in RUN_CURVES.items()
        if margins.get(curve) == margin and curve not in asked.stated
    ]
    if unstated:
        message = Message(
            "default margins, made for short answers and rewards from 0 to 1: {margins}; state yours with --margin",
            margins=listed(unstated),
        )
        found.append(_warning("margin_defaults", Status.FAIL, message))
    for metric, margin in margins.items():
        values = [curve.values[np.isfinite(curve.values)] for run in runs if (curve := run.get(metric))]
        every = np.concatenate([*values, np.empty(0)])
        known = metric_named(metric)
        relative = known is not None and known.unit is not Unit.ABSOLUTE
        if margin is None or not every.size or margin == RUN_CURVES.get(metric) or relative:
            continue
        low, high = float(every.min()), float(every.max())
        if margin > max(high - low, abs(low), abs(high)):
            message = Message(
                "{metric}: the margin of {margin:g} is wider than the range of all recorded values, {low:.4g} to "
                "{high:.4g}, so no difference could fail; check that it is in the metric's unit",
                metric=metric,
                margin=margin,
                low=low,
                high=high,
            )
            found.append(_warning("margin_width", Status.FAIL, message, metric=metric))
    return found


def _reward_findings(runs: Sequence[RunCurves]) -> list[Finding]:
    """What keeps rewards from speaking: another name, or the same value everywhere."""
    lacking = [run for run in runs if REWARD not in run]
    if lacking:
        named = sorted({metric for run in lacking for metric in run if "reward" in metric or "score" in metric})
        message = Message(
            "{metric} is missing from {missing} of {runs}",
            metric=REWARD,
            missing=len(lacking),
            runs=quantity(len(runs), "runs"),
        )
        if named:
            message = Message("{message}, which have {names}", message=message, names=listed(named[:SHOWN]))
        message = Message("{message}: map its name in these runs with --names", message=message)
        return [_warning("reward_recorded", Status.INCONCLUSIVE, message)]
    values = np.unique(np.concatenate([run[REWARD].values for run in runs]))
    if len(values) == 1:
        message = Message(
            "{metric} is {value:g} at every step of every run: nothing was learnt that could differ",
            metric=REWARD,
            value=float(values[0]),
        )
        return [_warning("reward_recorded", Status.INCONCLUSIVE, message)]
    message = Message("{metric} is in all {runs} and varies", metric=REWARD, runs=quantity(len(runs), "runs"))
    return [_warning("reward_recorded", Status.PASS, message)]


def _curves(run: RecordedRun) -> RunCurves:
    return without_odd_zeros(run.curves) if run.zero_may_be_nan else run.curves


def _source_findings(runs: Sequence[RecordedRun]) -> list[Finding]:
    """What each source gave, what its reader left out, and which zeros are read as NaN."""
    found = []
    for run in runs:
        steps = max(len(curve.steps) for curve in run.curves.values())
        given = Message(
            "{run}: {format} with {metrics} of up to {steps}",
            run=run.name,
            format=run.format,
            metrics=quantity(len(run.curves), "metrics"),
            steps=quantity(steps, "steps"),
        )
        if run.skipped:
            message = Message("{message}; left out: {skipped}", message=given, skipped=listed(run.skipped, "; "))
            found.append(_warning("source", Status.NOT_COMPARED, message, run.name, skipped=list(run.skipped)))
        else:
            found.append(_warning("source", Status.PASS, given, run.name, checked=len(run.curves)))
        if run.zero_may_be_nan and (odd := [name for name, curve in run.curves.items() if odd_zeros(curve).any()]):
            message = Message(
                "{run}: {format} stores NaN as 0; lone zeros are read as NaN in {metrics}",
                run=run.name,
                format=run.format,
                metrics=listed(odd),
            )
            found.append(_warning("zeros_of_nan", Status.FAIL, message, run.name, metrics=odd))
        if run.incidents:
            counts = listed(f"{count} x {name}" for name, count in run.incidents.items())
            message = Message("{run}: {incidents}", run=run.name, incidents=counts)
            found.append(_warning("incidents", Status.FAIL, message, run.name, counts=dict(run.incidents)))
    return found


def _warning(
    check: str, status: Status, message: Message, run: str | None = None, metric: str | None = None, **evidence: Any
) -> Finding:
    where = Where(run=run, field=metric)
    return Finding(check, Level.TRAINING, status, message, where, severity=Severity.WARNING, evidence=evidence)


def _endings(
    baseline: Sequence[RecordedRun], experiment: Sequence[RecordedRun], ended: Mapping[str, str]
) -> list[Finding]:
    first, second = _ends(baseline, experiment, ended)
    collapsed = {
        run.name: onset
        for run in (*baseline, *experiment)
        if REWARD in run.curves and (onset := detect_collapse(run.curves[REWARD]).onset) is not None
    }
    return [censoring_finding(first, second), *worst_case_finding(first, second, collapsed)]


def _ends(
    baseline: Sequence[RecordedRun], experiment: Sequence[RecordedRun], ended: Mapping[str, str]
) -> tuple[list[Ending], list[Ending]]:
    """How each run ended: as stated, as its source says, or early if others go on where it stops."""
    longest = max(_last_step(run) for run in (*baseline, *experiment))

    def ending(run: RecordedRun) -> Ending:
        last = _last_step(run)
        told = ended.get(run.name, run.ending)
        kind = told or (COMPLETE if last == longest else EARLY)
        return Ending(run.name, COMPLETE if kind == COMPLETED else kind, last)

    return [ending(run) for run in baseline], [ending(run) for run in experiment]


def _last_step(run: RecordedRun) -> int:
    """The last training step of a run; evaluations and rollouts may be counted otherwise."""
    deciding = [run.curves[metric] for metric in RUN_CURVES if metric in run.curves]
    return max(int(curve.steps[-1]) for curve in deciding or run.curves.values())


def _curve_findings(
    baseline: Sequence[RunCurves], experiment: Sequence[RunCurves], history: Sequence[RunCurves], asked: Question
) -> list[Finding]:
    history, found = _sound_history(history)
    found += training_findings(baseline, experiment, asked.margins, asked.minimum_steps, history)
    collapse = collapse_finding(baseline, experiment)
    onsets: Mapping[str, int] = collapse.evidence.get("onsets", {})
    if onsets:
        # Collapsed runs make the mean over all a mixture, so that the others are compared by themselves as well.
        found += _conditional(baseline, experiment, history, onsets, collapse, asked)
    return [*found, collapse, *secondary_findings(baseline, experiment, list(asked.margins), asked.minimum_steps)]


def _sound_history(history: Sequence[RunCurves]) -> tuple[list[RunCurves], list[Finding]]:
    """The history without runs that collapsed, whose spread would widen every margin, and a warning that names them."""
    onsets = {
        run[REWARD].run: onset
        for run in history
        if REWARD in run and (onset := detect_collapse(run[REWARD]).onset) is not None
    }
    if not onsets:
        return list(history), []
    message = Message("left out of the history, because they collapsed: {runs}", runs=listed(onsets))
    sound = [run for run in history if REWARD not in run or run[REWARD].run not in onsets]
    return sound, [_warning("history", Status.FAIL, message, onsets=onsets)]


def _conditional(
    baseline: Sequence[RunCurves],
    experiment: Sequence[RunCurves],
    history: Sequence[RunCurves],
    onsets: Mapping[str, int],
    collapse: Finding,
    asked: Question,
) -> list[Finding]:
    """The deciding metrics among the runs that did not collapse."""
    sound = [[run for run in runs if run[REWARD].run not in onsets] for runs in (baseline, experiment)]
    if not all(sound):
        message = Message("no run of one arm is left that did not collapse, so nothing can be compared")
        return [Finding("conditional_parity", Level.TRAINING, Status.INCONCLUSIVE, message)]
    template = (
        "among runs that did not collapse (selected: the rates of collapse differ): {message}"
        if collapse.status is Status.FAIL
        else "among runs that did not collapse: {message}"
    )
    return [
        replace(
            finding,
            check="conditional_parity",
            message=Message(template, message=finding.message),
        )
        for finding in training_findings(sound[0], sound[1], asked.margins, asked.minimum_steps, history)
    ]


def record_of(run: RecordedRun, arm: str, seed: int, ended: Mapping[str, str]) -> RunRecord:
    """A run as a report shows it."""
    rows: dict[int, dict[str, Any]] = {}
    for name, curve in _curves(run).items():
        for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
            rows.setdefault(step, {"step": step})[name] = value
    outcome = {"status": ended.get(run.name) or run.ending or "not recorded"}
    events = [{"event": kind, "count": count} for kind, count in run.incidents.items()]
    return RunRecord(run.name, arm, seed, DESIGN, [rows[step] for step in sorted(rows)], outcome, events)
