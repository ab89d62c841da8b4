"""Log-probs of a rollout against those of a prefill over the same tokens (L1): paired token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parity.errors import InputError
from parity.evidence.metric_findings import metric_finding
from parity.evidence.sampling.groups import paired_groups
from parity.evidence.values import Floats, GroupValues
from parity.findings import Finding, Level, Status

CHECK = "sampling_logprobs"
LARGEST_SHIFT = 0.03
"""Nats: the largest mean signed difference; slime and Miles hold their own trainer to it."""
LEAST_CORRELATION = 0.99
LARGEST_RATIO = 1.25
"""Of the arms' mean absolute differences, either way."""
ROUNDING = 1e-3
"""Nats: mean absolute differences below this are rounding, whose ratio means nothing."""

_finding = partial(metric_finding, Level.SAMPLING, CHECK)


@dataclass(frozen=True, slots=True)
class Rescored:
    """One arm's log-probs by group: as the rollout recorded them, and as a prefill of the same tokens gives them.

    Raises:
        InputError: A group has not as many of one as of the other.
    """

    recorded: Sequence[Floats]
    prefilled: Sequence[Floats]

    def __post_init__(self) -> None:
        for group, (first, second) in enumerate(zip(self.recorded, self.prefilled, strict=True)):
            if first.shape != second.shape:
                raise InputError(f"group {group}: {len(first)} recorded log-probs, {len(second)} of the prefill")

    @property
    def differences(self) -> Floats:
        """Recorded minus prefilled, over all tokens, in nats."""
        return np.asarray(_joined(self.recorded) - _joined(self.prefilled))

    @property
    def by_group(self) -> Floats:
        """The mean absolute difference of each group, (G,), in nats; 0 for a group without tokens."""
        pairs = zip(self.recorded, self.prefilled, strict=True)
        return np.array([float(np.abs(a - b).mean()) if len(a) else 0.0 for a, b in pairs])


def _joined(groups: Sequence[Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *groups])


def rescored_findings(baseline: Rescored, experiment: Rescored) -> list[Finding]:
    """Do recorded log-probs belong to their tokens, as well in the experiment as in the baseline?

    One finding an arm: the mean signed difference is below 0.03 nat and the correlation above 0.99. One of both: the
    ratio of the arms' mean absolute differences, by prompt group, lies in 0.8 to 1.25; it fails only if its 95 %
    interval is outside that.
    """
    found = [_arm_finding(arm, one) for arm, one in (("baseline", baseline), ("experiment", experiment))]
    return [*found, _ratio_finding(baseline.by_group, experiment.by_group)]


def _arm_finding(arm: str, one: Rescored) -> Finding:
    metric = f"log-probs of the {arm}"
    differences, recorded = one.differences, _joined(one.recorded)
    if not len(differences):
        return _finding(metric, Status.NOT_COMPARED, f"{metric}: no token to score again", {})
    if not np.isfinite(differences).all():
        bad = int((~np.isfinite(differences)).sum())
        return _finding(metric, Status.FAIL, f"{metric}: {bad} of {len(differences)} are NaN or infinite", {})
    shift, distance = float(differences.mean()), float(np.abs(differences).mean())
    prefilled = recorded - differences
    varied = min(np.ptp(recorded), np.ptp(prefilled)) > ROUNDING
    correlation = float(np.corrcoef(recorded, prefilled)[0, 1]) if varied else None
    sound = abs(shift) < LARGEST_SHIFT and (correlation is None or correlation > LEAST_CORRELATION)
    related = "not defined" if correlation is None else f"{correlation:.4f}"
    message = (
        f"{metric}: {len(differences):,} tokens scored again by a prefill differ by {shift:+.2g} nat in the mean, "
        f"{distance:.2g} in absolute value; correlation {related}"
    )
    evidence = {
        "estimate": shift,
        "mean_absolute": distance,
        "quantile_999": float(np.quantile(np.abs(differences), 0.999)),
        "correlation": correlation,
        "unit": "token",
        "units": len(differences),
    }
    return _finding(metric, Status.PASS if sound else Status.FAIL, message, evidence, observed=shift)


def _ratio_finding(baseline: Floats, experiment: Floats) -> Finding:
    metric = "ratio of log-prob differences"
    if not len(baseline) or not np.isfinite(baseline + experiment).all():
        reason = "some log-probs are NaN or infinite" if len(baseline) else "no group was scored again"
        return _finding(metric, Status.NOT_COMPARED, f"{metric}: {reason}", {})
    means = float(baseline.mean()), float(experiment.mean())
    largest = max(means)
    evidence: dict[str, Any] = {"baseline": means[0], "experiment": means[1], "units": len(baseline)}
    if largest < ROUNDING:
        message = f"{metric}: both arms' are {largest:.2g} nat or less in the mean, which is rounding"
        return _finding(metric, Status.PASS, message, evidence)
    if len(baseline) < 2 or min(baseline.min(), experiment.min()) <= 0:
        return _finding(metric, Status.NOT_COMPARED, f"{metric}: a group has none, so there is no ratio", evidence)
    names = tuple(range(len(baseline)))
    logs = [GroupValues(metric, names, np.log(values)[:, None]) for values in (baseline, experiment)]
    result = paired_groups(logs[0], logs[1], float(np.log(LARGEST_RATIO)))
    low, high = np.exp(result.ci95)
    outside = low > LARGEST_RATIO or high < 1 / LARGEST_RATIO
    inside = result.p_equivalence < 0.05
    status = Status.FAIL if outside else Status.PASS if inside else Status.INCONCLUSIVE
    message = (
        f"{metric}: experiment over baseline {np.exp(result.estimate):.3g} (95 % {low:.3g} to {high:.3g}) over "
        f"{result.units} prompt groups, {1 / LARGEST_RATIO:.2g} to {LARGEST_RATIO:.3g} is allowed"
    )
    evidence |= {"estimate": float(np.exp(result.estimate)), "ci95": [float(low), float(high)], "method": result.method}
    return _finding(metric, status, message, evidence, observed=float(np.exp(result.estimate)))
