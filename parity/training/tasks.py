"""Tasks: prompts that are a function of seed and step, a verifiable reward, and demonstrations for the warm start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Protocol

from parity.errors import UsageError


class Task(Protocol):
    """What a policy is trained on."""

    @property
    def name(self) -> str:
        """The name that `get_task` knows it by."""

    @property
    def max_new_tokens(self) -> int:
        """Tokens after which a response is cut; a right answer and its end fit in."""

    def prompts(self, seed: int, step: int, count: int) -> list[str]:
        """The prompts of one step: the same for the same arguments, whatever was asked before."""

    def reward(self, prompt: str, response: str) -> float:
        """The score of a response, a function of the two texts alone."""

    def demonstrations(self, seed: int, step: int, count: int, *, careful: bool) -> list[tuple[str, str]]:
        """Prompts and responses for the warm start: all right if `careful`, else imperfect."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Sums of two or three numbers, answered by the running sums: `7+5+4=` wants `12,16`.

    The reward is 1 for exactly that response and 0 for any other. Careless demonstrations slip in an addition
    with probability `slip`, going on from the wrong sum, and ramble on after the last one with probability `ramble` a
    number: an imitator samples right answers less often than it could give them, which reinforcement can mend.
    """

    largest: int = 9
    slip: float = 0.5
    ramble: float = 0.3
    name: str = "arithmetic"
    max_new_tokens: int = 10

    def prompts(self, seed: int, step: int, count: int) -> list[str]:
        """`count` sums; their terms and lengths are uniform."""
        random = Random(f"{self.name}/prompts/{seed}/{step}")
        return [_sum_prompt(self._terms(random)) for _ in range(count)]

    def reward(self, prompt: str, response: str) -> float:
        """1.0 if the response is the running sums of the prompt and nothing else, else 0.0."""
        running = accumulate(int(term) for term in prompt.removesuffix("=").split("+"))
        return float(response == ",".join(map(str, list(running)[1:])))

    def demonstrations(self, seed: int, step: int, count: int, *, careful: bool) -> list[tuple[str, str]]:
        """`count` sums and what a careful or a careless teacher answers."""
        random = Random(f"{self.name}/demonstrations/{seed}/{step}")
        return [
            self._demonstration(random, 0.0 if careful else self.slip, 0.0 if careful else self.ramble)
            for _ in range(count)
        ]

    def _terms(self, random: Random) -> list[int]:
        return [random.randint(1, self.largest) for _ in range(random.randint(2, 3))]

    def _demonstration(self, random: Random, slip: float, ramble: float) -> tuple[str, str]:
        terms = self._terms(random)
        total, response = terms[0], []
        for term in terms[1:]:
            total += term + (random.choice((-2, -1, 1, 2)) if random.random() < slip else 0)
            response.append(total)
        while random.random() < ramble and len(response) < self.max_new_tokens:
            total += random.randint(1, self.largest)
            response.append(total)
        return _sum_prompt(terms), ",".join(map(str, response))


def _sum_prompt(terms: list[int]) -> str:
    return "+".join(map(str, terms)) + "="


TASKS: dict[str, Callable[[], Task]] = {"arithmetic": Arithmetic}
"""Every task by the name that `--task` takes; a new one is added here."""


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        UsageError: There is none; the message lists those there are.
    """
    if name not in TASKS:
        raise UsageError(f"no task {name!r}; there are {sorted(TASKS)}")
    return TASKS[name]()
