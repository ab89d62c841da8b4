"""Log-probs of a rollout against those of a prefill over the same tokens (L1): paired token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from parity.errors import InputError
from parity.evidence.metric_findings import metric_finding
from parity.evidence.values import ALPHA, Floats
from parity.findings import Finding, Level, Message, Status

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

    Attributes:
        recorded: Of each group, all its responses one after the other.
        prefilled: Of the same tokens.
        lengths: Of each group, how many tokens each of its responses has.

    Raises:
        InputError: A group has not as many of one as of the other.
    """

    recorded: Sequence[Floats]
    prefilled: Sequence[Floats]
    lengths: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        for group, (first, second, lengths) in enumerate(zip(self.recorded, self.prefilled, self.lengths, strict=True)):
            if not len(first) == len(second) == sum(lengths):
                raise InputError(
                    f"group {group}: {len(first)} recorded log-probs, {len(second)} of the prefill, {sum(lengths)} "
                    "tokens of responses"
                )

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


def rescored_findings(baseline: Rescored, experiment: Rescored, one_engine: bool = True) -> list[Finding]:
    """Do recorded log-probs belong to their tokens, as well in the experiment as in the baseline?

    One finding an arm: the mean signed difference is below 0.03 nat and the correlation above 0.99. One of both: the
    ratio of the arms' mean absolute differences, by prompt group, lies in 0.8 to 1.25; it fails only if its 95 %
    interval is outside that. Groups are scored again once, so that a ratio which they leave open is not compared, and
    the arms' own findings decide. Two engines may round otherwise, so that they have no such ratio:
    `crossed_findings` compares them.
    """
    arms = [_arm_finding(arm, rescored) for arm, rescored in (("baseline", baseline), ("experiment", experiment))]
    return [*arms, _ratio_finding(baseline.by_group, experiment.by_group)] if one_engine else arms


def _arm_finding(arm: str, rescored: Rescored) -> Finding:
    metric = f"log-probs of the {arm}"
    differences, recorded = rescored.differences, _joined(rescored.recorded)
    if not len(differences):
        message = Message("{metric}: no token to score again", metric=metric)
        return _finding(metric, Status.NOT_COMPARED, message, {})
    if not np.isfinite(differences).all():
        bad = int((~np.isfinite(differences)).sum())
        message = Message(
            "{metric}: {bad} of {tokens} are NaN or infinite", metric=metric, bad=bad, tokens=len(differences)
        )
        return _finding(metric, Status.FAIL, message, {})
    shift, distance = float(differences.mean()), float(np.abs(differences).mean())
    prefilled = recorded - differences
    varied = min(np.ptp(recorded), np.ptp(prefilled)) > ROUNDING
    correlation = float(np.corrcoef(recorded, prefilled)[0, 1]) if varied else None
    sound = abs(shift) < LARGEST_SHIFT and (correlation is None or correlation > LEAST_CORRELATION)
    message = Message(
        "{metric}: {tokens:,} tokens scored again by a prefill differ by {shift:+.2g} nat in the mean, {distance:.2g} "
        "in absolute value; correlation {correlation}",
        metric=metric,
        tokens=len(differences),
        shift=shift,
        distance=distance,
        correlation=Message("not defined") if correlation is None else f"{correlation:.4f}",
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

    def not_compared(reason: Message) -> Finding:
        message = Message("{metric}: {reason}", metric=metric, reason=reason)
        return _finding(metric, Status.NOT_COMPARED, message, evidence)

    groups = len(baseline)
    evidence: dict[str, Any] = {"units": groups}
    if not groups or not np.isfinite(baseline + experiment).all():
        infinite, none = Message("some log-probs are NaN or infinite"), Message("no group was scored again")
        return not_compared(infinite if groups else none)
    evidence |= {"baseline": float(baseline.mean()), "experiment": float(experiment.mean())}
    largest = max(evidence["baseline"], evidence["experiment"])
    if largest < ROUNDING:
        message = Message(
            "{metric}: both arms' are {largest:.2g} nat or less in the mean, which is rounding",
            metric=metric,
            largest=largest,
        )
        return _finding(metric, Status.PASS, message, evidence)
    if groups < 2:
        return not_compared(Message("one group gives no interval"))
    # What is below rounding counts as rounding, so that an arm which is exact can be told from one that is not.
    logs = np.log(np.maximum(experiment, ROUNDING) / np.maximum(baseline, ROUNDING))
    # A paired t on the logs: 95 % to fail outside, two one-sided tests at 5 % to pass inside.
    error = max(float(logs.std(ddof=1)) / np.sqrt(groups), 1e-12)
    half = float(stats.t.ppf(1 - ALPHA / 2, groups - 1)) * error
    ratio, low, high = (float(np.exp(logs.mean() + side)) for side in (0, -half, half))
    outside = low > LARGEST_RATIO or high < 1 / LARGEST_RATIO
    inside = stats.t.sf((np.log(LARGEST_RATIO) - abs(logs.mean())) / error, groups - 1) < ALPHA
    status = Status.FAIL if outside else Status.PASS if inside else Status.NOT_COMPARED
    message = Message(
        "{metric}: experiment over baseline {ratio:.3g} (95 % {low:.3g} to {high:.3g}) over {groups} prompt groups, "
        "{least:.2g} to {most:.3g} is allowed",
        metric=metric,
        ratio=ratio,
        low=low,
        high=high,
        groups=groups,
        least=1 / LARGEST_RATIO,
        most=LARGEST_RATIO,
    )
    if status is Status.NOT_COMPARED:
        message = Message("{finding}; so few groups leave it open", finding=message)
    evidence |= {"estimate": ratio, "ci95": [low, high], "method": Message("paired t on logs of group means")}
    return _finding(metric, status, message, evidence, observed=ratio)
