"""Evidence that a mean difference lies inside a margin, at every look and for every distribution (L1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from parity.errors import InputError
from parity.evidence.values import ALPHA, Floats

FACTORS = 2.0 ** (np.arange(-16, 17) / 4)
"""The margins that are looked at beside the stated one, in multiples of it: from a sixteenth to sixteen times."""

_BOLDEST = 0.98
"""Most of the wealth that one group may cost."""

_AIM = 1.05 / ALPHA
"""The wealth that bets towards a horizon aim at: exactly 20 would be approached and never reached."""

_SHARE = 2 / 3
"""Bets, as a share of the one that suits equal arms best: a difference of half the margin needs smaller ones."""


@dataclass(frozen=True, slots=True)
class InsideMargin:
    """Evidence that a mean difference lies inside a margin: two one-sided tests at 5 % each, valid at every look.

    For the side "the mean is the margin or more" the values x = margin - difference have a mean of zero or less under
    the null, and are never below minus the bound of differences. The product over groups of 1 + λ x, each λ from
    earlier groups alone, is then a nonnegative supermartingale, so that it ever reaches 20 has a probability of at most
    5 % (Ville 1939). Nothing that was not seen can move the mean by more than the bound allows, so that the error rate
    holds at any number of groups. λ is at most 0.98 / bound.

    While nobody knows how many groups there will be, λ is two thirds of the sum of margins over the sum of squares of
    x, which without the two thirds is nearly the λ of fastest growth for equal arms (Waudby-Smith and Ramdas 2024,
    section B.3). Where their number was set beforehand, λ is that of the strategy which most likely ends with 20: with
    z the normal quantile of a twentieth of the wealth, φ(z) / Φ(z) over the standard deviation of what is left of the
    sum (Kulldorff 1993). That has nearly the power of a t-test of so many groups, and holds for any law.

    The same is done for `factors` times the margin at once, which gives the smallest margin that the data prove. Many
    streams may be followed at once: leading axes are kept.

    Attributes:
        factors: Multiples of the margin, (M,).
        horizon: How many groups there will be, where that was set beforehand.
        log_wealth: By side and factor, (…, 2, M).
        largest: The largest log e-value at any group so far, by side and factor, (…, 2, M).
        margins: The sum of margins of groups, (…,).
        squares: The sum of squares of x, (…, 2, M).
        units: Groups seen.
    """

    factors: Floats = field(default_factory=lambda: FACTORS)
    horizon: int | None = None
    log_wealth: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    largest: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    margins: Floats = field(default_factory=lambda: np.zeros(()))
    squares: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    units: int = 0

    def update(self, differences: Floats, margins: Floats, bound: float | Floats) -> InsideMargin:
        """The evidence after further groups, in the order they came.

        Args:
            differences: Of each group, (…, K).
            margins: What each may be at factor 1, (…, K), none negative.
            bound: The largest absolute difference there can be, of all groups or of each, (K,), which earlier groups
                may have set.

        Raises:
            InputError: A difference is NaN or beyond the bound.
        """
        bounds = np.broadcast_to(np.asarray(bound, np.float64), differences.shape[-1:])
        _check_bound(differences, bounds)
        if not differences.shape[-1]:
            return self
        margins = np.broadcast_to(margins, differences.shape)
        allowed = margins[..., None] * self.factors  # (…, K, M)
        values = np.stack([allowed - differences[..., None], allowed + differences[..., None]], axis=-2)  # (…, K, 2, M)
        sums, squares = margins.cumsum(axis=-1), (values**2).cumsum(axis=-3)
        # What lies before each group: the bet on it must not depend on it.
        room = (self.margins[..., None] + sums - margins)[..., None, None] * self.factors
        before = self.squares[..., None, :, :] + squares - values**2
        most = (_BOLDEST / bounds)[:, None, None]
        if self.horizon is None:
            best = np.divide(room, before, out=np.zeros_like(before), where=before > 0)
            bets = np.minimum(_SHARE * best, most)  # (…, K, 2, M)
            path = self.log_wealth[..., None, :, :] + np.log1p(bets * values).cumsum(axis=-3)
        else:
            path = self._towards(self.horizon, values, before, most)
        return replace(
            self,
            log_wealth=path[..., -1, :, :],
            largest=np.maximum(self.largest, path.max(axis=-3)),
            margins=self.margins + sums[..., -1],
            squares=self.squares + squares[..., -1, :, :],
            units=self.units + differences.shape[-1],
        )

    def _towards(self, horizon: int, values: Floats, before: Floats, most: Floats) -> Floats:
        """The log wealth after each group of bets that aim at the horizon, (…, K, 2, M); arguments as in `update`."""
        path = np.empty_like(values)
        log_wealth = self.log_wealth
        for place in range(values.shape[-3]):
            seen = self.units + place
            left = np.sqrt(before[..., place, :, :] * (max(horizon - seen, 1) / max(seen, 1)))
            chance = np.minimum(log_wealth - np.log(_AIM), np.log(0.999))
            quantile = special.ndtri_exp(chance)
            aimed = np.exp(-(quantile**2) / 2 - np.log(2 * np.pi) / 2 - chance)
            bets = np.divide(aimed, left, out=np.zeros_like(left), where=left > 0)
            log_wealth = log_wealth + np.log1p(np.minimum(bets, most[place]) * values[..., place, :, :])
            path[..., place, :, :] = log_wealth
        return path

    def later(self, groups: int) -> InsideMargin:
        """The evidence after groups of those that were set beforehand which say nothing."""
        return self if self.horizon is None else replace(self, horizon=max(self.horizon - groups, 1))

    def kept(self, rows: npt.NDArray[np.bool_]) -> InsideMargin:
        """The evidence of some of the streams, (R,)."""
        return replace(
            self,
            log_wealth=self.log_wealth[rows],
            largest=self.largest[rows],
            margins=self.margins[rows],
            squares=self.squares[rows],
        )

    @property
    def log_e(self) -> Floats:
        """The largest log e-value so far of lying inside each multiple of the margin: the less of two sides, (…, M)."""
        return np.asarray(self.largest.min(axis=-2))

    @property
    def proven(self) -> npt.NDArray[np.bool_]:
        """Which multiples of the margin the difference is shown to lie inside, (…, M)."""
        return np.asarray(self.log_e >= -np.log(ALPHA))


def _check_bound(differences: Floats, bounds: Floats) -> None:
    outside = np.argwhere(~(np.abs(differences) <= bounds * (1 + 1e-9)))
    if outside.size:
        value, bound = differences[tuple(outside[0])], bounds[outside[0, -1]]
        raise InputError(f"a difference of groups is {value:g}, not between -{bound:g} and {bound:g}")


def groups_for_margin(sigma: float, margin: float, bound: float) -> int:
    """About how many groups `InsideMargin` takes to show PARITY four times in five if the arms are equal.

    Each side gains λ margin - λ² (sigma² + margin²) / 2 a group, in natural logs, needs log 20, and fluctuates by λ
    sigma times the root of the number of groups; the later of the two is allowed for.

    Args:
        sigma: The standard deviation of a group's difference, in the unit of `margin`.
        margin: The largest difference that does not matter; positive.
        bound: The largest absolute difference of a group; positive.
    """
    square = sigma**2 + margin**2
    bet = min(margin / square, _BOLDEST / bound)
    gain = bet * margin - bet**2 * square / 2
    spread = float(stats.norm.ppf(0.9)) * bet * sigma
    root = (spread + np.sqrt(spread**2 - 4 * gain * np.log(ALPHA))) / (2 * gain)
    return int(np.ceil(root**2))
