"""Evidence that a mean difference lies inside a margin, at every look and for every distribution (L1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from parity.errors import InputError
from parity.evidence.values import ALPHA, Floats

FACTORS = 2.0 ** (np.arange(-16, 17) / 4)
"""The margins that are looked at beside the stated one, in multiples of it: from a sixteenth to sixteen times."""

_BOLDEST = 0.98
"""Most of the wealth that one group may cost."""

_SIZES = np.array([1.0, 0.5])
"""Bets, in multiples of the one that suits equal arms; half of it suits a difference of half the margin."""


@dataclass(frozen=True, slots=True)
class InsideMargin:
    """Evidence that a mean difference lies inside a margin: two one-sided tests at 5 % each, valid at every look.

    For the side "the mean is the margin or more" the values x = margin - difference have a mean of zero or less under
    the null, and are never below minus the bound of differences. The product over groups of 1 + λ x, each λ from
    earlier groups alone, is then a nonnegative supermartingale, so that it ever reaches 20 has a probability of at most
    5 % (Ville 1939). λ is sized for equal arms, whose mean x is the margin: the sum of margins over the sum of squares
    of x, at most 0.98 / bound (nearly the λ of fastest growth; Waudby-Smith and Ramdas 2024, section B.3), and the
    evidence is the mean over that bet and half of it. Nothing that was not seen can move the mean by more than the
    bound allows, so that the error rate holds at any number of groups.

    The same is done for `factors` times the margin at once, which gives the smallest margin that the data prove. Many
    streams may be followed at once: leading axes are kept.

    Attributes:
        factors: Multiples of the margin, (M,).
        log_wealth: By size of bet, side and factor, (…, L, 2, M).
        largest: The largest log e-value at any group so far, by side and factor, (…, 2, M).
        margins: The sum of margins of groups, (…,).
        squares: The sum of squares of x, (…, 2, M).
    """

    factors: Floats = field(default_factory=lambda: FACTORS)
    log_wealth: Floats = field(default_factory=lambda: np.zeros((1, 1, 1)))
    largest: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    margins: Floats = field(default_factory=lambda: np.zeros(()))
    squares: Floats = field(default_factory=lambda: np.zeros((1, 1)))

    def update(self, differences: Floats, margins: Floats, bound: float) -> InsideMargin:
        """The evidence after further groups, in the order they came.

        Args:
            differences: Of each group, (…, K).
            margins: What each may be at factor 1, (…, K), none negative.
            bound: The largest absolute difference there can be, which earlier groups may have set.

        Raises:
            InputError: A difference is NaN or beyond the bound.
        """
        _check_bound(differences, bound)
        if not differences.shape[-1]:
            return self
        margins = np.broadcast_to(margins, differences.shape)
        allowed = margins[..., None] * self.factors  # (…, K, M)
        values = np.stack([allowed - differences[..., None], allowed + differences[..., None]], axis=-2)  # (…, K, 2, M)
        sums, squares = margins.cumsum(axis=-1), (values**2).cumsum(axis=-3)
        # What lies before each group: the bet on it must not depend on it.
        room = (self.margins[..., None] + sums - margins)[..., None, None] * self.factors
        before = self.squares[..., None, :, :] + squares - values**2
        best = np.divide(room, before, out=np.zeros_like(before), where=before > 0)
        bets = np.minimum(_SIZES[:, None, None] * best[..., None, :, :], _BOLDEST / bound)  # (…, K, L, 2, M)
        path = self.log_wealth[..., None, :, :, :] + np.log1p(bets * values[..., None, :, :]).cumsum(axis=-4)
        log_e = np.logaddexp.reduce(path, axis=-3) - np.log(len(_SIZES))  # (…, K, 2, M)
        return replace(
            self,
            log_wealth=path[..., -1, :, :, :],
            largest=np.maximum(self.largest, log_e.max(axis=-3)),
            margins=self.margins + sums[..., -1],
            squares=self.squares + squares[..., -1, :, :],
        )

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


def _check_bound(differences: Floats, bound: float) -> None:
    outside = differences[~(np.abs(differences) <= bound * (1 + 1e-9))]
    if outside.size:
        raise InputError(f"a difference of groups is {outside.flat[0]:g}, not between -{bound:g} and {bound:g}")


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
