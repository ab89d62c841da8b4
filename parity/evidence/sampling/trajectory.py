"""Evidence from inside training runs: groups whose arm was drawn at random, whatever training does in between (L1).

In a probe, prompts are asked in both arms, and a group's statistic in the experiment less that in the baseline has mean
zero if the arms sample alike. In a switchback each group is in one arm by a fair coin, and its statistic, less a centre
known before, with the sign of the coin, has mean zero as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parity.errors import InputError
from parity.evidence.metric_findings import STATUS_OF_VERDICT, metric_finding
from parity.evidence.sampling.means import Mean, mean_finding
from parity.evidence.sampling.sequential import ENOUGH, adjusted_log_e, bernoulli_log_e
from parity.evidence.values import Floats
from parity.findings import Finding, Level, Message, Severity, Status, Verdict, listed, quantity
from parity.records.margins import IN_RUN, RUN, Unit, by_curve, metric_named
from parity.records.samples import Rollout

POLICIES = ("switchback", "probe")

REWARD = "rollout/raw_reward"
LENGTH = "rollout/response_len/mean"
TRUNCATED = "rollout/truncated_ratio"
REWARD_SPREAD = "rollout/group_reward_std"
LOG_PROBS = "rollout/rollout_log_probs"
DUPLICATES = "rollout/duplicate_pairs"

CLIPPED_NATS = 5.0
"""A response's mean negative log-prob is cut here, since bets need bounds."""

_LARGEST_SHOWN = 200.0

LARGEST_LEFT_OUT = 0.05
"""The share of groups that may be left out; above it, what is left may be selected by arm."""

FEWEST_FOR_WEIGHT = 16
"""Groups of prompts that were asked as often before, without which nothing is known of how close their centre comes."""

LARGEST_WEIGHT = 16.0
"""Most that a group of a known prompt counts, against one of a new prompt."""

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
        prompt: What the group was asked, None where that is not known.
    """

    step: int
    group_index: int
    policy: str
    arm: str
    values: Mapping[str, float]
    scales: Mapping[str, float]
    prompt: bytes | None = None


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
    columns, responses, prompts = _columns(rollout, bounds), _responses(rollout), rollout.ragged("prompt_ids")
    groups = []
    for (step, index, arm), of_group in rows.items():
        values, scales = _measure(columns, np.array(of_group), f"step {step}, group {index}")
        texts = [responses[row] for row in of_group]
        if len(texts) > 1 and None not in texts:
            values[DUPLICATES], scales[DUPLICATES] = _equal_pairs(texts), 1.0
        known = prompts.valid[of_group[0]]
        prompt = blake2b(prompts[of_group[0]].tobytes(), digest_size=16).digest() if known else None
        groups.append(DrawnGroup(step, index, policies[step, index, arm], arm, values, scales, prompt))
    return groups, len(undrawn)


def of_drawn_arm(rollout: Rollout, arm: str) -> Rollout:
    """The samples whose group was drawn to an arm."""
    return Rollout(rollout.table.take(pa.array(rows_of_drawn_arm(rollout, arm), pa.int64())))


def rows_of_drawn_arm(rollout: Rollout, arm: str) -> list[int]:
    """The rows of the samples whose group was drawn to an arm."""
    assignments = [rollout.extra(row).get("assignment") or {} for row in range(len(rollout))]
    return [
        row for row, of_row in enumerate(assignments) if of_row.get("arm") == arm and of_row.get("probability") != 1
    ]


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
        of_group, width = column.values[rows], column.width[rows]
        if np.isnan(of_group).any():
            continue
        scaled = (of_group - column.low) / width
        outside = of_group[~((scaled >= 0) & (scaled <= 1))]
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
class Centre:
    """What a switchback's groups are expected to be, from earlier steps alone.

    Attributes:
        level: The running mean of all groups, by metric; empty before the first step.
        prompts: By prompt, how far its groups lay from the level of their time, by metric, and how many they were.
        missed: By how many groups of a prompt were known, up to 3: the sum of squares of what its next one missed its
            centre by, by metric, and how many those are.
    """

    level: Mapping[str, float] = field(default_factory=dict)
    prompts: Mapping[bytes, tuple[Mapping[str, float], int]] = field(default_factory=dict)
    missed: Mapping[int, tuple[Mapping[str, float], int]] = field(default_factory=dict)

    def known(self, group: DrawnGroup) -> int:
        """How many earlier groups of its prompt are known, up to 3."""
        return min(self.prompts.get(group.prompt or b"", ({}, 0))[1], 3)

    def expected(self, group: DrawnGroup, name: str) -> float:
        """The value expected of a group, in [0, 1]."""
        apart, _ = self.prompts.get(group.prompt or b"", ({}, 0))
        return float(np.clip(self.level[name] + apart.get(name, 0.0), 0, 1))

    def weight(self, group: DrawnGroup, name: str) -> float:
        """How much a group counts: the more, the closer earlier ones came whose prompt was known as well.

        A weight speaks of how often a prompt was asked and not of what it gave, so that no kind of prompt counts more.
        """
        squares = {
            known: sums[name] / count for known, (sums, count) in self.missed.items() if count >= FEWEST_FOR_WEIGHT
        }
        least = min((squares[known] for known in range(self.known(group) + 1) if known in squares), default=0.0)
        return min(squares[0] / least, LARGEST_WEIGHT) if least > 0 and 0 in squares else 1.0

    def after(self, groups: Sequence[DrawnGroup], names: Iterable[str]) -> Centre:
        """The centre after all groups of a step, whatever their order."""
        means = {name: float(np.mean([group.values[name] for group in groups])) for name in names}
        weight = 1 - (1 - 1 / CENTRE_MEMORY) ** len(groups)
        level = {name: old + weight * (means[name] - old) for name, old in self.level.items()} or means
        prompts, missed = dict(self.prompts), dict(self.missed)
        for group in groups if self.level else ():
            sums, number = missed.get(self.known(group), ({}, 0))
            squares = {name: (group.values[name] - self.expected(group, name)) ** 2 for name in level}
            missed[self.known(group)] = {name: sums.get(name, 0.0) + squares[name] for name in level}, number + 1
        for group in groups:
            if group.prompt is not None:
                apart, count = prompts.get(group.prompt, ({}, 0))
                new = {
                    name: apart.get(name, 0.0) + (group.values[name] - level[name] - apart.get(name, 0.0)) / (count + 1)
                    for name in level
                }
                prompts[group.prompt] = (new, count + 1)
        return Centre(level, prompts, missed)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What mixed runs have shown so far.

    Attributes:
        policy: One of `POLICIES`.
        arms: Baseline and experiment.
        margins: By curve, as `margins_in_run` gives them.
        means: The evidence by metric, on values scaled to [0, 1].
        largest: The largest corrected log e-value of a difference at any look, by metric.
        alone: How many probed groups were seen in one arm only.
        centre: What a switchback's groups are expected to be.
        left_out: Groups without a statistic that others have, by arm.
        drawn: Groups by the arm that was drawn for them, those left out among them.
    """

    policy: str
    arms: tuple[str, str]
    margins: Mapping[str, float] = field(default_factory=lambda: margins_in_run({}))
    means: Mapping[str, Mean] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    alone: int = 0
    centre: Centre = field(default_factory=Centre)
    left_out: Mapping[str, int] = field(default_factory=dict)
    drawn: Mapping[str, int] = field(default_factory=dict)

    @property
    def share_left_out(self) -> float:
        """The share of groups that lack a value or, in a probe, their counterpart."""
        return (sum(self.left_out.values()) + self.alone) / max(sum(self.drawn.values()), 1)

    @property
    def coin_fairness_log_e(self) -> float:
        """The log e-value against a switchback's coin being fair among the groups that came, at every look."""
        if self.policy != "switchback":
            return 0.0
        return bernoulli_log_e(self.drawn.get(self.arms[1], 0), sum(self.drawn.values()), 0.5)

    @property
    def selected(self) -> bool:
        """Whether so many groups were lost, or so many more of one arm, that the others show no parity."""
        return self.share_left_out > LARGEST_LEFT_OUT or self.coin_fairness_log_e >= ENOUGH

    @property
    def groups(self) -> int:
        """Groups seen in full; of a probe, pairs of them."""
        return max((mean.units for mean in self.means.values()), default=0)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By metric; no parity among groups that are selected."""
        verdicts = {name: mean.verdict(self.largest.get(name, 0.0)) for name, mean in self.means.items()}
        if not self.selected:
            return verdicts
        return {
            name: Verdict.INCONCLUSIVE if verdict is Verdict.PARITY else verdict for name, verdict in verdicts.items()
        }

    @property
    def verdict(self) -> Verdict:
        """DIFFERENT once one metric is, PARITY once all are."""
        found = set(self.verdicts.values())
        if Verdict.DIFFERENT in found:
            return Verdict.DIFFERENT
        return Verdict.PARITY if found == {Verdict.PARITY} else Verdict.INCONCLUSIVE

    def update(self, groups: Iterable[DrawnGroup]) -> Trajectory:
        """The evidence after all groups of further rollouts of one run; each step's groups are taken together.

        Their order inside a step, which is that of their ends where a host records them, may depend on the arm, so that
        nothing here does on it.

        Raises:
            InputError: A group was assigned by another policy, to a third arm, or twice to the same.
        """
        after = self
        ordered = sorted(groups, key=lambda group: (group.step, group.group_index, group.arm))
        if ordered and not self.means:
            after = replace(self, means=self._watched(ordered))
        for _, of_step in groupby(ordered, key=lambda group: group.step):
            after = after._after_step(list(of_step))
        now = adjusted_log_e({name: float(mean.difference.log_e) for name, mean in after.means.items()})
        return replace(after, largest={name: max(log_e, self.largest.get(name, 0.0)) for name, log_e in now.items()})

    def _after_step(self, groups: Sequence[DrawnGroup]) -> Trajectory:
        drawn, left_out = Counter(self.drawn), dict(self.left_out)
        whole: list[DrawnGroup] = []
        for group in groups:
            self._check(group)
            drawn[group.arm] += 1
            if self.means.keys() - group.values.keys():
                left_out[group.arm] = left_out.get(group.arm, 0) + 1
            else:
                whole.append(group)
        after = replace(self, drawn=drawn, left_out=left_out)
        if not whole:
            return after
        return after._switched(whole) if self.policy == "switchback" else after._probed(whole)

    def _switched(self, groups: Sequence[DrawnGroup]) -> Trajectory:
        """Each group's deviation from its centre, doubled, with the sign of its coin, has the arms' difference as mean.

        The groups of the first step are only known to differ from each other: around their own mean they can speak of a
        difference, where no law changes with the coin, but not of parity.
        """
        signs = np.array([1.0 if group.arm == self.arms[1] else -1.0 for group in groups])
        means = {}
        for name, mean in self.means.items():
            values = np.array([group.values[name] for group in groups])
            baseline = np.where(signs < 0, 2 * values, 0.0)
            if not self.centre.level:
                means[name] = mean.counted(2 * signs * (values - values.mean()), baseline)
                continue
            expected = np.array([self.centre.expected(group, name) for group in groups])
            weights = np.array([self.centre.weight(group, name) for group in groups])
            means[name] = mean.add(2 * signs * (values - expected), baseline, 2.0, weights)
        return replace(self, means=means, centre=self.centre.after(groups, self.means))

    def _probed(self, groups: Sequence[DrawnGroup]) -> Trajectory:
        by_prompt: dict[int, dict[str, DrawnGroup]] = {}
        for group in groups:
            if group.arm in by_prompt.setdefault(group.group_index, {}):
                raise InputError(f"step {group.step}, group {group.group_index}: twice in the arm {group.arm}")
            by_prompt[group.group_index][group.arm] = group
        pairs = [halves for halves in by_prompt.values() if len(halves) == 2]
        means = {
            name: mean.update(*(np.array([halves[arm].values[name] for halves in pairs]) for arm in self.arms))
            for name, mean in self.means.items()
        }
        return replace(self, means=means, alone=self.alone + len(by_prompt) - len(pairs))

    def _check(self, group: DrawnGroup) -> None:
        if group.policy != self.policy or group.arm not in self.arms:
            raise InputError(
                f"step {group.step}, group {group.group_index}: assigned to {group.arm} by {group.policy}, "
                f"where {' and '.join(self.arms)} are compared by {self.policy}"
            )

    def _watched(self, first: Sequence[DrawnGroup]) -> dict[str, Mean]:
        """What any of the first groups has is what is watched."""
        scales = {name: scale for group in first for name, scale in group.scales.items() if name in self.margins}
        means = {}
        for name, scale in scales.items():
            metric = metric_named(name)
            relative = metric is not None and metric.unit is Unit.SHARE
            means[name] = Mean(self.margins[name] / (1 if relative else scale), relative, scale=scale)
        return means


def margins_in_run(margins: Mapping[str, float]) -> dict[str, float]:
    """The margins of what is measured of a group, by curve: those given, by any of their names, else the defaults."""
    known = {**by_curve(RUN), **by_curve(margins)}
    return {curve: known[curve] for curve in by_curve(dict.fromkeys(IN_RUN, 0.0))}


def e_value(log_e: float) -> str:
    """An e-value in three digits, from its natural log."""
    return f"{np.exp(log_e):.3g}" if log_e < _LARGEST_SHOWN else f"above 1e{int(_LARGEST_SHOWN / np.log(10))}"


def trajectory_findings(trajectory: Trajectory) -> list[Finding]:
    """What a mixed run shows at fixed weights along its way: one finding a metric, and one on all of them together.

    A metric passes once its difference is shown to lie inside its margin, and fails once its e-value, corrected for the
    number of metrics, has reached 20 and the difference lies beyond the margin. Both hold at every look.
    """
    if not trajectory.groups:
        message = Message(
            "no group of the {policy} has been seen in full, so there is no evidence yet", policy=trajectory.policy
        )
        return [Finding("trajectory_evidence", Level.SAMPLING, Status.INCONCLUSIVE, message)]
    check = "trajectory_difference"
    hypotheses = len(trajectory.means)
    findings = [
        mean_finding(check, name, mean, trajectory.largest[name], hypotheses) for name, mean in trajectory.means.items()
    ]
    for name in sorted(trajectory.margins.keys() - trajectory.means.keys()):
        message = Message("{metric}: the first samples do not have it", metric=name)
        findings.append(metric_finding(Level.SAMPLING, check, name, Status.NOT_COMPARED, message, {}))
    findings.append(_together_finding(trajectory))
    return findings + _left_out(trajectory)


def _left_out(trajectory: Trajectory) -> list[Finding]:
    """What is said of groups that cannot be compared, as which ones those are may depend on the arm.

    A warning, and inconclusive where the others may be selected.
    """
    lacking = sorted(trajectory.left_out.items())
    counts = [
        Message("{count} of {arm} without a value that others have", count=count, arm=arm) for arm, count in lacking
    ]
    if trajectory.alone:
        alone = quantity(trajectory.alone, "probed groups")
        counts.append(Message("{groups} seen in one arm only", groups=alone))
    if trajectory.coin_fairness_log_e >= ENOUGH:
        arm = trajectory.arms[1]
        counts.append(
            Message(
                "{count} of {groups} groups are of {arm}, where a fair coin gives half (e-value {e_value}), as where a "
                "rollout ends with the first groups done",
                count=trajectory.drawn.get(arm, 0),
                groups=sum(trajectory.drawn.values()),
                arm=arm,
                e_value=e_value(trajectory.coin_fairness_log_e),
            )
        )
    if not counts:
        return []
    message = Message("groups left out of the evidence: {counts}", counts=listed(counts, "; "))
    evidence = {**trajectory.left_out, "one_arm_only": trajectory.alone, "drawn": dict(trajectory.drawn)}
    check = "trajectory_left_out"
    if not trajectory.selected:
        return [Finding(check, Level.SAMPLING, Status.FAIL, message, severity=Severity.WARNING, evidence=evidence)]
    message = Message("{left_out}; those that are left may be selected, so that they show no parity", left_out=message)
    return [Finding(check, Level.SAMPLING, Status.INCONCLUSIVE, message, evidence=evidence)]


_HOW = {
    "probe": Message("prompts asked in both arms at the same weights"),
    "switchback": Message("each group in an arm drawn by a coin"),
}


def _together_finding(trajectory: Trajectory) -> Finding:
    largest = max(trajectory.largest.values())
    message = Message(
        "{groups}, {how}: largest corrected e-value of {metrics} {e_value}, where 20 decides. This speaks of sampling "
        "along a run that trained on both arms, at its weights; it does not show a run in one arm alone",
        groups=quantity(trajectory.groups, "groups"),
        how=_HOW[trajectory.policy],
        metrics=quantity(len(trajectory.means), "metrics"),
        e_value=e_value(largest),
    )
    evidence = {
        "largest_log_e": largest,
        "units": trajectory.groups,
        "unit": "prompt group",
        "checked": trajectory.groups,
        "method": Message("sign-flip e-processes, corrected by closed testing"),
    }
    status = STATUS_OF_VERDICT[trajectory.verdict]
    return Finding("trajectory_evidence", Level.SAMPLING, status, message, evidence=evidence)
