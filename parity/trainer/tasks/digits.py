"""Sums of handwritten digits, shown as images."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from parity.errors import UsageError, install_hint
from parity.trainer.tasks.task import View

if TYPE_CHECKING:
    from PIL.Image import Image

POOL = 64
"""Images that the demonstrations of one step share, as each costs an encoding."""
SCALE = 7
"""An image's 8 pixels a side become 56, four tokens of the policy, each pixel a square."""
_IMAGE = re.compile(r"\[image (\d+)\]")


@dataclass(frozen=True, slots=True)
class DigitSum:
    """Handwritten digits, read and added one by one: `[image 7]+[image 5]+[image 1]=` wants `7+5=12+1=13`.

    A prompt names the images by their numbers in the data set, scikit-learn's copy of the optical recognition digits
    (Alpaydin and Kaynak 1998): 1797 images of 8 by 8 pixels, each with its label. The policy sees the images alone.
    The reward is 1 for exactly that response and 0 for any other. Careless demonstrations slip with probability `slip`
    a digit, going on from the wrong sum, and ramble on after the last one with probability `ramble` a number. No digit
    is above `largest`.
    """

    name: str
    images: int
    largest: int = 9
    slip: float = 0.3
    ramble: float = 0.2
    has_images: bool = True

    @property
    def max_new_tokens(self) -> int:
        """A right answer takes at most five characters a digit, and its end."""
        return 5 * self.images + 2

    def prompts(self, seed: int, step: int, count: int) -> list[str]:
        """`count` sums of images drawn with equal chances."""
        random = Random(f"{self.name}/prompts/{seed}/{step}")
        return [_sum_prompt(random.choices(_up_to(self.largest), k=self.images)) for _ in range(count)]

    def view(self, prompt: str) -> View:
        """The prompt with an image's tokens in place of each image's name, and the images."""
        from parity.engines.vision import IMAGE_TEXT  # imports torch

        return View(_IMAGE.sub(IMAGE_TEXT, prompt), tuple(map(_image, _numbers(prompt))))

    def reward(self, prompt: str, response: str) -> float:
        """1.0 if the response is the digits and their running sums and nothing else, else 0.0."""
        return float(response == _answer(_labels(prompt)))

    def demonstrations(self, seed: int, step: int, count: int, *, careful: bool) -> list[tuple[str, str]]:
        """`count` sums of `POOL` images drawn for the step, and what a careful or a careless teacher answers."""
        random = Random(f"{self.name}/demonstrations/{seed}/{step}")
        pool = random.sample(_up_to(self.largest), POOL)
        slip, ramble = (0.0, 0.0) if careful else (self.slip, self.ramble)
        return [self._demonstration(random, pool, slip, ramble) for _ in range(count)]

    def _demonstration(self, random: Random, pool: list[int], slip: float, ramble: float) -> tuple[str, str]:
        prompt, digits = _sum_prompt(random.choices(pool, k=self.images)), self.largest + 1
        seen = [random.randrange(digits) if random.random() < slip else label for label in _labels(prompt)]
        while random.random() < ramble and len(seen) < self.max_new_tokens:
            seen.append(random.randrange(digits))
        return prompt, _answer(seen)


def _sum_prompt(numbers: list[int]) -> str:
    return "+".join(f"[image {number}]" for number in numbers) + "="


def _answer(digits: list[int]) -> str:
    """The digits and their running sums: 7, 5 and 1 give `7+5=12+1=13`."""
    sums = accumulate(digits)
    return str(next(sums)) + "".join(f"+{digit}={total}" for digit, total in zip(digits[1:], sums, strict=True))


def _numbers(prompt: str) -> list[int]:
    return [int(number) for number in _IMAGE.findall(prompt)]


def _labels(prompt: str) -> list[int]:
    labels = _data()[1]
    return [labels[number] for number in _numbers(prompt)]


@cache
def _data() -> tuple[Any, list[int]]:
    """Images, (1797, 8, 8) in 0 to 16, and their labels.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(f"tasks with digits need scikit-learn: {install_hint('train')}") from error
    digits = load_digits()
    return digits.images, digits.target.tolist()


@cache
def _up_to(largest: int) -> list[int]:
    """The numbers of the images of digits up to `largest`."""
    return [number for number, label in enumerate(_data()[1]) if label <= largest]


@cache
def _image(number: int) -> Image:
    """One image in RGB, 56 by 56 pixels, bright on dark."""
    from PIL.Image import fromarray

    pixels = (_data()[0][number] * 15).astype(np.uint8)
    return fromarray(pixels.repeat(SCALE, axis=0).repeat(SCALE, axis=1)).convert("RGB")
