"""How often a comparison of runs reaches each verdict, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from parity.errors import UsageError
from parity.statistics.runs import two_sample
from parity.statistics.values import ALPHA, Floats


@dataclass(frozen=True, slots=True)
class PowerRow:
    """The shares of simulated comparisons that end in each verdict at one true difference; they add up to 1."""

    runs: int
    effect: float
    parity: float
    different: float
    inconclusive: float
    repetitions: int


def decide_many(
    baseline: Floats, experiment: Floats, margin: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which of K comparisons `compare_runs` would call PARITY and which DIFFERENT, (K,) each, from (K, n0) and (K, n1).

    At least two runs in each arm, with spread between them.
    """
    estimate, error, freedom = two_sample(baseline, experiment, baseline.shape[1] == experiment.shape[1])
    parity = np.asarray(stats.t.sf((margin - np.abs(estimate)) / error, freedom) < ALPHA)
    return parity, ~parity & (2 * stats.t.sf(np.abs(estimate) / error, freedom) < ALPHA)


def simulate_power(
    sigma: float,
    runs: int,
    margin: float,
    effects: Sequence[float],
    rng: np.random.Generator,
    repetitions: int = 2000,
) -> tuple[PowerRow, ...]:
    """The shares of verdicts of `compare_runs` with normal values by run, one row a true difference.

    Args:
        sigma: Standard deviation between runs of one arm, in the unit of the metric.
        runs: Runs in each arm.
        margin: The equivalence margin, in the same unit.
        effects: True differences, in the same unit.
        rng: Source of randomness.
        repetitions: Simulated comparisons for each row.

    Raises:
        UsageError: `sigma` or `margin` is not positive, or there are fewer than two runs an arm.
    """
    if not (sigma > 0 and margin > 0 and runs >= 2):
        raise UsageError(f"power needs positive sigma and margin and two runs an arm, not {sigma}, {margin} and {runs}")
    rows = []
    for effect in effects:
        baseline, experiment = rng.normal(0, sigma, (2, repetitions, runs))
        parity, different = (float(mask.mean()) for mask in decide_many(baseline, experiment + effect, margin))
        rows.append(PowerRow(runs, effect, parity, different, 1 - parity - different, repetitions))
    return tuple(rows)
