"""The configuration of `parity sample`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from parity.records.arms import ArmsAsked, read_settings
from parity.records.margins import SAMPLING_MEANS, TOKEN_KL

BLOCK = 32
"""Prompts sampled at once; the evidence is evaluated after each block."""


@dataclass(frozen=True, slots=True)
class SamplingConfig(ArmsAsked):
    """What to sample, and what must be shown; the weights of a deployment at a URL are left alone.

    Attributes:
        model_path: The checkpoint that an engine started here serves; by default the warm-started policy of the task.
        task: The task that prompts and reward come from, unless `prompts` is given.
        prompts: A file of prompts.
        prompt_key: The field of a prompt in it.
        reward: ``module:function`` of one `parity.records.samples.Sample`; by default the task's.
        reward_range: The least and the largest reward there can be.
        group_size: Samples a prompt in each arm.
        max_new_tokens: Cap of a response; by default the task's.
        temperature: Of sampling.
        top_p: Nucleus of sampling; 1 keeps everything.
        top_k: Tokens kept in sampling; -1 keeps all.
        margins: The largest difference that does not matter, by metric.
        token_kl: The largest KL between two engines that does not matter, in nats a token.
        fixed: Groups of a design whose size is set beforehand; None for evidence that is watched.
        max_groups: Groups after which watching ends; rounded up to whole blocks.
        seed: Of the prompts' order, of which arm goes first, and of the tests.
    """

    model_path: str | None = None
    task: str = "arithmetic"
    prompts: str | None = None
    prompt_key: str | None = None
    reward: str | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)
    group_size: int = 8
    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    margins: Mapping[str, float] = field(default_factory=lambda: dict(SAMPLING_MEANS))
    token_kl: float = TOKEN_KL
    fixed: int | None = None
    max_groups: int = 4096
    seed: int = 0

    @property
    def limit(self) -> int:
        """The largest number of groups of an arm."""
        return self.fixed if self.fixed is not None else -(-self.max_groups // BLOCK) * BLOCK

    def to_json(self) -> dict[str, Any]:
        """The configuration as it lies on disk: without the password in an engine's URL."""
        return {**asdict(self), **self.arms_to_json()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> SamplingConfig:
        """The configuration that `to_json` wrote.

        Raises:
            InputError: It has other fields, or a value is not of its kind.
        """
        return read_settings(row, cls, "sampling.json: config")
