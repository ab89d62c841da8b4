"""From curves to findings: what runs say about training (L3) and cost (L4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parity.evidence.cost.paired_ratio import paired_log_ratio
from parity.evidence.training.collapse import collapse_rates, detect_collapse
from parity.evidence.values import ALPHA, Interval
from parity.findings import Finding, Level, Message, Status, Verdict, Where, listed, quantity
from parity.metrics import AlignedRuns, Curve, RunCurves, align
from parity.records.metric_names import (
    ENGINE_BALANCE,
    REQUESTS,
    RESPONSE_LENGTH,
    REWARD,
    ROLLOUT_TIME,
    TOKENS_PER_SECOND,
)

LARGEST_TOKEN_DIFFERENCE = 0.01
STATUS_OF_VERDICT = {
    Verdict.PARITY: Status.PASS,
    Verdict.DIFFERENT: Status.FAIL,
    Verdict.INCONCLUSIVE: Status.INCONCLUSIVE,
}


def metric_finding(
    level: Level,
    check: str,
    metric: str,
    status: Status,
    message: Message,
    evidence: Mapping[str, Any],
    expected: object = None,
    observed: object = None,
) -> Finding:
    """A finding about one metric as a whole, at no place in particular."""
    where = Where(field=metric)
    return Finding(check, level, status, message, where, expected, observed, evidence=evidence)


_collapse = partial(metric_finding, Level.TRAINING, "collapse_rate")
_cost = partial(metric_finding, Level.COST)


def _arms(
    baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]
) -> tuple[tuple[str, Sequence[RunCurves]], tuple[str, Sequence[RunCurves]]]:
    return ("baseline", baseline), ("experiment", experiment)


def collapse_finding(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> Finding:
    """Whether runs of one arm collapse more often: a safety endpoint beside the means.

    FAIL if Barnard's exact test tells the rates apart at 5 %, INCONCLUSIVE if a run collapsed or ended in a fall and it
    does not, PASS if none did, which the message bounds: no collapse in n runs leaves a rate up to 1 - 0.05^(1/n)
    possible.

    Args:
        baseline: Curves by metric of each run of the baseline.
        experiment: The same of the experiment.
    """
    arms = _arms(baseline, experiment)
    lacking = sum(REWARD not in run for _, runs in arms for run in runs)
    if lacking or not baseline or not experiment:
        message = Message(
            "collapse: {metric} is not recorded in {missing} of {baseline} + {experiment} runs",
            metric=REWARD,
            missing=lacking,
            baseline=len(baseline),
            experiment=len(experiment),
        )
        return _collapse(REWARD, Status.NOT_COMPARED, message, {})
    found = {arm: [detect_collapse(run[REWARD]) for run in runs] for arm, runs in arms}
    counts = {arm: (sum(run.onset is not None for run in runs), len(runs)) for arm, runs in found.items()}
    rates = collapse_rates(counts["experiment"], counts["baseline"])
    onsets = {run.run: run.onset for runs in found.values() for run in runs if run.onset is not None}
    suspects = [run.run for runs in found.values() for run in runs if run.suspect]
    message = rates.sentence
    if onsets:
        message = Message(
            "{message}; posterior P(experiment higher) = {chance:.2f} under Jeffreys' prior Beta(1/2, 1/2), which "
            "dominates with few runs",
            message=message,
            chance=rates.probability,
        )
    if suspects:
        message = Message(
            "{message}; {runs} ended in a fall too short to judge", message=message, runs=listed(suspects)
        )
    if not onsets and not suspects:
        bounds = [1 - 0.05 ** (1 / counts[arm][1]) for arm, _ in arms]
        message = Message(
            "no run collapsed, which leaves rates up to {baseline:.0%} (baseline) and {experiment:.0%} (experiment) "
            "possible",
            baseline=bounds[0],
            experiment=bounds[1],
        )
    differ = rates.p < ALPHA
    status = Status.FAIL if differ else Status.INCONCLUSIVE if onsets or suspects else Status.PASS
    evidence = {
        "baseline": list(rates.baseline),
        "experiment": list(rates.experiment),
        "difference": rates.difference,
        "ci95": rates.ci95,
        "p": rates.p,
        "p_harm": rates.p_harm,
        "probability_higher": rates.probability,
        "prior": "Jeffreys, Beta(1/2, 1/2) for each rate",
        "onsets": onsets,
        "suspects": suspects,
        "unit": rates.unit,
        "method": rates.method,
    }
    return _collapse(REWARD, status, message, evidence)


@dataclass(frozen=True, slots=True)
class CostMetric:
    """A metric whose ratio between arms is a cost, and the check that says so."""

    check: str
    name: str
    smaller_is_better: bool


def cost_metrics(runs: Iterable[RunCurves]) -> list[CostMetric]:
    """Rollout time, response tokens a second, and where a run has several engines the tokens of the busiest one."""
    metrics = [
        CostMetric("rollout_time", ROLLOUT_TIME, True),
        CostMetric("tokens_per_second", TOKENS_PER_SECOND, False),
    ]
    if any(ENGINE_BALANCE in run for run in runs):
        metrics.append(CostMetric("engine_balance", ENGINE_BALANCE, True))
    return metrics


def cost_findings(pairs: Sequence[tuple[RunCurves, RunCurves]], warm_up: int = 2) -> list[Finding]:
    """Findings on what the change costs: requests, and a ratio of each of `cost_metrics`.

    PASS says that the experiment is cheaper by the 95 % interval (for requests: no more of them), FAIL that it costs
    more, and INCONCLUSIVE that the interval includes 1. Time and speed are void, and inconclusive, when mean response
    tokens differ by more than 1 %, because the arms then did different work. The unit is the interleaved step; the
    first `warm_up` are dropped.

    Args:
        pairs: Runs that took turns step by step, (baseline, experiment), each with its curves by metric:
            `perf/requests`, `rollout/response_len/mean` and those of `cost_metrics`.
        warm_up: Steps dropped at the start of each run.
    """
    metrics = cost_metrics(run for pair in pairs for run in pair)
    return [_requests_finding(pairs), *(_ratio_finding(metric, pairs, warm_up) for metric in metrics)]


def _requests_finding(pairs: Sequence[tuple[RunCurves, RunCurves]]) -> Finding:
    aligned = _aligned_pairs(REQUESTS, pairs)
    if isinstance(aligned, Message):
        return _cost("requests", REQUESTS, Status.NOT_COMPARED, aligned, {})
    baseline, experiment = (float(sum(pair.values[row].sum() for pair in aligned)) for row in (0, 1))
    steps = sum(len(pair.steps) for pair in aligned)
    if not (np.isfinite(baseline + experiment) and baseline > 0):
        message = Message(
            "{baseline:g} and {experiment:g} requests over {steps} cannot be compared",
            baseline=baseline,
            experiment=experiment,
            steps=quantity(steps, "steps"),
        )
        return _cost("requests", REQUESTS, Status.INCONCLUSIVE, message, {"steps": steps})
    status = Status.PASS if experiment <= baseline else Status.FAIL
    message = Message(
        "{baseline:,.0f} of the baseline and {experiment:,.0f} of the experiment over the same {steps}, "
        "ratio {ratio:.4g}",
        baseline=baseline,
        experiment=experiment,
        steps=quantity(steps, "steps"),
        ratio=experiment / baseline,
    )
    evidence = {"baseline": baseline, "experiment": experiment, "ratio": experiment / baseline, "steps": steps}
    return _cost("requests", REQUESTS, status, message, evidence)


def _ratio_finding(cost: CostMetric, pairs: Sequence[tuple[RunCurves, RunCurves]], warm_up: int) -> Finding:
    check, metric = cost.check, cost.name
    aligned, lengths = _aligned_pairs(metric, pairs, warm_up), _aligned_pairs(RESPONSE_LENGTH, pairs, warm_up)
    for curves in (aligned, lengths):
        if isinstance(curves, Message):
            return _cost(check, metric, Status.NOT_COMPARED, curves, {})
    assert not isinstance(aligned, Message) and not isinstance(lengths, Message)
    bad = [pair for pair in (*aligned, *lengths) if not ((pair.values > 0) & np.isfinite(pair.values)).all()]
    if bad:
        message = Message(
            "{metric}: {curve} of {runs} has values that are not positive",
            metric=metric,
            curve=bad[0].metric,
            runs=listed(bad[0].runs, " and "),
        )
        return _cost(check, metric, Status.INCONCLUSIVE, message, {})
    tokens = [float(np.concatenate([pair.values[row] for pair in lengths]).mean()) for row in (0, 1)]
    result = paired_log_ratio(aligned)
    evidence = {
        "baseline": float(np.concatenate([pair.values[0] for pair in aligned]).mean()),
        "experiment": float(np.concatenate([pair.values[1] for pair in aligned]).mean()),
        "ratio": result.ratio,
        "ci95": result.ci95,
        "p": result.p,
        "unit": result.unit,
        "units": result.units,
        "pairs": result.pairs,
        "method": result.method,
        "warnings": list(result.warnings),
        "notes": [note for pair in aligned for note in pair.notes()],
        "response_tokens": tokens,
    }
    message = Message(
        "{metric}: ratio {ratio} over {steps} in {pairs} of runs",
        metric=metric,
        ratio=ratio_text(result.ratio, result.ci95, listed(result.warnings, "; ")),
        steps=quantity(result.units, "interleaved steps"),
        pairs=quantity(result.pairs, "pairs"),
    )
    if abs(tokens[1] / tokens[0] - 1) > LARGEST_TOKEN_DIFFERENCE:
        message = Message(
            "{message}; void, because mean response tokens differ by {excess:+.1%} (limit 1 %)",
            message=message,
            excess=tokens[1] / tokens[0] - 1,
        )
        return _cost(check, metric, Status.INCONCLUSIVE, message, evidence)
    return _cost(check, metric, status_of_ratio(result.ci95, cost.smaller_is_better), message, evidence)


def _aligned_pairs(
    metric: str, pairs: Sequence[tuple[RunCurves, RunCurves]], warm_up: int = 0
) -> list[AlignedRuns] | Message:
    """The pairs' curves at their common steps without the warm-up, or why there are none."""
    lacking = sum(metric not in run for pair in pairs for run in pair)
    if not pairs or lacking:
        return Message(
            "{metric}: not recorded in {missing} of {runs}",
            metric=metric,
            missing=lacking,
            runs=quantity(2 * len(pairs), "runs"),
        )
    curves = [[_without_warm_up(run[metric], warm_up) for run in pair] for pair in pairs]
    aligned = [align(pair) for pair in curves if all(len(curve.steps) for curve in pair)]
    if len(aligned) < len(pairs) or any(not len(pair.steps) for pair in aligned):
        return Message(
            "{metric}: a pair of runs has no common step after {steps} of warm-up",
            metric=metric,
            steps=quantity(warm_up, "steps"),
        )
    return aligned


def _without_warm_up(curve: Curve, warm_up: int) -> Curve:
    return Curve(curve.run, curve.metric, curve.steps[warm_up:], curve.values[warm_up:], curve.rewound)


def status_of_ratio(ci95: Interval | None, smaller_is_better: bool) -> Status:
    """Whether the interval of experiment over baseline says cheaper (pass) or dearer (fail), or leaves it open."""
    if ci95 is None or ci95[0] <= 1 <= ci95[1]:
        return Status.INCONCLUSIVE
    return Status.PASS if (ci95[1] < 1) == smaller_is_better else Status.FAIL


def ratio_text(ratio: float, ci95: Interval | None, why: str) -> Message:
    """A ratio with its interval, or why it has none."""
    if ci95 is None:
        return Message("{ratio:.4g} ({why})", ratio=ratio, why=why)
    return Message("{ratio:.4g} (95 % interval {low:.4g} to {high:.4g})", ratio=ratio, low=ci95[0], high=ci95[1])
