"""The formulas of GRPO, one a function, each with its source; T counts the response tokens of a batch, laid flat."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ADVANTAGE_EPSILON = 1e-6


def group_advantages(rewards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rewards less their group's mean, over its standard deviation: (r - mean) / (std + 1e-6).

    GRPO (arXiv:2402.03300, section 4.1.2) with the sample standard deviation (n - 1) and the epsilon of slime
    (`slime/ray/rollout.py`, `_post_process_rewards`). A group whose rewards are all equal gets exactly 0.

    Args:
        rewards: (groups, n), n of at least 2.

    Returns:
        Advantages, (groups, n), of every token of the response.
    """
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    advantages: npt.NDArray[np.float64] = centred / (centred.std(axis=1, ddof=1, keepdims=True) + ADVANTAGE_EPSILON)
    advantages[np.ptp(rewards, axis=1) == 0] = 0.0
    return advantages


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Natural log-probability of each token under softmax(logits / temperature), the distribution it was sampled from.

    The engine reports log-probs of the tempered distribution as well (slime divides by `rollout_temperature` in
    `slime/backends/megatron_utils/loss.py`).

    Args:
        logits: (T, vocabulary), of the position before each token.
        tokens: (T,), int64.
        temperature: Above 0.

    Returns:
        (T,).
    """
    return -torch.nn.functional.cross_entropy(logits / temperature, tokens, reduction="none")


def entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy in nats of softmax(logits / temperature): (T, vocabulary) to (T,)."""
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def clipped_policy_loss(
    log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate: max(-ratio A, -clip(ratio, 1 - low, 1 + high) A), ratio = exp(logp - rollout logp).

    PPO (arXiv:1707.06347, eq. 7) with separate bounds as in DAPO (arXiv:2503.14476, eq. 10); written as slime does
    (`slime/utils/ppo_utils.py`, `compute_policy_loss`), with the engine's own log-probs (`--use-rollout-logprobs`).

    Args:
        log_probs: (T,), of the model in training.
        rollout_log_probs: (T,), of the engine.
        advantages: (T,), the response's advantage at each of its tokens.
        clip_low: Positive.
        clip_high: Positive.

    Returns:
        The loss (T,), and 1.0 where the clipped branch is taken, else 0.0 (T,).
    """
    ratio = (log_probs - rollout_log_probs).exp()
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return torch.maximum(plain, clipped), (clipped > plain).to(plain.dtype)


def k3_kl(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(model || reference): exp(d) - 1 - d, d = reference logp - logp. (T,) to (T,).

    Source: joschu.net/blog/kl-approx.html; GRPO (arXiv:2402.03300, eq. 4). Never negative, unbiased.
    """
    difference = reference_log_probs - log_probs
    return torch.expm1(difference) - difference


def sample_mean_weights(trained: Tensor, sample_of_token: Tensor, samples: int) -> Tensor:
    """The weight of each token, so that a weighted sum over tokens is the mean over samples of each sample's mean.

    slime's default normalisation (`slime/backends/megatron_utils/cp_utils.py`, `get_sum_of_sample_mean`, over the
    global batch size): every sample weighs the same, however long it is, and one without trained tokens still counts
    in the denominator.

    Args:
        trained: (T,), 1 for tokens that are trained, 0 for the others.
        sample_of_token: (T,), int64, the sample that each token belongs to, each below `samples`.
        samples: Samples of the batch.

    Returns:
        (T,).
    """
    trained_of_sample = torch.bincount(sample_of_token, weights=trained, minlength=samples)
    return trained / (trained_of_sample.clamp(min=1)[sample_of_token] * samples)
