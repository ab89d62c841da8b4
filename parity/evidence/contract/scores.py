"""Rewards and advantages, computed again."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.evidence.contract.facts import Bools, Facts, Floats, Groups, over_rows
from parity.evidence.contract.finish import unfinished
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules

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

    def case(row: int) -> tuple[Any, Any, str]:
        found = repr(float(facts.reward[row])) if facts.has_reward[row] else None
        if aborted[row]:
            return None, found, f"an aborted or unfinished sample carries reward {found}"
        return "a finite reward", found, f"a finished sample has reward {found}"

    fails = np.where(aborted, facts.has_reward, ~finite & (facts.has_reward | ~failed))
    return over_rows(
        facts, known=np.full(len(facts), scored), fails=fails, field="reward", case=case, missing="no reward recorded"
    )


def reward_recomputed(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The task's reward of the sample is the reward that it carries."""
    again, reward = facts.reward_again, facts.reward
    close = np.abs(again - reward) <= REWARD_TOLERANCE * np.maximum(1.0, np.abs(again))

    def case(row: int) -> tuple[Any, Any, str]:
        wanted, found = float(again[row]), float(reward[row])
        return wanted, found, f"reward {found:.6g} is recorded, {wanted:.6g} computed again"

    return over_rows(
        facts,
        known=facts.has_reward & (rules.reward is not None),
        fails=~close,
        field="reward",
        case=case,
        missing="no reward function given, or no reward recorded",
        concerns=~unfinished(facts),
    )


def group_advantages(rewards: Floats, code: Any, groups: int, rules: Rules) -> tuple[Floats, Floats]:
    """Advantages of rewards by group, and by how much 32-bit arithmetic may miss each, both (rows,).

    Formulas, r of a group of n: ``grpo`` (r - mean) / (std + epsilon), std with `ddof` (DeepSeekMath, arXiv 2402.03300,
    section 4.1.2); ``grpo_no_std`` r - mean (Dr. GRPO, arXiv 2503.20783); ``rloo`` r minus the mean of the others, n /
    (n - 1) times r - mean (arXiv 2402.14740). A group of one has no baseline: 0.

    Args:
        rewards: (rows,) finite.
        code: (rows,) the number of each reward's group.
        groups: The number of groups.
        rules: The formula, its `ddof` and `epsilon`.
    """
    sizes = np.bincount(code, minlength=groups)
    filled = np.maximum(sizes, 1)
    mean = np.bincount(code, rewards, groups) / filled
    centred = rewards - mean[code]
    # a constant group is centred exactly: a mean that misses the common value by one rounding is no signal
    largest = np.zeros(groups)
    np.maximum.at(largest, code, np.abs(rewards))
    centred[np.abs(centred) <= 8 * np.finfo(np.float64).eps * largest[code]] = 0.0
    scale = np.ones(groups)
    if rules.advantage == "rloo":
        scale = sizes / np.maximum(sizes - 1, 1)
    if rules.advantage == "grpo":
        variance = np.bincount(code, centred**2, groups) / np.maximum(sizes - rules.ddof, 1)
        scale = 1.0 / (np.sqrt(variance) + rules.epsilon)
    alone = sizes[code] == 1
    advantages = np.where(alone, 0.0, centred * scale[code])
    return advantages, ADVANTAGE_TOLERANCE * np.abs(advantages) + ROUNDING * largest[code] * scale[code]


def advantage_recomputed(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The advantage is the trainer's formula over the group's rewards; aborted and empty samples stay out of it.

    What stays out of the mean has no advantage, or 0.
    """
    counted: Bools = facts.has_reward & np.isfinite(facts.reward) & ~unfinished(facts) & (facts.output_length != 0)
    wanted, allowed = np.zeros(len(facts)), np.full(len(facts), ROUNDING)
    wanted[counted], allowed[counted] = group_advantages(
        facts.reward[counted], groups.code[counted], len(groups), rules
    )
    close = np.abs(facts.advantage - wanted) <= np.maximum(allowed, ROUNDING)
    fails = np.where(counted, ~(facts.has_advantage & close), facts.has_advantage & ~close)

    def case(row: int) -> tuple[Any, Any, str]:
        found = float(facts.advantage[row]) if facts.has_advantage[row] else None
        rewards = facts.reward[groups.rows(int(groups.code[row]))].round(4).tolist()
        return (
            float(wanted[row]),
            found,
            f"advantage {found} is recorded, {wanted[row]:.6g} follows from rewards {rewards}",
        )

    given = rules.advantage is not None and bool(facts.has_advantage.any())
    return over_rows(
        facts,
        known=np.full(len(facts), given),
        fails=fails,
        field="advantage",
        case=case,
        missing="no advantage formula given, or no advantage recorded",
    )
