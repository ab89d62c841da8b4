"""The formulas of GRPO against known answers, hand-written gradients and invariants."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.trainer import grpo


def test_advantages_of_a_known_group():
    advantages = grpo.group_advantages(np.array([[1.0, 0, 0, 1, 1, 0, 0, 0], [1.0] * 8]))
    assert advantages[0] == pytest.approx([1.207612 if r else -0.724567 for r in (1, 0, 0, 1, 1, 0, 0, 0)], abs=1e-6)
    assert advantages[1].tolist() == [0.0] * 8


def test_a_constant_reward_that_has_no_exact_mean_still_gives_exactly_zero():
    assert grpo.group_advantages(np.full((1, 3), 0.1)).tolist() == [[0.0] * 3]


@settings(derandomize=True)
@given(st.lists(st.integers(-100, 100), min_size=8, max_size=8), st.permutations(range(8)))
def test_advantages_sum_to_zero_and_follow_their_samples(rewards, order):
    advantages = grpo.group_advantages(np.array([rewards], dtype=float))
    assert advantages.sum() == pytest.approx(0, abs=1e-9)
    shuffled = grpo.group_advantages(np.array([rewards], dtype=float)[:, order])
    assert shuffled == pytest.approx(advantages[:, order], abs=1e-9)
    if len(set(rewards)) > 1:
        assert advantages.std(ddof=1) == pytest.approx(1, abs=1e-4)


def test_groups_do_not_touch_one_another():
    one, other = np.array([[0.0, 1.0, 0.0]]), np.array([[5.0, 5.0, 9.0]])
    together = grpo.group_advantages(np.concatenate([one, other]))
    assert together[:1] == pytest.approx(grpo.group_advantages(one))


def test_token_log_probs_of_known_odds():
    logits = torch.tensor([[math.log(1.0), math.log(3.0)]])
    assert grpo.token_log_probs(logits, torch.tensor([1]), 1.0).item() == pytest.approx(math.log(3 / 4))
    at_half = grpo.token_log_probs(logits, torch.tensor([1]), 0.5).item()
    assert at_half == pytest.approx(math.log(9 / 10))


def test_entropy_of_known_distributions():
    uniform, certain = torch.zeros(1, 8), torch.tensor([[0.0, -100.0]])
    assert grpo.entropy(uniform, 0.7).item() == pytest.approx(math.log(8))
    assert grpo.entropy(certain, 1.0).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0.0),
        (1.1, 2.0, -2.2, 0.0),
        (1.5, 2.0, -2.0 * 1.28, 1.0),  # no reward for going further up than 1 + high
        (0.5, 2.0, -1.0, 0.0),
        (0.5, -2.0, 1.6, 1.0),  # nor for going further down than 1 - low
        (1.5, -2.0, 3.0, 0.0),
    ],
)
def test_the_clipped_loss_on_each_side_of_each_bound(ratio, advantage, loss, clipped):
    log_probs = torch.tensor([math.log(ratio)])
    losses, is_clipped = grpo.clipped_policy_loss(log_probs, torch.zeros(1), torch.tensor([advantage]), 0.2, 0.28)
    assert losses.item() == pytest.approx(loss, rel=1e-6)
    assert is_clipped.item() == clipped


@settings(derandomize=True, deadline=None)
@given(st.floats(-1, 1), st.floats(-3, 3))
def test_the_gradient_of_the_clipped_loss_is_minus_ratio_times_advantage_where_it_is_not_clipped(difference, advantage):
    log_prob = torch.tensor([difference], dtype=torch.float64, requires_grad=True)
    zero, weight = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    losses, clipped = grpo.clipped_policy_loss(log_prob, zero, weight, 0.2, 0.28)
    losses.sum().backward()
    expected = 0.0 if clipped.item() else -math.exp(difference) * advantage
    assert log_prob.grad.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_k3_of_a_known_ratio_and_its_mean_under_the_model():
    assert grpo.k3_kl(torch.zeros(1), torch.tensor([math.log(2)])).item() == pytest.approx(1 - math.log(2), rel=1e-5)
    model, reference = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]))
    estimate = (model * grpo.k3_kl(model.log(), reference.log())).sum()
    assert estimate.item() == pytest.approx((model * (model / reference).log()).sum().item())


def test_weights_make_the_mean_over_samples_of_their_means():
    trained = torch.tensor([1.0, 1, 1, 1, 0, 0, 0])
    weights = grpo.sample_mean_weights(trained, torch.tensor([0, 0, 0, 1, 1, 2, 2]), samples=4)
    assert weights.tolist() == pytest.approx([1 / 12] * 3 + [1 / 4, 0, 0, 0])
