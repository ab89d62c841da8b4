"""Request bodies for the three arms.

The shapes are those of SGLang's `/generate` (`io_struct.py` and `tokenizer_manager.py` of 0.5.23): one prompt is a
string or a flat list of ids, a batch is a list of them; media of one prompt are a flat list for n = 1 and wrapped once
more for n > 1 and for batches.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ARMS = ("per-sample", "batched", "native")
"""The ways of asking for a group: n requests, one request with a list of n prompts, one request with `n`."""

SEED = "sampling_seed"
MEDIA_FIELDS = ("image_data", "video_data", "audio_data")
"""Fields of a payload that hold media."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """What one sample of a group asks for; the host's adapter builds it.

    Attributes:
        sampling_params: SGLang's sampling parameters, without `n`.
        input_ids: Token ids of the prompt and any earlier partial output; exactly one of `input_ids` and `text` is
            given.
        text: The prompt as text.
        media: Media by payload field (``image_data``, ``video_data``, ``audio_data``), one list a prompt; empty lists
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
    """One request to send: its body, its headers, and the slots that the answer's items belong to, in order."""

    payload: dict[str, Any]
    headers: dict[str, str]
    slots: tuple[int, ...]

    @property
    def wants_list(self) -> bool:
        """Whether the protocol answers with a list; a request for one sample is answered with an object."""
        return len(self.slots) > 1


def plan_requests(arm: str, requests: Sequence[SampleRequest], chunk: int | None = None) -> list[PlannedRequest]:
    """The requests that ask for a group in one arm; whether the group may go that way is not checked here.

    Args:
        arm: One of `ARMS`.
        requests: What each slot asks for, in slot order.
        chunk: Most samples in one request; `None` puts the group into one. Has no meaning per sample.

    Raises:
        ValueError: The arm is unknown or `chunk` is below 1.
    """
    if arm not in ARMS:
        raise ValueError(f"arm {arm!r} is none of {ARMS}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; a request holds at least one sample")
    size = 1 if arm == "per-sample" else chunk or len(requests)
    plan = []
    for start in range(0, len(requests), size):
        members = requests[start : start + size]
        body = _single(members[0]) if len(members) == 1 else _batched(members) if arm == "batched" else _native(members)
        slots = tuple(range(start, start + len(members)))
        plan.append(PlannedRequest(body, dict(members[0].headers), slots))
    return plan


def _single(request: SampleRequest) -> dict[str, Any]:
    media = {name: list(items) for name, items in request.media.items() if items}
    return {**_prompt_field(request, request.prompt), **media, **_common(request)}


def _native(members: Sequence[SampleRequest]) -> dict[str, Any]:
    """One prompt with n; the engine derives the seeds of slots after the first, where it can."""
    first = members[0]
    media = {name: [list(items)] for name, items in first.media.items() if items}
    body = {**_prompt_field(first, first.prompt), **media, **_common(first)}
    body["sampling_params"]["n"] = len(members)
    return body


def _batched(members: Sequence[SampleRequest]) -> dict[str, Any]:
    """A list of prompts; parameters and adapters become lists only where they differ, for routers that refuse lists."""
    first = members[0]
    names = [name for name, items in first.media.items() if items]
    media = {name: [list(member.media[name]) for member in members] for name in names}
    body = {**_prompt_field(first, [member.prompt for member in members]), **media, **_common(first)}
    if any(member.sampling_params != first.sampling_params for member in members):
        body["sampling_params"] = [copy.deepcopy(dict(member.sampling_params)) for member in members]
    if any(member.options.get("lora_path") != first.options.get("lora_path") for member in members):
        body["lora_path"] = [member.options.get("lora_path") for member in members]
    return body


def _prompt_field(request: SampleRequest, prompt: Any) -> dict[str, Any]:
    return {"text" if request.text is not None else "input_ids": prompt}


def _common(request: SampleRequest) -> dict[str, Any]:
    """Sampling parameters and options as copies, so that a change of the payload reaches no sibling or caller."""
    return {"sampling_params": copy.deepcopy(dict(request.sampling_params)), **copy.deepcopy(dict(request.options))}
