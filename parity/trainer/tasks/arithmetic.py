"""Sums in text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random

from parity.trainer.tasks.task import View


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
    has_images: bool = False

    def prompts(self, seed: int, step: int, count: int) -> list[str]:
        """`count` sums; their terms and lengths are uniform."""
        random = Random(f"{self.name}/prompts/{seed}/{step}")
        return [_sum_prompt(self._terms(random)) for _ in range(count)]

    def view(self, prompt: str) -> View:
        """The prompt itself."""
        return View(prompt)

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
