"""What came back as outputs, and what must hold of them in every dialect; a dialect reads its answers into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ne
from sys import float_info
from typing import Any

from rollout_patch.errors import ResponseRefused
from rollout_patch.requests import SampleRequest

FINISH_REASONS = ("stop", "length", "abort")

_IDS = range(2**31)
"""Token ids: the engine holds them as 32-bit integers."""

_ROUNDING = 1e-4
"""How far above 0 a log-probability may be: log-softmax rounds that of a certain token to slightly more than 0."""

DOUBTS = (
    "mixed_weight_versions",
    "weight_version_type",
    "missing_id",
    "missing_prompt_tokens",
    "positive_logprob",
)
"""What may be wrong with an answer although each sample of it is whole and in its place: hosts train on it."""

Doubt = Callable[[str, str], None]
"""Takes one of `DOUBTS` and what was found; raises, or lets it pass."""


def refuse(name: str, message: str) -> None:
    """Lets nothing pass.

    Raises:
        ResponseRefused: Always.
    """
    raise ResponseRefused(message)


@dataclass(frozen=True, slots=True)
class Output:
    """One sample as the engine made it.

    Attributes:
        text: The decoded response, or `None` where the engine decodes nothing (``--skip-tokenizer-init``).
        output_ids: Token ids of the response.
        logprobs: Natural log-probability of each token sampled, as long as `output_ids`; `None` where none were asked
            for.
        finish_reason: "stop", "length" or "abort".
        matched: The stop token or string that ended the response.
        prompt_tokens: Length of the prompt as the engine counts it.
        cached_tokens: How many of them came from its prefix cache.
        weight_version: The version of the weights that made the response.
        id: The engine's id of the sample; `None` where it gives none.
        meta_info: The rest, as received.
    """

    text: str | None
    output_ids: list[int]
    logprobs: list[float] | None
    finish_reason: str
    matched: int | str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    weight_version: str | None
    id: str | None
    meta_info: Mapping[str, Any] = field(repr=False)


UNSENT = ""
"""The id of an output that no engine made."""


def unsent_output() -> Output:
    """What stands for a sample that was aborted before its request was sent: an abort without tokens."""
    reason = {"type": "abort", "message": "Aborted before it was sent"}
    return Output("", [], [], "abort", None, None, None, None, UNSENT, {"finish_reason": reason})


def check_group(outputs: Sequence[Output], requests: Sequence[SampleRequest], doubt: Doubt = refuse) -> None:
    """What must hold between the samples that came back; both arguments have one entry for each of them.

    Raises:
        ResponseRefused: Two samples have one id, equal prompts were counted differently, or `doubt` refuses that the
            group mixes weight versions.
    """
    ids = [output.id for output in outputs if output.id is not None]
    if len(set(ids)) != len(ids):
        raise ResponseRefused(f"{len(ids)} samples have {len(set(ids))} different ids: {shown(ids)}")
    # no weights made what was aborted before its first token
    made = [output for output in outputs if output.output_ids or output.weight_version is not None]
    if len(versions := {output.weight_version for output in made}) > 1:
        found = f"one group has samples of {len(versions)} weight versions: {sorted(map(str, versions))}"
        doubt("mixed_weight_versions", found)
    if any(request.input_ids is None or request.media for request in requests):
        _check_prompt_counts(outputs, requests)


def _check_prompt_counts(outputs: Sequence[Output], requests: Sequence[SampleRequest]) -> None:
    """Where ids cannot tell the length of a prompt, siblings that ask the same must at least agree on it."""
    first = next((slot for slot, output in enumerate(outputs) if output.prompt_tokens is not None), None)
    if first is None:
        return
    for slot, (output, request) in enumerate(zip(outputs, requests, strict=True)):
        same = request.prompt == requests[first].prompt and request.media == requests[first].media
        if same and output.prompt_tokens not in (None, outputs[first].prompt_tokens):
            counts = (outputs[first].prompt_tokens, output.prompt_tokens)
            raise ResponseRefused(
                f"slots {first} and {slot} ask the same and have {counts[0]} and {counts[1]} prompt tokens"
            )


def check_ids(ids: list[Any], place: str) -> None:
    """Refuses what is no list of token ids."""
    if ids and (set(map(type, ids)) != {int} or min(ids) < _IDS.start or max(ids) >= _IDS.stop):
        at = next(at for at, value in enumerate(ids) if type(value) is not int or value not in _IDS)
        raise ResponseRefused(f"{place}: token {at} is {shown(ids[at])}, not an id")


def check_logprobs(logprobs: list[Any], place: str, doubt: Doubt) -> None:
    """Refuses what is no number, and doubts what is no log-probability.

    Column by column, which spares a loop over tokens; only NaN differs from itself.
    """
    if not logprobs:
        return
    if (
        not set(map(type, logprobs)) <= {float, int}
        or any(map(ne, logprobs, logprobs))
        or min(logprobs) < -float_info.max
        or max(logprobs) > float_info.max
    ):
        at = next(
            at
            for at, value in enumerate(logprobs)
            if type(value) not in (float, int) or not -float_info.max <= value <= float_info.max
        )
        raise ResponseRefused(f"{place}: the log-probability of token {at} is {shown(logprobs[at])}")
    if (most := max(logprobs)) > _ROUNDING:
        doubt("positive_logprob", f"{place}: the log-probability of token {logprobs.index(most)} is {shown(most)}")


def typed(mapping: dict[str, Any], name: str, kind: type, place: str) -> Any:
    """A field that is of one type or not there; anything else is refused."""
    value = mapping.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ResponseRefused(f"{place}: {name} is {kind.__name__}, not {shown(value)}")
    return value


def shown(value: Any) -> str:
    """A value for a message: its type and the beginning of it."""
    text = repr(value)
    return f"{type(value).__name__} {text[:120]}{'…' if len(text) > 120 else ''}"
