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
"""Group means above so many times the baseline's mean count as that, where a metric has no largest value of its own."""

_HEADROOM = 1.25
"""Later groups are clipped no lower than so many times the largest mean that was seen."""

LARGEST_EXCESS = 0.1
"""What may be clipped in all, as a share of the margin: more could hide a difference of the margin's size."""

FEWEST_GROUPS = 256
"""Groups without which nothing passes that is only not seen."""


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
        inside: Evidence of a mean inside the margin.
        clip: Where group means without a bound are clipped; None before the first groups.
        excess: The sum of what was clipped, of both arms.
        total: The sum of differences.
        squares: The sum of their squares.
        baseline_total: The sum of the baseline's means.
        units: Groups seen.
    """

    margin: float
    relative: bool = False
    bound: float | None = 1.0
    required: bool = True
    scale: float = 1.0
    difference: SignFlip = field(default_factory=SignFlip)
    inside: InsideMargin = field(default_factory=InsideMargin)
    clip: float | None = None
    excess: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    baseline_total: float = 0.0
    units: int = 0

    def update(self, baseline: Floats, experiment: Floats) -> Mean:
        """The evidence after further groups that both arms sampled, from their means, (K,) each."""
        if not len(baseline):
            return self
        if self.bound is not None:
            return self.add(experiment - baseline, baseline, self.bound)
        largest = float(max(baseline.max(), experiment.max()))
        if self.clip is None:
            # The first groups only say where later ones are clipped, so that no bet depends on what it is about.
            clip = max(CLIP * float(baseline.mean()), _HEADROOM * largest) or None
            return replace(self.counted(experiment - baseline, baseline), clip=clip)
        # Rounding puts the log-prob of a certain token slightly above 0.
        first, second = np.clip(baseline, 0, self.clip), np.clip(experiment, 0, self.clip)
        after = self.counted(experiment - baseline, baseline)
        return replace(
            after,
            inside=self.inside.update(second - first, self._margins(first), self.clip),
            excess=self.excess + float((np.maximum(baseline - first, 0) + np.maximum(experiment - second, 0)).sum()),
            clip=max(self.clip, _HEADROOM * largest),
        )

    def add(self, differences: Floats, baseline: Floats, bound: float) -> Mean:
        """The evidence after further groups, from numbers whose means are the difference and the baseline's mean."""
        after = self.counted(differences, baseline)
        return replace(after, inside=self.inside.update(differences, self._margins(baseline), bound))

    def _margins(self, baseline: Floats) -> Floats:
        return self.margin * (np.maximum(baseline, 0) if self.relative else np.ones_like(baseline))

    def counted(self, differences: Floats, baseline: Floats) -> Mean:
        """The evidence after further groups that speak of a difference and of no margin; as in `add`."""
        return replace(
            self,
            difference=self.difference.update(differences),
            total=self.total + float(differences.sum()),
            squares=self.squares + float((differences**2).sum()),
            baseline_total=self.baseline_total + float(baseline.sum()),
            units=self.units + len(differences),
        )

    @property
    def estimate(self) -> float:
        """The mean difference, in the metric's unit."""
        return self.scale * self.total / max(self.units, 1)

    @property
    def baseline_mean(self) -> float:
        """The baseline's mean, in the metric's unit."""
        return self.scale * self.baseline_total / max(self.units, 1)

    @property
    def deviation(self) -> float:
        """The standard deviation of a group's difference, in the metric's unit."""
        if self.units < 2:
            return 0.0
        mean = self.total / self.units
        return self.scale * float(np.sqrt(max(self.squares - self.units * mean**2, 0.0) / (self.units - 1)))

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
        """Whether the mean so far lies beyond the margin, without which no difference is one that matters."""
        return abs(self.estimate) > self.allowed

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
        return groups_for_margin(self.deviation, self.allowed, bound * self.scale)

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
        return Message("a difference is shown, which is inside the margin")
    if verdict is Verdict.PARITY and not mean.is_parity:
        # In standard deviations of a group's difference, so that a difference of that size is found 4 times in 5.
        size = max(mean.allowed, detectable(hypotheses, mean.units) * mean.deviation)
        return Message("no difference is seen; one from ±{size:.3g} on would have been, 4 times in 5", size=size)
    if verdict is not Verdict.INCONCLUSIVE:
        return None
    if mean.excess > LARGEST_EXCESS * mean.margin * (mean.baseline_total if mean.relative else mean.units):
        return Message(
            "means above the first groups' largest add up to {share:.2g} of the mean, so that parity waits for more "
            "groups",
            share=mean.scale * mean.excess / mean.units / (abs(mean.baseline_mean) or 1),
        )
    if not mean.required:
        return Message("{fewest} groups are needed to pass", fewest=FEWEST_GROUPS)
    if (needed := mean.groups_needed) is None:
        return None
    more = max(needed - mean.units, needed // 10, 1)
    return Message(
        "about {more} would show parity 4 times in 5 if the arms are equal", more=quantity(more, "more groups")
    )
