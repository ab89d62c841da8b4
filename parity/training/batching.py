"""Prompts and responses of unequal length as one padded tensor, and the logits that predict the responses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

Integers = npt.NDArray[np.integer]


def pad(
    prompts: Integers, prompt_lengths: Integers, responses: Integers, response_lengths: Integers
) -> tuple[Tensor, Tensor]:
    """B sequences of prompt and response, padded with 0 on the right to the longest, L.

    Args:
        prompts: The tokens of all prompts, one after the other.
        prompt_lengths: (B,).
        responses: The tokens of all responses, T of them.
        response_lengths: (B,).

    Returns:
        Tokens, (B, L) int64, and where they are response tokens, (B, L) bool with T True.
    """
    starts, ends = prompt_lengths[:, None], (prompt_lengths + response_lengths)[:, None]
    columns = np.arange(ends.max())
    is_response = (columns >= starts) & (columns < ends)
    tokens = np.zeros(is_response.shape, dtype=np.int64)
    tokens[columns < starts] = prompts
    tokens[is_response] = responses
    return torch.from_numpy(tokens), torch.from_numpy(is_response)


def response_logits(model: Qwen2ForCausalLM, tokens: Tensor, is_response: Tensor) -> Tensor:
    """Logits that predict each response token, (T, vocabulary); padding is on the right, where causality hides it."""
    hidden: Tensor = model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
    logits: Tensor = model.lm_head(hidden[is_response[:, 1:]])
    return logits
