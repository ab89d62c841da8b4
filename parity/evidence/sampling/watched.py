"""Sampling at fixed weights (L1): evidence that grows with each block of groups and may stop at any of them.

All that decides is an e-value, valid at every look together. A design whose number of groups is set beforehand uses the
same evidence and looks once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from parity.errors import UsageError
from parity.evidence.metric_findings import metric_finding
from parity.evidence.sampling.arms import ArmRollouts
from parity.evidence.sampling.margin import InsideMargin
from parity.evidence.sampling.means import FEWEST_GROUPS, Mean, mean_finding
from parity.evidence.sampling.permutation import (
    PairMeans,
    Singles,
    dealt_labels,
    distance_kernel,
    equality_kernel,
    mean_excess,
)
from parity.evidence.sampling.sequential import ENOUGH, ExchangeProcess, SignFlip, adjusted_log_e, detectable
from parity.evidence.values import Floats, Interval
from parity.findings import Finding, Level, Message, Status, quantity
from parity.records.margins import METRICS, SAMPLING, SPREADS, Unit, check_sampling_margins
from parity.records.samples import Rollout

RELABELINGS = 127
"""Random relabelings of each group; no group alone is evidence of more than 128."""

BLOCK = 32
"""Groups after which a design of a set size sums up what the next bets build on."""

BOUNDED = frozenset({"reward", "truncated", "aborted", "constant_reward", "group_reward_std"})
"""Metrics whose difference between arms is bounded beforehand; others are clipped."""

VALUES = ("reward", "response_length", "negative_log_likelihood")
"""Metrics whose samples are compared inside groups."""

SLOT_METRICS = (*VALUES, "truncated")

Name = tuple[str, str]
"""A check and its metric."""

_finding = partial(metric_finding, Level.SAMPLING)


@dataclass(frozen=True, slots=True)
class Slots:
    """Evidence that the place in the group matters more, or otherwise, in one arm than in the other.

    With x the deviation of each slot from its group's mean, experiment minus baseline, a vector that exchanging the
    arms turns around, the sum of earlier vectors is the direction that later ones are held to. What both arms do alike,
    as sorting by length, cancels.

    Attributes:
        process: The e-process on the projections.
        sums: The sum of vectors, (n,).
    """

    process: SignFlip = field(default_factory=SignFlip)
    sums: Floats = field(default_factory=lambda: np.zeros(()))

    def update(self, baseline: Floats, experiment: Floats) -> Slots:
        """The evidence after further groups, (K, n) values each."""
        centred = [values - values.mean(axis=1, keepdims=True) for values in (baseline, experiment)]
        apart = centred[1] - centred[0]
        after = self.sums + apart.cumsum(axis=0)  # (K, n); each group is held to the sum before it
        before = after - apart
        norms = np.linalg.norm(before, axis=1)
        along = np.einsum("gi,gi->g", apart, before)
        projected = np.divide(along, norms, out=np.zeros_like(along), where=norms > 1e-9 * np.abs(apart).max(initial=1))
        return Slots(self.process.update(projected), after[-1])


@dataclass(frozen=True, slots=True)
class Evidence:
    """What all groups so far say, by check and metric.

    Attributes:
        means: Evidence on means: `sampling_marginal`, which must show parity, and `sampling_spread`, how much rewards
            differ inside groups, where a difference beyond the margin is looked for.
        exchanges: Evidence on exchangeability of arm labels: `sampling_independence` and `sampling_shape`.
        slots: Evidence on the place in the group, by metric: `sampling_slot`.
        largest: The largest corrected log e-value at any look, of each hypothesis.
        lacking: Metrics that a sample lacked.
        groups: Groups seen.
    """

    means: Mapping[Name, Mean]
    exchanges: Mapping[Name, ExchangeProcess] = field(default_factory=dict)
    slots: Mapping[Name, Slots] = field(default_factory=dict)
    largest: Mapping[Name, float] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()
    groups: int = 0

    @classmethod
    def start(
        cls,
        margins: Mapping[str, float],
        reward_range: Interval = (0.0, 1.0),
        max_new_tokens: int | None = None,
        horizon: int | None = None,
    ) -> Evidence:
        """No evidence yet.

        Args:
            margins: The largest difference that does not matter, by metric of `parity.records.margins`, stated before.
            reward_range: The least and the largest reward there can be.
            max_new_tokens: The largest response length there can be, where it is known.
            horizon: How many groups there will be, where that was set beforehand.

        Raises:
            UsageError: A metric is unknown, a margin is not positive, or the range is empty.
        """
        check_sampling_margins(margins)
        width = reward_range[1] - reward_range[0]
        if not 0 < width < np.inf:
            raise UsageError(f"the rewards' range {reward_range[0]} to {reward_range[1]} holds no two rewards")

        def mean(name: str, margin: float, required: bool) -> Mean:
            bound = width if name in ("reward", "group_reward_std") else 1.0 if name in BOUNDED else None
            if name == "response_length" and max_new_tokens is not None:
                bound = float(max_new_tokens)
            relative = METRICS[name].unit is Unit.SHARE
            return Mean(margin, relative, bound, required, inside=InsideMargin(horizon=horizon))

        means = {("sampling_marginal", name): mean(name, margin, True) for name, margin in margins.items()}
        spreads = {name: SAMPLING[name] * (width if name == "group_reward_std" else 1) for name in SPREADS}
        means |= {
            ("sampling_spread", name): mean(name, margin, False)
            for name, margin in spreads.items()
            if name not in margins
        }
        return cls(means)

    def update(self, baseline: Rollout, experiment: Rollout, rng: np.random.Generator) -> Evidence:
        """The evidence after a further block of groups, with one look after the last of them.

        Args:
            baseline: The baseline's samples of the block, the same number in every group.
            experiment: The experiment's, of the same prompts under the same (rollout_id, group_index).
            rng: Source of the relabelings.

        Raises:
            InputError: The groups are not the same in both arms, or rewards differ by more than their range.
        """
        arms = ArmRollouts.of(baseline, experiment)
        measured = {name: arms.values(name) for name in {name for _, name in self.means} | set(SLOT_METRICS)}
        values = {
            name: (tables[0].values, tables[1].values)
            for name, tables in sorted(measured.items())
            if tables is not None
        }
        without = replace(self, lacking=self.lacking | (measured.keys() - values.keys()))
        return without.update_values(values, arms.codes(), len(arms.groups), arms.size, rng)

    def update_values(
        self,
        values: Mapping[str, tuple[Floats, Floats]],
        codes: Mapping[str, npt.NDArray[np.int64]],
        groups: int,
        size: int,
        rng: np.random.Generator,
    ) -> Evidence:
        """As `update`, from what was measured.

        Args:
            values: By metric, (K, n) values of each arm, or (K, 1) of what a group as a whole has.
            codes: By name, codes of responses (K, 2n) that are equal where the tokens are, the baseline's first.
            groups: Groups of the block, K.
            size: Samples a group in each arm, n.
            rng: Source of the relabelings.
        """
        known = {name: tables for name, tables in values.items() if name not in self.lacking}
        means = {
            key: mean.update(*(table.mean(axis=1) for table in known[key[1]])) if key[1] in known else mean
            for key, mean in self.means.items()
        }
        slots = dict(self.slots)
        exchanges = dict(self.exchanges)
        if size > 1:
            for metric in SLOT_METRICS:
                if metric in known:
                    key = ("sampling_slot", metric)
                    slots[key] = slots.get(key, Slots()).update(*known[metric])
            labels = dealt_labels(groups, size, RELABELINGS, rng)
            for key, statistics, of_groups in _relabeled(codes, known, labels):
                exchanges[key] = exchanges.get(key, ExchangeProcess()).update(statistics, of_groups)
        after = replace(self, means=means, exchanges=exchanges, slots=slots, groups=self.groups + groups)
        now = adjusted_log_e(after.log_e)
        return replace(after, largest={name: max(value, self.largest.get(name, 0.0)) for name, value in now.items()})

    @property
    def log_e(self) -> dict[Name, float]:
        """The log e-value against each hypothesis now, before correction."""
        log_e = {name: float(mean.difference.log_e) for name, mean in self.means.items()}
        log_e |= {name: float(slots.process.log_e) for name, slots in self.slots.items()}
        return log_e | {name: exchange.log_e for name, exchange in self.exchanges.items()}

    def findings(self) -> list[Finding]:
        """What the evidence says so far, one finding a hypothesis; none is made of a p-value."""
        if not self.groups:
            message = Message("no group is sampled yet")
            return [_finding("sampling_marginal", "groups", Status.INCONCLUSIVE, message, {})]
        hypotheses = len(self.largest)
        findings = [
            _lacking(name) if name[1] in self.lacking else mean_finding(*name, mean, self.largest[name], hypotheses)
            for name, mean in self.means.items()
        ]
        findings += [
            _lacking(name) if name[1] in self.lacking else _slot_finding(name, slots, self.largest[name], hypotheses)
            for name, slots in self.slots.items()
        ]
        findings += [
            _lacking(name)
            if name[1] in self.lacking
            else _exchange_finding(name, exchange, self.largest[name], hypotheses)
            for name, exchange in self.exchanges.items()
        ]
        if ("sampling_independence", "output_ids") not in self.exchanges:
            findings.append(_lacking(("sampling_independence", "output_ids")))
        return findings


def sampling_findings(
    baseline: Rollout,
    experiment: Rollout,
    margins: Mapping[str, float],
    rng: np.random.Generator,
    reward_range: Interval = (0.0, 1.0),
    max_new_tokens: int | None = None,
) -> list[Finding]:
    """What groups whose number was set beforehand say: the evidence of `Evidence`, looked at once.

    Args:
        baseline: The baseline's samples, the same number in every group.
        experiment: The experiment's samples of the same prompts under the same (rollout_id, group_index).
        margins: As in `Evidence.start`, likewise the range of rewards and the cap of responses.
        rng: Source of the relabelings.
        reward_range: The least and the largest reward there can be.
        max_new_tokens: The largest response length there can be, where it is known.

    Raises:
        InputError: Groups are of unequal size, repeat a slot, or are not the same in both arms.
        UsageError: A metric of the margins is unknown.
    """
    arms = ArmRollouts.of(baseline, experiment)
    evidence = Evidence.start(margins, reward_range, max_new_tokens, len(arms.groups))
    size = BLOCK * arms.size
    for start in range(0, len(arms.baseline), size):
        first, second = (Rollout(arm.table.slice(start, size)) for arm in (arms.baseline, arms.experiment))
        evidence = evidence.update(first, second, rng)
    return evidence.findings()


def _relabeled(
    codes: Mapping[str, npt.NDArray[np.int64]], known: Mapping[str, tuple[Floats, Floats]], labels: Singles
) -> list[tuple[Name, Floats, int]]:
    """By hypothesis of exchangeability: statistics (rows, 1 + B) under labels (G, 2n, 1 + B), and groups a row."""
    found: list[tuple[Name, Floats, int]] = []
    for metric, of_metric in codes.items():
        pairs = PairMeans.of(equality_kernel(of_metric), labels)
        found.append((("sampling_independence", metric), pairs.inside, 1))
    for metric in VALUES:
        if metric in known:
            values = np.concatenate(known[metric], axis=1)  # (G, 2n), the baseline's first
            found.append((("sampling_independence", metric), mean_excess(values, labels), 2))
            pairs = PairMeans.of(distance_kernel(values), labels)
            found.append((("sampling_shape", metric), pairs.between, 1))
    return found


def _lacking(name: Name) -> Finding:
    message = Message("{metric}: not every sample of both arms has it", metric=name[1])
    return _finding(*name, Status.NOT_COMPARED, message, {})


def _without_margin(
    name: Name, estimate: float, size: float, log_e: float, largest: float, groups: int, what: Message
) -> Finding:
    """A finding on what has no margin: seen, or not seen with the size that would have been."""
    status = Status.FAIL if largest >= ENOUGH else Status.PASS if groups >= FEWEST_GROUPS else Status.INCONCLUSIVE
    message = Message(
        "{metric}: {what} over {groups}, corrected e-value {e_value:.3g}; {rest}",
        metric=name[1],
        what=what,
        groups=quantity(groups, "prompt groups"),
        e_value=float(np.exp(min(largest, 50))),
        rest=Message("shown")
        if status is Status.FAIL
        else Message("no effect is shown; one of {size:.2g} or more would be seen 4 times in 5", size=size)
        if size > 0
        else Message("not testable, as exchanging the labels of the arms changes it in no group"),
    )
    if status is Status.INCONCLUSIVE:
        message = Message("{finding}; {fewest} groups are needed to pass", finding=message, fewest=FEWEST_GROUPS)
    evidence = {
        "estimate": estimate,
        "seen_from": size,
        "log_e": log_e,
        "log_e_corrected": largest,
        "unit": "prompt group",
        "units": groups,
        "method": Message("sign-flip e-process, slots of both arms")
        if name[0] == "sampling_slot"
        else Message("soft-rank e-process, labels dealt inside prompts"),
    }
    return _finding(*name, status, message, evidence, observed=estimate)


def _slot_finding(name: Name, slots: Slots, largest: float, hypotheses: int) -> Finding:
    groups = slots.process.units
    estimate = float(np.ptp(slots.sums)) / groups
    # What a group adds in the direction of earlier ones, which a shift must exceed.
    deviation = float(np.sqrt(slots.process.squares / groups))
    what = Message("slots differ between the arms by up to {size:.4g}", size=estimate)
    size = detectable(hypotheses, groups) * deviation
    return _without_margin(name, estimate, size, float(slots.process.log_e), largest, groups, what)


_WHAT = {
    "output_ids": "share of equal pairs, inside the experiment minus across the arms: {size:+.3%}",
    "output_ids_prefix": "share of pairs that begin alike, inside the experiment minus across the arms: {size:+.3%}",
    "sampling_independence": "squared difference of the arms' group means, against independent samples: {size:+.1%}",
    "sampling_shape": "distance between samples of a group, from baseline to experiment: {size:+.1%}",
}


def _exchange_finding(name: Name, exchange: ExchangeProcess, largest: float, hypotheses: int) -> Finding:
    groups = exchange.units
    rows = groups // 2 if _WHAT.get(name[1]) is None and name[0] == "sampling_independence" else groups
    estimate = exchange.total / max(rows, 1)
    deviation = float(np.sqrt(exchange.variance / max(rows, 1)))
    what = Message(_WHAT[name[1] if name[1] in _WHAT else name[0]], size=estimate)
    return _without_margin(
        name, estimate, detectable(hypotheses, rows) * deviation, exchange.log_e, largest, groups, what
    )
