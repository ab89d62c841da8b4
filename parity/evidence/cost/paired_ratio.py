"""Cost: the ratio of two interleaved series of positive measurements, with an interval that allows for drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft, stats

from parity.errors import InputError
from parity.evidence.values import Interval
from parity.findings import Message, quantity
from parity.metrics import AlignedRuns

FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True)
class RatioResult:
    """The ratio experiment / baseline of a positive measurement, by the geometric mean over interleaved steps.

    Attributes:
        ratio: The ratio.
        ci95: Its 95 % interval, or None below eight steps.
        p: Two-sided p of a ratio of 1, or None below eight steps.
        units: Interleaved steps, over all pairs of runs.
        pairs: Pairs of runs.
        method: The method's name.
        warnings: What weakens the result.
    """

    ratio: float
    ci95: Interval | None
    p: float | None
    units: int
    pairs: int
    method: str = "mean log ratio of interleaved steps, equally weighted cosine long-run variance, t interval"
    warnings: tuple[str, ...] = ()
    unit: str = "interleaved step"


def paired_log_ratio(pairs: Sequence[AlignedRuns]) -> RatioResult:
    """The ratio of a positive measurement between runs that took turns step by step.

    Each step gives log(experiment / baseline). The variance of their mean allows for a machine whose speed drifts
    slowly: the equally weighted cosine estimate over 0.4 T^(2/3) low frequencies of each pair (Lazarus, Lewis, Stock
    and Watson 2018), with the spread between pairs, and Student's t with as many degrees of freedom. It is exact for
    independent normal steps.

    Args:
        pairs: For each pair of runs, its two curves aligned, the baseline first: values (2, T).

    Raises:
        InputError: A pair is not two runs, has no common step, or holds a value that is not positive and finite.
    """
    for pair in pairs:
        if pair.values.shape[0] != 2 or not len(pair.steps):
            raise InputError(f"{pair.metric}: runs {pair.runs} are no pair with common steps")
        bad = pair.steps[~((pair.values > 0) & np.isfinite(pair.values)).all(axis=0)]
        if bad.size:
            raise InputError(f"{pair.metric}: runs {pair.runs} hold values that are not positive at step {bad[0]}")
    series = [np.log(pair.values[1] / pair.values[0]) for pair in pairs]
    logs = np.concatenate(series)
    estimate, units = float(logs.mean()), len(logs)
    ratio = float(np.exp(estimate))
    if min(map(len, series)) < FEWEST_STEPS:
        few = Message("no interval: a pair has fewer than {steps}", steps=quantity(FEWEST_STEPS, "steps"))
        return RatioResult(ratio, None, None, units, len(pairs), warnings=(few,))
    projections = [fft.dct(one, norm="ortho")[1 : 1 + round(0.4 * len(one) ** (2 / 3))] for one in series]
    between = [np.sqrt(len(one)) * (one.mean() - estimate) for one in series]
    freedom = sum(map(len, projections)) + len(pairs) - 1
    error = float(
        np.sqrt((sum(float(part @ part) for part in projections) + np.dot(between, between)) / freedom / units)
    )
    half = float(stats.t.ppf(0.975, freedom)) * error
    p = float(2 * stats.t.sf(abs(estimate) / error, freedom)) if error > 0 else float(estimate == 0)
    return RatioResult(ratio, (float(np.exp(estimate - half)), float(np.exp(estimate + half))), p, units, len(pairs))
