"""Draws are fair, repeatable, independent of their order, and differ between seeds."""

from __future__ import annotations

import itertools

import pytest
from scipy.stats import binomtest

from rollout_patch import fixed, probe, switchback


def arms_of(seed: int, groups: int = 4000) -> list[str]:
    return [
        switchback("per-sample", "native", seed=seed, rollout_id=group // 64, group_index=group % 64).arms[0]
        for group in range(groups)
    ]


def test_fixed_is_always_the_same_arm() -> None:
    assert fixed("native").to_json() == {"design": "fixed", "arms": ["native"], "probability": 1.0}


def test_the_coin_is_fair_and_says_its_chance() -> None:
    arms = arms_of(seed=7)
    assert binomtest(arms.count("native"), len(arms), 0.5).pvalue > 0.001
    assert switchback("per-sample", "native", seed=7, rollout_id=0, group_index=0).probability == 0.5


def test_neighbouring_groups_are_drawn_independently() -> None:
    arms = arms_of(seed=7)
    repeats = sum(left == right for left, right in itertools.pairwise(arms))
    assert binomtest(repeats, len(arms) - 1, 0.5).pvalue > 0.001


def test_draws_repeat_in_any_order_and_differ_between_seeds() -> None:
    keys = [(rollout, group) for rollout in range(8) for group in range(8)]
    forward = {key: switchback("a", "b", seed=1, rollout_id=key[0], group_index=key[1]) for key in keys}
    backward = {key: switchback("a", "b", seed=1, rollout_id=key[0], group_index=key[1]) for key in reversed(keys)}
    assert forward == backward
    assert arms_of(seed=1) != arms_of(seed=2)


def test_a_probe_asks_its_share_of_prompts_in_both_arms_in_random_order() -> None:
    drawn = [
        probe("per-sample", "native", share=0.25, seed=3, rollout_id=0, group_index=group) for group in range(4000)
    ]
    probed = [one for one in drawn if len(one.arms) == 2]
    assert binomtest(len(probed), 4000, 0.25).pvalue > 0.001
    assert binomtest(sum(one.arms[0] == "native" for one in probed), len(probed), 0.5).pvalue > 0.001
    assert all(set(one.arms) == {"per-sample", "native"} for one in probed)
    assert all(one.arms == ("per-sample",) and one.probability == 1.0 for one in drawn if len(one.arms) == 1)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_no_probability_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        probe("per-sample", "native", share=share, seed=0, rollout_id=0, group_index=0)
