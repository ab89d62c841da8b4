"""Evidence that may be watched: e-processes and confidence sequences hold at every look and under any stopping rule.

They bet on bounded differences of prompt groups whose arm was drawn at random at fixed weights, which have mean zero if
the arms agree, whatever training does in between. Differences of two separate runs have no such mean and must not be
fed to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import special

from parity.errors import InputError
from parity.evidence.sampling.margin import groups_for_margin
from parity.evidence.values import ALPHA, Floats, Interval
from parity.findings import Verdict

BETS = np.array([sign * size for size in (0.1, 0.2, 0.4, 0.8, 1.2, 1.6) for sign in (1, -1)])
GRID = np.linspace(-1, 1, 2001)
_FACTORS = 64
"""Factors multiplied before a logarithm is taken, which costs more; each is in [0.2, 1.8], so none overflows."""


@dataclass(frozen=True, slots=True)
class EProcess:
    """Evidence against mean zero of differences in [-1, 1], one a group.

    The mean over bets λ of prod(1 + λ d / 2) is a nonnegative martingale under the null, so that it ever reaches 20 has
    a probability of at most 5 % (Ville 1939; Waudby-Smith and Ramdas 2024). The fields are the whole state.

    Attributes:
        bets: The λ, each in (-2, 2), (L,).
        log_wealth: The log of each bet's product so far, (L,).
        largest_log_e: The largest log e-value after any group so far.
        units: Groups seen.
    """

    bets: Floats = field(default_factory=lambda: BETS)
    log_wealth: Floats = field(default_factory=lambda: np.zeros(len(BETS)))
    largest_log_e: float = 0.0
    units: int = 0

    def update(self, differences: Floats) -> EProcess:
        """The process after further groups, in the order they came, (K,).

        Raises:
            InputError: A difference is NaN or outside [-1, 1].
        """
        checked = _bounded(differences)
        if not len(checked):
            return self
        path = self.log_wealth[:, None] + np.log1p(self.bets[:, None] * checked / 2).cumsum(axis=1)
        largest = float(_log_mean(path, axis=0).max())
        return EProcess(self.bets, path[:, -1], max(self.largest_log_e, largest), self.units + len(checked))

    @property
    def log_e(self) -> float:
        """The natural log of the e-value now."""
        return float(_log_mean(self.log_wealth, axis=0))

    @property
    def rejects(self) -> bool:
        """Whether the evidence has ever reached 20, a difference at 5 %."""
        return bool(self.largest_log_e >= -np.log(ALPHA))


@dataclass(frozen=True, slots=True)
class ConfidenceSequence:
    """An interval for the mean of differences in [-1, 1] that holds at all times at once with 95 %.

    Each candidate m, on a grid of 0.001, has two e-processes with factors 1 + λ (d - m) / (2 (1 + |m|)), one of the
    positive and one of the negative bets, and is left out once either has reached 40. The positive one speaks against
    every mean up to m even if the mean changes from group to group, and the negative one against every mean from m on
    (Waudby-Smith and Ramdas 2024). What is left out stays out, so only the candidates inside the interval are kept.

    Attributes:
        candidates: The m inside the interval, ends included, (M,).
        log_wealth: The log of each candidate's and bet's product, (M, L).
        interval: The narrowest interval at any look so far; its ends are left out, so one of no width is empty.
        units: Groups seen.
    """

    candidates: Floats = field(default_factory=lambda: GRID)
    log_wealth: Floats = field(default_factory=lambda: np.zeros((len(GRID), len(BETS))))
    interval: Interval = (-1.0, 1.0)
    units: int = 0

    def update(self, differences: Floats) -> ConfidenceSequence:
        """The sequence after further groups, in the order they came, (K,), with one look after the last.

        Raises:
            InputError: A difference is NaN or outside [-1, 1].
        """
        checked = _bounded(differences)
        scaled = BETS / (2 * (1 + np.abs(self.candidates[:, None])))
        wealth = self.log_wealth.copy()
        for start in range(0, len(checked), _FACTORS):
            product = np.ones_like(wealth)
            for difference in checked[start : start + _FACTORS]:
                product *= 1 + scaled * (difference - self.candidates[:, None])
            wealth += np.log(product)
        threshold = -np.log(ALPHA / 2)
        too_low = self.candidates[_log_mean(wealth[:, BETS > 0], axis=1) >= threshold]
        too_high = self.candidates[_log_mean(wealth[:, BETS < 0], axis=1) >= threshold]
        low = float(too_low.max(initial=self.interval[0]))
        high = float(too_high.min(initial=self.interval[1]))
        kept = (low <= self.candidates) & (self.candidates <= high)
        return ConfidenceSequence(self.candidates[kept], wealth[kept], (low, high), self.units + len(checked))


def betting_log_e_at(differences: Floats, block: int) -> Floats:
    """The log e-values of `EProcess` for many streams (R, T) in [-1, 1] at the end of each whole block, (R, H)."""
    paths = [np.log1p(bet * differences / 2).cumsum(axis=1)[:, block - 1 :: block] for bet in BETS]
    return _log_mean(np.stack(paths), axis=0)


def groups_for_sequence(sigma: float, margin: float) -> int:
    """The groups after which a `ConfidenceSequence` lies inside its margin four times in five if the arms are equal.

    Args:
        sigma: The standard deviation of a difference in [-1, 1].
        margin: The largest mean that does not matter; positive.
    """
    # Each side bets on one of the positive bets, of which the best has its share of the wealth, and needs 40.
    return groups_for_margin(sigma, margin, 1 + margin, BETS.max() / 2, ALPHA / 2 / int((BETS > 0).sum()))


def _log_mean(log_wealth: Floats, axis: int) -> Floats:
    """The log of the mean over bets along an axis."""
    return np.asarray(special.logsumexp(log_wealth, axis=axis) - np.log(log_wealth.shape[axis]))


def _bounded(differences: Floats) -> Floats:
    values = np.atleast_1d(np.asarray(differences, dtype=np.float64))
    outside = np.flatnonzero(~(np.abs(values) <= 1))
    if outside.size:
        raise InputError(
            f"difference {outside[0]} of {len(values)} is {values[outside[0]]}, not in [-1, 1]: scale it first"
        )
    return values


def sequential_verdict(process: EProcess, sequence: ConfidenceSequence, margin: float) -> Verdict:
    """DIFFERENT once the e-process has reached 20, PARITY once the sequence lies inside ±margin, else INCONCLUSIVE.

    A difference that is inside the margin is PARITY. The margin is in the scale of the differences, [-1, 1]. An empty
    sequence, whose lower end has reached the upper one, says that the mean changes; it shows no parity.
    """
    if -margin < sequence.interval[0] < sequence.interval[1] < margin:
        return Verdict.PARITY
    return Verdict.DIFFERENT if process.rejects else Verdict.INCONCLUSIVE


def bernoulli_e_value(events: int, units: int, rate: float) -> float:
    """Evidence that events have another rate than `rate`, as an e-value: Bernoulli likelihoods mixed over all rates.

    The integral of p^k (1 - p)^(n - k) over (0, 1), Beta(k + 1, n - k + 1), divided by the likelihood at `rate`.
    Infinite where a float cannot hold it; `bernoulli_log_e` has its log.

    Raises:
        InputError: The counts are impossible, or the rate is not strictly between 0 and 1.
    """
    with np.errstate(over="ignore"):
        return float(np.exp(bernoulli_log_e(events, units, rate)))


def bernoulli_log_e(events: int, units: int, rate: float) -> float:
    """The natural log of `bernoulli_e_value`.

    Raises:
        InputError: The counts are impossible, or the rate is not strictly between 0 and 1.
    """
    if not 0 <= events <= units or not 0 < rate < 1:
        raise InputError(f"{events} events in {units} at rate {rate} are no Bernoulli counts")
    log_null = events * np.log(rate) + (units - events) * np.log1p(-rate)
    return float(special.betaln(events + 1, units - events + 1) - log_null)


def average_e_value(*e_values: float) -> float:
    """One e-value from several that may depend on each other in any way: their mean (Vovk and Wang 2021)."""
    return sum(e_values) / len(e_values)
