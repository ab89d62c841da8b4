"""Collapse: when a run's reward falls and stays down, and what counts of collapsed runs allow to say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from parity.errors import UsageError
from parity.evidence.values import ALPHA, Floats, Interval
from parity.findings import Message, quantity
from parity.metrics import Curve

LEVEL_STEPS = 20
"""Steps whose mean is the level of a reward."""

PERSISTENCE = 8
"""Steps for which a reward must have stayed down; fewer make a run a suspect."""

FEWEST_DOWN = 3
"""Steps of a fall that is seen at all."""

LARGEST_FALL_BY_CHANCE = 4.5
"""In standard errors of the difference of two levels; simulated, fewer than 1 % of healthy runs reach it."""

SMALLEST_FALL = 1.5
"""In standard deviations of one step's noise; smaller falls are slumps, which belong to the comparison of means."""


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


def detect_collapse(reward: Curve) -> Collapse:
    """Whether the reward falls and stays down to the end of the run, and since when.

    The level before a step is the highest mean of 20 steps so far, the one after it the mean of all that follow. It is
    a collapse if the fall is more than 4.5 of its standard errors and 1.5 standard deviations of a step's noise (from
    the differences of neighbouring steps), if it loses half or more of what the level had risen above its lowest
    before, and if no later mean of eight steps makes good half of it. Nothing depends on the unit or the zero of the
    reward. Simulated on rewards of 0 or 1 over 200 steps: at most 0.7 % of stationary runs are called collapsed at 8,
    32 or 64 samples a step and a mean of 0.05 to 0.95; a fall to a tenth is found in all runs within 20 steps, but for
    means below 0.1, or of 0.1 at 8 samples a step, where it is no larger than the noise.
    """
    onset = _onset(reward.values)
    if onset is None or len(reward.values) - onset < PERSISTENCE:
        return Collapse(reward.run, None, onset is not None)
    return Collapse(reward.run, int(reward.steps[onset]), False)


def _onset(rewards: Floats) -> int | None:
    """The index of the first step of a fall that lasts to the end, at least three steps, of rewards (T,)."""
    count = len(rewards)
    if count < 2 * PERSISTENCE or not np.isfinite(rewards).any():
        return None
    finite = rewards[np.isfinite(rewards)]
    noise = float(np.sqrt(np.mean(np.diff(finite) ** 2) / 2)) if len(finite) > 1 else 0.0
    # A reward of NaN is no reward at all, so it counts as lower than any.
    lowest = float(finite.min()) - max(float(np.ptp(finite)), 10 * noise, 1e-9)
    values = np.where(np.isfinite(rewards), rewards, lowest)
    sums = np.concatenate([[0.0], values.cumsum()])
    ends = np.arange(1, count + 1)
    widths = np.minimum(LEVEL_STEPS, ends)
    levels = (sums[ends] - sums[ends - widths]) / widths  # (T,): of up to 20 steps that end here
    known = levels[PERSISTENCE - 1 :]  # of eight steps or more
    onsets = np.arange(PERSISTENCE, count - FEWEST_DOWN + 1)  # (H,): the first step that is down
    before = onsets - PERSISTENCE
    peak = np.maximum.accumulate(known)[before]
    floor = np.minimum.accumulate(known)[before]
    after = (sums[count] - sums[onsets]) / (count - onsets)
    fall = peak - after
    error = noise * np.sqrt(1 / np.minimum(LEVEL_STEPS, onsets) + 1 / (count - onsets))
    later = np.lib.stride_tricks.sliding_window_view(values, PERSISTENCE).mean(axis=1)
    # The highest mean of eight steps that follow; of a fall with fewer, their own mean.
    highest = np.append(np.maximum.accumulate(later[::-1])[::-1], np.full(PERSISTENCE, -np.inf))[onsets]
    collapsed = (fall > SMALLEST_FALL * noise) & (fall > LARGEST_FALL_BY_CHANCE * error) & (fall > 0)
    collapsed &= (after <= (floor + peak) / 2) & (highest < peak - fall / 2)
    if not collapsed.any():
        return None
    # The sharpest of the falls that qualify dates it.
    sharpness = np.divide(fall, error, out=np.full_like(fall, np.inf), where=error > 0)
    return int(onsets[np.where(collapsed, sharpness, -1.0).argmax()])


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
