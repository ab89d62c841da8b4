"""Sampling at fixed weights, watched (L1): evidence that grows with each block of groups and may stop at any of them.

Everything that decides here is an e-process, valid at every look together. Tests with a p-value are for a set number of
groups (`parity.evidence.sampling.set_size`) and are not made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from parity.errors import UsageError
from parity.evidence.metric_findings import metric_finding
from parity.evidence.sampling.anytime import (
    WARM_UP,
    ExchangeProcess,
    NormalProcess,
    adjusted_log_e,
    normal_sequence,
)
from parity.evidence.sampling.margin import ClippedMargin, InsideMargin, groups_for_margin
from parity.evidence.sampling.permutation import dealt_contrasts, equality_kernel
from parity.evidence.sampling.sequential import ConfidenceSequence, EProcess
from parity.evidence.sampling.set_size import FEWEST_GROUPS, ArmRollouts
from parity.evidence.values import ALPHA, Floats, Interval
from parity.findings import Finding, Level, Status, quantity
from parity.records.margins import METRICS, Unit, check_sampling_margins
from parity.records.samples import Rollout

RELABELINGS = 127
"""Random relabelings of each group; no group alone is evidence of more than 128."""

ENOUGH = -np.log(ALPHA)
"""The log e-value that decides."""

BOUNDED = frozenset({"reward", "truncated", "aborted", "constant_reward", "group_reward_std"})
"""Metrics whose difference between arms is bounded, so that betting on it is exact at every look."""

SLOT_METRICS = ("reward", "response_length", "negative_log_likelihood", "truncated")

Name = tuple[str, str]
"""A check and its metric."""

_finding = partial(metric_finding, Level.SAMPLING)


@dataclass(frozen=True, slots=True)
class Mean:
    """Evidence on the difference of group means of one metric, experiment minus baseline, one a group.

    Attributes:
        margin: The largest difference that does not matter, or None where only a difference is looked for.
        relative: Whether the margin is a share of the baseline's mean.
        bound: The largest absolute difference there can be, or None where there is no useful one.
        difference: Evidence against a mean of zero.
        sequence: Where the mean lies, in units of `bound`; unused without one.
        inside: Evidence of a mean inside the margin: of means that are clipped where there is no bound.
        total: The sum of differences.
        squares: The sum of their squares.
        baseline_total: The sum of the baseline's means.
        units: Groups seen.
    """

    margin: float | None
    relative: bool
    bound: float | None
    difference: EProcess | NormalProcess
    inside: InsideMargin | ClippedMargin | None
    sequence: ConfidenceSequence = field(default_factory=ConfidenceSequence)
    total: float = 0.0
    squares: float = 0.0
    baseline_total: float = 0.0
    units: int = 0

    @classmethod
    def of(cls, margin: float | None, relative: bool, bound: float | None, largest: float | None = None) -> Mean:
        """No evidence yet; `largest` is the largest value there can be, of a metric whose differences have no bound."""
        if bound is not None:
            return cls(margin, relative, bound, EProcess(), None if margin is None else InsideMargin.of(bound))
        inside = None if margin is None else ClippedMargin(margin, largest, largest is not None)
        return cls(margin, relative, bound, NormalProcess(), inside)

    def update(self, baseline: Floats, experiment: Floats) -> Mean:
        """The evidence after further groups, from their means in both arms, (K,) each."""
        differences = experiment - baseline
        scaled = differences if self.bound is None else _unit(differences / self.bound)
        return replace(
            self,
            difference=self.difference.update(scaled),
            inside=self._inside(baseline, experiment),
            sequence=self.sequence if self.bound is None else self.sequence.update(scaled),
            total=self.total + float(differences.sum()),
            squares=self.squares + float((differences**2).sum()),
            baseline_total=self.baseline_total + float(baseline.sum()),
            units=self.units + len(differences),
        )

    def _inside(self, baseline: Floats, experiment: Floats) -> InsideMargin | ClippedMargin | None:
        if self.margin is None or self.inside is None:
            return None
        if isinstance(self.inside, ClippedMargin):
            return self.inside.update(baseline, experiment)
        return self.inside.update(experiment - baseline, np.full(len(baseline), self.margin))

    @property
    def estimate(self) -> float:
        """The mean difference."""
        return self.total / self.units

    @property
    def deviation(self) -> float:
        """The standard deviation of a group's difference."""
        if self.units < 2:
            return 0.0
        return float(np.sqrt(max(self.squares - self.units * self.estimate**2, 0.0) / (self.units - 1)))

    @property
    def interval(self) -> Interval:
        """The 95 % confidence sequence of the mean difference."""
        if self.bound is None:
            return normal_sequence(self.units, self.estimate, self.deviation)
        low, high = self.sequence.interval
        return low * self.bound, high * self.bound

    @property
    def allowed(self) -> float | None:
        """The margin in the metric's unit, from the baseline's mean so far where it is relative; None without one."""
        if self.margin is None:
            return None
        return self.margin * abs(self.baseline_total / self.units) if self.relative else self.margin

    @property
    def log_e_parity(self) -> float | None:
        """The log e-value of the difference being inside the margin: the less of the two sides; None without margin."""
        return None if self.inside is None else self.inside.log_e

    @property
    def is_parity(self) -> bool:
        """Whether both sides have ever reached 20, two one-sided tests at 5 % each, and the mean is inside the margin.

        The mean so far decides nothing that stays as it is: it is there for group means that were clipped, and for a
        mean that moved from below the margin to above it, which each side calls inside in its time.
        """
        if self.log_e_parity is None or self.log_e_parity < ENOUGH:
            return False
        return abs(self.estimate) <= (self.allowed or 0.0)


@dataclass(frozen=True, slots=True)
class Exchangeability:
    """Evidence against exchangeability, with the sum of the observed statistic over groups.

    Attributes:
        process: The e-process.
        total: Sum of the observed statistic.
        slots: For slots: by slot, the sum over groups of the deviation from the group's mean, (n,), which is the
            direction that the next block bets on; None for arm labels.
    """

    process: ExchangeProcess = field(default_factory=ExchangeProcess)
    total: float = 0.0
    slots: Floats | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What all groups so far say, by check and metric.

    Attributes:
        means: Evidence on means; `sampling_marginal` with a margin; without, `sampling_spread`: how much rewards
            differ inside groups, which a shift and dependence both move.
        exchanges: Evidence on exchangeability, of `sampling_independence` and `sampling_slot`.
        largest: The largest corrected log e-value at any look, of each hypothesis.
        lacking: Metrics that a sample lacked.
        groups: Groups seen.
    """

    means: Mapping[Name, Mean]
    exchanges: Mapping[Name, Exchangeability] = field(default_factory=dict)
    largest: Mapping[Name, float] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()
    groups: int = 0

    @classmethod
    def start(
        cls,
        margins: Mapping[str, float],
        reward_range: Interval = (0.0, 1.0),
        max_new_tokens: int | None = None,
    ) -> Evidence:
        """No evidence yet.

        Args:
            margins: The largest difference that does not matter, by metric, stated before.
            reward_range: The least and the largest reward there can be.
            max_new_tokens: The largest response length there can be, where it is known.

        Raises:
            UsageError: A metric is unknown, a margin is not positive, or the range is empty.
        """
        check_sampling_margins(margins)
        width = reward_range[1] - reward_range[0]
        if not 0 < width < np.inf:
            raise UsageError(f"the rewards' range {reward_range[0]} to {reward_range[1]} holds no two rewards")
        bounds = {name: width if "reward" in name and name != "constant_reward" else 1.0 for name in BOUNDED}
        largest = {} if max_new_tokens is None else {"response_length": float(max_new_tokens)}
        means = {
            ("sampling_marginal", name): Mean.of(
                margin, METRICS[name].unit is Unit.SHARE, bounds.get(name), largest.get(name)
            )
            for name, margin in margins.items()
        }
        for name in ("group_reward_std", "constant_reward"):
            if name not in margins:
                means["sampling_spread", name] = Mean.of(None, False, bounds[name])
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
        means, lacking = dict(self.means), set(self.lacking)
        for name in self.means:
            values = arms.values(name[1])
            if values is None or name[1] in lacking:
                lacking.add(name[1])
                continue
            means[name] = means[name].update(values[0].means, values[1].means)
        exchanges = dict(self.exchanges)
        for metric, codes in arms.codes().items():
            statistics = dealt_contrasts(equality_kernel(codes), rng, RELABELINGS)
            key = ("sampling_independence", metric)
            exchanges[key] = _exchanged(exchanges.get(key, Exchangeability()), statistics)
        for metric in SLOT_METRICS if arms.size > 1 else ():
            values = arms.values(metric)
            if values is not None and metric not in lacking:
                key = ("sampling_slot", metric)
                exchanges[key] = _more_slots(exchanges.get(key, Exchangeability()), values[1].values, rng)
        log_e = {name: mean.difference.log_e for name, mean in means.items()}
        log_e |= {name: exchange.process.log_e for name, exchange in exchanges.items()}
        now = adjusted_log_e(log_e)
        largest = {name: max(value, self.largest.get(name, 0.0)) for name, value in now.items()}
        return Evidence(means, exchanges, largest, frozenset(lacking), self.groups + len(arms.groups))

    def findings(self) -> list[Finding]:
        """What the evidence says so far, one finding a hypothesis; none is made of a p-value."""
        if not self.groups:
            return [_finding("sampling_marginal", "groups", Status.INCONCLUSIVE, "no group is sampled yet", {})]
        found = []
        for name, mean in self.means.items():
            if name[1] in self.lacking:
                found.append(_lacking(name))
            else:
                found.append(_mean_finding(name, mean, self.largest[name]))
        found += [
            _lacking(name) if name[1] in self.lacking else _exchange_finding(name, one, self.largest[name])
            for name, one in self.exchanges.items()
        ]
        if not any(check == "sampling_independence" and name == "output_ids" for check, name in self.exchanges):
            found.append(_lacking(("sampling_independence", "output_ids")))
        message = "whole distributions: a test with a p-value, not made where the number of groups depends on the data"
        return [*found, _finding("sampling_shape", "all metrics", Status.NOT_COMPARED, message, {"units": self.groups})]


def _unit(values: Floats) -> Floats:
    """Values in [-1, 1] that rounding has put just outside; others are left for the process to refuse."""
    return np.where(np.abs(values) <= 1 + 1e-9, np.clip(values, -1, 1), values)


def _exchanged(before: Exchangeability, statistics: Floats) -> Exchangeability:
    total = before.total + float(statistics[:, 0].sum())
    return replace(before, process=before.process.update(statistics), total=total)


def _more_slots(before: Exchangeability, values: Floats, rng: np.random.Generator) -> Exchangeability:
    """Bets that each slot goes on to deviate as it did in earlier blocks, (K, n) values of the experiment."""
    centred = values - values.mean(axis=1, keepdims=True)
    direction = np.zeros(values.shape[1]) if before.slots is None else before.slots
    shuffled = rng.permuted(np.repeat(centred[:, None], RELABELINGS, axis=1), axis=2)
    statistics = np.concatenate([centred[:, None], shuffled], axis=1) @ direction
    after = _exchanged(before, statistics)
    return replace(after, slots=direction + centred.sum(axis=0))


def _lacking(name: Name) -> Finding:
    return _finding(*name, Status.NOT_COMPARED, f"{name[1]}: not every sample of both arms has it", {})


def _status(largest: float, groups: int) -> Status:
    if largest >= ENOUGH:
        return Status.FAIL
    return Status.PASS if groups >= FEWEST_GROUPS else Status.INCONCLUSIVE


def _mean_finding(name: Name, mean: Mean, largest: float) -> Finding:
    low, high = mean.interval
    said = f"95 % at all looks {low:+.4g} to {high:+.4g}" if np.isfinite(low) else f"no interval below {WARM_UP} groups"
    message = f"{name[1]}: differs by {mean.estimate:+.4g} over {quantity(mean.units, 'prompt groups')} ({said}"
    message += ")" if mean.allowed is None else f", margin ±{mean.allowed:.4g})"
    needed = None
    if mean.margin is None:
        status = _status(largest, mean.units)
    else:
        # Parity of what is clipped takes more groups; a difference that is seen to be inside the margin waits for it.
        clipped = mean.inside if isinstance(mean.inside, ClippedMargin) else None
        waits = clipped is not None and mean.allowed is not None and -mean.allowed < low and high < mean.allowed
        differs = largest >= ENOUGH and not waits
        status = Status.PASS if mean.is_parity else Status.FAIL if differs else Status.INCONCLUSIVE
        if clipped is not None and (any(clipped.clipped) or (status is Status.PASS and not clipped.exact)):
            message += _clipping(mean, clipped)
        needed = _groups_needed(mean)
        if status is Status.INCONCLUSIVE and needed is not None:
            more = max(needed - mean.units, needed // 10, 1)
            message += f"; about {quantity(more, 'more groups')} would show parity 4 times in 5 if the arms are equal"
    evidence: dict[str, Any] = {
        "baseline": mean.baseline_total / mean.units,
        "experiment": mean.baseline_total / mean.units + mean.estimate,
        "estimate": mean.estimate,
        "ci95": [low, high] if np.isfinite(low) else None,
        "margin": mean.allowed,
        "log_e_difference": mean.difference.log_e,
        "log_e_corrected": largest,
        "log_e_parity": mean.log_e_parity,
        "groups_needed": needed,
        "unit": "prompt group",
        "units": mean.units,
        "method": _method(mean),
    }
    expected = None if mean.allowed is None else [-mean.allowed, mean.allowed]
    return _finding(*name, status, message, evidence, expected, mean.estimate)


def _clipping(mean: Mean, inside: ClippedMargin) -> str:
    """What was clipped, and how rare a difference may be that parity does not speak of."""
    clip, (of_baseline, of_experiment) = inside.clip or 0.0, inside.clipped
    room = clip - mean.baseline_total / mean.units
    rare = min(1.0, (mean.allowed or 0.0) / room) if room > 0 else 1.0
    return (
        f"; for parity, group means above {clip:.4g} count as that ({of_baseline} in the baseline, {of_experiment} in "
        f"the experiment), so that a difference in fewer than {rare:.1%} of groups may be of any size"
    )


def _groups_needed(mean: Mean) -> int | None:
    if not mean.allowed:
        return None
    bound = mean.inside.clip if isinstance(mean.inside, ClippedMargin) else mean.bound
    return None if bound is None else groups_for_margin(mean.deviation, mean.allowed, bound)


def _method(mean: Mean) -> str:
    if mean.bound is not None:
        return "betting on bounded differences"
    difference = "difference by a self-normalised process, asymptotic"
    if not isinstance(mean.inside, ClippedMargin) or mean.inside.clip is None:
        return difference
    return f"parity by betting on means up to {mean.inside.clip:.4g}, {difference}"


def _exchange_finding(name: Name, exchange: Exchangeability, largest: float) -> Finding:
    groups = exchange.process.units
    if exchange.slots is None:
        estimate = exchange.total / groups
        message = f"{name[1]}: pairs inside the experiment are equal {estimate:+.3%} more often than across the arms"
        method = "pair kernel, within minus cross, labels dealt inside prompts"
    else:
        estimate = float(np.ptp(exchange.slots)) / groups
        message = f"{name[1]}: slots of the experiment differ by up to {estimate:.4g}"
        method = "slots shuffled inside groups"
    status = _status(largest, groups)
    message += f" over {quantity(groups, 'prompt groups')}, corrected e-value {np.exp(min(largest, 50)):.3g}"
    if status is Status.INCONCLUSIVE:
        message += f"; {FEWEST_GROUPS} groups are needed to pass"
    evidence = {
        "estimate": estimate,
        "log_e": exchange.process.log_e,
        "log_e_corrected": largest,
        "unit": "prompt group",
        "units": groups,
        "method": method,
    }
    return _finding(*name, status, message, evidence, observed=estimate)
