"""Where two sets of curves differ: a band that holds at all steps at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

from parity.errors import UsageError
from parity.evidence.two_samples import all_splits
from parity.evidence.values import ALPHA, Floats
from parity.findings import Message
from parity.metrics import AlignedRuns

FEWEST_RUNS = 4


@dataclass(frozen=True, slots=True)
class Band:
    """The difference of two arms' mean curves, and how large chance makes its largest studentised value.

    Attributes:
        metric: The metric's name.
        p: p of "no difference at any step".
        steps: The steps of the smoothed curves, (T,).
        difference: Experiment minus baseline, smoothed, (T,).
        half_width: The simultaneous 95 % band around zero, (T,).
        outside: The steps at which the difference leaves the band.
        units: Runs of the baseline and of the experiment.
        method: The test's name.
    """

    metric: str
    p: float
    steps: npt.NDArray[np.int64]
    difference: Floats
    half_width: Floats
    outside: tuple[int, ...]
    units: tuple[int, int]
    method: str = Message("max-T over smoothed curves, whole runs permuted")
    unit: str = "run"


def curve_band(
    aligned: AlignedRuns,
    baseline_runs: int,
    rng: np.random.Generator,
    smooth: int = 9,
    permutations: int = 9999,
) -> Band:
    """A max-T test of whole curves (Westfall and Young 1993): labels of whole runs are permuted, so steps may depend.

    All splits are used where they are no more than `permutations`, else that many drawn at random.

    Args:
        aligned: The runs of both arms, the baseline's first.
        baseline_runs: How many of them are the baseline's.
        rng: Source of the random splits.
        smooth: Width of the running mean, in steps.
        permutations: Most splits to use.

    Raises:
        UsageError: An arm has fewer than four runs, below which no split is rare enough, or the runs have too few
            steps.
    """
    values, units = aligned.values, (baseline_runs, len(aligned.runs) - baseline_runs)
    if min(units) < FEWEST_RUNS or values.shape[1] < smooth:
        have = f"{units[0]} and {units[1]} runs of {values.shape[1]} steps"
        raise UsageError(f"{aligned.metric}: a band needs {FEWEST_RUNS} runs an arm and {smooth} steps, not {have}")
    windows = np.lib.stride_tricks.sliding_window_view(values, smooth, axis=1).mean(axis=2)
    splits = _splits(len(aligned.runs), units[1], permutations, rng)
    difference, statistic, error = _studentised(windows, splits)
    largest = np.abs(statistic).max(axis=1)
    if comb(len(aligned.runs), units[1]) <= permutations:
        p = float(np.mean(largest >= largest[0] * (1 - 1e-9)))
    else:
        p = permutation_p(largest[1:], float(largest[0]))
    half_width = np.quantile(largest, 1 - ALPHA, method="higher") * error[0]
    steps = aligned.steps[smooth // 2 : smooth // 2 + windows.shape[1]]
    outside = tuple(steps[np.abs(difference[0]) > half_width].tolist()) if p < ALPHA else ()
    return Band(aligned.metric, p, steps, difference[0], half_width, outside, units)


def permutation_p(simulated: Floats, observed: float) -> float:
    """The share of statistics at or above the observed one, which counts as one of them (Phipson and Smyth 2010)."""
    tolerance = 1e-9 * max(abs(observed), float(np.abs(simulated).max()))
    return float((1 + np.sum(simulated >= observed - tolerance)) / (1 + len(simulated)))


def _splits(runs: int, experiment: int, permutations: int, rng: np.random.Generator) -> Floats:
    """Splits (S, runs) of 1 for the experiment, the one that was seen (the last runs) first."""
    seen = np.arange(runs) >= runs - experiment
    if comb(runs, experiment) <= permutations:
        return all_splits(runs, experiment)
    return np.concatenate([seen[None], rng.permuted(np.tile(seen, (permutations, 1)), axis=1)]).astype(np.float64)


def _studentised(windows: Floats, splits: Floats) -> tuple[Floats, Floats, Floats]:
    """Difference of means, Student's t and pooled standard error at each step, (S, T) each."""
    n1 = splits[0].sum()
    n0 = splits.shape[1] - n1
    centred = windows - windows.mean(axis=0)
    sums = splits @ centred
    difference = sums / n1 + sums / n0
    squares = (centred**2).sum(axis=0) - sums**2 / n1 - sums**2 / n0
    error = np.sqrt(np.maximum(squares, 0) / (n0 + n1 - 2) * (1 / n0 + 1 / n1))
    # Rounding leaves no true zero; below its size a step has no spread to measure a difference by.
    floor = 1e-12 * max(float(np.abs(windows).max()), 1e-300)
    return difference, np.where(error > floor, difference / np.maximum(error, floor), 0.0), error
