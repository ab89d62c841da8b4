"""How often a comparison of runs, or of groups at fixed weights, reaches each verdict, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from parity.errors import UsageError
from parity.evidence.sampling.anytime import SHIFTS, normal_log_e_at
from parity.evidence.sampling.margin import margin_log_e_at
from parity.evidence.sampling.sequential import betting_log_e_at
from parity.evidence.two_samples import two_sample
from parity.evidence.values import ALPHA, Floats


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


@dataclass(frozen=True, slots=True)
class GroupPowerRow:
    """The shares of simulated samplings of prompt groups that end in each verdict; they add up to 1.

    Attributes:
        groups: Groups of each arm; the most there may be where the evidence is watched.
        watched: Whether sampling stops as soon as the evidence suffices.
        effect: The true difference, in the metric's unit.
        parity: The share of PARITY.
        different: The share of DIFFERENT.
        inconclusive: The share of INCONCLUSIVE.
        median_groups: Groups that half of the samplings need at most.
        late_groups: Groups that nine in ten need at most.
        repetitions: Simulated samplings.
    """

    groups: int
    watched: bool
    effect: float
    parity: float
    different: float
    inconclusive: float
    median_groups: int
    late_groups: int
    repetitions: int


def simulate_fixed_groups(
    sigma: float,
    groups: int,
    margin: float,
    effects: Sequence[float],
    rng: np.random.Generator,
    repetitions: int = 4000,
) -> tuple[GroupPowerRow, ...]:
    """The shares of verdicts of `paired_groups` on one metric, with normal differences, one row a true difference.

    Args:
        sigma: Standard deviation of a group's difference between arms, in the metric's unit.
        groups: Prompt groups of each arm.
        margin: The equivalence margin, in the same unit.
        effects: True differences, in the same unit.
        rng: Source of randomness.
        repetitions: Simulated samplings for each row.

    Raises:
        UsageError: `sigma` or `margin` is not positive, or there are fewer than two groups.
    """
    _check_group_power(sigma, groups, margin)
    rows = []
    for effect in effects:
        estimates = rng.normal(effect, sigma / np.sqrt(groups), repetitions)
        errors = sigma * np.sqrt(rng.chisquare(groups - 1, repetitions) / (groups - 1) / groups)
        parity = stats.t.sf((margin - np.abs(estimates)) / errors, groups - 1) < ALPHA
        different = ~parity & (2 * stats.t.sf(np.abs(estimates) / errors, groups - 1) < ALPHA)
        shares = float(parity.mean()), float(different.mean()), float((~parity & ~different).mean())
        rows.append(GroupPowerRow(groups, False, effect, *shares, groups, groups, repetitions))
    return tuple(rows)


def simulate_watched_groups(
    sigma: float,
    limit: int,
    margin: float,
    effects: Sequence[float],
    rng: np.random.Generator,
    bound: float,
    bounded: bool = True,
    repetitions: int = 400,
    block: int = 32,
) -> tuple[GroupPowerRow, ...]:
    """As `simulate_fixed_groups`, for evidence on one metric that is looked at after every `block` of groups.

    The processes are those that `parity.evidence.sampling.watched` watches. `bound` is the largest difference of a
    group that counts; where values are `bounded` there is no larger one, and a difference is shown by betting on it.

    Raises:
        UsageError: `sigma` or `margin` is not positive, or there are fewer than two groups.
    """
    _check_group_power(sigma, limit, margin)
    enough = -np.log(ALPHA)
    rows = []
    for effect in effects:
        differences = np.clip(rng.normal(effect, sigma, (repetitions, limit)), -bound, bound)
        parity = margin_log_e_at(differences, margin, bound, block) >= enough
        log_e = betting_log_e_at(differences / bound, block) if bounded else normal_log_e_at(SHIFTS, differences, block)
        apart, never = log_e >= enough, parity.shape[1]
        first = [np.where(one.any(axis=1), one.argmax(axis=1), never) for one in (parity, apart)]
        is_parity = (first[0] <= first[1]) & (first[0] < never)
        is_different = ~is_parity & (first[1] < never)
        groups = np.minimum((np.minimum(*first) + 1) * block, limit)
        parity_share, different_share = float(is_parity.mean()), float(is_different.mean())
        shares = parity_share, different_share, 1 - parity_share - different_share
        half, most = (int(value) for value in np.quantile(groups, (0.5, 0.9), method="higher"))
        rows.append(GroupPowerRow(limit, True, effect, *shares, half, most, repetitions))
    return tuple(rows)


def _check_group_power(sigma: float, groups: int, margin: float) -> None:
    if not (sigma > 0 and margin > 0 and groups >= 2):
        raise UsageError(f"power needs positive sigma and margin and two groups, not {sigma}, {margin} and {groups}")
