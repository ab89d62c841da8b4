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

    Raises:
        UsageError: `sigma`, `margin` or `bound` is not positive.
    """

    sigma: float
    margin: float
    bound: float
    effect: float = 0.0

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

    def parity_by(self, groups: int) -> float:
        """The share that had reached PARITY by so many groups."""
        return float((self.parity & (self.groups <= groups)).mean())

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
    """
    metrics = len(streams)
    flags = np.zeros((2, repetitions), np.bool_)
    ends = Ends(np.full(repetitions, limit), flags[0], flags[1], limit, block)
    active = np.arange(repetitions)
    inside = [InsideMargin(factors=np.ones(1)) for _ in streams]
    apart = [SignFlip() for _ in streams]
    totals = np.zeros((metrics, repetitions))
    for groups in range(block, limit + 1, block):
        for row, stream in enumerate(streams):
            drawn = rng.normal(stream.effect, stream.sigma, (len(active), block)).clip(-stream.bound, stream.bound)
            inside[row] = inside[row].update(drawn, np.array(stream.margin), stream.bound)
            apart[row] = apart[row].update(drawn)
            totals[row] += drawn.sum(axis=1)
        beyond = np.abs(totals) / groups > np.array([[stream.margin] for stream in streams])
        log_e = np.zeros((len(active), max(hypotheses, metrics)))
        log_e[:, :metrics] = np.stack([process.log_e for process in apart], axis=1)
        shown = closed_testing(log_e)[:, :metrics].T >= ENOUGH
        proven = np.stack([process.proven[:, 0] for process in inside])
        parity = (proven & ~beyond).all(axis=0) & (groups >= fewest)
        different = ~parity & (shown & beyond & ~proven).any(axis=0)
        done = np.asarray(parity | different)
        ends.groups[active[done]] = groups
        ends.parity[active[parity]] = True
        ends.different[active[different]] = True
        active, totals = active[~done], totals[:, ~done]
        inside = [process.kept(~done) for process in inside]
        apart = [process.kept(~done) for process in apart]
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


def power_rows(ends: Ends, effect: float, counts: Sequence[int]) -> list[GroupPowerRow]:
    """What samplings of set sizes would have shown, and last what watching them shows."""
    rows: list[GroupPowerRow] = []
    repetitions = len(ends.groups)
    for count in (*counts, ends.limit):
        watched = len(rows) == len(counts)
        parity = ends.parity_by(count)
        different = float((ends.different & (ends.groups <= count)).mean())
        half, most = (int(value) for value in np.quantile(ends.groups, (0.5, 0.9), method="higher"))
        spent = (half, most) if watched else (count, count)
        shares = parity, different, 1 - parity - different
        rows.append(GroupPowerRow(count, watched, effect, *shares, *spent, repetitions))
    return rows
