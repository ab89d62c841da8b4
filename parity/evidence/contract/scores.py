"""Rewards and advantages, computed again."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.evidence.contract.columns import Bools, Floats, Ints
from parity.evidence.contract.facts import Facts, Groups, over_rows
from parity.evidence.contract.finish import unfinished
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import Message

REWARD_TOLERANCE = 1e-6
"""Relative difference that storing a reward in 32 bits may make."""

ADVANTAGE_TOLERANCE = 1e-4
"""Relative difference that a group's mean and deviation in 32 bits may make."""

ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Rounding of a group's mean in 32 bits, relative to its largest reward."""


def reward_missing(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Every finished sample of a scored rollout has a finite reward, and an aborted one has none.

    A host may score what failed, or not.
    """
    failed = facts.status == "failed"
    aborted = unfinished(facts) & ~failed
    scored = bool(facts.has_reward.any())
    finite = facts.has_reward & np.isfinite(facts.reward)

    def case(row: int) -> tuple[Any, Any, Message]:
        reward = repr(float(facts.reward[row])) if facts.has_reward[row] else None
        if aborted[row]:
            return None, reward, Message("an aborted or unfinished sample carries reward {reward}", reward=reward)
        return "a finite reward", reward, Message("a finished sample has reward {reward}", reward=reward)

    fails = np.where(aborted, facts.has_reward, ~finite & (facts.has_reward | ~failed))
    known, missing = np.full(len(facts), scored), Message("no reward recorded")
    return over_rows(facts, known=known, fails=fails, field="reward", case=case, missing=missing)


def reward_recomputed(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The task's reward of the sample is the reward that it carries."""
    again, reward = facts.reward_again, facts.reward
    close = np.abs(again - reward) <= REWARD_TOLERANCE * np.maximum(1.0, np.abs(again))

    def case(row: int) -> tuple[Any, Any, Message]:
        wanted, recorded = float(again[row]), float(reward[row])
        template = "reward {recorded:.6g} is recorded, {wanted:.6g} computed again"
        return wanted, recorded, Message(template, recorded=recorded, wanted=wanted)

    return over_rows(
        facts,
        known=facts.has_reward & (rules.reward is not None),
        fails=~close,
        field="reward",
        case=case,
        missing=Message("no reward function given, or no reward recorded"),
        concerns=~unfinished(facts),
    )


def group_advantages(rewards: Floats, code: Ints, batch: Ints, rules: Rules) -> tuple[Floats, Floats]:
    """Advantages of rewards, and by how much 32-bit arithmetic may miss each, both (rows,).

    Formulas, r of a group of n: ``grpo`` (r - mean) / (std + epsilon), std with `ddof` (DeepSeekMath, arXiv 2402.03300,
    section 4.1.2); ``grpo_no_std`` r - mean (Dr. GRPO, arXiv 2503.20783); ``rloo`` r minus the mean of the others, n /
    (n - 1) times r - mean (arXiv 2402.14740); ``batch_std`` (r - mean) / (std of the batch + epsilon) (arXiv
    2508.08221); ``batch`` (r - mean of the batch) / (std of the batch + epsilon) (REINFORCE++, arXiv 2501.03262). A
    group of one has no baseline: 0.

    Args:
        rewards: (rows,) finite.
        code: (rows,) the number of each reward's group.
        batch: (rows,) the number of each reward's batch.
        rules: The formula, its `ddof` and `epsilon`.
    """
    unit = batch if rules.advantage == "batch" else code
    sizes, centred, largest = _centred(rewards, unit)
    scale = np.ones(len(sizes))
    if rules.advantage == "rloo":
        scale = sizes / np.maximum(sizes - 1, 1)
    if rules.advantage in ("grpo", "batch"):
        scale = _inverse_deviation(centred, unit, rules)
    by_row = scale[unit]
    if rules.advantage == "batch_std":
        by_row = _inverse_deviation(_centred(rewards, batch)[1], batch, rules)[batch]
    advantages = np.where(sizes[unit] == 1, 0.0, centred * by_row)
    allowed = ADVANTAGE_TOLERANCE * np.abs(advantages) + ROUNDING * largest[unit] * by_row
    return advantages, allowed


def _inverse_deviation(centred: Floats, code: Ints, rules: Rules) -> Floats:
    """1 / (standard deviation + epsilon) of each group, (groups,); 0 where both are 0, as then all of it is centred."""
    sizes = np.bincount(code)
    deviation = np.sqrt(np.bincount(code, centred**2) / np.maximum(sizes - rules.ddof, 1)) + rules.epsilon
    return np.divide(1.0, deviation, out=np.zeros(len(sizes)), where=deviation > 0)


def _centred(rewards: Floats, code: Ints) -> tuple[Ints, Floats, Floats]:
    """Sizes of groups (groups,), rewards minus their group's mean (rows,), and each group's largest |r| (groups,)."""
    sizes = np.bincount(code)
    centred = rewards - (np.bincount(code, rewards) / np.maximum(sizes, 1))[code]
    # a constant group is centred exactly: a mean that misses the common value by one rounding is no signal
    largest = np.zeros(len(sizes))
    np.maximum.at(largest, code, np.abs(rewards))
    centred[np.abs(centred) <= 8 * np.finfo(np.float64).eps * largest[code]] = 0.0
    return sizes, centred, largest


def in_mean(facts: Facts) -> Bools:
    """The samples that count in their group's mean, (rows,)."""
    return np.asarray(facts.has_reward & np.isfinite(facts.reward) & ~unfinished(facts) & (facts.output_length != 0))


def _wanted(facts: Facts, groups: Groups, rules: Rules, counted: Bools) -> tuple[Floats, Floats]:
    """The advantage that each sample should have, and its tolerance, both (rows,)."""
    wanted, allowed = np.zeros(len(facts)), np.full(len(facts), ROUNDING)
    code, batch = groups.code, np.unique(facts.rollout_id, return_inverse=True)[1]
    if rules.advantage_over == "prompt":
        code = np.unique(np.stack([batch, facts.prompt_hash]), axis=1, return_inverse=True)[1].reshape(-1)
    if counted.any():
        wanted[counted], allowed[counted] = group_advantages(
            facts.reward[counted], code[counted], batch[counted], rules
        )
    return wanted, np.maximum(allowed, ROUNDING)


def _disagree(facts: Facts, counted: Bools, wanted: Floats, allowed: Floats) -> Bools:
    close = np.abs(facts.advantage - wanted) <= allowed
    return np.where(counted, ~(facts.has_advantage & close), facts.has_advantage & ~close)


def advantages_agree(facts: Facts, groups: Groups, rules: Rules, counted: Bools) -> Bools:
    """Where the advantage is what the rules' formula makes of the rewards of the samples that count, (rows,)."""
    return ~_disagree(facts, counted, *_wanted(facts, groups, rules, counted))


def informative(facts: Facts, groups: Groups) -> Bools:
    """The groups whose rewards differ, so that their advantages tell one formula from another, (groups,)."""
    has = facts.has_advantage & facts.has_reward & np.isfinite(facts.reward) & ~unfinished(facts)
    lowest, highest = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.minimum.at(lowest, groups.code[has], facts.reward[has])
    np.maximum.at(highest, groups.code[has], facts.reward[has])
    return np.asarray(highest > lowest)


def advantage_recomputed(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The advantage is the trainer's formula over the group's rewards; aborted and empty samples stay out of it.

    What stays out of the mean has no advantage, or 0.
    """
    counted = in_mean(facts)
    wanted, allowed = _wanted(facts, groups, rules, counted)

    def case(row: int) -> tuple[Any, Any, Message]:
        recorded = float(facts.advantage[row]) if facts.has_advantage[row] else None
        rewards = facts.reward[groups.rows(int(groups.code[row]))].round(4).tolist()
        template = "advantage {recorded} is recorded, {wanted:.6g} follows from rewards {rewards}"
        message = Message(template, recorded=recorded, wanted=float(wanted[row]), rewards=rewards)
        return float(wanted[row]), recorded, message

    given = rules.advantage is not None and bool(facts.has_advantage.any())
    return over_rows(
        facts,
        known=np.full(len(facts), given),
        fails=_disagree(facts, counted, wanted, allowed),
        field="advantage",
        case=case,
        missing=Message("no advantage formula given, or no advantage recorded"),
    )
