"""Batches whose prompts show images: each image encoded once, found by the digest that samples carry of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from transformers import Qwen2_5_VLConfig

from parity.engines.vision import ImageProcessor, ImagePrompt, merge_size, read_pixels, read_prompt
from parity.errors import InputError
from parity.records.samples import Rollout
from parity.trainer.batching import ImageTensors, Integers, pad
from parity.trainer.policy import IMAGE_PROCESSOR
from parity.trainer.tasks import Task
from rollout_patch.media import digest


@cache
def image_processor() -> ImageProcessor:
    """What every policy that sees images has beside it."""
    processor: ImageProcessor = ImageProcessor.from_dict(IMAGE_PROCESSOR)
    return processor


def images_of(task: Task, prompts: Sequence[str]) -> dict[str, Image]:
    """Every image that the prompts show, by its digest."""
    return {digest(image): image for prompt in dict.fromkeys(prompts) for image in task.view(prompt).images}


def images_of_rollout(task: Task, rollout: Rollout) -> dict[str, Image]:
    """Every image that the prompts of a rollout show, by its digest; images themselves are never on disk.

    Raises:
        InputError: A sample does not say which prompt it answers.
    """
    prompts = []
    for row in range(len(rollout)):
        prompt = rollout.extra(row).get("prompt")
        if not isinstance(prompt, str):
            group, slot = (rollout.integers(name)[row] for name in ("group_index", "index"))
            raise InputError(f"group {group}, slot {slot}: extra has no prompt, which names the images")
        prompts.append(prompt)
    return images_of(task, prompts)


def pad_with_images(
    config: Qwen2_5_VLConfig,
    prompts: Sequence[Sequence[int]],
    shown: Sequence[Sequence[str]],
    images: Mapping[str, Image],
    responses: Integers,
    response_lengths: Integers,
) -> tuple[Tensor, Tensor, ImageTensors | None]:
    """As `batching.pad`, for prompts with one placeholder an image.

    Args:
        config: Of the model.
        prompts: Token ids of B prompts.
        shown: The digests of each prompt's images, in order.
        images: The images by digest.
        responses: The tokens of all responses, one after the other.
        response_lengths: (B,).

    Returns:
        Tokens and where they are response tokens, both (B, L), and the images; `None` if no prompt shows any.

    Raises:
        InputError: A prompt has not as many placeholders as images, or a digest is of none of the images.
    """
    distinct = list(dict.fromkeys(name for names in shown for name in names))
    if unknown := [name for name in distinct if name not in images]:
        raise InputError(f"image {unknown[0][:12]} is none of the {len(images)} that the prompts show")
    if not distinct:
        flat = np.asarray([token for prompt in prompts for token in prompt], dtype=np.int64)
        return *pad(flat, np.asarray([len(prompt) for prompt in prompts]), responses, response_lengths), None
    pixels = read_pixels(image_processor(), [images[name] for name in distinct])
    sizes = (pixels.grid.prod(dim=1) // merge_size(config) ** 2).tolist()
    ends = accumulate(sizes)
    rows_of = {name: range(end - size, end) for name, end, size in zip(distinct, ends, sizes, strict=True)}
    grid_of = dict(zip(distinct, map(tuple, pixels.grid.tolist()), strict=True))

    @cache  # most prompts of a batch differ in their images' content alone, which places nothing
    def read(ids: tuple[int, ...], grids: tuple[tuple[int, ...], ...]) -> ImagePrompt:
        return read_prompt(config, ids, torch.tensor(grids, dtype=torch.int64).reshape(-1, 3))

    pairs = zip(prompts, shown, strict=True)
    seen = [read(tuple(ids), tuple(grid_of[name] for name in names)) for ids, names in pairs]
    lengths = np.asarray([len(prompt.ids) for prompt in seen])
    flat = torch.cat([prompt.ids for prompt in seen]).numpy()
    tokens, is_response = pad(flat, lengths, responses, response_lengths)
    columns, starts = torch.arange(tokens.shape[1]), torch.from_numpy(lengths)[:, None]
    after = torch.tensor([prompt.next_position for prompt in seen])[:, None] - starts
    positions = (columns + after).expand(3, -1, -1).clone()
    in_prompt = columns < starts
    positions[:, in_prompt] = torch.cat([prompt.positions for prompt in seen], dim=1)
    rows = torch.tensor([row for names in shown for name in names for row in rows_of[name]])
    is_image = in_prompt & (tokens == config.image_token_id)
    return tokens, is_response, ImageTensors(pixels, rows, is_image, positions)
