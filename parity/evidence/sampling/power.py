"""How often a comparison of runs, or of groups at fixed weights, reaches each verdict, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from parity.errors import UsageError
from parity.evidence.sampling.margin import InsideMargin
from parity.evidence.sampling.sequential import ENOUGH, SignFlip, closed_testing
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
    estimate, error, freedom = two_sample(baseline, experiment)
    parity = np.asarray(stats.t.sf((margin - np.abs(estimate)) / error, freedom) < ALPHA)
    differs = 2 * stats.t.sf(np.abs(estimate) / error, freedom) < ALPHA
    return parity, ~parity & differs & (np.abs(estimate) > margin)


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
class Stream:
    """Differences of groups that a simulation draws from a normal law, cut at their bound.

    Attributes:
        sigma: The standard deviation of a group's difference between arms, in the metric's unit.
        margin: The largest difference that does not matter, in the same unit.
        bound: The largest absolute difference of a group there can be.
        effect: The true difference.
        first: Groups that only say where later ones are clipped, where the metric has no largest value of its own.

    Raises:
        UsageError: `sigma`, `margin` or `bound` is not positive.
    """

    sigma: float
    margin: float
    bound: float
    effect: float = 0.0
    first: int = 0

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and self.margin > 0 and self.bound > 0):
            raise UsageError(
                f"power needs a positive sigma, margin and bound, not {self.sigma}, {self.margin} and {self.bound}"
            )


@dataclass(frozen=True, slots=True)
class Ends:
    """How simulated samplings ended.

    Attributes:
        groups: Groups of each arm until then, or all of them, (R,).
        parity: Which ended in PARITY, (R,).
        different: Which ended in DIFFERENT, (R,).
        limit: The most groups.
        block: Groups between looks.
    """

    groups: npt.NDArray[np.int64]
    parity: npt.NDArray[np.bool_]
    different: npt.NDArray[np.bool_]
    limit: int
    block: int

    def needed(self, share: float = 0.8) -> int | None:
        """The groups by which such a share has reached PARITY; None where fewer do."""
        groups = np.where(self.parity, self.groups, np.iinfo(np.int64).max)
        reached = int(np.quantile(groups, share, method="higher"))
        return reached if reached <= self.limit else None


def simulate_groups(
    streams: Sequence[Stream],
    limit: int,
    rng: np.random.Generator,
    repetitions: int = 200,
    block: int = 32,
    fewest: int = 0,
    hypotheses: int = 1,
    fixed: bool = False,
) -> Ends:
    """Samplings of all metrics together that stop as soon as the evidence suffices, by the code that decides.

    Args:
        streams: One a metric, independent of each other.
        limit: The most groups.
        rng: Source of randomness.
        repetitions: Simulated samplings, R.
        block: Groups between looks.
        fewest: Groups before which nothing ends in PARITY.
        hypotheses: How many hypotheses share the correction for a difference, those of the streams among them.
        fixed: Whether the number of groups is set beforehand, so that there is one look, at `limit`.
    """
    metrics = len(streams)
    flags = np.zeros((2, repetitions), np.bool_)
    ends = Ends(np.full(repetitions, limit), flags[0], flags[1], limit, block)
    active = np.arange(repetitions)
    sizes = [limit - stream.first if fixed else None for stream in streams]
    inside = [InsideMargin(factors=np.ones(1), horizon=size) for size in sizes]
    # By metric: against no difference, and against one of less than half the margin, on either side.
    apart, above, below = ([SignFlip() for _ in streams] for _ in range(3))
    totals = np.zeros((metrics, repetitions))
    for start in range(0, limit, block):
        groups = min(start + block, limit)
        for row, stream in enumerate(streams):
            shape = (len(active), groups - start)
            drawn = rng.normal(stream.effect, stream.sigma, shape).clip(-stream.bound, stream.bound)
            later = drawn[:, max(stream.first - start, 0) :]
            inside[row] = inside[row].update(later, np.array(stream.margin), stream.bound)
            apart[row] = apart[row].update(drawn)
            above[row] = above[row].update(drawn - stream.margin / 2)
            below[row] = below[row].update(-drawn - stream.margin / 2)
            totals[row] += drawn.sum(axis=1)
        if fixed and groups < limit:
            continue
        beyond = np.abs(totals) / groups > np.array([[stream.margin] for stream in streams])
        sides = [np.stack([one.log_e_above for one in side]) >= ENOUGH for side in (above, below)]
        far = beyond & np.where(totals > 0, *sides)
        log_e = np.zeros((len(active), max(hypotheses, metrics)))
        log_e[:, :metrics] = np.stack([process.log_e for process in apart], axis=1)
        shown = closed_testing(log_e)[:, :metrics].T >= ENOUGH
        proven = np.stack([np.broadcast_to(process.proven[..., 0], len(active)) for process in inside])
        parity = (proven & ~beyond).all(axis=0) & (groups >= fewest)
        different = ~parity & (shown & far & ~proven).any(axis=0)
        done = np.asarray(parity | different)
        ends.groups[active[done]] = groups
        ends.parity[active[parity]] = True
        ends.different[active[different]] = True
        active, totals = active[~done], totals[:, ~done]
        inside = [process.kept(~done) if process.units else process for process in inside]
        apart, above, below = ([process.kept(~done) for process in each] for each in (apart, above, below))
        if not len(active):
            break
    return ends


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


def power_row(ends: Ends, effect: float, watched: bool) -> GroupPowerRow:
    """What samplings show that are watched, or that are looked at once."""
    parity, different = float(ends.parity.mean()), float(ends.different.mean())
    half, most = (int(value) for value in np.quantile(ends.groups, (0.5, 0.9), method="higher"))
    shares = parity, different, 1 - parity - different
    return GroupPowerRow(ends.limit, watched, effect, *shares, half, most, len(ends.groups))
