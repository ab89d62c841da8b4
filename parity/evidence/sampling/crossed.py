"""Responses of each arm scored by the other arm's engine at the same weights (L1): how far apart the two policies are.

With p the engine that drew a response and q the other one, the log-probs of both give the KL divergence of p from q,
token by token, and the total variation of the two laws of responses, which bounds how much any reward can differ.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from parity.evidence.contract.gaps import COLUMNS, LARGEST_STEP, gap_sums, measured_gaps
from parity.evidence.contract.mismatch import HOST_THRESHOLDS
from parity.evidence.metric_findings import metric_finding
from parity.evidence.sampling.rescored import Rescored
from parity.evidence.values import ALPHA, Floats, Interval
from parity.findings import Finding, Level, Message, Status, quantity
from parity.records.margins import TOKEN_KL

CHECK = "sampling_mismatch"

WIDER = float(stats.norm.ppf(0.995) / stats.norm.ppf(0.975))
"""Half-width of a 99 % interval over that of a 95 % one."""

_finding = partial(metric_finding, Level.SAMPLING, CHECK)


def crossed_findings(
    own: tuple[Rescored, Rescored],
    crossed: tuple[Rescored, Rescored],
    *,
    reward_margin: float,
    reward_range: Interval = (0.0, 1.0),
    largest_kl: float = TOKEN_KL,
    arms: tuple[str, str] = ("baseline", "experiment"),
) -> list[Finding]:
    """How far apart two engines are at the same weights, by the responses of each scored by the other.

    One finding a direction: the KL divergence a token (k3), whose 99 % interval by prompt group lies below its margin
    (pass) or above it (fail), so that four looks at more and more groups are together wrong in at most 4 %. One of
    both: by how much the mean reward of the arms can differ at most; it passes where that is inside the reward's
    margin, and is else not compared, since a bound above the margin shows no difference.

    Args:
        own: Responses of the baseline and of the experiment, each `prefilled` by the engine that drew it.
        crossed: The same responses, each `prefilled` by the other arm's engine.
        reward_margin: The largest difference of mean rewards that does not matter.
        reward_range: The least and the largest reward there can be.
        largest_kl: The margin of KL, in nats a token.
        arms: What the arms are called.
    """
    directions = [_direction(arms[drew], arms[1 - drew], rescored, largest_kl) for drew, rescored in enumerate(crossed)]
    return [*directions, _explained(own, crossed, reward_margin, reward_range)]


def _direction(drew: str, scored: str, rescored: Rescored, margin: float) -> Finding:
    metric = f"{drew} by {scored}"
    gaps = rescored.differences
    if not len(gaps):
        message = Message("{drew}: no token to score by {scored}", drew=drew, scored=scored)
        return _finding(metric, Status.NOT_COMPARED, message, {})
    if bad := int((~np.isfinite(gaps)).sum()):
        message = Message(
            "{drew} drew {bad} of {tokens} whose log-prob is NaN or infinite by one of both engines",
            drew=drew,
            bad=bad,
            tokens=quantity(len(gaps), "tokens"),
        )
        return _finding(metric, Status.FAIL, message, {"units": len(rescored.recorded)})
    measured = measured_gaps(_by_group(rescored))
    k3 = float(measured["k3"]["mean"])
    low, high = (k3 + WIDER * (end - k3) for end in measured["k3"].get("interval", (0.0, np.inf)))
    status = Status.FAIL if low > margin else Status.PASS if high < margin else Status.INCONCLUSIVE
    message = Message(
        "tokens of {drew} scored by {scored}: {distance:.3g} nats apart in the mean, KL {k3:.3g} nats a token (99 % "
        "{low:.3g} to {high:.3g}, margin {margin:.3g}) over {tokens} of {groups}",
        drew=drew,
        scored=scored,
        distance=measured["abs"]["mean"],
        k3=k3,
        low=low,
        high=high,
        margin=margin,
        tokens=quantity(measured["tokens"], "tokens"),
        groups=quantity(measured["groups"], "prompt groups"),
    )
    evidence = {
        **measured,
        "estimate": k3,
        "ci99": [low, high] if np.isfinite(high) else None,
        "margin": margin,
        "thresholds of hosts": HOST_THRESHOLDS,
        "unit": "prompt group",
        "units": measured["groups"],
        "method": Message("k3 estimate of KL, delta method over prompt groups"),
    }
    return _finding(metric, status, message, evidence, expected=f"at most {margin}", observed=k3)


def _by_group(rescored: Rescored) -> Floats:
    """Sums of `gap_sums` over each group that has a token, (groups, COLUMNS)."""
    rows = []
    for own, other, lengths in zip(rescored.recorded, rescored.prefilled, rescored.lengths, strict=True):
        places = np.cumsum([0, *lengths])
        every = np.ones(len(own), dtype=np.bool_)
        of_group = [gap_sums(other[start:end], own[start:end], every[start:end]) for start, end in pairwise(places)]
        if len(own):
            rows.append(np.sum(of_group, axis=0))
    return np.reshape(rows, (len(rows), COLUMNS))


def _explained(
    own: tuple[Rescored, Rescored],
    crossed: tuple[Rescored, Rescored],
    reward_margin: float,
    reward_range: Interval,
) -> Finding:
    """The most that the mean rewards of the arms can differ by, from how far apart their laws of responses are.

    For rewards in an interval of width w, |E_p r - E_q r| <= w TV(p, q). The total variation is the mean over responses
    of p of the part of 1 - q/p that is positive (Tsybakov 2009, "Introduction to Nonparametric Estimation", Lemma 2.1,
    Scheffé), and at most the root of half of KL(p || q) (Lemma 2.5, Pinsker).

    What an engine draws from need not be what its prefill says. So the way from one arm's draws to the other's goes by
    one engine's prefill: from the draws of both arms to the prefill of the baseline's engine, or of the experiment's.
    Each way adds two distances. Each distance is the lesser of both upper limits over prompt groups; of the eight
    limits each has an eighth of 5 %, so that the shorter way holds at 95 %.
    """
    metric = "reward"
    units = min(len(rescored.recorded) for rescored in (*own, *crossed))
    if units < 2 or not all(np.isfinite(rescored.differences).all() for rescored in (*own, *crossed)):
        message = Message("reward: no bound by log-probs, which takes two groups and finite values in both arms")
        return _finding(metric, Status.NOT_COMPARED, message, {"units": units})
    # the draws of (baseline, experiment) against one prefill: the baseline's engine's, then the experiment's
    ways = {"baseline": (own[0], crossed[1]), "experiment": (crossed[0], own[1])}
    limits = {engine: [_distance(rescored) for rescored in way] for engine, way in ways.items()}
    estimates = [sum(_of_responses(rescored)[0].mean() for rescored in way) for way in ways.values()]
    width = reward_range[1] - reward_range[0]
    largest = width * min(1.0, *(sum(way) for way in limits.values()))
    estimate = min(1.0, float(np.mean(estimates)))
    message = Message(
        "reward: by their log-probs the arms' laws of responses are {variation:.3g} apart in total variation, which "
        "lets mean rewards differ by {largest:.3g} at most (95 %), margin ±{margin:.3g}",
        variation=estimate,
        largest=largest,
        margin=reward_margin,
    )
    inside = largest <= reward_margin
    if not inside:
        message = Message("{finding}; so the rewards themselves must decide", finding=message)
    evidence: dict[str, Any] = {
        "estimate": width * estimate,
        "largest": largest,
        "total_variation": estimate,
        "limits_of_distances": limits,
        "margin": reward_margin,
        "unit": "prompt group",
        "units": units,
        "method": Message("total variation by likelihood ratios (Scheffé) and by KL (Pinsker), upper limits"),
    }
    return _finding(metric, Status.PASS if inside else Status.NOT_COMPARED, message, evidence, reward_margin, largest)


def _distance(rescored: Rescored) -> float:
    """An upper limit of the total variation of what was drawn from what the prefill says."""
    variation, divergence = _of_responses(rescored)
    return float(min(_upper(variation), np.sqrt(_upper(divergence) / 2)))


def _of_responses(rescored: Rescored) -> tuple[Floats, Floats]:
    """Means over the responses of each group, (G,): of the positive part of 1 - q/p, and of KL(p || q), in nats."""
    variation, divergence = [], []
    for own, other, lengths in zip(rescored.recorded, rescored.prefilled, rescored.lengths, strict=True):
        if not len(lengths):
            continue
        gaps = np.clip(other - own, -LARGEST_STEP, LARGEST_STEP)
        of_token = np.concatenate([[0.0], np.cumsum(np.expm1(gaps) - gaps)])
        of_prefix = np.concatenate([[0.0], np.cumsum(gaps)])
        ends = np.cumsum([0, *lengths])
        variation.append(float(-np.expm1(np.minimum(np.diff(of_prefix[ends]), 0.0)).mean()))
        divergence.append(float(np.mean(np.diff(of_token[ends]))))
    return np.array(variation), np.array(divergence)


def _upper(values: Floats) -> float:
    """The upper limit of the mean of a nonnegative quantity over groups (G,), at an eighth of 5 %, by normal theory."""
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    return max(float(values.mean() + stats.t.ppf(1 - ALPHA / 8, len(values) - 1) * error), 0.0)
