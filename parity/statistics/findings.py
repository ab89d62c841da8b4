"""From curves to findings: what runs say about training (L3) and cost (L4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from parity.errors import UsageError
from parity.findings import Finding, Level, Status, Verdict, Where
from parity.metrics import AlignedRuns, Curve, RunCurves, align, late_mean, late_median_log
from parity.statistics.collapse import collapse_rates, detect_collapse
from parity.statistics.cost import RatioResult, paired_log_ratio
from parity.statistics.multiplicity import holm
from parity.statistics.runs import MOST_RUNS, RunComparison, compare_runs, verdict_of
from parity.statistics.values import ALPHA, Floats, Interval, RunValues

REWARD = "rollout/raw_reward"
REQUESTS = "perf/requests"
ROLLOUT_TIME = "perf/rollout_time"
TOKENS_PER_SECOND = "perf/tokens_per_gpu_per_sec"
RESPONSE_LENGTH = "rollout/response_len/mean"
LARGEST_TOKEN_DIFFERENCE = 0.01
LARGEST_MISSING_SHARE = 0.1
HEAVY_TAILED = frozenset({"train/grad_norm"})
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
    message: str,
    evidence: Mapping[str, Any],
    expected: object = None,
    observed: object = None,
) -> Finding:
    """A finding about one metric as a whole, at no place in particular."""
    where = Where(field=metric)
    return Finding(check, level, status, message, where, expected, observed, evidence=evidence)


_training = partial(metric_finding, Level.TRAINING, "training_parity")
_collapse = partial(metric_finding, Level.TRAINING, "collapse_rate")
_cost = partial(metric_finding, Level.COST)


def training_findings(
    baseline: Sequence[RunCurves],
    experiment: Sequence[RunCurves],
    margins: Mapping[str, float],
    minimum_steps: int = 30,
) -> list[Finding]:
    """One finding a metric: do freely sampled runs of the two arms train alike?

    Each run gives one number a metric, the mean over the later half of the steps that all runs have, or the median log
    for the gradient norm. PASS is parity within the margin, FAIL a difference after Holm's correction over the metrics,
    INCONCLUSIVE says how many more runs it takes. Seeded twins are equal by construction and are no replicates: leave
    them out.

    Args:
        baseline: Curves by metric of each run of the baseline, as `parity.metrics.curves_of_run` makes them.
        experiment: The same of the experiment.
        margins: The metrics that decide, each with the largest absolute difference that does not matter (in nats of its
            log for the gradient norm), stated before the runs.
        minimum_steps: Fewest common steps that a statement is made from.

    Raises:
        UsageError: An arm has no run, or a margin is not positive.
        InputError: Two runs have the same name.
    """
    if not baseline or not experiment:
        raise UsageError(f"training is compared between runs, but there are {len(baseline)} and {len(experiment)}")
    outcomes = {
        metric: _compare_metric(metric, baseline, experiment, margin, minimum_steps)
        for metric, margin in margins.items()
    }
    compared = {metric: outcome for metric, outcome in outcomes.items() if not isinstance(outcome, Finding)}
    tested = {metric: comparison.p_difference for metric, (_, comparison) in compared.items()}
    adjusted = holm({metric: p for metric, p in tested.items() if p is not None})
    return [
        outcome if isinstance(outcome, Finding) else _training_finding(*outcome, adjusted.get(metric))
        for metric, outcome in outcomes.items()
    ]


def _compare_metric(
    metric: str, baseline: Sequence[RunCurves], experiment: Sequence[RunCurves], margin: float, minimum_steps: int
) -> Finding | tuple[AlignedRuns, RunComparison]:
    lacking = {arm: sum(metric not in run for run in runs) for arm, runs in _arms(baseline, experiment)}
    if any(lacking.values()):
        where = ", ".join(f"{count} runs of the {arm}" for arm, count in lacking.items() if count)
        return _training(metric, Status.NOT_COMPARED, f"{metric}: not recorded in {where}", {"lacking": lacking})
    aligned = align([run[metric] for run in (*baseline, *experiment)])
    evidence = {"steps": len(aligned.steps), "notes": list(aligned.notes())}
    if len(aligned.steps) < minimum_steps:
        message = f"{metric}: {len(aligned.steps)} steps are common to all runs, {minimum_steps} are needed"
        return _training(metric, Status.INCONCLUSIVE, message, evidence)
    if aligned.missing_share > LARGEST_MISSING_SHARE:
        message = f"{metric}: {aligned.missing_share:.0%} of the steps of the common range lack in some run"
        return _training(metric, Status.INCONCLUSIVE, message, evidence)
    values = _summary_of(metric)[1](aligned)
    bad = [run for run, value in zip(aligned.runs, values, strict=True) if not np.isfinite(value)]
    if aligned.not_finite or bad:
        runs = ", ".join(aligned.not_finite or bad)
        message = f"{metric}: NaN, infinite or without a logarithm in {runs}, so it cannot be summarised"
        return _training(metric, Status.INCONCLUSIVE, message, evidence)
    split = len(baseline)
    arms = (slice(None, split), slice(split, None))
    first, second = (RunValues(metric, aligned.runs[arm], values[arm]) for arm in arms)
    return aligned, compare_runs(first, second, margin)


def _arms(
    baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]
) -> tuple[tuple[str, Sequence[RunCurves]], tuple[str, Sequence[RunCurves]]]:
    return ("baseline", baseline), ("experiment", experiment)


def _summary_of(metric: str) -> tuple[str, Callable[[AlignedRuns], Floats]]:
    return ("late median of the log", late_median_log) if metric in HEAVY_TAILED else ("late mean", late_mean)


def _training_finding(aligned: AlignedRuns, comparison: RunComparison, p_holm: float | None) -> Finding:
    verdict = verdict_of(comparison.p_equivalence if min(comparison.units) > 1 else None, p_holm)
    summary, summarise = _summary_of(aligned.metric)
    values = summarise(aligned)
    split = comparison.units[0]
    late = aligned.steps[len(aligned.steps) // 2 :]
    evidence = {
        "summary": summary,
        "late_steps": [int(late[0]), int(late[-1])],
        "steps": len(aligned.steps),
        "baseline": dict(zip(aligned.runs[:split], values[:split].tolist(), strict=True)),
        "experiment": dict(zip(aligned.runs[split:], values[split:].tolist(), strict=True)),
        "estimate": comparison.estimate,
        "ci90": comparison.ci90,
        "ci95": comparison.ci95,
        "margin": comparison.margin,
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
    message = _training_message(comparison, verdict, summary, p_holm)
    expected = [-comparison.margin, comparison.margin]
    status = STATUS_OF_VERDICT[verdict]
    return _training(aligned.metric, status, message, evidence, expected, observed=comparison.estimate)


def _training_message(comparison: RunComparison, verdict: Verdict, summary: str, p_holm: float | None) -> str:
    n0, n1 = comparison.units
    difference = f"{comparison.metric}: {summary} differs by {comparison.estimate:+.4g} ({n0} + {n1} runs"
    within = f"margin ±{comparison.margin:.4g}"
    if comparison.ci90 is None or comparison.ci95 is None:
        return f"{difference}, {within}); one run an arm decides nothing, two or more an arm are needed"
    if verdict is Verdict.PARITY:
        ci = _interval_text(comparison.ci90)
        seen = "; a difference is detectable but smaller" if p_holm is not None and p_holm < ALPHA else ""
        return f"{difference}, 90 % interval {ci}), inside the {within}{seen}"
    if verdict is Verdict.DIFFERENT:
        return f"{difference}, 95 % interval {_interval_text(comparison.ci95)}, Holm-adjusted p = {p_holm:.2g})"
    return f"{difference}, 90 % interval {_interval_text(comparison.ci90)}, {within}); {_more_runs(comparison)}"


def _more_runs(comparison: RunComparison) -> str:
    if not comparison.sigma:
        return "runs without spread cannot tell how many more would decide"
    if comparison.runs_needed is None:
        return f"more than {MOST_RUNS} runs an arm would be needed for this margin"
    more = [max(comparison.runs_needed - n, 0) for n in comparison.units]
    if not any(more):
        return "at least 1 more run an arm is needed: these had a 4 in 5 chance to decide and did not"
    text = f"{more[0]} more" if more[0] == more[1] else f"{more[0]} and {more[1]} more"
    return f"{text} runs an arm ({comparison.runs_needed} in all) would show parity 4 times in 5 if the arms are equal"


def _interval_text(interval: Interval) -> str:
    return f"{interval[0]:+.4g} to {interval[1]:+.4g}"


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
        message = f"collapse: {REWARD} is not recorded in {lacking} of {len(baseline)} + {len(experiment)} runs"
        return _collapse(REWARD, Status.NOT_COMPARED, message, {})
    found = {arm: [detect_collapse(run[REWARD]) for run in runs] for arm, runs in arms}
    counts = {arm: (sum(run.onset is not None for run in runs), len(runs)) for arm, runs in found.items()}
    rates = collapse_rates(counts["experiment"], counts["baseline"])
    onsets = {run.run: run.onset for runs in found.values() for run in runs if run.onset is not None}
    suspects = [run.run for runs in found.values() for run in runs if run.suspect]
    message = rates.sentence
    if suspects:
        message += f"; {', '.join(suspects)} ended in a fall too short to judge"
    if not onsets and not suspects:
        bounds = [1 - 0.05 ** (1 / counts[arm][1]) for arm, _ in arms]
        message = f"no run collapsed, which leaves rates up to {bounds[0]:.0%} (baseline) and {bounds[1]:.0%} possible"
    differ = rates.p < ALPHA
    status = Status.FAIL if differ else Status.INCONCLUSIVE if onsets or suspects else Status.PASS
    evidence = {
        "baseline": list(rates.baseline),
        "experiment": list(rates.experiment),
        "difference": rates.difference,
        "ci95": rates.ci95,
        "p": rates.p,
        "p_harm": rates.p_harm,
        "onsets": onsets,
        "suspects": suspects,
        "unit": rates.unit,
        "method": rates.method,
    }
    return _collapse(REWARD, status, message, evidence)


def cost_findings(pairs: Sequence[tuple[RunCurves, RunCurves]], warm_up: int = 2) -> list[Finding]:
    """Three findings on what the change costs: requests, wall time of the rollout, response tokens a second.

    PASS says that the experiment is cheaper by the 95 % interval (for requests: no more of them), FAIL that it costs
    more, and INCONCLUSIVE that the interval includes 1. Time and speed are void, and inconclusive, when mean response
    tokens differ by more than 1 %, because the arms then did different work. The unit is the interleaved step; the
    first `warm_up` are dropped.

    Args:
        pairs: Runs that took turns step by step, (baseline, experiment), each with its curves by metric:
            `perf/requests`, `perf/rollout_time`, `perf/tokens_per_gpu_per_sec` and `rollout/response_len/mean`.
        warm_up: Steps dropped at the start of each run.
    """
    return [
        _requests_finding(pairs),
        _speed_finding("rollout_time", ROLLOUT_TIME, pairs, warm_up, smaller_is_better=True),
        _speed_finding("tokens_per_second", TOKENS_PER_SECOND, pairs, warm_up, smaller_is_better=False),
    ]


def _requests_finding(pairs: Sequence[tuple[RunCurves, RunCurves]]) -> Finding:
    aligned = _aligned_pairs(REQUESTS, pairs)
    if isinstance(aligned, str):
        return _cost("requests", REQUESTS, Status.NOT_COMPARED, aligned, {})
    baseline, experiment = (float(sum(pair.values[row].sum() for pair in aligned)) for row in (0, 1))
    steps = sum(len(pair.steps) for pair in aligned)
    if not (np.isfinite(baseline + experiment) and baseline > 0):
        message = f"requests: {baseline:g} and {experiment:g} over {steps} steps cannot be compared"
        return _cost("requests", REQUESTS, Status.INCONCLUSIVE, message, {"steps": steps})
    status = Status.PASS if experiment <= baseline else Status.FAIL
    message = (
        f"requests: {baseline:.0f} of the baseline and {experiment:.0f} of the experiment over the same {steps} steps, "
        f"ratio {experiment / baseline:.4g}"
    )
    evidence = {"baseline": baseline, "experiment": experiment, "ratio": experiment / baseline, "steps": steps}
    return _cost("requests", REQUESTS, status, message, evidence)


def _speed_finding(
    check: str, metric: str, pairs: Sequence[tuple[RunCurves, RunCurves]], warm_up: int, smaller_is_better: bool
) -> Finding:
    aligned, lengths = _aligned_pairs(metric, pairs, warm_up), _aligned_pairs(RESPONSE_LENGTH, pairs, warm_up)
    if isinstance(aligned, str) or isinstance(lengths, str):
        lacking = next(outcome for outcome in (aligned, lengths) if isinstance(outcome, str))
        return _cost(check, metric, Status.NOT_COMPARED, lacking, {})
    bad = [pair for pair in (*aligned, *lengths) if not ((pair.values > 0) & np.isfinite(pair.values)).all()]
    if bad:
        message = f"{metric}: {bad[0].metric} of {' and '.join(bad[0].runs)} holds values that are not positive"
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
    message = (
        f"{metric}: ratio {_ratio_text(result)} over {result.units} interleaved steps in {result.pairs} pairs of runs"
    )
    if abs(tokens[1] / tokens[0] - 1) > LARGEST_TOKEN_DIFFERENCE:
        void = f"; void, because mean response tokens differ by {tokens[1] / tokens[0] - 1:+.1%} (limit 1 %)"
        return _cost(check, metric, Status.INCONCLUSIVE, message + void, evidence)
    return _cost(check, metric, _status_of_ratio(result, smaller_is_better), message, evidence)


def _aligned_pairs(
    metric: str, pairs: Sequence[tuple[RunCurves, RunCurves]], warm_up: int = 0
) -> list[AlignedRuns] | str:
    """The pairs' curves at their common steps without the warm-up, or why there are none."""
    lacking = sum(metric not in run for pair in pairs for run in pair)
    if not pairs or lacking:
        return f"{metric}: not recorded in {lacking} of {2 * len(pairs)} runs"
    curves = [[_without_warm_up(run[metric], warm_up) for run in pair] for pair in pairs]
    aligned = [align(pair) for pair in curves if all(len(curve.steps) for curve in pair)]
    if len(aligned) < len(pairs) or any(not len(pair.steps) for pair in aligned):
        return f"{metric}: a pair of runs has no common step after {warm_up} steps of warm-up"
    return aligned


def _without_warm_up(curve: Curve, warm_up: int) -> Curve:
    return Curve(curve.run, curve.metric, curve.steps[warm_up:], curve.values[warm_up:], curve.rewound)


def _status_of_ratio(result: RatioResult, smaller_is_better: bool) -> Status:
    if result.ci95 is None or result.ci95[0] <= 1 <= result.ci95[1]:
        return Status.INCONCLUSIVE
    return Status.PASS if (result.ci95[1] < 1) == smaller_is_better else Status.FAIL


def _ratio_text(result: RatioResult) -> str:
    if result.ci95 is None:
        return f"{result.ratio:.4g} (no interval: {'; '.join(result.warnings)})"
    return f"{result.ratio:.4g} (95 % interval {result.ci95[0]:.4g} to {result.ci95[1]:.4g})"
