"""Do runs of two arms train alike? One number a run and metric, the margin stated first (L3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from parity.errors import UsageError
from parity.evidence.metric_findings import STATUS_OF_VERDICT, metric_finding
from parity.evidence.multiplicity import benjamini_hochberg, holm
from parity.evidence.training.bands import FEWEST_RUNS, Band, curve_band
from parity.evidence.two_samples import (
    MOST_RUNS,
    RunComparison,
    compare_runs,
    difference_test,
    margin_from_history,
    runs_needed,
    verdict_of,
)
from parity.evidence.values import ALPHA, Floats, RunValues
from parity.findings import Finding, Level, Message, Severity, Status, Verdict, Where, listed, quantity
from parity.metrics import (
    SAME,
    AlignedRuns,
    RunCurves,
    align,
    area_under_curve,
    late_mean,
    late_median,
    late_median_log,
)
from parity.records.margins import Unit, metric_named

LARGEST_MISSING_SHARE = 0.1
LEAST_COMMON_SHARE = 0.8
"""Steps that a run must have, as a share of the longest one's; shorter ones were cut and may hide what came later."""
HEAVY_TAILED = frozenset({"train/grad_norm", "train/loss", "train/pg_loss"})
FALSE_FLAGS = 0.1
"""The share of false ones among the flags of secondary metrics (Benjamini and Hochberg)."""
BAND_WIDTH = 9
"""Steps that curves are smoothed over before they are compared step by step."""
HISTORY = Message("2 standard deviations between runs of the history (80 % lower bound)")
STATED = Message("stated")

_training = partial(metric_finding, Level.TRAINING, "training_parity")


@dataclass(frozen=True, slots=True)
class ArmCurves:
    """The runs of a comparison: baseline, experiment, and earlier runs of the baseline, each with curves by metric."""

    baseline: Sequence[RunCurves]
    experiment: Sequence[RunCurves]
    history: Sequence[RunCurves] = ()

    @property
    def sides(self) -> tuple[tuple[str, Sequence[RunCurves]], ...]:
        """The two sides by name."""
        return ("baseline", self.baseline), ("experiment", self.experiment)

    def check(self) -> None:
        """Refuses a side without runs.

        Raises:
            UsageError: An arm has no run.
        """
        if not self.baseline or not self.experiment:
            counts = f"{len(self.baseline)} and {len(self.experiment)}"
            raise UsageError(f"training is compared between runs, but there are {counts}")


@dataclass(frozen=True, slots=True)
class _Compared:
    """One metric of both arms with all that is said of it.

    Attributes:
        aligned: The curves at their common steps.
        comparison: Of the arms, by one number a run.
        summary: How a run became one number.
        values: The numbers of all runs, (R,).
        sides: Runs of the baseline and of the experiment.
        margin_source: Where the margin comes from.
        band: Where the curves part, if there are enough runs.
        cut: Runs that stop long before the others.
        agrees: Whether the comparison with them, over the steps they have, also shows parity.
    """

    aligned: AlignedRuns
    comparison: RunComparison
    summary: Message
    values: Floats
    sides: tuple[int, int]
    margin_source: Message
    band: Band | None
    cut: tuple[str, ...] = ()
    agrees: bool = True


def training_findings(
    baseline: Sequence[RunCurves],
    experiment: Sequence[RunCurves],
    margins: Mapping[str, float | None],
    minimum_steps: int = 30,
    history: Sequence[RunCurves] = (),
) -> list[Finding]:
    """One finding a metric: do freely sampled runs of the two arms train alike?

    Each run gives one number a metric, the mean over the later half of the steps that all runs have, or the median log
    for the gradient norm. PASS is parity within the margin, FAIL a difference after Holm's correction over the metrics,
    INCONCLUSIVE says how many more runs it takes. From four runs an arm on, a max-T band says where curves part. Seeded
    twins are equal by construction and are no replicates: leave them out.

    One run an arm decides nothing, unless there is a history: then the baseline's run joins it, and the one run of the
    experiment is held to the prediction interval of one more run. That can show a difference, never parity.

    Args:
        baseline: Curves by metric of each run of the baseline, as `parity.metrics.curves_of_run` makes them.
        experiment: The same of the experiment.
        margins: The curves that decide, each with the largest difference that does not matter, in the unit of
            `parity.records.margins`, stated before the runs; `None` for twice the spread between runs of the history.
        minimum_steps: Fewest common steps that a statement is made from.
        history: Earlier runs of the baseline against itself.

    Raises:
        UsageError: An arm has no run, or a margin is not positive.
        InputError: Two runs have the same name.
    """
    arms = ArmCurves(baseline, experiment, history)
    arms.check()
    outcomes = {metric: _compare_whole(metric, arms, margin, minimum_steps) for metric, margin in margins.items()}
    compared = {metric: outcome for metric, outcome in outcomes.items() if isinstance(outcome, _Compared)}
    tested = {metric: outcome.comparison.p_difference for metric, outcome in compared.items()}
    adjusted = holm({metric: p for metric, p in tested.items() if p is not None})
    return [
        outcome if isinstance(outcome, Finding) else _training_finding(outcome, adjusted.get(metric))
        for metric, outcome in outcomes.items()
    ]


def lacking(metric: str, arms: ArmCurves) -> dict[str, int]:
    """By side, how many runs lack a metric; empty where all have it."""
    counts = {side: sum(metric not in run for run in runs) for side, runs in arms.sides}
    return counts if any(counts.values()) else {}


def aligned_runs(metric: str, arms: ArmCurves, minimum_steps: int) -> AlignedRuns | Finding:
    """A metric of both arms and of the history that has it at their common steps, or why it cannot be summarised."""
    if missing := lacking(metric, arms):
        where = {
            "baseline": Message("{runs} of the baseline", runs=quantity(missing["baseline"], "runs")),
            "experiment": Message("{runs} of the experiment", runs=quantity(missing["experiment"], "runs")),
        }
        message = Message(
            "{metric}: not recorded in {runs}",
            metric=metric,
            runs=listed(where[side] for side, count in missing.items() if count),
        )
        everywhere = all(missing[side] == len(runs) for side, runs in arms.sides)
        status = Status.NOT_COMPARED if everywhere else Status.INCONCLUSIVE
        return _training(metric, status, message, {"lacking": missing})
    earlier = [run[metric] for run in arms.history if metric in run]
    aligned = align([*(run[metric] for run in (*arms.baseline, *arms.experiment)), *earlier])
    evidence = {"steps": len(aligned.steps), "notes": list(aligned.notes())}
    if len(aligned.steps) < minimum_steps:
        message = Message(
            "{metric}: all runs have {steps} in common, {needed} are needed",
            metric=metric,
            steps=quantity(len(aligned.steps), "steps"),
            needed=minimum_steps,
        )
        return _training(metric, Status.INCONCLUSIVE, message, evidence)
    if aligned.missing_share > LARGEST_MISSING_SHARE:
        message = Message(
            "{metric}: {share:.0%} of the steps in the common range are missing from some run",
            metric=metric,
            share=aligned.missing_share,
        )
        return _training(metric, Status.INCONCLUSIVE, message, evidence)
    values = summary_of(aligned)[1](aligned)
    if np.isneginf(values).all():
        message = Message("{metric}: 0 at every late step of every run, so there is nothing to compare", metric=metric)
        return _training(metric, Status.NOT_COMPARED, message, evidence)
    bad = [run for run, value in zip(aligned.runs, values, strict=True) if not np.isfinite(value)]
    if aligned.not_finite or bad:
        message = Message(
            "{metric}: NaN, infinite or without a logarithm in {runs}, so it cannot be summarised",
            metric=metric,
            runs=listed(aligned.not_finite or bad),
        )
        return _training(metric, Status.INCONCLUSIVE, message, evidence)
    return aligned


def summary_of(aligned: AlignedRuns) -> tuple[Message, Callable[[AlignedRuns], Floats]]:
    """How a run's steps become one number: the late mean, or with heavy tails the late median, in the log if it can."""
    if aligned.metric not in HEAVY_TAILED:
        return Message("late mean"), late_mean
    # A loss crosses 0 in sound runs; a gradient norm does not.
    if aligned.metric == "train/grad_norm" or (aligned.values > 0).all():
        return Message("late median of the log"), late_median_log
    return Message("late median"), late_median


def _compare_whole(metric: str, arms: ArmCurves, margin: float | None, minimum_steps: int) -> Finding | _Compared:
    """One metric among the runs that were not cut, and whether what all runs have in common agrees with it.

    A run that stops early shortens the range that all have, which may end before the arms part. So runs with less than
    80 % of the steps of the longest one are compared over their own range only, and parity needs both comparisons. Cut
    runs of the history are left out. Where an arm has no other run, nothing shows parity.
    """
    curves = [run[metric] for run in (*arms.baseline, *arms.experiment) if metric in run]
    longest = max((len(curve.steps) for curve in curves), default=0)

    def is_whole(run: RunCurves) -> bool:
        return metric not in run or len(run[metric].steps) >= LEAST_COMMON_SHARE * longest

    history = [run for run in arms.history if is_whole(run)]
    every = _compare_metric(metric, replace(arms, history=history), margin, minimum_steps)
    cut = tuple(curve.run for curve in curves if len(curve.steps) < LEAST_COMMON_SHARE * longest)
    if not cut:
        return every
    sides = [[run for run in runs if is_whole(run)] for _, runs in arms.sides]
    if not all(sides):
        if isinstance(every, Finding):
            return every
        return replace(every, cut=cut, agrees=False)
    whole = _compare_metric(metric, ArmCurves(sides[0], sides[1], history), margin, minimum_steps)
    if isinstance(whole, Finding):
        return whole
    agrees = isinstance(every, _Compared) and every.comparison.verdict is Verdict.PARITY
    return replace(whole, cut=cut, agrees=agrees)


def _compare_metric(metric: str, arms: ArmCurves, margin: float | None, minimum_steps: int) -> Finding | _Compared:
    aligned = aligned_runs(metric, arms, minimum_steps)
    if isinstance(aligned, Finding):
        return aligned
    summary, summarise = summary_of(aligned)
    values = summarise(aligned)
    n0, n1 = len(arms.baseline), len(arms.experiment)
    first, second, earlier = (
        RunValues(metric, aligned.runs[part], values[part])
        for part in (slice(n0), slice(n0, n0 + n1), slice(n0 + n1, None))
    )
    source = STATED
    if margin is None:
        try:
            made = margin_from_history(earlier)
        except UsageError as error:
            message = Message("{error}; or state one: --margin {metric}=…", error=error.args[0], metric=metric)
            return _training(metric, Status.INCONCLUSIVE, message, {})
        margin, source = made.value, HISTORY
    if n0 == n1 == 1 and len(earlier):
        first = RunValues(metric, (*first.runs, *earlier.runs), np.concatenate([first.values, earlier.values]))
    known = metric_named(metric)
    if source == STATED and known is not None and known.unit is Unit.SHARE:
        scale = abs(float(first.values.mean()))
        if scale == 0:
            message = Message(
                "{metric}: the baseline's mean is 0, so a margin that is a share of it has no meaning", metric=metric
            )
            return _training(metric, Status.INCONCLUSIVE, message, {})
        margin *= scale
    comparison = compare_runs(first, second, margin)
    band = None
    if min(n0, n1) >= FEWEST_RUNS and len(aligned.steps) >= BAND_WIDTH:
        both = align([run[metric] for run in (*arms.baseline, *arms.experiment)])
        band = curve_band(both, n0, np.random.default_rng(0), smooth=BAND_WIDTH)
    return _Compared(aligned, comparison, summary, values, (n0, n1), source, band)


def _training_finding(found: _Compared, p_holm: float | None) -> Finding:
    aligned, comparison = found.aligned, found.comparison
    beyond = abs(comparison.estimate) > comparison.margin
    verdict = verdict_of(comparison.p_equivalence if min(comparison.units) > 1 else None, p_holm, beyond)
    if verdict is Verdict.PARITY and found.cut and not found.agrees:
        verdict = Verdict.INCONCLUSIVE
    n0, both = found.sides[0], sum(found.sides)
    late = aligned.steps[len(aligned.steps) // 2 :]
    named = list(zip(aligned.runs, found.values.tolist(), strict=True))
    evidence: dict[str, Any] = {
        "summary": found.summary,
        "late_steps": [int(late[0]), int(late[-1])],
        "steps": len(aligned.steps),
        "baseline": dict(named[:n0]),
        "experiment": dict(named[n0:both]),
        "estimate": comparison.estimate,
        "ci90": comparison.ci90,
        "ci95": comparison.ci95,
        "margin": comparison.margin,
        "margin_source": found.margin_source,
        "p_difference": comparison.p_difference,
        "p_holm": p_holm,
        "p_equivalence": comparison.p_equivalence,
        "p_permutation": comparison.p_permutation,
        "sigma": comparison.sigma,
        "unit": comparison.unit,
        "units": list(comparison.units),
        "runs_needed": comparison.runs_needed,
        "method": comparison.method,
        "warnings": list(comparison.warnings),
        "notes": list(aligned.notes()),
    }
    if named[both:]:
        evidence["history"] = dict(named[both:])
    if found.band:
        outside = list(found.band.outside)
        evidence["band"] = {"p": found.band.p, "outside": outside, "method": found.band.method}
    message = _with_parting(_training_message(found, verdict, p_holm), found.band)
    if found.cut:
        evidence["cut"] = list(found.cut)
        message = Message("{message}; {runs} stopped long before the others", message=message, runs=listed(found.cut))
        if not found.agrees:
            message = Message(
                "{message}; over the steps that all runs have the arms are not shown to be equal, or no other runs are "
                "left, so that this is no parity",
                message=message,
            )
    expected = [-comparison.margin, comparison.margin]
    return _training(aligned.metric, STATUS_OF_VERDICT[verdict], message, evidence, expected, comparison.estimate)


def _training_message(found: _Compared, verdict: Verdict, p_holm: float | None) -> Message:
    comparison = found.comparison
    n0, n1 = found.sides
    late = found.aligned.steps[len(found.aligned.steps) // 2 :]
    runs = Message("{baseline} + {experiment} runs", baseline=n0, experiment=n1)
    joined = comparison.units != found.sides  # runs of the history stand beside the baseline's
    if joined:
        runs = Message("{runs} and {history} of history", runs=runs, history=comparison.units[0] - n0)

    def differs(*numbers: Message) -> Message:
        return Message(
            "{metric}: {summary} (steps {first} to {last}) differs by {estimate:+.4g} ({numbers})",
            metric=comparison.metric,
            summary=found.summary,
            first=late[0],
            last=late[-1],
            estimate=comparison.estimate,
            numbers=listed([runs, *numbers]),
        )

    margin = Message("margin ±{margin:.4g}", margin=comparison.margin)
    if found.margin_source != STATED:
        margin = Message("{margin}, {source}", margin=margin, source=found.margin_source)
    if comparison.ci90 is None or comparison.ci95 is None:
        return Message(
            "{difference}; one run an arm decides nothing, two or more an arm are needed: {needed} show parity 4 times "
            "in 5 if the margin is twice their spread",
            difference=differs(margin),
            needed=runs_needed(1.0, 2.0),
        )
    (low90, high90), (low95, high95) = comparison.ci90, comparison.ci95
    ci90 = Message("90 % interval {low:+.4g} to {high:+.4g}", low=low90, high=high90)
    ci95 = Message("95 % interval {low:+.4g} to {high:+.4g}", low=low95, high=high95)
    if verdict is Verdict.PARITY:
        inside = Message("{difference}, inside the {margin}", difference=differs(ci90), margin=margin)
        if p_holm is None or p_holm >= ALPHA:
            return inside
        return Message("{message}; a difference is detectable but smaller", message=inside)
    if verdict is Verdict.DIFFERENT:
        return differs(ci95, Message("Holm-adjusted p = {p:.2g}", p=p_holm))
    more = _more_runs(comparison, found.sides)
    if p_holm is not None and p_holm < ALPHA:
        more = Message("a difference is shown, whose estimate is inside the margin; {more}", more=more)
    if joined:
        return Message(
            "{difference}; not outside the scatter of the baseline's runs, which is not parity; {more}",
            difference=differs(ci95, margin),
            more=more,
        )
    return Message("{difference}; {more}", difference=differs(ci90, margin), more=more)


def _with_parting(message: Message, band: Band | None) -> Message:
    """A message, and where the curves part, if they do at some step."""
    if band is None or not band.outside:
        return message
    return Message(
        "{message}; the curves part at {steps}, from {first} to {last} (max-T p = {p:.2g})",
        message=message,
        steps=quantity(len(band.outside), "steps"),
        first=band.outside[0],
        last=band.outside[-1],
        p=band.p,
    )


def _more_runs(comparison: RunComparison, sides: tuple[int, int]) -> Message:
    if not comparison.sigma:
        return Message("runs without spread cannot tell how many more would decide")
    if comparison.runs_needed is None:
        return Message("more than {runs} an arm would be needed for this margin", runs=quantity(MOST_RUNS, "runs"))
    more = [max(comparison.runs_needed - n, 0) for n in sides]
    if not any(more):
        return Message("at least 1 more run an arm is needed: these had a 4 in 5 chance to decide and did not")
    both = Message("{baseline} and {experiment} more runs", baseline=more[0], experiment=more[1])
    return Message(
        "{runs} an arm ({all} in all) would show parity 4 times in 5 if the arms are equal",
        runs=quantity(more[0], "more runs") if more[0] == more[1] else both,
        all=comparison.runs_needed,
    )


def secondary_findings(
    baseline: Sequence[RunCurves], experiment: Sequence[RunCurves], primary: Sequence[str], minimum_steps: int = 30
) -> list[Finding]:
    """Flags on the metrics that do not decide, and on the area under the curve of those that do.

    A difference by Welch's t on one number a run, with a false discovery rate of 10 % over all of them
    (Benjamini and Hochberg 1995), is a failing finding of severity WARNING, which never fails a verdict; so is a metric
    with one value in all runs of an arm and another in all of the other. Costs are left to the cost level.

    Args:
        baseline: Curves by metric of each run of the baseline.
        experiment: The same of the experiment.
        primary: The metrics that decide.
        minimum_steps: Fewest common steps that a statement is made from.
    """
    arms = ArmCurves(baseline, experiment)
    runs = [*baseline, *experiment]
    tests: dict[str, tuple[Message, float, float | None]] = {}
    found: list[Finding] = []
    for metric in sorted({name for run in runs for name in run if not name.startswith("perf/")}):
        aligned = aligned_runs(metric, arms, minimum_steps)
        if isinstance(aligned, Finding):
            if metric not in primary and "lacking" not in aligned.evidence:
                found.append(replace(aligned, check="secondary_metric", status=Status.NOT_COMPARED))
            continue
        summary, summarise = (
            (Message("area under the curve"), area_under_curve) if metric in primary else summary_of(aligned)
        )
        values = summarise(aligned)
        first, second = values[: len(baseline)], values[len(baseline) :]
        estimate, p = difference_test(first, second)
        tests[metric] = summary, estimate, p
        if metric not in primary and min(len(first), len(second)) > 1 and _two_constants(first, second):
            found.append(_set_apart(metric, float(first[0]), float(second[0])))
    adjusted = benjamini_hochberg({metric: p for metric, (_, _, p) in tests.items() if p is not None})
    flagged = [metric for metric, p in adjusted.items() if p < FALSE_FLAGS]
    found += [_flag(metric, *tests[metric][:2], adjusted[metric], len(adjusted)) for metric in flagged]
    if adjusted:
        message = Message(
            "{unflagged} of {metrics} are not flagged",
            unflagged=len(adjusted) - len(flagged),
            metrics=quantity(len(adjusted), "secondary metrics"),
        )
        evidence = {
            "checked": len(adjusted),
            "p_adjusted": adjusted,
            "unit": "run",
            "units": [len(baseline), len(experiment)],
        }
        found.append(Finding("secondary_metrics", Level.TRAINING, Status.PASS, message, evidence=evidence))
    else:
        message = Message(
            "no secondary metric can be tested: this needs two runs or more in an arm, and {steps} in common",
            steps=quantity(minimum_steps, "steps"),
        )
        found.append(Finding("secondary_metrics", Level.TRAINING, Status.NOT_COMPARED, message))
    return found


def _two_constants(first: Floats, second: Floats) -> bool:
    """Whether all runs of each arm have one value, and the arms not the same one, as of a setting."""
    return bool(np.ptp(first) == np.ptp(second) == 0 and not np.isclose(first[0], second[0], rtol=SAME, atol=0))


def _set_apart(metric: str, baseline: float, experiment: float) -> Finding:
    message = Message(
        "{metric}: {baseline:.6g} in every run of the baseline and {experiment:.6g} in every run of the experiment, "
        "like a setting that differs between the arms; other differences may come from it",
        metric=metric,
        baseline=baseline,
        experiment=experiment,
    )
    return Finding(
        "setting_differs",
        Level.TRAINING,
        Status.FAIL,
        message,
        Where(field=metric),
        baseline,
        experiment,
        severity=Severity.WARNING,
        evidence={"baseline": baseline, "experiment": experiment, "unit": "run"},
    )


def _flag(metric: str, summary: Message, estimate: float, p: float, tests: int) -> Finding:
    message = Message(
        "{metric}: {summary} differs by {estimate:+.4g} (p = {p:.2g} after correction over {metrics}); a flag, which "
        "does not decide",
        metric=metric,
        summary=summary,
        estimate=estimate,
        p=p,
        metrics=quantity(tests, "metrics"),
    )
    evidence = {"summary": summary, "estimate": estimate, "p_adjusted": p, "unit": "run"}
    return Finding(
        "secondary_difference",
        Level.TRAINING,
        Status.FAIL,
        message,
        Where(field=metric),
        observed=estimate,
        severity=Severity.WARNING,
        evidence=evidence,
    )
