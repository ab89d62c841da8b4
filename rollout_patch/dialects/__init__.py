"""How engines are spoken to: what differs between them, in one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_patch.dialects import sglang, vllm
from rollout_patch.eligibility import Capabilities, Rule
from rollout_patch.requests import ARMS, PlannedRequest, SampleRequest
from rollout_patch.responses import Doubt, Output


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between engines.

    Attributes:
        name: What it is called.
        path_of: Where a payload is sent.
        body_of: The payload of one request for some samples in an arm.
        read_response: The outputs of an answer to one request, in the order of its slots, or why it is refused.
        without_media: A payload as a recording keeps it.
        weight_calls: The paths and bodies by which an engine loads the weights of a folder and labels them, in order;
            each is answered with 200, and not with `success` false.
        capabilities: What its engines do unless they were seen to do otherwise.
        rules: The conditions of `rollout_patch.CONDITIONS` that hold otherwise than by default.
        placeholder_runs: Whether placeholders without a gap between them stand for one medium, expanded.
    """

    name: str
    path_of: Callable[[Mapping[str, Any]], str]
    body_of: Callable[[str, Sequence[SampleRequest]], dict[str, Any]]
    read_response: Callable[[PlannedRequest, Any, Sequence[SampleRequest], Doubt], list[Output]]
    without_media: Callable[[Mapping[str, Any]], dict[str, Any]]
    weight_calls: Callable[[str, str], list[tuple[str, dict[str, Any]]]]
    capabilities: Capabilities = Capabilities()  # noqa: RUF009 (frozen)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    placeholder_runs: bool = True


SGLANG = Dialect(
    "sglang", sglang.path_of, sglang.body_of, sglang.read_response, sglang.without_media, sglang.weight_calls
)
VLLM = Dialect(
    "vllm",
    vllm.path_of,
    vllm.body_of,
    vllm.read_response,
    vllm.without_media,
    vllm.weight_calls,
    capabilities=vllm.CAPABILITIES,
    rules=vllm.RULES,
    placeholder_runs=False,
)
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (SGLANG, VLLM)}
"""Every dialect by its name."""


def plan_requests(
    arm: str, requests: Sequence[SampleRequest], chunk: int | None = None, dialect: Dialect = SGLANG
) -> list[PlannedRequest]:
    """The requests that ask for a group in one arm; whether the group may go that way is not checked here.

    Args:
        arm: One of `ARMS`.
        requests: What each slot asks for, in slot order.
        chunk: Most samples in one request; `None` puts the group into one. Has no meaning per sample.
        dialect: How the engine is spoken to.

    Raises:
        ValueError: The arm is unknown, `chunk` is below 1, or the dialect has no word for what a sample asks for.
    """
    if arm not in ARMS:
        raise ValueError(f"arm {arm!r} is none of {ARMS}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; a request holds at least one sample")
    size = 1 if arm == "per-sample" else chunk or len(requests)
    plan = []
    for start in range(0, len(requests), size):
        members = requests[start : start + size]
        slots = tuple(range(start, start + len(members)))
        plan.append(PlannedRequest(dialect.body_of(arm, members), dict(members[0].headers), slots))
    return plan
