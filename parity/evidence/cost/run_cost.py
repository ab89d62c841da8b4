"""Cost between runs that were made apart: rollout time and tokens a second on a steady window (L4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from parity.evidence.metric_findings import (
    LARGEST_TOKEN_DIFFERENCE,
    CostMetric,
    cost_metrics,
    metric_finding,
    ratio_text,
    status_of_ratio,
)
from parity.evidence.two_samples import two_sample
from parity.evidence.values import Floats, Interval
from parity.findings import Finding, Level, Message, Status, quantity
from parity.metrics import AlignedRuns, RunCurves, align
from parity.records.metric_names import RESPONSE_LENGTH

WARM_UP = 2
"""Steps dropped at the start of the common range."""


@dataclass(frozen=True, slots=True)
class RunRatio:
    """Experiment over baseline of a positive measurement, between runs.

    Attributes:
        ratio: Ratio of the arms' geometric means.
        ci95: Its 95 % interval, or `None` with one run an arm.
        p: Two-sided p of a ratio of 1, or `None`.
        units: Runs of both arms.
        method: The test's name.
    """

    ratio: float
    ci95: Interval | None
    p: float | None
    units: tuple[int, int]
    method: str
    unit: str = "run"


def run_ratio(baseline: Floats, experiment: Floats) -> RunRatio:
    """The ratio between arms of one positive number a run, (n0,) and (n1,).

    With equal numbers of runs they are paired in the order given, and Student's t is on the pairs' log ratios; else
    Welch's is on the logs.
    """
    first, second = np.log(baseline), np.log(experiment)
    units = len(first), len(second)
    if max(units) == 1:
        return RunRatio(float(np.exp(second[0] - first[0])), None, None, units, Message("one run an arm: no interval"))
    if units[0] == units[1]:
        differences = second - first
        estimate, error = float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(units[0]))
        freedom, method = float(units[0] - 1), Message("paired t on the log ratio of runs")
    else:
        estimate, error, freedom = map(float, two_sample(first, second))
        method = Message("Welch t on the log of one number a run")
    half = float(stats.t.ppf(0.975, freedom)) * error
    p = float(2 * stats.t.sf(abs(estimate) / error, freedom)) if error > 0 else None
    interval = float(np.exp(estimate - half)), float(np.exp(estimate + half))
    return RunRatio(float(np.exp(estimate)), interval, p, units, method)


def run_cost_findings(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> list[Finding]:
    """Findings on what the change costs between runs made apart, one for each of `cost_metrics`.

    One number a run: the geometric mean over the steps that all runs have, without the first two. PASS says that the
    experiment is cheaper by the 95 % interval over runs, FAIL that it costs more, INCONCLUSIVE that the interval
    includes 1 or that there is none. The claim is void, and inconclusive, when mean response tokens differ by more than
    1 %, because the arms then did different work.

    Args:
        baseline: Curves by metric of each run of the baseline.
        experiment: The same of the experiment, in the same order where runs belong together.
    """
    return [_ratio_finding(metric, baseline, experiment) for metric in cost_metrics([*baseline, *experiment])]


def _ratio_finding(cost: CostMetric, baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> Finding:
    check, metric = cost.check, cost.name
    steady = [_steady(name, [*baseline, *experiment]) for name in (metric, RESPONSE_LENGTH)]
    lacking = next((outcome for outcome in steady if isinstance(outcome, Message)), None)
    if lacking is not None:
        return metric_finding(Level.COST, check, metric, Status.NOT_COMPARED, lacking, {})
    times, lengths = (outcome for outcome in steady if not isinstance(outcome, Message))
    split = len(baseline)
    for aligned in (times, lengths):
        bad = [run for run, row in zip(aligned.runs, aligned.values, strict=True) if not _positive(row)]
        if bad:
            message = Message(
                "{metric}: {curve} of {runs} has values that are not positive",
                metric=metric,
                curve=aligned.metric,
                runs=bad[0],
            )
            return metric_finding(Level.COST, check, metric, Status.INCONCLUSIVE, message, {})
    means = np.exp(np.log(times.values).mean(axis=1))
    result = run_ratio(means[:split], means[split:])
    tokens = [float(rows.mean()) for rows in (lengths.values[:split], lengths.values[split:])]
    steps, first = quantity(len(times.steps), "steps"), int(times.steps[0])
    evidence = {
        "summary": Message("geometric mean over {steps} from {first} on", steps=steps, first=first),
        "baseline": float(means[:split].mean()),
        "experiment": float(means[split:].mean()),
        "ratio": result.ratio,
        "ci95": result.ci95,
        "p": result.p,
        "unit": result.unit,
        "units": list(result.units),
        "method": result.method,
        "response_tokens": tokens,
        "notes": list(times.notes()),
    }
    message = Message(
        "{metric}: ratio {ratio} over {steps} from {first} on, {baseline} + {experiment} runs",
        metric=metric,
        ratio=ratio_text(result.ratio, result.ci95, result.method),
        steps=steps,
        first=first,
        baseline=split,
        experiment=len(means) - split,
    )
    excess = tokens[1] / tokens[0] - 1
    if abs(excess) > LARGEST_TOKEN_DIFFERENCE:
        message = Message(
            "{message}; void, because mean response tokens differ by {excess:+.1%} (limit 1 %)",
            message=message,
            excess=excess,
        )
        return metric_finding(Level.COST, check, metric, Status.INCONCLUSIVE, message, evidence)
    status = status_of_ratio(result.ci95, cost.smaller_is_better)
    return metric_finding(Level.COST, check, metric, status, message, evidence)


def _steady(metric: str, runs: Sequence[RunCurves]) -> AlignedRuns | Message:
    """A metric at the steps that all runs have, without the warm-up, or why there are none."""
    lacking = sum(metric not in run for run in runs)
    if lacking:
        return Message(
            "{metric}: not recorded in {missing} of {runs}",
            metric=metric,
            missing=lacking,
            runs=quantity(len(runs), "runs"),
        )
    aligned = align([run[metric] for run in runs])
    if len(aligned.steps) <= WARM_UP:
        return Message(
            "{metric}: the runs have {steps} in common, more than {needed} are needed",
            metric=metric,
            steps=quantity(len(aligned.steps), "steps"),
            needed=WARM_UP,
        )
    return replace(aligned, steps=aligned.steps[WARM_UP:], values=aligned.values[:, WARM_UP:])


def _positive(row: Floats) -> bool:
    return bool(((row > 0) & np.isfinite(row)).all())
