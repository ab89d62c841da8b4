"""Comparing runs: one number a run, an equivalence margin stated first, three possible verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import ceil, comb, prod

import numpy as np
from scipy import stats

from parity.errors import UsageError
from parity.evidence.values import ALPHA, Floats, Interval, RunValues
from parity.findings import Message, Verdict, quantity

POWER = 0.8
MOST_PERMUTATIONS = 200_000
MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class RunComparison:
    """How the runs of two arms differ in one metric.

    Attributes:
        metric: The metric's name.
        verdict: Of this metric alone, without correction for other metrics.
        estimate: The mean of the experiment's runs minus that of the baseline's, in the unit of the values.
        ci90: The 90 % interval that the equivalence test reads, or None with one run an arm.
        ci95: The 95 % interval that the difference test reads, or None with one run an arm.
        margin: The absolute equivalence margin that was stated.
        p_difference: Two-sided p of "no difference"; None where the data allow none.
        p_equivalence: p of the two one-sided tests against the margin; None where the data allow none.
        p_permutation: Two-sided p of the exact permutation test of whole runs; None below four runs an arm.
        sigma: The standard deviation between runs of one arm, or None.
        runs_needed: Runs an arm in all for 80 % power to show parity if the arms are equal; None if the spread is
            unknown.
        units: Runs of the baseline and of the experiment.
        unit: Always "run".
        method: The test's name.
        warnings: What weakens the result.
    """

    metric: str
    verdict: Verdict
    estimate: float
    ci90: Interval | None
    ci95: Interval | None
    margin: float
    p_difference: float | None
    p_equivalence: float | None
    p_permutation: float | None
    sigma: float | None
    runs_needed: int | None
    units: tuple[int, int]
    method: str
    warnings: tuple[str, ...] = ()
    unit: str = "run"


def compare_runs(baseline: RunValues, experiment: RunValues, margin: float) -> RunComparison:
    """Compares two arms by one number a run.

    Welch's t, which needs no equal spreads (pooled where one arm has a single run); two one-sided tests (Schuirmann
    1987) at 5 % each against ±margin. PARITY if the 90 % interval lies inside the margin, DIFFERENT if the 95 %
    interval excludes 0 and the estimate lies beyond the margin, else INCONCLUSIVE. One run in each arm is always
    INCONCLUSIVE, and one run in either arm never shows PARITY.

    Args:
        baseline: One number a run of the baseline.
        experiment: One number a run of the experiment.
        margin: The largest difference that does not matter, absolute, in the unit of the values; stated before the
            runs.

    Raises:
        UsageError: The margin is not positive, an arm has no run, or the metrics differ.
    """
    if not 0 < margin < np.inf:
        raise UsageError(f"{baseline.metric}: an equivalence margin is positive and finite, not {margin}")
    if baseline.metric != experiment.metric or not len(baseline) or not len(experiment):
        arms = [f"{arm.metric} of {len(arm)} runs" for arm in (baseline, experiment)]
        raise UsageError(f"{arms[0]} cannot be compared with {arms[1]}")
    fewest = min(len(baseline), len(experiment))
    if len(baseline) == len(experiment) == 1:
        return _one_run_each(baseline, experiment, margin)
    estimate, error, freedom = map(float, two_sample(baseline.values, experiment.values))
    sigma = float(error / np.sqrt(1 / len(baseline) + 1 / len(experiment)))
    p_permutation = _permutation_p(baseline, experiment) if fewest >= 4 else None
    warnings = []
    constant = np.ptp(baseline.values) == 0 and np.ptp(experiment.values) == 0
    if constant:
        # Without any spread t is 0/0 or infinite; only the permutation of whole runs still speaks of a difference.
        error, sigma, p_difference = 0.0, 0.0, p_permutation
        p_equivalence = 0.0 if abs(estimate) < margin else 1.0
        warnings.append("every run of an arm gave the same value, so the intervals have no width")
    else:
        p_difference = float(2 * stats.t.sf(abs(estimate) / error, freedom))
        p_equivalence = float(stats.t.sf((margin - abs(estimate)) / error, freedom))
    if fewest == 1:
        warnings.append("one run in an arm: its own spread is unknown, so parity cannot be shown")
    if fewest < 4:
        warnings.append(f"with {quantity(fewest, 'runs')} in an arm no permutation test can reach p = {ALPHA}")
    return RunComparison(
        metric=baseline.metric,
        verdict=verdict_of(p_equivalence if fewest > 1 else None, p_difference, abs(estimate) > margin),
        estimate=estimate,
        ci90=_interval(estimate, error, freedom, 0.90),
        ci95=_interval(estimate, error, freedom, 0.95),
        margin=margin,
        p_difference=p_difference,
        p_equivalence=p_equivalence,
        p_permutation=p_permutation,
        sigma=sigma,
        runs_needed=runs_needed(sigma, margin),
        units=(len(baseline), len(experiment)),
        method=Message("pooled t on one number a run, TOST against ±margin")
        if fewest == 1
        else Message("Welch t on one number a run, TOST against ±margin"),
        warnings=tuple(warnings),
    )


def _one_run_each(baseline: RunValues, experiment: RunValues, margin: float) -> RunComparison:
    return RunComparison(
        metric=baseline.metric,
        verdict=Verdict.INCONCLUSIVE,
        estimate=float(experiment.values[0] - baseline.values[0]),
        ci90=None,
        ci95=None,
        margin=margin,
        p_difference=None,
        p_equivalence=None,
        p_permutation=None,
        sigma=None,
        runs_needed=None,
        units=(1, 1),
        method=Message("one run an arm: no test"),
        warnings=("one run an arm leaves the spread between runs unknown, whatever its number of steps",),
    )


def verdict_of(p_equivalence: float | None, p_difference: float | None, beyond: bool) -> Verdict:
    """PARITY if equivalence is shown at 5 %; DIFFERENT if a difference is, and the estimate lies beyond the margin.

    Else INCONCLUSIVE: a difference that is shown may be one that does not matter. None shows nothing.
    """
    if p_equivalence is not None and p_equivalence < ALPHA:
        return Verdict.PARITY
    if p_difference is not None and p_difference < ALPHA and beyond:
        return Verdict.DIFFERENT
    return Verdict.INCONCLUSIVE


def two_sample(baseline: Floats, experiment: Floats) -> tuple[Floats, Floats, Floats]:
    """Difference of means, its standard error and its degrees of freedom, (…,) each, from (…, n0) and (…, n1).

    Welch's (1947) standard error and the Welch-Satterthwaite degrees of freedom; Student's pooled ones where an arm has
    one run, whose spread is then taken to be the other's.
    """
    n0, n1 = baseline.shape[-1], experiment.shape[-1]
    estimate = experiment.mean(axis=-1) - baseline.mean(axis=-1)
    squares0 = ((baseline - baseline.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    squares1 = ((experiment - experiment.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    if min(n0, n1) == 1:
        variance = (squares0 + squares1) / (n0 + n1 - 2) * (1 / n0 + 1 / n1)
        return estimate, np.sqrt(variance), np.full(estimate.shape, float(n0 + n1 - 2))
    part0, part1 = squares0 / (n0 - 1) / n0, squares1 / (n1 - 1) / n1
    weights = part0**2 / (n0 - 1) + part1**2 / (n1 - 1)
    freedom = np.divide((part0 + part1) ** 2, weights, out=np.ones_like(estimate), where=weights > 0)
    return estimate, np.sqrt(part0 + part1), freedom


def difference_test(baseline: Floats, experiment: Floats) -> tuple[float, float | None]:
    """The difference of means and the two-sided p of `compare_runs`; no p with one run an arm or without any spread."""
    n0, n1 = len(baseline), len(experiment)
    if n0 == n1 == 1:
        return float(experiment[0] - baseline[0]), None
    estimate, error, freedom = map(float, two_sample(baseline, experiment))
    if np.ptp(baseline) == 0 and np.ptp(experiment) == 0:
        return estimate, None
    return estimate, float(2 * stats.t.sf(abs(estimate) / error, freedom))


def _interval(estimate: float, error: float, freedom: float, confidence: float) -> Interval:
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
    return estimate - half, estimate + half


def _permutation_p(baseline: RunValues, experiment: RunValues) -> float | None:
    if comb(len(baseline) + len(experiment), len(baseline)) > MOST_PERMUTATIONS:
        return None
    values = np.concatenate([baseline.values, experiment.values])
    # The sum over the experiment decides the difference of means, since the sum over all is fixed.
    sums = np.abs(all_splits(len(values), len(experiment)) @ (values - values.mean()))
    return float(np.mean(sums >= sums[0] - 1e-9 * sums.max()))


@lru_cache(maxsize=8)
def all_splits(runs: int, experiment: int) -> Floats:
    """Every way to call `experiment` of `runs` runs the experiment, (ways, runs) of 0 and 1; the last ones first."""
    chosen = np.array(list(combinations(range(runs), experiment)))[::-1]
    splits = np.zeros((len(chosen), runs))
    np.put_along_axis(splits, chosen, 1.0, axis=1)
    return splits


def tost_power(runs: int, sigma: float, margin: float, difference: float = 0.0) -> float:
    """The power of `compare_runs` to show PARITY with `runs` runs in each arm.

    The probability that the estimate, normal around `difference` with variance 2 sigma²/runs, lies inside the margin by
    more than Welch's quantile of its estimated standard error, averaged over the chi-square laws of both variances.
    """
    if runs < 2:
        return 0.0
    error = sigma * np.sqrt(2 / runs)
    levels = (np.arange(40) + 0.5) / 40
    variances = stats.chi2.ppf(levels, runs - 1) / (runs - 1)
    first, second = variances[:, None], variances[None, :]
    freedom = (runs - 1) * (first + second) ** 2 / (first**2 + second**2)
    estimated = error * np.sqrt((first + second) / 2)
    room = margin - stats.t.ppf(1 - ALPHA, freedom) * estimated
    inside = stats.norm.cdf((room - difference) / error) - stats.norm.cdf((-room - difference) / error)
    return float(np.mean(np.where(room > 0, inside, 0.0)))


def runs_needed(sigma: float, margin: float) -> int | None:
    """The fewest runs an arm with 80 % power for PARITY if the arms are equal; None without spread or above 1,000."""
    return runs_needed_jointly([(sigma, margin)]) if sigma > 0 else None


def runs_needed_jointly(metrics: Sequence[tuple[float, float]]) -> int | None:
    """The fewest runs an arm with 80 % power for PARITY in all of several independent metrics, (sigma, margin) each."""
    # With the spread known, normal theory gives a number that t can only raise.
    quantiles = stats.norm.ppf(1 - ALPHA) + stats.norm.ppf((1 + POWER) / 2)
    normal = max(2 * (quantiles * sigma / margin) ** 2 for sigma, margin in metrics)
    if normal > MOST_RUNS:
        return None
    counts = range(max(2, ceil(normal)), MOST_RUNS + 1)
    return next((n for n in counts if prod(tost_power(n, *metric) for metric in metrics) >= POWER), None)


@dataclass(frozen=True, slots=True)
class Margin:
    """An equivalence margin from runs of the baseline against itself.

    Attributes:
        value: The margin, in the unit of the values.
        sigma: The standard deviation between runs.
        sigma_lower: Its lower confidence bound, which the margin is a multiple of.
        units: Number of runs.
        method: How it was made.
        warnings: What weakens it.
    """

    value: float
    sigma: float
    sigma_lower: float
    units: int
    method: str
    warnings: tuple[str, ...] = ()
    unit: str = "run"


def margin_from_history(
    history: RunValues, multiple: float = 2.0, confidence: float = 0.8, cap: float | None = None
) -> Margin:
    """An equivalence margin of `multiple` standard deviations between runs of the same arm, at most `cap`.

    The standard deviation enters by its lower confidence bound, s * sqrt((m - 1) / chi2(confidence, m - 1)): the
    estimate itself would let a difference of exactly the margin pass twice as often as stated. A margin set in advance
    needs none of this.

    Raises:
        UsageError: Fewer than three runs, or no spread between them.
    """
    if len(history) < 3 or np.ptp(history.values) == 0:
        raise UsageError(
            Message(
                "{metric}: a margin needs three or more runs that differ, not {count}",
                metric=history.metric,
                count=len(history),
            )
        )
    sigma = float(history.values.std(ddof=1))
    freedom = len(history) - 1
    lower = sigma * float(np.sqrt(freedom / stats.chi2.ppf(confidence, freedom)))
    value = multiple * lower
    warnings = [f"{len(history)} runs: five or more are advised"] if len(history) < 5 else []
    return Margin(
        value=min(value, cap) if cap is not None else value,
        sigma=sigma,
        sigma_lower=lower,
        units=len(history),
        method=f"{multiple:g} times the lower {confidence:.0%} bound of the standard deviation between runs",
        warnings=tuple(warnings),
    )
