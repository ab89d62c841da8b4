"""Images as a Qwen2.5-VL takes them: a prompt with one placeholder an image, and the images, as input of the model.

Trainer and embedded engine share this module, so that both see the same pixels at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil as ImageProcessor

from parity.errors import InputError

__all__ = [
    "IMAGE_PAD",
    "IMAGE_TEXT",
    "MODEL_TYPE",
    "SPECIAL_TOKENS",
    "VIDEO_PAD",
    "VISION_END",
    "VISION_START",
    "ImageProcessor",
    "ImagePrompt",
    "Pixels",
    "load_image_processor",
    "merge_size",
    "read_pixels",
    "read_prompt",
]

MODEL_TYPE = "qwen2_5_vl"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
SPECIAL_TOKENS = (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)
IMAGE_TEXT = VISION_START + IMAGE_PAD + VISION_END
"""How an image stands in a prompt's text; only the token in the middle becomes the image's."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """Images cut into patches, one image after the other.

    Attributes:
        patches: (P, channels * temporal size * height * width of a patch) float32, normalised.
        grid: (images, 3) int64: patches of each image in time (1), height and width; their products sum to P.
    """

    patches: Tensor
    grid: Tensor


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt as the model takes it, L tokens.

    Attributes:
        ids: (L,) int64, with each placeholder repeated once a token of its image.
        positions: (3, L) int64, in time, height and width (multimodal rotary embedding, arXiv:2409.12191, 2.1).
    """

    ids: Tensor
    positions: Tensor

    @property
    def next_position(self) -> int:
        """The position, in all three dimensions, of the first token after the prompt."""
        return int(self.positions.max()) + 1


def load_image_processor(path: Path) -> ImageProcessor:
    """The image processor of a checkpoint directory, which needs no torchvision.

    Raises:
        InputError: The directory holds none.
    """
    try:
        processor: ImageProcessor = ImageProcessor.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: no image processor: {error}") from error
    return processor


def read_pixels(processor: ImageProcessor, images: Sequence[Image.Image]) -> Pixels:
    """At least one image in RGB as patches; sides that are no multiples of a token's are resized."""
    made: Any = processor(images=list(images), return_tensors="pt")
    return Pixels(made["pixel_values"], made["image_grid_thw"])


def merge_size(config: Qwen2_5_VLConfig) -> int:
    """Patches a side that become one token."""
    shape: Any = config.vision_config
    return int(shape.spatial_merge_size)


def read_prompt(config: Qwen2_5_VLConfig, ids: Sequence[int], grid: Tensor) -> ImagePrompt:
    """A prompt with one placeholder an image as the model takes it.

    Text takes one position a token, in all three dimensions; an image takes the grid of its tokens, and the text after
    it goes on behind the grid's longer side.

    Args:
        config: Of the model.
        ids: Token ids; those that are the config's `image_token_id` stand for the images, in order.
        grid: (images, 3), of `Pixels`.

    Raises:
        InputError: There are not as many placeholders as images.
    """
    given = torch.tensor(ids, dtype=torch.int64)
    is_image = given == config.image_token_id
    places = torch.nonzero(is_image)[:, 0].tolist()
    if len(places) != len(grid):
        raise InputError(f"{len(places)} placeholders for {len(grid)} images")
    merge = merge_size(config)
    repeats = torch.ones_like(given)
    repeats[is_image] = grid.prod(dim=1) // merge**2
    parts, done, position = [], 0, 0
    for place, (time, height, width) in zip(places, grid.tolist(), strict=True):
        sides = (time, height // merge, width // merge)
        text = place - done
        parts.append(torch.arange(position, position + text).expand(3, -1))
        parts.append(torch.cartesian_prod(*map(torch.arange, sides)).T + position + text)
        done, position = place + 1, position + text + max(sides)
    parts.append(torch.arange(position, position + len(given) - done).expand(3, -1))
    return ImagePrompt(given.repeat_interleave(repeats), torch.cat(parts, dim=1))
