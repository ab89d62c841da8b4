"""Mismatch of trainer and engine: whether the trainer gives the tokens that the engine sampled the same log-probs."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.evidence.contract.columns import Floats
from parity.evidence.contract.facts import Facts, Groups
from parity.evidence.contract.gaps import measured_gaps
from parity.evidence.contract.outcomes import Case, Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import Message, Where, quantity

LARGEST_GAP = 0.1
"""Nats a token, on average: rounding of 16-bit engines stays below a fifth of it, a temperature that one side forgot is
above it. slime's own limit (`--ci-train-rollout-logprob-abs-diff-threshold`)."""

HOST_THRESHOLDS = {
    "slime: mean absolute gap": 0.1,
    "Miles: gap of the means": 0.03,
    "verl: mean absolute gap of probabilities": 0.01,
    "prime-rl: KL": 0.01,
    "NeMo-RL: multiplicative error": 1.05,
}
"""What hosts hold their own runs to, shown beside what was measured; none of them measures quite the same."""


def trainer_engine_gap(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The trainer gives the tokens of a rollout the engine's log-probs, up to 0.1 nats a token on average."""
    known = facts.gaps[:, 0] > 0
    skipped = int((facts.logprobs_length > 0).sum() - known.sum())
    if not known.any():
        return Outcome(0, skipped=max(skipped, 1), missing=Message("no log-probs of the trainer recorded"))
    rollouts, of_rollout = np.unique(facts.rollout_id[known], return_inverse=True)
    sums = _grouped(facts.gaps[known], of_rollout, len(rollouts))
    means = sums[:, 1] / sums[:, 0]
    wrong = np.flatnonzero(means > LARGEST_GAP)

    def case(number: int) -> Case:
        rollout = int(rollouts[number])
        message = Message(
            "the trainer's log-probs differ from the engine's by {gap:.4g} nats a token on average, over {tokens}",
            gap=float(means[number]),
            tokens=quantity(int(sums[number, 0]), "tokens"),
        )
        where = Where(None, rollout if rollout >= 0 else None, None, None, "trainer_logprobs")
        return Case(where, f"at most {LARGEST_GAP}", float(means[number]), message)

    evidence = {**_measured(facts, groups), "thresholds of hosts": HOST_THRESHOLDS}
    return Outcome(
        len(rollouts),
        len(wrong),
        tuple(map(case, wrong[:5].tolist())),
        skipped,
        Message("no log-probs of the trainer recorded, or not one for each token"),
        evidence,
    )


def _measured(facts: Facts, groups: Groups) -> dict[str, Any]:
    """Means over all tokens with 95 % intervals by group; by position, probability and weight version."""
    by_group = _grouped(facts.gaps, groups.code, len(groups))
    by_group = by_group[by_group[:, 0] > 0]
    measured = measured_gaps(by_group)
    stale = _stale(facts)
    for name, rows in (("abs of the newest weights", ~stale), ("abs of older weights", stale)):
        tokens, gap = facts.gaps[rows, 0].sum(), facts.gaps[rows, 1].sum()
        if tokens and stale.any():
            measured[name] = float(gap / tokens)
    return measured


def _stale(facts: Facts) -> Any:
    """Samples that were not drawn from the newest weights of their rollout alone, (rows,)."""
    newest: dict[int, tuple[int, str]] = {}
    versions = facts.weight_versions
    for rollout, row in zip(facts.rollout_id.tolist(), versions, strict=True):
        for version in row or ():
            newest[rollout] = max(newest.get(rollout, (-1, "")), _order(version))
    return np.fromiter(
        (
            bool(row) and {_order(version) for version in row} != {newest[rollout]}
            for rollout, row in zip(facts.rollout_id.tolist(), versions, strict=True)
        ),
        np.bool_,
        len(versions),
    )


def _order(version: str) -> tuple[int, str]:
    """Weight versions in order: by the number in their name, then by name."""
    digits = "".join(filter(str.isdecimal, version))
    return int(digits or -1), version


def _grouped(rows: Floats, code: Any, count: int) -> Floats:
    """Sums of rows (rows, columns) by their number, (count, columns)."""
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, code, rows)
    return sums
