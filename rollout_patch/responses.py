"""What came back → outputs, validated whole before any sample is touched.

The fields are those of SGLang 0.5.23: an item holds `text`, `output_ids` and `meta_info`; `output_token_logprobs` are
triples of log-probability, token id and text or null. An item aborted in the waiting queue lacks `prompt_tokens` and
`cached_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ne
from sys import float_info
from typing import Any

from rollout_patch.errors import OneSampleOnly, ResponseRefused
from rollout_patch.requests import PlannedRequest, SampleRequest

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


def read_response(
    planned: PlannedRequest, response: Any, requests: Sequence[SampleRequest], doubt: Doubt = refuse
) -> list[Output]:
    """The outputs of one answer, in the order of the request's slots.

    Args:
        planned: The request that was sent.
        response: The decoded body of its 200.
        requests: What each slot of the group asks for.
        doubt: What becomes of `DOUBTS`.

    Raises:
        OneSampleOnly: One sample stands where several were asked for.
        ResponseRefused: The body is of another type, has another number of items, or an item breaks the protocol.
    """
    wanted = list if planned.wants_list else dict
    if not isinstance(response, wanted):
        one_only = isinstance(response, dict) and "meta_info" in response
        raise (OneSampleOnly if one_only else ResponseRefused)(
            f"a request for {len(planned.slots)} samples is answered with a {wanted.__name__}, not {_shown(response)}"
        )
    items = response if isinstance(response, list) else [response]
    if len(items) != len(planned.slots):
        raise ResponseRefused(f"asked for {len(planned.slots)} samples, got {len(items)}")
    return [
        _read_item(item, requests[slot], f"slot {slot}", doubt) for slot, item in zip(planned.slots, items, strict=True)
    ]


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
        raise ResponseRefused(f"{len(ids)} samples have {len(set(ids))} different ids: {_shown(ids)}")
    if len(versions := {output.weight_version for output in outputs}) > 1:
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


def _read_item(item: Any, request: SampleRequest, place: str, doubt: Doubt) -> Output:
    if not isinstance(item, dict):
        raise ResponseRefused(f"{place}: an item is an object, not {_shown(item)}")
    meta = item.get("meta_info")
    if not isinstance(meta, dict):
        raise ResponseRefused(f"{place}: an item holds the object meta_info, unlike {_shown(item)}")
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else None
    if not isinstance(reason, dict) or kind not in FINISH_REASONS:
        raise ResponseRefused(f"{place}: meta_info.finish_reason.type is one of {FINISH_REASONS}, not {_shown(reason)}")
    ids, logprobs = _tokens(item, meta, place, doubt)
    if logprobs is None and request.options.get("return_logprob"):
        raise ResponseRefused(f"{place}: log-probabilities were asked for, and meta_info has no output_token_logprobs")
    _check_lengths(meta, ids, kind, place)
    return Output(
        text=_typed(item, "text", str, place),
        output_ids=ids,
        logprobs=logprobs,
        finish_reason=kind,
        matched=reason.get("matched"),
        prompt_tokens=_prompt_tokens(meta, request, kind, place, doubt),
        cached_tokens=_typed(meta, "cached_tokens", int, place),
        weight_version=_weight_version(meta, place, doubt),
        id=_id(meta, place, doubt),
        meta_info=meta,
    )


def _tokens(
    item: dict[str, Any], meta: dict[str, Any], place: str, doubt: Doubt
) -> tuple[list[int], list[float] | None]:
    """Ids and log-probs out of the triples where there are any, compared with `output_ids` where both are there."""
    ids = _typed(item, "output_ids", list, place)
    triples = _typed(meta, "output_token_logprobs", list, place)
    if triples is None:
        if ids is None:
            raise ResponseRefused(f"{place}: the item has neither output_ids nor output_token_logprobs")
        _check_ids(ids, place)
        return ids, None
    try:
        columns = list(zip(*triples, strict=True))
    except (TypeError, ValueError) as error:
        raise ResponseRefused(f"{place}: output_token_logprobs are no list of triples: {error}") from error
    if triples and len(columns) < 2:
        raise ResponseRefused(f"{place}: output_token_logprobs have {len(columns)} columns, not log-prob, id and text")
    logprobs, own_ids = (list(columns[0]), list(columns[1])) if triples else ([], [])
    if ids is None:
        ids = own_ids
    elif len(ids) != len(own_ids):
        raise ResponseRefused(f"{place}: {len(ids)} output_ids and {len(own_ids)} output_token_logprobs")
    elif ids != own_ids:
        first = next(at for at, pair in enumerate(zip(ids, own_ids, strict=True)) if pair[0] != pair[1])
        raise ResponseRefused(
            f"{place}: token {first} is {ids[first]} in output_ids and {own_ids[first]} in output_token_logprobs"
        )
    _check_ids(ids, place)
    _check_logprobs(logprobs, place, doubt)
    return ids, logprobs


def _check_ids(ids: list[Any], place: str) -> None:
    if ids and (set(map(type, ids)) != {int} or min(ids) < _IDS.start or max(ids) >= _IDS.stop):
        at = next(at for at, value in enumerate(ids) if type(value) is not int or value not in _IDS)
        raise ResponseRefused(f"{place}: token {at} is {_shown(ids[at])}, not an id")


def _check_logprobs(logprobs: list[Any], place: str, doubt: Doubt) -> None:
    """Column by column, which spares a loop over tokens; only NaN differs from itself."""
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
        raise ResponseRefused(f"{place}: the log-probability of token {at} is {_shown(logprobs[at])}")
    if (most := max(logprobs)) > _ROUNDING:
        doubt("positive_logprob", f"{place}: the log-probability of token {logprobs.index(most)} is {_shown(most)}")


def _check_lengths(meta: dict[str, Any], ids: list[int], kind: str, place: str) -> None:
    counted = _typed(meta, "completion_tokens", int, place)
    if counted is not None and counted != len(ids):
        raise ResponseRefused(f"{place}: {len(ids)} output_ids and completion_tokens {counted}")


def _prompt_tokens(meta: dict[str, Any], request: SampleRequest, kind: str, place: str, doubt: Doubt) -> int | None:
    """The engine's count of the prompt, equal to that of plain ids sent; an item aborted in the queue may lack it."""
    counted: int | None = _typed(meta, "prompt_tokens", int, place)
    if counted is None and kind != "abort":
        doubt("missing_prompt_tokens", f"{place}: meta_info has no prompt_tokens")
    sent = len(request.input_ids) if request.input_ids is not None and not any(request.media.values()) else None
    if counted is not None and sent is not None and counted != sent:
        raise ResponseRefused(f"{place}: the prompt sent has {sent} tokens, the answer counts {counted}")
    return counted


def _weight_version(meta: dict[str, Any], place: str, doubt: Doubt) -> str | None:
    spans = _typed(meta, "weight_versions", list, place) or []
    if not all(isinstance(span, dict) for span in spans):
        raise ResponseRefused(f"{place}: weight_versions are a list of objects, not {_shown(spans)}")
    versions = {str(span.get("version")) for span in spans}
    if len(versions) > 1:
        found = f"{place}: one sample has tokens of {len(versions)} weight versions: {sorted(versions)}"
        doubt("mixed_weight_versions", found)
    version = meta.get("weight_version")
    if version is not None and not isinstance(version, str):
        doubt("weight_version_type", f"{place}: weight_version is str, not {_shown(version)}")
        return str(version)
    return version


def _typed(mapping: dict[str, Any], name: str, kind: type, place: str) -> Any:
    value = mapping.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ResponseRefused(f"{place}: {name} is {kind.__name__}, not {_shown(value)}")
    return value


def _id(meta: dict[str, Any], place: str, doubt: Doubt) -> str | None:
    identity: str | None = _typed(meta, "id", str, place)
    if not identity:
        doubt("missing_id", f"{place}: meta_info has no id")
    return identity or None


def _shown(value: Any) -> str:
    """A value for a message: its type and the beginning of it."""
    text = repr(value)
    return f"{type(value).__name__} {text[:120]}{'…' if len(text) > 120 else ''}"
