"""What a sample of a group asks for, and a request that is planned for some of them: the same in every dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ARMS = ("per-sample", "batched", "native")
"""The ways of asking for a group: n requests, one request with a list of n prompts, one request with `n`."""

SEED = "sampling_seed"


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """What one sample of a group asks for; the host's adapter builds it.

    Attributes:
        sampling_params: Sampling parameters by SGLang's names, without `n`; a dialect says them in its own.
        input_ids: Token ids of the prompt and any earlier partial output; exactly one of `input_ids` and `text` is
            given.
        text: The prompt as text.
        media: Media by SGLang's field (``image_data``, ``video_data``, ``audio_data``), one list a prompt; empty lists
            count as none.
        resumed: Whether the prompt carries the sample's earlier partial output.
        options: Other top-level fields of the payload, such as `return_logprob` or `lora_path`.
        headers: HTTP headers, such as a routing key.
    """

    sampling_params: Mapping[str, Any]
    input_ids: Sequence[int] | None = None
    text: str | None = None
    media: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    resumed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.input_ids is None) == (self.text is None):
            raise ValueError("a sample asks with exactly one of input_ids and text")
        if "n" in self.sampling_params:
            raise ValueError(f"sampling_params hold n={self.sampling_params['n']!r}; the arm decides n")
        if self.options.get("stream"):
            raise ValueError("a streamed response cannot be validated whole")

    @property
    def prompt(self) -> str | list[int]:
        """The prompt as the payload holds it; a new list at each call."""
        return self.text if self.text is not None else list(self.input_ids or ())


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send: its body, its headers, and the slots that the answer's outputs belong to, in order."""

    payload: dict[str, Any]
    headers: dict[str, str]
    slots: tuple[int, ...]
