"""Evidence that a mean lies inside its margin, for bounded values and those only bounded from above, as lengths (L1).

Nothing that was not seen can move the mean by more than the bound allows, so that the error rate holds at every number
of groups and for every distribution, with rare and large differences among them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from parity.errors import InputError
from parity.evidence.values import ALPHA, Floats

CLIP = 8.0
"""Group means above so many times the baseline's mean count as that, where a metric has no largest value of its own."""

_BOLDEST = 0.98
"""Most of the wealth that one group may cost."""


@dataclass(frozen=True, slots=True)
class MarginProcess:
    """Evidence against a mean of zero or less of values that are never below -`bound`, one a group.

    The product over groups of 1 + λ x, each λ from earlier groups alone: a nonnegative supermartingale under the null,
    so that it ever reaches 20 has a probability of at most 5 % (Ville 1939). λ is sized for equal arms, whose mean x is
    the margin: the sum of margins over the sum of squares of x, at most 0.98 / `bound`. That is nearly the λ of fastest
    growth (Waudby-Smith and Ramdas 2024, section B.3, with the mean that is hoped for in place of its estimate).

    Attributes:
        bound: The largest loss of a group.
        margins: The sum of margins.
        squares: The sum of squares of the values.
        log_e: The natural log of the e-value now.
        largest_log_e: The largest after any group so far.
        units: Groups seen.
    """

    bound: float
    margins: float = 0.0
    squares: float = 0.0
    log_e: float = 0.0
    largest_log_e: float = 0.0
    units: int = 0

    def update(self, values: Floats, margins: Floats) -> MarginProcess:
        """The process after further groups, in the order they came: values and margins, (K,) each.

        Raises:
            InputError: A value is NaN or infinite, or below -`bound`.
        """
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= -self.bound * (1 + 1e-9))))
        if wrong.size:
            raise InputError(f"value {wrong[0]} of {len(values)} is {values[wrong[0]]}, not from -{self.bound} on")
        if not len(values):
            return self
        after = self.margins + margins.cumsum(), self.squares + (values**2).cumsum()
        room, squares = (
            np.concatenate([[first], sums[:-1]])
            for first, sums in zip((self.margins, self.squares), after, strict=True)
        )
        path = self.log_e + np.log1p(_bets(room, squares, self.bound) * values).cumsum()
        largest = max(self.largest_log_e, float(path.max()))
        sums = float(after[0][-1]), float(after[1][-1])
        return MarginProcess(self.bound, *sums, float(path[-1]), largest, self.units + len(values))


def _bets(margins: Floats, squares: Floats, bound: float) -> Floats:
    """The λ of groups, from the sums before each."""
    best = np.divide(margins, squares, out=np.zeros_like(squares), where=squares > 0)
    return np.minimum(best, _BOLDEST / bound)


@dataclass(frozen=True, slots=True)
class InsideMargin:
    """Evidence that the mean of differences lies inside a margin: two one-sided tests at 5 % each, at every look.

    Attributes:
        above: Evidence against a mean of the margin or more.
        below: Evidence against a mean of minus the margin or less.
    """

    above: MarginProcess
    below: MarginProcess

    @classmethod
    def of(cls, bound: float) -> InsideMargin:
        """No evidence yet, on differences that are at most `bound` outside of the margin."""
        return cls(MarginProcess(bound), MarginProcess(bound))

    def update(self, differences: Floats, margins: Floats) -> InsideMargin:
        """The evidence after further groups, from their differences and what each may be, (K,) each."""
        return InsideMargin(
            self.above.update(margins - differences, margins), self.below.update(margins + differences, margins)
        )

    @property
    def log_e(self) -> float:
        """The largest log e-value so far: the less of the two sides."""
        return min(self.above.largest_log_e, self.below.largest_log_e)


@dataclass(frozen=True, slots=True)
class ClippedMargin:
    """Evidence that the experiment's group means, clipped from above, are the baseline's up to a share of them.

    The margin is held to the difference less its share of the baseline's mean of the same group, so that no estimate
    of the mean enters.

    Attributes:
        margin: The share of the baseline's mean that does not matter.
        clip: The group mean that larger ones count as; None before it is known.
        exact: Whether `clip` is the largest value there can be, so that nothing is clipped.
        sides: The evidence; None before `clip` is known.
        clipped: Groups of the baseline and of the experiment that were clipped.
    """

    margin: float
    clip: float | None = None
    exact: bool = False
    sides: InsideMargin | None = None
    clipped: tuple[int, int] = (0, 0)

    def update(self, baseline: Floats, experiment: Floats) -> ClippedMargin:
        """The evidence after further groups, from their means in both arms, (K,) each; none is below 0.

        Where no largest value is known, the first groups only say where later ones are clipped, so that no bet depends
        on what it is about.
        """
        if self.clip is None:
            return replace(self, clip=CLIP * float(baseline.mean()) or None)
        # Rounding puts the log-prob of a certain token slightly above 0.
        first, second = np.clip(baseline, 0, self.clip), np.clip(experiment, 0, self.clip)
        sides = self.sides or InsideMargin.of(self.clip)
        counts = (int((means > self.clip).sum()) for means in (baseline, experiment))
        of_baseline, of_experiment = (before + now for before, now in zip(self.clipped, counts, strict=True))
        return replace(
            self,
            sides=sides.update(second - first, self.margin * first),
            clipped=(of_baseline, of_experiment),
        )

    @property
    def log_e(self) -> float:
        """The largest log e-value so far of the difference being inside the margin."""
        return 0.0 if self.sides is None else self.sides.log_e


def margin_log_e_at(differences: Floats, margin: float, bound: float, block: int) -> Floats:
    """The log e-values of `InsideMargin` for many streams (R, T) at the end of each whole block of groups, (R, H)."""
    sides = []
    for values in (margin - differences, margin + differences):
        squares = (values**2).cumsum(axis=1) - values**2
        margins = np.broadcast_to(margin * np.arange(values.shape[1]), values.shape)
        path = np.log1p(_bets(margins, squares, bound) * values).cumsum(axis=1)
        sides.append(np.maximum.accumulate(path, axis=1)[:, block - 1 :: block])
    return np.maximum(np.minimum(*sides), 0.0)


def groups_for_margin(
    sigma: float, margin: float, bound: float, boldest: float = _BOLDEST, alpha: float = ALPHA
) -> int:
    """The groups that `InsideMargin` takes to show PARITY four times in five if the arms are equal.

    Each side gains λ margin - λ² (sigma² + margin²) / 2 a group, in natural logs, needs -log `alpha`, and fluctuates by
    λ sigma times the root of the number of groups; the later of the two is allowed for.

    Args:
        sigma: The standard deviation of a group's difference, in the unit of `margin`.
        margin: The largest difference that does not matter; positive.
        bound: The largest loss of a group; positive.
        boldest: Most of the wealth that one group may cost.
        alpha: What the evidence of either side must be worth.
    """
    square = sigma**2 + margin**2
    bet = min(margin / square, boldest / bound)
    gain = bet * margin - bet**2 * square / 2
    spread = float(stats.norm.ppf(0.9)) * bet * sigma
    root = (spread + np.sqrt(spread**2 - 4 * gain * np.log(alpha))) / (2 * gain)
    return int(np.ceil(root**2))
