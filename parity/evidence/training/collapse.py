"""Collapse: when a run's reward falls and stays down, and what counts of collapsed runs allow to say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from parity.errors import UsageError
from parity.evidence.values import ALPHA, Interval
from parity.findings import Message, quantity
from parity.metrics import Curve

WINDOW = 5
PERSISTENCE = 8


@dataclass(frozen=True, slots=True)
class Collapse:
    """When a run collapsed.

    Attributes:
        run: The run's name.
        onset: The first step of the collapse, or None.
        suspect: The run ended in a fall that was too short to tell a collapse from a slump.
    """

    run: str
    onset: int | None
    suspect: bool


def detect_collapse(reward: Curve, fraction: float = 0.5) -> Collapse:
    """The first of eight consecutive steps whose running median of five lies below `fraction` of its peak so far.

    The peak starts at the reward of the first step, so that a run that falls before the first median is full is seen
    too; it counts only if positive. Causal: a step is judged by itself and earlier ones. A run too short to hold eight
    medians is a suspect if its last one is down. A partial slump is no collapse; it belongs to the comparison of means.
    """
    if len(reward.values) < WINDOW:
        return Collapse(reward.run, None, False)
    # A reward of NaN is no reward at all, so it counts as the lowest.
    known = np.where(np.isnan(reward.values), -np.inf, reward.values)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(known, WINDOW), axis=1)
    peak = np.maximum.accumulate(np.append(known[0], medians))[1:]
    down = (medians < fraction * peak) & (peak > 0)
    edges = np.diff(np.concatenate([[False], down, [False]]).astype(np.int8))
    for start, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        if end - start >= PERSISTENCE:
            return Collapse(reward.run, int(reward.steps[WINDOW - 1 + start]), False)
    return Collapse(reward.run, None, bool(down[-1]))


@dataclass(frozen=True, slots=True)
class RateComparison:
    """How often runs of two arms collapsed.

    Attributes:
        experiment: Collapsed and all runs of the experiment.
        baseline: Collapsed and all runs of the baseline.
        difference: Rate of the experiment minus that of the baseline.
        ci95: Its 95 % interval (Newcombe 1998).
        p: Two-sided p of Barnard's exact test.
        p_harm: One-sided p of Boschloo's exact test that the experiment collapses more often.
        probability: The posterior probability that the experiment's rate is the higher one, under Jeffreys' prior
            Beta(1/2, 1/2) for both; with few runs the prior makes most of it.
        sentence: What may be said.
    """

    experiment: tuple[int, int]
    baseline: tuple[int, int]
    difference: float
    ci95: Interval
    p: float
    p_harm: float
    probability: float
    sentence: Message
    unit: str = "run"
    method: str = Message("Barnard's and Boschloo's exact tests, Newcombe's interval")


def newcombe_interval(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """The 95 % interval of a difference of two rates, each (count, number), by Newcombe (1998), method 10.

    It joins the two Wilson intervals, without a correction for continuity.
    """
    (k1, n1), (k2, n2) = first, second
    one, two = (stats.binomtest(k, n).proportion_ci(method="wilson") for k, n in (first, second))
    p1, p2 = k1 / n1, k2 / n2
    low = p1 - p2 - math.hypot(p1 - one.low, two.high - p2)
    return low, p1 - p2 + math.hypot(one.high - p1, p2 - two.low)


def collapse_rates(experiment: tuple[int, int], baseline: tuple[int, int]) -> RateComparison:
    """Compares (collapsed, all) runs of the experiment with those of the baseline.

    Raises:
        UsageError: An arm has no run, or more collapsed runs than runs.
    """
    for collapsed, runs in (experiment, baseline):
        if not 0 <= collapsed <= runs or runs < 1:
            raise UsageError(f"{collapsed} collapsed runs of {runs} are impossible")
    (k1, n1), (k0, n0) = experiment, baseline
    table = [[k1, k0], [n1 - k1, n0 - k0]]
    constant = k1 + k0 in (0, n1 + n0)
    p = 1.0 if constant else float(stats.barnard_exact(table).pvalue)
    p_harm = 1.0 if constant else float(stats.boschloo_exact(table, alternative="greater").pvalue)
    low, high = newcombe_interval(experiment, baseline)
    conclusion = Message("the rates differ") if p < ALPHA else Message("a difference of the rates is not shown")
    return RateComparison(
        experiment=experiment,
        baseline=baseline,
        difference=k1 / n1 - k0 / n0,
        ci95=(float(low), float(high)),
        p=p,
        p_harm=p_harm,
        probability=_probability_higher(experiment, baseline),
        sentence=Message(
            "collapse in {k1} of {runs} of the experiment and {k0} of {n0} of the baseline; {conclusion} "
            "(95 % interval {low:+.2f} to {high:+.2f}, Barnard p = {p:.2g})",
            k1=k1,
            runs=quantity(n1, "runs"),
            k0=k0,
            n0=n0,
            conclusion=conclusion,
            low=float(low),
            high=float(high),
            p=p,
        ),
    )


def _probability_higher(experiment: tuple[int, int], baseline: tuple[int, int]) -> float:
    first, second = (stats.beta(k + 0.5, n - k + 0.5) for k, n in (experiment, baseline))
    levels = (np.arange(4000) + 0.5) / 4000
    return float(np.mean(second.cdf(first.ppf(levels))))
