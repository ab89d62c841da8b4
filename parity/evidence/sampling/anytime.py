"""Evidence on unbounded means, on exchangeability and on several hypotheses at once, which may be watched (L1).

`parity.evidence.sampling.sequential` bets on bounded differences. That lengths and likelihoods differ is seen here
without a bound, that they agree by `parity.evidence.sampling.margin`. Clones and slots are about exchangeability, and
a family of hypotheses needs a correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from scipy import special

from parity.errors import InputError
from parity.evidence.values import ALPHA, Floats, Interval

K = TypeVar("K")

WARM_UP = 100
"""Groups before an asymptotic process says anything."""

SHIFTS = np.array([sign * size for size in (0.03, 0.06, 0.12, 0.25, 0.5, 1.0) for sign in (1, -1)])
"""Shifts of a mean, in standard deviations of a group, that a normal process bets on."""

TILTS = np.array([0.1, 0.25, 0.5, 1.0, 2.0])
"""Shifts of a permuted statistic, in its standard deviations, that an exchange process bets on."""

_TUNED_FOR = 500
"""Groups at which a confidence sequence of unbounded differences is narrowest."""


@dataclass(frozen=True, slots=True)
class NormalProcess:
    """Evidence against mean zero of differences without bounds, one a group, in self-normalised form.

    With S the sum of t differences and V that of their squares, the mean over bets λ of exp(λ S / sqrt(V / t) - λ² t /
    2). Where differences are symmetric around zero the process with λ fixed in their unit is exact at every t (de la
    Peña 1999); otherwise it holds asymptotically, as its increments are nearly normal (Waudby-Smith, Arbour, Sinha,
    Kennedy and Ramdas 2024), so that it says nothing before 100 groups. It is free of the unit of the differences.

    Attributes:
        bets: The λ in standard deviations.
        total: S.
        squares: V.
        largest_log_e: The largest log e-value after any group so far.
        units: Groups seen, t.
    """

    bets: Floats = field(default_factory=lambda: SHIFTS)
    total: float = 0.0
    squares: float = 0.0
    largest_log_e: float = 0.0
    units: int = 0

    def update(self, differences: Floats) -> NormalProcess:
        """The process after further groups, in the order they came, (K,).

        Raises:
            InputError: A difference is NaN or infinite.
        """
        if not len(differences):
            return self
        if not np.isfinite(differences).all():
            raise InputError(f"differences of groups hold {differences[~np.isfinite(differences)][0]}, not a number")
        totals = self.total + np.cumsum(differences)
        squares = self.squares + np.cumsum(differences**2)
        units = self.units + np.arange(1.0, len(differences) + 1)
        path = _normal_log_e(self.bets, totals, squares, units)
        largest = max(self.largest_log_e, float(path.max()))
        return NormalProcess(self.bets, float(totals[-1]), float(squares[-1]), largest, int(units[-1]))

    @property
    def log_e(self) -> float:
        """The natural log of the e-value now."""
        now = (np.array([value]) for value in (self.total, self.squares, float(self.units)))
        return float(_normal_log_e(self.bets, *now)[0])


def _normal_log_e(bets: Floats, totals: Floats, squares: Floats, units: Floats) -> Floats:
    """Log e-values (K,); 0 before the warm-up and while all differences are 0."""
    speaks = (units >= WARM_UP) & (squares > 0)
    scores = totals / np.sqrt(np.where(speaks, squares, 1) / np.maximum(units, 1))
    log_e = special.logsumexp(bets[:, None] * scores - bets[:, None] ** 2 * units / 2, axis=0) - np.log(len(bets))
    return np.where(speaks, log_e, 0.0)


def normal_log_e_at(bets: Floats, differences: Floats, block: int) -> Floats:
    """The log e-values of `NormalProcess` for many streams (R, T) at the end of each whole block of groups, (R, H)."""
    ends = slice(block - 1, None, block)
    totals, squares = differences.cumsum(axis=1)[:, ends], (differences**2).cumsum(axis=1)[:, ends]
    units = np.broadcast_to(np.arange(1.0, differences.shape[1] + 1)[ends], totals.shape)
    return _normal_log_e(bets, totals.ravel(), squares.ravel(), units.ravel()).reshape(totals.shape)


def normal_sequence(units: int, mean: float, deviation: float, alpha: float = ALPHA) -> Interval:
    """An asymptotic confidence sequence for a mean: one look at it, valid at all looks together from 100 units on.

    Half-width deviation * sqrt(2 (t r + 1) / (t^2 r) * log(sqrt(t r + 1) / alpha)) after t units, with the r that makes
    it narrowest near t = 500 (Waudby-Smith et al. 2024, theorem 2.2 and equation 10). Infinite before 100 units.

    Args:
        units: t.
        mean: Of the values so far.
        deviation: Their sample standard deviation.
        alpha: The chance that any look misses the mean.
    """
    if units < WARM_UP:
        return -np.inf, np.inf
    tuned = (-special.lambertw(-(alpha**2) / np.e, k=-1).real - 1) / _TUNED_FOR
    scaled = units * tuned + 1
    half = deviation * float(np.sqrt(2 * scaled / (units**2 * tuned) * np.log(np.sqrt(scaled) / alpha)))
    return mean - half, mean + half


@dataclass(frozen=True, slots=True)
class ExchangeProcess:
    """Evidence against exchangeability inside groups: of arm labels, or of slots.

    A group's statistic is compared with itself under random relabelings. Under exchangeability the observed one is as
    likely to be any of them, so exp(λ T) over its mean over all of them, the observed one included, is an e-value with
    no assumption on T, which may depend on earlier groups (the soft-rank e-value; Ramdas and Wang 2025, section 2).
    Products over groups and means over λ keep that.

    Attributes:
        log_wealth: The log of each tilt's product so far, (L,).
        units: Groups seen.
    """

    log_wealth: Floats = field(default_factory=lambda: np.zeros(len(TILTS)))
    units: int = 0

    def update(self, statistics: Floats) -> ExchangeProcess:
        """The process after further groups: statistics (K, 1 + B), the observed one first, then the relabeled ones.

        They are standardised within each group, which is symmetric in all of them.
        """
        spread = statistics.std(axis=1, keepdims=True)
        # The same value reached by different sums differs by rounding, which must not be blown up.
        varied = spread > 1e-6 * np.abs(statistics).max(axis=1, keepdims=True, initial=0)
        centred = statistics - statistics.mean(axis=1, keepdims=True)
        standard = np.where(varied, centred / np.where(varied, spread, 1), 0.0)
        tilted = TILTS[:, None, None] * standard
        gains = tilted[:, :, 0] - special.logsumexp(tilted, axis=2) + np.log(statistics.shape[1])
        return ExchangeProcess(self.log_wealth + gains.sum(axis=1), self.units + len(statistics))

    @property
    def log_e(self) -> float:
        """The natural log of the e-value now."""
        return float(special.logsumexp(self.log_wealth) - np.log(len(TILTS)))


def adjusted_log_e(log_e: Mapping[K, float]) -> dict[K, float]:
    """Log e-values corrected for their number by closed testing with means, however they depend (Vovk and Wang 2021).

    A hypothesis's is the least mean of any set that it belongs to. The chance that those of true hypotheses ever reach
    20, at any look, is at most 5 %: each is below the mean over all true ones, which is one e-process.
    """
    ordered = sorted(log_e.items(), key=lambda item: item[1])
    adjusted = {}
    for place, (name, own) in enumerate(ordered):
        smallest = [value for other, (_, value) in enumerate(ordered) if other != place]
        sums = np.logaddexp.accumulate(np.array([own, *smallest]))
        adjusted[name] = float((sums - np.log(np.arange(1, len(sums) + 1))).min())
    return adjusted
