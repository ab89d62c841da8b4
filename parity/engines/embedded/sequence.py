"""A sequence while it waits and runs, as the scheduler and whoever submitted it see it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from parity.engines.embedded.protocol import Generated, SequenceRequest


@dataclass(eq=False)
class Sequence:
    """A sequence from submission to its end.

    `owner` and `index` are the submitter's. With `stream` it is delivered at every token.
    """

    request: SequenceRequest
    owner: Any = None
    index: int = 0
    stream: bool = False
    output_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: list[tuple[tuple[float, int], ...]] = field(default_factory=list)
    prompt_logprobs: tuple[float | None, ...] = ()
    prompt_top: tuple[tuple[tuple[float, int], ...] | None, ...] = ()
    cached_tokens: int = 0
    retractions: int = 0
    versions: list[tuple[str, int]] = field(default_factory=list)
    started: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        seed = self.request.sampling.seed
        self.seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed % 2**64

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt and output so far."""
        return self.request.input_ids + self.output_ids

    @property
    def key(self) -> tuple[int, ...]:
        """The context, with the content of images in the place of their ids: equal keys have equal keys and values."""
        return self.request.key + self.output_ids

    @property
    def end(self) -> int:
        """Prompt and output at most, in tokens."""
        return len(self.request.input_ids) + self.request.sampling.max_new_tokens

    def result(self, finish_reason: dict[str, Any] | None) -> Generated:
        """What has come of it so far."""
        return Generated(
            self.output_ids,
            self.logprobs,
            tuple(self.top),
            self.prompt_logprobs,
            self.prompt_top,
            finish_reason,
            self.cached_tokens,
            self.retractions,
            tuple(self.versions),
            self.started,
        )
