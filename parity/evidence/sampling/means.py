"""Evidence on the difference of one metric's means between arms: that it is there, and that it is inside its margin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.evidence.metric_findings import STATUS_OF_VERDICT, metric_finding
from parity.evidence.sampling.margin import FACTORS, InsideMargin, groups_for_margin
from parity.evidence.sampling.sequential import (
    ENOUGH,
    FEWEST_FOR_INTERVAL,
    SignFlip,
    detectable,
    normal_sequence,
)
from parity.evidence.values import Floats, Interval
from parity.findings import Finding, Level, Message, Verdict, quantity

CLIP = 4.0
"""Differences beyond so many times their root mean square count as that, where a metric has no largest value."""

_HEADROOM = 1.25
"""Later groups are clipped no lower than so many times the largest difference that was seen."""

FIRST_GROUPS = 192
"""Groups that say how large differences are, where a metric has no largest value of its own."""

LARGEST_EXCESS = 0.1
"""What may be clipped in all, as a share of the margin: more could hide a difference of the margin's size."""

FEWEST_GROUPS = 256
"""Groups without which nothing passes that is only not seen, or that rests on there being no larger differences."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Evidence on one metric's mean difference, experiment minus baseline, one number a group.

    Attributes:
        margin: The largest difference that does not matter, in the unit of the values, or as a share.
        relative: Whether the margin is a share of the baseline's mean.
        bound: The largest absolute difference there can be; None where values are only known to be 0 or more.
        required: Whether parity must be shown; else a difference is only looked for.
        scale: What a value of 1 is in the metric's own unit, in which findings speak.
        difference: Evidence against arms that sample alike.
        outside: Evidence of a mean above half the margin, and below minus that, (2,); exact for differences that lie
            as often above their mean as below it, and never enough without `difference`.
        inside: Evidence of a mean inside the margin.
        clip: Where differences without a bound are clipped; None before the first groups.
        excess: The sum of what was clipped.
        total: The sum of differences, each times its weight.
        squares: The sum of their squares.
        baseline_total: The sum of the baseline's means, each times its weight.
        weight: The sum of weights.
        weight_squares: The sum of their squares.
        units: Groups seen.
    """

    margin: float
    relative: bool = False
    bound: float | None = 1.0
    required: bool = True
    scale: float = 1.0
    difference: SignFlip = field(default_factory=SignFlip)
    outside: SignFlip = field(default_factory=SignFlip)
    inside: InsideMargin = field(default_factory=InsideMargin)
    clip: float | None = None
    excess: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    baseline_total: float = 0.0
    weight: float = 0.0
    weight_squares: float = 0.0
    units: int = 0

    def update(self, baseline: Floats, experiment: Floats) -> Mean:
        """The evidence after further groups that both arms sampled, from their means, (K,) each."""
        if not len(baseline):
            return self
        sizes = baseline + experiment if self.relative else None
        if self.bound is not None:
            return self.add(experiment - baseline, baseline, self.bound, sizes=sizes)
        differences = experiment - baseline
        largest = float(np.abs(differences).max())
        after = self.counted(differences, baseline, sizes=sizes)
        size, margin = float(np.sqrt(after.squares / after.units)), after.allowed / self.scale
        clip = max(self.clip or 0.0, CLIP * size, _HEADROOM * largest, margin)
        if self.clip is None or self.units < FIRST_GROUPS:
            # The first groups only say where later ones are clipped, so that no bet depends on what it is about.
            return replace(after, clip=clip or None, inside=self.inside.later(len(baseline)))
        clipped = np.clip(differences, -self.clip, self.clip)
        inside = self.inside.update(clipped, self._margins(baseline), self.clip)
        if clip > self.clip:
            # What was shown while larger differences had not been seen does not count.
            inside = replace(inside, largest=inside.log_wealth)
        excess = self.excess + float(np.abs(differences - clipped).sum())
        return replace(after, inside=inside, excess=excess, clip=clip)

    def add(
        self,
        differences: Floats,
        baseline: Floats,
        bound: float,
        weights: Floats | None = None,
        sizes: Floats | None = None,
    ) -> Mean:
        """The evidence after further groups, from numbers whose means are the difference and the baseline's mean.

        Args:
            differences: One number a group, (K,).
            baseline: The same.
            bound: The largest absolute difference there can be.
            weights: How much each group counts, (K,), from what was known before it; equally much if not given.
            sizes: What a difference is a large or a small one for, (K,): the same whichever way round the arms are.
        """
        if weights is None:
            weights = np.ones_like(differences)
        after = self.counted(differences, baseline, weights, sizes)
        margins = weights * self._margins(baseline)
        return replace(after, inside=self.inside.update(weights * differences, margins, weights * bound))

    def _margins(self, baseline: Floats) -> Floats:
        return self.margin * (np.maximum(baseline, 0) if self.relative else np.ones_like(baseline))

    def counted(
        self, differences: Floats, baseline: Floats, weights: Floats | None = None, sizes: Floats | None = None
    ) -> Mean:
        """The evidence after further groups that speak of a difference and of no margin; as in `add`."""
        if weights is None:
            weights = np.ones_like(differences)
        weighted, half = weights * differences, weights * self._margins(baseline) / 2
        # Signs, which show a difference, may be held to the size of a group; its mean may not.
        sides = np.stack([weighted, weighted - half, -weighted - half])
        if sizes is not None:
            sides = np.divide(sides, sizes, out=np.zeros_like(sides), where=sizes > 0)
        return replace(
            self,
            difference=self.difference.update(sides[0]),
            outside=self.outside.update(sides[1:]),
            total=self.total + float(weighted.sum()),
            squares=self.squares + float((weighted**2).sum()),
            baseline_total=self.baseline_total + float(weights @ baseline),
            weight=self.weight + float(weights.sum()),
            weight_squares=self.weight_squares + float((weights**2).sum()),
            units=self.units + len(differences),
        )

    @property
    def estimate(self) -> float:
        """The mean difference, in the metric's unit."""
        return self.scale * self.total / self.weight if self.units else 0.0

    @property
    def baseline_mean(self) -> float:
        """The baseline's mean, in the metric's unit."""
        return self.scale * self.baseline_total / self.weight if self.units else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of a group's difference, in the metric's unit.

        With weights, that of equally weighted groups whose mean would be as precise.
        """
        if self.units < 2:
            return 0.0
        mean = self.total / self.weight
        spread = max(self.squares - self.weight_squares * mean**2, 0.0) / (self.units - 1)
        return self.scale * float(np.sqrt(spread)) * self.units / self.weight

    @property
    def interval(self) -> Interval:
        """An asymptotic 95 % confidence sequence of the mean difference, in the metric's unit."""
        return normal_sequence(self.units, self.estimate, self.deviation)

    @property
    def allowed(self) -> float:
        """The margin in the metric's unit, from the baseline's mean so far where it is relative."""
        return self.margin * (abs(self.baseline_mean) if self.relative else self.scale)

    @property
    def smallest_margin(self) -> float | None:
        """The smallest margin that the data prove, in the metric's unit: valid at every look; None while none is."""
        if self.bound is None and self.units < FEWEST_GROUPS:
            return None
        proven = np.broadcast_to(self.inside.proven, FACTORS.shape)
        # What was clipped could hide a difference of its own size, and the mean so far must be inside as well.
        least = max(abs(self.estimate), self.scale * self.excess / max(self.units, 1) / LARGEST_EXCESS)
        sizes = self.allowed * FACTORS[proven & (self.allowed * FACTORS >= least)]
        return float(sizes.min()) if self.allowed > 0 and len(sizes) else None

    @property
    def is_parity(self) -> bool:
        """Whether the difference is shown to lie inside the margin."""
        return self.smallest_margin is not None and self.smallest_margin <= self.allowed * (1 + 1e-9)

    @property
    def is_beyond(self) -> bool:
        """Whether the mean so far lies beyond the margin, and beyond half of it by more than chance.

        Without that no difference is one that matters: one of half the margin is called so 5 times in 100 at most.
        """
        if not abs(self.estimate) > self.allowed:
            return False
        return bool(self.outside.log_e_above[int(self.estimate < 0)] >= ENOUGH)

    @property
    def log_e_parity(self) -> float:
        """The log e-value of the difference lying inside the stated margin."""
        return float(np.broadcast_to(self.inside.log_e, FACTORS.shape)[FACTORS == 1][0])

    @property
    def groups_needed(self) -> int | None:
        """Groups in all that show parity four times in five if the arms are equal; None where that is not known."""
        bound = self.clip if self.bound is None else self.bound
        if bound is None or not self.allowed > 0:
            return None
        needed = groups_for_margin(self.deviation, self.allowed, bound * self.scale)
        return needed if self.bound is not None else max(needed, FEWEST_GROUPS)

    def verdict(self, corrected: float) -> Verdict:
        """Of this metric, from the largest corrected log e-value of a difference so far.

        A difference inside the margin is never DIFFERENT. Where parity is not asked for, 256 groups without a
        difference beyond the margin pass.
        """
        if self.is_parity:
            return Verdict.PARITY
        if corrected >= ENOUGH and self.is_beyond:
            return Verdict.DIFFERENT
        passes = not self.required and self.units >= FEWEST_GROUPS and not (corrected >= ENOUGH and self.is_beyond)
        return Verdict.PARITY if passes else Verdict.INCONCLUSIVE


def mean_finding(check: str, metric: str, mean: Mean, corrected: float, hypotheses: int) -> Finding:
    """What the evidence on one mean says.

    Args:
        check: The check's name.
        metric: The metric's name.
        mean: The evidence.
        corrected: The largest log e-value of a difference at any look, corrected for the number of hypotheses.
        hypotheses: How many of them there are.
    """
    verdict = mean.verdict(corrected)
    proven, needed = mean.smallest_margin, mean.groups_needed
    low, high = mean.interval
    message = Message(
        "{metric}: differs by {estimate:+.4g} over {groups} ({interval}, margin ±{margin:.4g}); {proven}",
        metric=metric,
        estimate=mean.estimate,
        groups=quantity(mean.units, "prompt groups"),
        interval=_interval(low, high),
        margin=mean.allowed,
        proven=Message("no margin is proven yet")
        if proven is None
        else Message("equal within ±{size:.4g}", size=proven),
    )
    if note := _note(mean, verdict, corrected, hypotheses):
        message = Message("{finding}; {note}", finding=message, note=note)
    evidence: dict[str, Any] = {
        "baseline": mean.baseline_mean,
        "experiment": mean.baseline_mean + mean.estimate,
        "estimate": mean.estimate,
        "ci95": [low, high] if np.isfinite(low) else None,
        "margin": mean.allowed,
        "smallest_margin": proven,
        "log_e_difference": float(mean.difference.log_e),
        "log_e_corrected": corrected,
        "log_e_parity": mean.log_e_parity,
        "groups_needed": needed,
        "unit": "prompt group",
        "units": mean.units,
        "method": Message("sign-flip e-process for a difference, betting on bounded means for parity"),
    }
    if mean.clip is not None:
        evidence |= {"clip": mean.clip, "clipped_per_group": mean.excess / max(mean.units, 1)}
    expected = [-mean.allowed, mean.allowed]
    return metric_finding(
        Level.SAMPLING, check, metric, STATUS_OF_VERDICT[verdict], message, evidence, expected, mean.estimate
    )


def _interval(low: float, high: float) -> Message:
    if not np.isfinite(low):
        return Message("no interval below {fewest} groups", fewest=FEWEST_FOR_INTERVAL)
    return Message("about 95 % at all looks {low:+.4g} to {high:+.4g}", low=low, high=high)


def _note(mean: Mean, verdict: Verdict, corrected: float, hypotheses: int) -> Message | None:
    """What a reader must know beside the numbers."""
    if corrected >= ENOUGH and not mean.is_beyond:
        if abs(mean.estimate) > mean.allowed:
            return Message("a difference is shown, of which more groups say whether it is inside the margin")
        return Message("a difference is shown, which is inside the margin")
    if verdict is Verdict.PARITY and not mean.is_parity:
        # In standard deviations of a group's difference, so that a difference of that size is found 4 times in 5.
        size = max(mean.allowed, detectable(hypotheses, mean.units) * mean.deviation)
        return Message("no difference is seen; one from ±{size:.3g} on would have been, 4 times in 5", size=size)
    if verdict is not Verdict.INCONCLUSIVE:
        return None
    if mean.scale * mean.excess > LARGEST_EXCESS * mean.allowed * mean.units:
        return Message(
            "differences larger than those of earlier groups add up to {share:.2g} of the margin, so that parity waits "
            "for more groups",
            share=mean.scale * mean.excess / mean.units / mean.allowed,
        )
    if not mean.required:
        return Message("{fewest} groups are needed to pass", fewest=FEWEST_GROUPS)
    if (needed := mean.groups_needed) is None:
        return None
    more = max(needed - mean.units, needed // 10, 1)
    return Message(
        "about {more} would show parity 4 times in 5 if the arms are equal", more=quantity(more, "more groups")
    )
