"""What a task is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class View:
    """What a policy sees of a prompt: its text, and the images that the placeholders in it stand for, in order."""

    text: str
    images: tuple[Image, ...] = ()


class Task(Protocol):
    """What a policy is trained on."""

    @property
    def name(self) -> str:
        """The name that `get_task` knows it by."""

    @property
    def max_new_tokens(self) -> int:
        """Tokens after which a response is cut; a right answer and its end fit in."""

    @property
    def has_images(self) -> bool:
        """Whether a prompt may show images."""

    def prompts(self, seed: int, step: int, count: int) -> list[str]:
        """The prompts of one step: the same for the same arguments, whatever was asked before."""

    def view(self, prompt: str) -> View:
        """What the policy is shown of a prompt, a function of it alone."""

    def reward(self, prompt: str, response: str) -> float:
        """The score of a response, a function of the two texts alone."""

    def demonstrations(self, seed: int, step: int, count: int, *, careful: bool) -> list[tuple[str, str]]:
        """Prompts and responses for the warm start: all right if `careful`, else imperfect."""
