"""Evidence on several statistics of prompt groups at once, which may be looked at after every group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from parity.errors import InputError
from parity.evidence.sampling.sequential import ConfidenceSequence, EProcess, sequential_verdict
from parity.evidence.values import ALPHA, Floats, Interval
from parity.findings import Verdict


@dataclass(frozen=True, slots=True)
class Watched:
    """One statistic of groups, and the evidence on how the arms differ in it.

    Attributes:
        margin: The largest difference of the arms' means that does not matter, in the statistic's unit.
        scale: The arms' difference, in the statistic's unit, that belongs to a mean increment of 1.
        process: Evidence that they differ.
        sequence: Where the mean increment lies.
        total: The sum of all increments.
    """

    margin: float
    scale: float
    process: EProcess = field(default_factory=EProcess)
    sequence: ConfidenceSequence = field(default_factory=ConfidenceSequence)
    total: float = 0.0

    @property
    def estimate(self) -> float | None:
        """Experiment minus baseline, in the statistic's unit; None before the first group."""
        return self.scale * self.total / self.process.units if self.process.units else None

    @property
    def interval(self) -> Interval:
        """The 95 % confidence sequence of the difference, in the statistic's unit."""
        low, high = self.sequence.interval
        return low * self.scale, high * self.scale

    @property
    def verdict(self) -> Verdict:
        """Of this statistic, as if it were the only one."""
        return sequential_verdict(self.process, self.sequence, self.margin / self.scale)


@dataclass(frozen=True, slots=True)
class Monitor:
    """The evidence on all statistics together.

    The mean of their e-values is an e-value whatever ties them to each other (Vovk and Wang 2021), so that it ever
    reaches 20 has a probability of at most 5 % if the arms agree in all of them. PARITY needs every sequence inside its
    margin, an intersection-union test, which needs no correction (Berger 1982).

    Attributes:
        watched: By the statistic's name.
        largest_log_e: The largest log of the mean of all e-values at any look.
    """

    watched: Mapping[str, Watched]
    largest_log_e: float = 0.0

    def update(self, increments: Mapping[str, Floats]) -> Monitor:
        """The evidence after further groups, with one look after the last of them.

        Args:
            increments: By statistic, (K,) each, in [-1, 1] and in the order in which the groups came. Given what came
                before, each must have mean zero if the arms agree.

        Raises:
            InputError: A statistic is missing or unknown, or an increment is NaN or outside [-1, 1].
        """
        if increments.keys() != self.watched.keys():
            raise InputError(f"increments of {sorted(increments)} where {sorted(self.watched)} are watched")
        watched = {
            name: replace(
                one,
                process=one.process.update(increments[name]),
                sequence=one.sequence.update(increments[name]),
                total=one.total + float(np.sum(increments[name])),
            )
            for name, one in self.watched.items()
        }
        return Monitor(watched, max(self.largest_log_e, _log_mean_e(watched)))

    @property
    def groups(self) -> int:
        """Groups seen."""
        return max((one.process.units for one in self.watched.values()), default=0)

    @property
    def log_e(self) -> float:
        """The natural log of the mean of all e-values now."""
        return _log_mean_e(self.watched)

    @property
    def verdict(self) -> Verdict:
        """PARITY once every sequence is inside its margin, DIFFERENT once the mean e-value has reached 20."""
        if self.watched and all(one.verdict is Verdict.PARITY for one in self.watched.values()):
            return Verdict.PARITY
        return Verdict.DIFFERENT if self.largest_log_e >= -np.log(ALPHA) else Verdict.INCONCLUSIVE


def _log_mean_e(watched: Mapping[str, Watched]) -> float:
    if not watched:
        return 0.0
    return float(special.logsumexp([one.process.log_e for one in watched.values()]) - np.log(len(watched)))
