"""Evidence from inside training runs: groups whose arm was drawn at random, whatever training does in between (L1).

In a probe, prompts are asked in both arms, and a group's statistic in the experiment less that in the baseline has mean
zero if the arms sample alike. In a switchback each group is in one arm by a fair coin, and its statistic, less a centre
known before, with the sign of the coin, has mean zero as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parity.errors import InputError
from parity.evidence.metric_findings import STATUS_OF_VERDICT, metric_finding
from parity.evidence.sampling.monitor import Monitor, Watched
from parity.evidence.sampling.sequential import bernoulli_log_e
from parity.evidence.values import ALPHA, Floats
from parity.findings import Finding, Level, Severity, Status, Verdict, quantity
from parity.records.margins import RUN, Unit, by_curve, metric_named
from parity.records.samples import Rollout

POLICIES = ("switchback", "probe")

REWARD = "rollout/raw_reward"
LENGTH = "rollout/response_len/mean"
TRUNCATED = "rollout/truncated_ratio"
REWARD_SPREAD = "rollout/group_reward_std"
LOG_PROBS = "rollout/rollout_log_probs"
DUPLICATES = "rollout/duplicate_pairs"

METRICS = (REWARD, LENGTH, TRUNCATED, REWARD_SPREAD, LOG_PROBS, DUPLICATES)
"""What is measured of a group."""

CLIPPED_NATS = 5.0
"""A response's mean negative log-prob is cut here, since bets need bounds."""

_LARGEST_SHOWN = 200.0

LARGEST_LEFT_OUT = 0.05
"""The share of groups that may be left out; above it, what is left may be selected by arm."""

CENTRE_MEMORY = 32
"""Groups over which a switchback's centre forgets; the test holds for any, and a good centre only makes it sharper."""


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """What makes the statistics of groups bounded.

    Attributes:
        reward: The lowest and the highest possible reward.
        max_new_tokens: The cap of a response where its samples do not say; None to leave lengths out then.
    """

    reward: tuple[float, float] = (0.0, 1.0)
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """One group whose arm was drawn.

    Attributes:
        step: The rollout's number.
        group_index: The group's.
        policy: One of `POLICIES`.
        arm: The arm drawn, which a fallback does not change: leaving such groups out would compare what is left.
        values: Statistics by metric, each scaled to [0, 1].
        scales: The difference in the metric's own unit that belongs to a difference of 1.
    """

    step: int
    group_index: int
    policy: str
    arm: str
    values: Mapping[str, float]
    scales: Mapping[str, float]


def drawn_groups(rollout: Rollout, bounds: GroupBounds) -> tuple[list[DrawnGroup], int]:
    """The groups of a rollout whose arm was drawn, in their order, and the number of those whose arm was not.

    A sample says in ``extra["assignment"]`` by which ``policy`` and to which ``arm`` its group was assigned, and with
    which ``probability``, 1 where nothing was drawn.

    Raises:
        InputError: An assignment cannot be read, samples of a group disagree on it, or a value is out of its bounds.
    """
    rows: dict[tuple[int, int, str], list[int]] = {}
    policies: dict[tuple[int, int, str], str] = {}
    undrawn = set()
    steps, indices = rollout.integers("rollout_id"), rollout.integers("group_index")
    for row, (step, index) in enumerate(zip(steps.tolist(), indices.tolist(), strict=True)):
        assignment = rollout.extra(row).get("assignment")
        policy, arm, drawn = _read_assignment(assignment, f"step {step}, group {index}")
        if not drawn:
            undrawn.add((step, index))
            continue
        key = (step, index, arm)
        if policies.setdefault(key, policy) != policy:
            raise InputError(f"step {step}, group {index}: samples assigned by {policies[key]} and by {policy}")
        rows.setdefault(key, []).append(row)
    columns, responses = _columns(rollout, bounds), _responses(rollout)
    groups = []
    for (step, index, arm), of_group in rows.items():
        values, scales = _measure(columns, np.array(of_group), f"step {step}, group {index}")
        own = [responses[row] for row in of_group]
        if len(own) > 1 and None not in own:
            values[DUPLICATES], scales[DUPLICATES] = _equal_pairs(own), 1.0
        groups.append(DrawnGroup(step, index, policies[step, index, arm], arm, values, scales))
    return groups, len(undrawn)


def of_drawn_arm(rollout: Rollout, arm: str) -> Rollout:
    """The samples whose group was drawn to an arm."""
    assignments = [rollout.extra(row).get("assignment") or {} for row in range(len(rollout))]
    drawn = [of_row.get("arm") == arm and of_row.get("probability") != 1 for of_row in assignments]
    return Rollout(rollout.table.filter(pa.array(drawn, pa.bool_())))


def _read_assignment(assignment: Any, where: str) -> tuple[str, str, bool]:
    """The policy, the arm, and whether a coin was tossed."""
    if assignment is None:
        return "fixed", "", False
    policy, arm = (assignment.get(name) if isinstance(assignment, dict) else None for name in ("policy", "arm"))
    if policy not in ("fixed", *POLICIES) or not isinstance(arm, str):
        raise InputError(f"{where}: an assignment has a policy of {POLICIES} and an arm, but this one is {assignment}")
    return policy, arm, policy != "fixed" and assignment.get("probability") != 1


@dataclass(frozen=True, slots=True)
class _Column:
    """One value a sample, (N,), NaN where it is not known; it lies between `low` and `low + width`, (N,)."""

    values: Floats
    low: float
    width: Floats


def _columns(rollout: Rollout, bounds: GroupBounds) -> dict[str, _Column]:
    """What a group's statistics are means of, by metric."""
    low, high = bounds.reward
    ids, log_probs = rollout.ragged("output_ids"), rollout.ragged("logprobs")
    caps, known = rollout.numbers("max_new_tokens")
    caps = np.where(known, caps, bounds.max_new_tokens or np.nan)
    lengths = np.where(ids.valid & (caps > 0), ids.lengths, np.nan)
    sums = np.bincount(log_probs.rows_of_values, weights=log_probs.values, minlength=len(rollout))
    nats = np.where(log_probs.valid, np.clip(-sums / np.maximum(log_probs.lengths, 1), 0, CLIPPED_NATS), np.nan)
    reasons = rollout.strings("finish_reason")
    truncated = np.where(reasons == None, np.nan, reasons == "length")  # noqa: E711 - element by element
    every = np.ones(len(rollout))
    return {
        REWARD: _Column(rollout.numbers("reward")[0], low, (high - low) * every),
        LENGTH: _Column(lengths, 0.0, caps),
        LOG_PROBS: _Column(nats, 0.0, CLIPPED_NATS * every),
        TRUNCATED: _Column(truncated.astype(np.float64), 0.0, every),
    }


def _responses(rollout: Rollout) -> list[bytes | None]:
    """Each sample's tokens, as what can be compared; None where they are not known."""
    ids = rollout.ragged("output_ids")
    return [ids[row].tobytes() if valid else None for row, valid in enumerate(ids.valid)]


def _measure(
    columns: Mapping[str, _Column], rows: npt.NDArray[np.int64], where: str
) -> tuple[dict[str, float], dict[str, float]]:
    """A group's statistics in [0, 1] and their scales, without those that a sample lacks the value of."""
    values: dict[str, float] = {}
    scales: dict[str, float] = {}
    for metric, column in columns.items():
        own, width = column.values[rows], column.width[rows]
        if np.isnan(own).any():
            continue
        scaled = (own - column.low) / width
        outside = own[~((scaled >= 0) & (scaled <= 1))]
        if outside.size:
            raise InputError(
                f"{where}: {metric} {outside[0]:.4g} is outside its bounds; "
                "say what a reward can be with --reward-range, and a response with --max-new-tokens"
            )
        values[metric], scales[metric] = float(scaled.mean()), float(width.max())
        if metric == REWARD and len(rows) > 1:
            # A standard deviation is no more than half of the range.
            values[REWARD_SPREAD], scales[REWARD_SPREAD] = 2 * float(scaled.std()), scales[REWARD] / 2
    return values, scales


def _equal_pairs(responses: Sequence[bytes | None]) -> float:
    """The share of a group's pairs of samples whose tokens are the same."""
    counts = np.array(list(Counter(responses).values()))
    return float((counts * (counts - 1)).sum() / (len(responses) * (len(responses) - 1)))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What mixed runs have shown so far.

    Attributes:
        policy: One of `POLICIES`.
        arms: Baseline and experiment.
        margins: By metric, in its unit.
        monitor: The evidence.
        alone: How many probed groups were seen in one arm only.
        centres: A switchback's centre by metric.
        left_out: Groups without a statistic that others have, by arm.
        drawn: Groups by the arm that was drawn for them, those left out among them.
    """

    policy: str
    arms: tuple[str, str]
    margins: Mapping[str, float] = field(default_factory=lambda: margins_in_run({}))
    monitor: Monitor = field(default_factory=lambda: Monitor({}))
    alone: int = 0
    centres: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    drawn: Mapping[str, int] = field(default_factory=dict)

    @property
    def share_left_out(self) -> float:
        """The share of groups that lack a value or, in a probe, their counterpart."""
        return (sum(self.left_out.values()) + self.alone) / max(sum(self.drawn.values()), 1)

    @property
    def log_e_of_coin(self) -> float:
        """The log e-value against a switchback's coin being fair among the groups that came, at every look."""
        if self.policy != "switchback":
            return 0.0
        return bernoulli_log_e(self.drawn.get(self.arms[1], 0), sum(self.drawn.values()), 0.5)

    @property
    def selected(self) -> bool:
        """Whether so many groups were lost, or so many more of one arm, that the others show no parity."""
        return self.share_left_out > LARGEST_LEFT_OUT or self.log_e_of_coin >= -np.log(ALPHA)

    @property
    def verdict(self) -> Verdict:
        """That of the evidence, and no parity among groups that are selected."""
        verdict = self.monitor.verdict
        return Verdict.INCONCLUSIVE if verdict is Verdict.PARITY and self.selected else verdict

    def update(self, groups: Iterable[DrawnGroup]) -> Trajectory:
        """The evidence after all groups of further rollouts of one run, in the order they were drawn.

        Raises:
            InputError: A group was assigned by another policy, to a third arm, or twice to the same.
        """
        groups, drawn = list(groups), Counter(self.drawn)
        halves: dict[tuple[int, int], DrawnGroup] = {}
        centres, left_out = dict(self.centres), dict(self.left_out)
        watched = self.monitor.watched or self._watch(groups)
        rows: list[dict[str, float]] = []
        for group in groups:
            self._check(group)
            drawn[group.arm] += 1
            if watched.keys() - group.values.keys():
                left_out[group.arm] = left_out.get(group.arm, 0) + 1
                continue
            sign = 1 if group.arm == self.arms[1] else -1
            if self.policy == "switchback":
                rows.append({name: sign * (group.values[name] - centres.get(name, 0.5)) for name in watched})
                for name in watched:
                    old = centres.get(name, 0.5)
                    centres[name] = old + (group.values[name] - old) / CENTRE_MEMORY
                continue
            key = (group.step, group.group_index)
            other = halves.pop(key, None)
            if other is None:
                halves[key] = group
            elif other.arm == group.arm:
                raise InputError(f"step {group.step}, group {group.group_index}: twice in the arm {group.arm}")
            else:
                rows.append({name: sign * (group.values[name] - other.values[name]) for name in watched})
        monitor = Monitor(watched, self.monitor.largest_log_e)
        if rows:
            monitor = monitor.update({name: np.array([row[name] for row in rows]) for name in watched})
        alone = self.alone + len(halves)
        return replace(self, monitor=monitor, alone=alone, centres=centres, left_out=left_out, drawn=drawn)

    def _check(self, group: DrawnGroup) -> None:
        if group.policy != self.policy or group.arm not in self.arms:
            raise InputError(
                f"step {group.step}, group {group.group_index}: assigned to {group.arm} by {group.policy}, "
                f"where {' and '.join(self.arms)} are compared by {self.policy}"
            )

    def _watch(self, first: Sequence[DrawnGroup]) -> dict[str, Watched]:
        """What any of the first groups has is what is watched."""
        factor = 2 if self.policy == "switchback" else 1  # a switchback's increment has half the difference as its mean

        def margin(name: str) -> float:
            metric = metric_named(name)
            if metric is None or metric.unit is not Unit.SHARE:
                return self.margins[name]
            of_baseline = [group for group in first if name in group.values]
            return self.margins[name] * float(np.mean([g.values[name] * g.scales[name] for g in of_baseline])) or 1e-9

        return {
            name: Watched(margin(name), factor * scale)
            for name, scale in {name: scale for group in first for name, scale in group.scales.items()}.items()
            if name in self.margins
        }


def margins_in_run(margins: Mapping[str, float]) -> dict[str, float]:
    """The margins of what is measured of a group, by curve: those given, by any of their names, else the defaults."""
    known = {**by_curve(RUN), **by_curve(margins)}
    return {metric: known[metric] for metric in METRICS}


def e_value(log_e: float) -> str:
    """An e-value in three digits, from its natural log."""
    return f"{np.exp(log_e):.3g}" if log_e < _LARGEST_SHOWN else f"above 1e{int(_LARGEST_SHOWN / np.log(10))}"


def trajectory_findings(trajectory: Trajectory) -> list[Finding]:
    """What a mixed run shows at fixed weights along its way: one finding a metric, and one on all of them together.

    A metric passes once its confidence sequence is inside its margin, and fails once its e-value has reached 20 times
    the number of metrics; together they fail once the mean of the e-values has reached 20. Both hold at every look.
    """
    monitor = trajectory.monitor
    if not monitor.groups:
        message = f"no group of the {trajectory.policy} has been seen in full, so there is no evidence yet"
        return [Finding("trajectory_evidence", Level.SAMPLING, Status.INCONCLUSIVE, message)]
    found = [_metric_finding(name, one, len(monitor.watched)) for name, one in monitor.watched.items()]
    missing = sorted(trajectory.margins.keys() - monitor.watched.keys())
    found += [
        metric_finding(
            Level.SAMPLING,
            "trajectory_difference",
            name,
            Status.NOT_COMPARED,
            f"{name}: the first samples do not have it",
            {},
        )
        for name in missing
    ]
    found.append(_together_finding(trajectory))
    return found + _left_out(trajectory)


def _left_out(trajectory: Trajectory) -> list[Finding]:
    """What is said of groups that cannot be compared, as which ones those are may depend on the arm.

    A warning, and inconclusive where the others may be selected.
    """
    lacking = sorted(trajectory.left_out.items())
    counts = [f"{count} of {arm} without a value that others have" for arm, count in lacking]
    if trajectory.alone:
        counts.append(f"{quantity(trajectory.alone, 'probed groups')} seen in one arm only")
    if trajectory.log_e_of_coin >= -np.log(ALPHA):
        arm = trajectory.arms[1]
        counts.append(
            f"{trajectory.drawn.get(arm, 0)} of {sum(trajectory.drawn.values())} groups are of {arm}, where a fair "
            f"coin gives half (e-value {e_value(trajectory.log_e_of_coin)}), as where a rollout ends with the first "
            "groups done"
        )
    if not counts:
        return []
    message = f"groups left out of the evidence: {'; '.join(counts)}"
    evidence = {**trajectory.left_out, "one_arm_only": trajectory.alone, "drawn": dict(trajectory.drawn)}
    check = "trajectory_left_out"
    if not trajectory.selected:
        return [Finding(check, Level.SAMPLING, Status.FAIL, message, severity=Severity.WARNING, evidence=evidence)]
    message += "; those that are left may be selected, so that they show no parity"
    return [Finding(check, Level.SAMPLING, Status.INCONCLUSIVE, message, evidence=evidence)]


def _metric_finding(name: str, one: Watched, metrics: int) -> Finding:
    verdict = one.verdict
    if verdict is Verdict.DIFFERENT and one.process.largest_log_e < np.log(metrics / ALPHA):
        verdict = Verdict.INCONCLUSIVE
    low, high = one.interval
    message = (
        f"{name}: differs by {one.estimate:+.4g} over {quantity(one.process.units, 'groups')} "
        f"(95 % sequence {low:+.4g} to {high:+.4g}, margin ±{one.margin:g}, e-value {e_value(one.process.log_e)})"
    )
    if verdict is Verdict.INCONCLUSIVE and low < high:
        reach = one.margin - abs(one.estimate or 0.0)
        if reach > 0:
            needed = int(np.ceil(one.process.units * max(((high - low) / 2 / reach) ** 2, 1.01)))
            message += f"; at this estimate about {needed} groups in all would show parity"
    evidence = {
        "estimate": one.estimate,
        "sequence95": one.interval,
        "margin": one.margin,
        "log_e": one.process.log_e,
        "largest_log_e": one.process.largest_log_e,
        "units": one.process.units,
        "unit": "prompt group",
        "method": "betting e-process and confidence sequence",
    }
    status = STATUS_OF_VERDICT[verdict]
    expected = [-one.margin, one.margin]
    return metric_finding(
        Level.SAMPLING, "trajectory_difference", name, status, message, evidence, expected, one.estimate
    )


def _together_finding(trajectory: Trajectory) -> Finding:
    monitor = trajectory.monitor
    how = {
        "probe": "prompts asked in both arms at the same weights",
        "switchback": "each group in an arm drawn by a coin",
    }[trajectory.policy]
    message = (
        f"{quantity(monitor.groups, 'groups')}, {how}: "
        f"mean e-value of {quantity(len(monitor.watched), 'metrics')} {e_value(monitor.log_e)}, "
        f"largest at any look {e_value(monitor.largest_log_e)}, where 20 decides. This speaks of sampling along a "
        "run that trained on both arms, at its weights; a run in one arm alone it does not show"
    )
    evidence = {
        "log_e": monitor.log_e,
        "largest_log_e": monitor.largest_log_e,
        "units": monitor.groups,
        "unit": "prompt group",
        "checked": monitor.groups,
        "method": "mean of betting e-processes",
    }
    return Finding(
        "trajectory_evidence", Level.SAMPLING, STATUS_OF_VERDICT[monitor.verdict], message, evidence=evidence
    )
