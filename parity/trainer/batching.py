"""Prompts and responses of unequal length as one padded tensor, and the logits that predict the responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

from parity.engines.vision import Pixels
from parity.trainer.policy import Policy

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class ImageTensors:
    """The images that B padded sequences of L tokens show, F image tokens in all.

    Attributes:
        pixels: The images, each once.
        rows: (F,) int64, for each image token of the batch, row by row, the encoder's output that it is.
        is_image: (B, L) bool, F of them True.
        positions: (3, B, L) int64, of all tokens.
    """

    pixels: Pixels
    rows: Tensor
    is_image: Tensor
    positions: Tensor


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


def response_logits(model: Policy, tokens: Tensor, is_response: Tensor, images: ImageTensors | None = None) -> Tensor:
    """Logits that predict each response token, (T, vocabulary); padding is on the right, where causality hides it."""
    hidden = _hidden(model, tokens, images)[:, :-1]
    logits: Tensor = model.lm_head(hidden[is_response[:, 1:]])
    return logits


def _hidden(model: Policy, tokens: Tensor, images: ImageTensors | None) -> Tensor:
    """The last layer's output, (B, L, hidden)."""
    decoder = model.model if isinstance(model, Qwen2ForCausalLM) else model.model.language_model
    if images is None:
        hidden: Tensor = decoder(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden
    encoded = model.model.visual(images.pixels.patches, grid_thw=images.pixels.grid).pooler_output
    embedded = decoder.embed_tokens(tokens).masked_scatter(images.is_image[..., None], encoded[images.rows])
    hidden = decoder(inputs_embeds=embedded, position_ids=images.positions, use_cache=False).last_hidden_state
    return hidden
