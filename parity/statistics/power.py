"""How often a comparison of runs reaches each verdict, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from parity.errors import UsageError
from parity.findings import Verdict
from parity.statistics.runs import ALPHA, two_sample
from parity.statistics.values import Floats


@dataclass(frozen=True, slots=True)
class PowerRow:
    """The shares of simulated comparisons that end in each verdict at one true difference; they add up to 1."""

    runs: int
    effect: float
    parity: float
    different: float
    inconclusive: float
    repetitions: int


def verdicts_of_many(baseline: Floats, experiment: Floats, margin: float) -> npt.NDArray[np.object_]:
    """The verdicts, (K,), of `compare_runs` on K comparisons at once: run values (K, n0) and (K, n1).

    At least two runs in each arm, with spread between them.
    """
    estimate, error, freedom = two_sample(baseline, experiment, baseline.shape[1] == experiment.shape[1])
    parity = stats.t.sf((margin - np.abs(estimate)) / error, freedom) < ALPHA
    different = 2 * stats.t.sf(np.abs(estimate) / error, freedom) < ALPHA
    verdicts = np.where(parity, Verdict.PARITY, np.where(different, Verdict.DIFFERENT, Verdict.INCONCLUSIVE))
    return np.asarray(verdicts, dtype=object)


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
        verdicts = verdicts_of_many(baseline, experiment + effect, margin)
        parity, different, inconclusive = (float(np.mean(verdicts == verdict)) for verdict in Verdict)
        rows.append(PowerRow(runs, effect, parity, different, inconclusive, repetitions))
    return tuple(rows)
