"""The images of a `/generate` body: which belong to which prompt, and what they are to the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from parity.engines.embedded.refusals import expect, refused


@dataclass(frozen=True, slots=True, eq=False)
class SeenImage:
    """One image as the model takes it.

    `patches` (P, values a patch) are float32, `grid` (1, 3) counts them in time, height and width, and `digest` is the
    SHA-256 of both as a number. It takes `tokens` of a prompt.
    """

    digest: int
    patches: Tensor
    grid: Tensor
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Vision:
    """A prompt of L tokens with its images in their places.

    `ids` repeat each placeholder once a token of its image. In `key` these are a negative number instead that only an
    image of the same content has. `positions` (3, L) are those of the rotary embedding, in time, height and width.
    """

    ids: tuple[int, ...]
    key: tuple[int, ...]
    positions: Tensor
    images: tuple[SeenImage, ...]

    @property
    def shift(self) -> int:
        """What leads from the place of a token after the prompt to its position: 0, or less by images."""
        return int(self.positions.max()) + 1 - len(self.ids)

    @property
    def image_tokens(self) -> int:
        """Tokens that are of images."""
        return sum(token < 0 for token in self.key)


ReadImages = Callable[[Sequence[int], Sequence[Any]], Vision | None]
"""Reads a prompt's images off the wire: its ids, one placeholder an image, and the images; None where none is placed.

Images beyond the placeholders are dropped. Raises `RequestRefused`.
"""


def images_by_prompt(given: object, prompts: int, is_list: bool) -> list[list[Any]]:
    """The images of each prompt: a list is one prompt's own, or with n > 1 or a list of prompts has an entry a prompt.

    As `_normalize_image_data` in `io_struct.py` of SGLang 0.5.23 has it: whether entries are lists, the first one says.
    """
    expect(given is None or isinstance(given, (str, list)), given, "one of the MediaInput shapes")
    if given is None or given == []:
        return [[] for _ in range(prompts)]
    if isinstance(given, str):
        return [[given] for _ in range(prompts)]
    assert isinstance(given, list)
    if not is_list:
        return [_image_list(given)]
    if len(given) != prompts:
        raise refused("The length of image_data should be equal to the batch size.")
    if not isinstance(given[0], list):
        expect(not any(isinstance(one, list) for one in given), [], "one of the MediaItem shapes")
        return [_image_list([one]) for one in given]
    return [_image_list(one if isinstance(one, list) else [one]) for one in given]


def _image_list(items: list[Any]) -> list[Any]:
    if items == [None]:
        return []
    for item in items:
        expect(isinstance(item, (str, list, dict)), item, "one of the MediaItem shapes")
    return items
