"""Evidence that may be watched: e-values that hold at every look and under any rule of when to stop (L1).

An e-process starts at 1 and, while the hypothesis holds, ever reaches 20 with a probability of at most 5 % (Ville
1939). Differences of two separate runs fulfil no such hypothesis and must not be fed to these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from parity.errors import InputError
from parity.evidence.values import ALPHA, Floats, Interval

K = TypeVar("K")

ENOUGH = float(-np.log(ALPHA))
"""The log e-value that decides."""

FEWEST_FOR_INTERVAL = 100
"""Groups below which an asymptotic interval means nothing."""

TILTS = np.array([0.1, 0.2, 0.4, 0.8])
"""Shifts of a difference that a sign-flip process bets on either way, in units of its past size."""

_BOLDEST = 1.0
"""The largest shift, so that one difference of a new size costs no bet more than a factor of 4."""

STATISTIC_TILTS = np.array([0.1, 0.25, 0.5, 1.0, 2.0])
"""Shifts of a relabeled statistic that an exchange process bets on, in its standard deviations."""

_TUNED_FOR = 500
"""Groups at which the confidence sequence is narrowest."""


@dataclass(frozen=True, slots=True)
class SignFlip:
    """Evidence against differences that are as likely to have either sign, one a group.

    If both arms sample alike, exchanging them changes no probability, so that given its size a difference has either
    sign with chance 1/2 and exp(s) / cosh(s) has mean 1, with s = λ d cut at 1 either way, for any λ from earlier
    groups. Products over groups and the mean over λ keep that: exact at every look, for any law, bounded or not (Vovk
    and Wang 2024). λ is a multiple of one over the root mean square of earlier differences, so that the unit does not
    matter. Leading axes are kept.

    Attributes:
        log_wealth: The log of each bet's product so far, (…, L).
        squares: The sum of squares of the differences, (…,).
        units: Groups seen.
    """

    log_wealth: Floats = field(default_factory=lambda: np.zeros(2 * len(TILTS)))
    squares: Floats = field(default_factory=lambda: np.zeros(()))
    units: int = 0

    def update(self, differences: Floats) -> SignFlip:
        """The process after further groups, in the order they came, (…, K).

        Raises:
            InputError: A difference is NaN or infinite.
        """
        if not np.isfinite(differences).all():
            raise InputError(f"differences of groups hold {differences[~np.isfinite(differences)].flat[0]}")
        count = differences.shape[-1]
        if not count:
            return self
        squares = self.squares[..., None] + (differences**2).cumsum(axis=-1)
        before = np.concatenate([self.squares[..., None] + np.zeros_like(squares[..., :1]), squares[..., :-1]], axis=-1)
        scale = np.sqrt(before / np.maximum(self.units + np.arange(count), 1))
        scaled = np.divide(differences, scale, out=np.zeros_like(squares), where=scale > 0)
        shifts = np.clip(scaled[..., None] * TILTS, -_BOLDEST, _BOLDEST)  # (…, K, L / 2)
        sums, costs = shifts.sum(axis=-2), np.log(np.cosh(shifts)).sum(axis=-2)
        gains = np.concatenate([sums - costs, -sums - costs], axis=-1)  # of log(exp(x) / cosh(x))
        return SignFlip(self.log_wealth + gains, squares[..., -1], self.units + count)

    def kept(self, rows: npt.NDArray[np.bool_]) -> SignFlip:
        """The process of some of the streams, (R,)."""
        return SignFlip(self.log_wealth[rows], self.squares[rows], self.units)

    @property
    def log_e(self) -> Floats:
        """The natural log of the e-value now, (…,)."""
        return _log_mean(self.log_wealth)

    @property
    def log_e_above(self) -> Floats:
        """The same of bets on differences above zero alone, which hold where they lie below it more often, (…,)."""
        return _log_mean(self.log_wealth[..., : len(TILTS)])


@dataclass(frozen=True, slots=True)
class ExchangeProcess:
    """Evidence against exchangeability of arm labels inside groups, either way.

    A group's statistic is compared with itself under random relabelings. Under exchangeability the observed one is as
    likely to be any of them, so exp(λ T) over its mean over all of them, the observed one included, is an e-value with
    no assumption on T, which may depend on earlier groups (the soft-rank e-value; Ramdas and Wang 2025, section 2).
    Products over groups and means over λ, of both signs, keep that.

    Attributes:
        log_wealth: The log of each tilt's product so far, (L,).
        total: The sum over groups of the observed statistic less the mean of its relabelings.
        variance: The sum over groups of the variance of its relabelings.
        units: Groups seen.
    """

    log_wealth: Floats = field(default_factory=lambda: np.zeros(2 * len(STATISTIC_TILTS)))
    total: float = 0.0
    variance: float = 0.0
    units: int = 0

    def update(self, statistics: Floats, groups: int = 1) -> ExchangeProcess:
        """The process after further statistics (K, 1 + B), the observed one first, then the relabeled ones.

        They are standardised within each row, which is symmetric in all of them. Each row is of so many `groups`.
        """
        spread = statistics.std(axis=1, keepdims=True)
        # The same value reached by different sums differs by rounding, which must not be blown up.
        varied = spread > 1e-6 * np.abs(statistics).max(axis=1, keepdims=True, initial=0)
        centred = statistics - statistics.mean(axis=1, keepdims=True)
        standard = np.where(varied, centred / np.where(varied, spread, 1), 0.0)
        tilted = np.concatenate([STATISTIC_TILTS, -STATISTIC_TILTS])[:, None, None] * standard
        gains = tilted[:, :, 0] - special.logsumexp(tilted, axis=2) + np.log(statistics.shape[1])
        return ExchangeProcess(
            self.log_wealth + gains.sum(axis=1),
            self.total + float(centred[:, 0].sum()),
            self.variance + float((spread**2).sum()),
            self.units + groups * len(statistics),
        )

    @property
    def log_e(self) -> float:
        """The natural log of the e-value now."""
        return float(_log_mean(self.log_wealth))


def _log_mean(log_values: Floats) -> Floats:
    """The log of the mean along the last axis."""
    return np.asarray(special.logsumexp(log_values, axis=-1) - np.log(log_values.shape[-1]))


def adjusted_log_e(log_e: Mapping[K, float]) -> dict[K, float]:
    """Log e-values corrected for their number by closed testing with means, however they depend (Vovk and Wang 2021).

    A hypothesis's is the least mean of any set that it belongs to. The chance that those of true hypotheses ever reach
    20, at any look, is at most 5 %: each is below the mean over all true ones, which is one e-process.
    """
    return dict(zip(log_e, closed_testing(np.array(list(log_e.values()))).tolist(), strict=True))


def closed_testing(log_e: Floats) -> Floats:
    """As `adjusted_log_e`, along the last axis of (…, m)."""
    count = log_e.shape[-1]
    if not count:
        return log_e
    order = np.argsort(log_e, axis=-1, kind="stable")
    ordered = np.take_along_axis(log_e, order, axis=-1)
    sums = np.logaddexp.accumulate(ordered, axis=-1)
    sizes = np.log(np.arange(1, count + 1))
    # The smallest set of each size that a hypothesis is in: itself and the smallest others, (…, m, sizes).
    others = np.concatenate([np.full_like(sums[..., :1], -np.inf), sums[..., :-1]], axis=-1)
    with_itself = np.logaddexp(ordered[..., :, None], others[..., None, :])
    among = np.arange(count)[:, None] < np.arange(count)  # whether it is itself one of the smallest
    means = np.where(among, sums[..., None, :], with_itself) - sizes
    adjusted = np.empty_like(log_e)
    np.put_along_axis(adjusted, order, means.min(axis=-1), axis=-1)
    return adjusted


def normal_sequence(units: int, mean: float, deviation: float, alpha: float = ALPHA) -> Interval:
    """An asymptotic confidence sequence for a mean: an interval to show, which decides nothing.

    Half-width deviation * sqrt(2 (t r + 1) / (t^2 r) * log(sqrt(t r + 1) / alpha)) after t units, with the r that makes
    it narrowest near t = 500 (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, theorem 2.2 and equation 10). Where
    differences are nearly normal it holds at all looks together from 100 units on, below which it is infinite; rare
    large differences that were not seen are outside of it.

    Args:
        units: t.
        mean: Of the values so far.
        deviation: Their sample standard deviation.
        alpha: The chance that any look misses the mean.
    """
    if units < FEWEST_FOR_INTERVAL:
        return -np.inf, np.inf
    tuned = (-special.lambertw(-(alpha**2) / np.e, k=-1).real - 1) / _TUNED_FOR
    scaled = units * tuned + 1
    half = deviation * float(np.sqrt(2 * scaled / (units**2 * tuned) * np.log(np.sqrt(scaled) / alpha)))
    return mean - half, mean + half


def bernoulli_log_e(events: int, units: int, rate: float) -> float:
    """The log e-value that events have another rate than `rate`: Bernoulli likelihoods mixed over all rates.

    The integral of p^k (1 - p)^(n - k) over (0, 1), Beta(k + 1, n - k + 1), divided by the likelihood at `rate`.

    Raises:
        InputError: The counts are impossible, or the rate is not strictly between 0 and 1.
    """
    if not 0 <= events <= units or not 0 < rate < 1:
        raise InputError(f"{events} events in {units} at rate {rate} are no Bernoulli counts")
    log_null = events * np.log(rate) + (units - events) * np.log1p(-rate)
    return float(special.betaln(events + 1, units - events + 1) - log_null)


def detectable(hypotheses: int, units: int) -> float:
    """The mean shift per group that is found four times in five, in standard deviations of a group's statistic.

    The best bet on a shift d gains d² / 2 a group, in natural logs, and fluctuates by d times the root of their number;
    it needs log 20, the log of how many hypotheses share it, and that of the bets which the best one shares with, of
    which half are of its sign.
    """
    needed = ENOUGH + np.log(hypotheses) + np.log(len(TILTS))
    return (float(np.sqrt(2 * needed)) + 0.84) / float(np.sqrt(max(units, 1)))
