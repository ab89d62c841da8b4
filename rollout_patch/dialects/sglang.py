"""SGLang's dialect: `/generate`.

The shapes are those of `io_struct.py` and `tokenizer_manager.py` of 0.5.23. One prompt is a string or a flat list of
ids, a batch is a list of them; media of one prompt are a flat list for n = 1 and wrapped once more for n > 1 and for
batches. One sample is answered by an object, several by a list. An item holds `text`, `output_ids` and `meta_info`;
`output_token_logprobs` are triples of log-probability, token id and text or null. An item aborted in the waiting queue
lacks `prompt_tokens` and `cached_tokens`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_patch.errors import OneSampleOnly, ResponseRefused
from rollout_patch.media import named_by_content
from rollout_patch.requests import PlannedRequest, SampleRequest
from rollout_patch.responses import FINISH_REASONS, Doubt, Output, check_ids, check_logprobs, refuse, shown, typed

MEDIA_FIELDS = ("image_data", "video_data", "audio_data")
"""Fields of a payload that hold media."""


def path_of(payload: Mapping[str, Any]) -> str:
    """Where a payload is sent."""
    return "/generate"


def body_of(arm: str, members: Sequence[SampleRequest]) -> dict[str, Any]:
    """The body of one request for some samples of a group."""
    if len(members) == 1:
        return _single(members[0])
    return _batched(members) if arm == "batched" else _native(members)


def without_media(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload as a recording keeps it: media are told apart, counted and nested as they were, and not there."""
    return {**payload, **{name: named_by_content(payload[name]) for name in MEDIA_FIELDS if payload.get(name)}}


def weight_calls(folder: str, version: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls by which an engine loads the weights of a folder and labels them."""
    return [("/update_weights_from_disk", {"model_path": folder, "weight_version": version})]


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
    wanted = list if len(planned.slots) > 1 else dict
    if not isinstance(response, wanted):
        one_only = isinstance(response, dict) and "meta_info" in response
        raise (OneSampleOnly if one_only else ResponseRefused)(
            f"a request for {len(planned.slots)} samples is answered with a {wanted.__name__}, not {shown(response)}"
        )
    items = response if isinstance(response, list) else [response]
    if len(items) != len(planned.slots):
        raise ResponseRefused(f"asked for {len(planned.slots)} samples, got {len(items)}")
    return [
        _read_item(item, requests[slot], f"slot {slot}", doubt) for slot, item in zip(planned.slots, items, strict=True)
    ]


def _read_item(item: Any, request: SampleRequest, place: str, doubt: Doubt) -> Output:
    if not isinstance(item, dict):
        raise ResponseRefused(f"{place}: an item is an object, not {shown(item)}")
    meta = item.get("meta_info")
    if not isinstance(meta, dict):
        raise ResponseRefused(f"{place}: an item holds the object meta_info, unlike {shown(item)}")
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else None
    if not isinstance(reason, dict) or kind not in FINISH_REASONS:
        raise ResponseRefused(f"{place}: meta_info.finish_reason.type is one of {FINISH_REASONS}, not {shown(reason)}")
    ids, logprobs = _tokens(item, meta, place, doubt)
    if logprobs is None and request.options.get("return_logprob"):
        raise ResponseRefused(f"{place}: log-probabilities were asked for, and meta_info has no output_token_logprobs")
    _check_lengths(meta, ids, kind, place)
    return Output(
        text=typed(item, "text", str, place),
        output_ids=ids,
        logprobs=logprobs,
        finish_reason=kind,
        matched=reason.get("matched"),
        prompt_tokens=_prompt_tokens(meta, request, kind, place, doubt),
        cached_tokens=typed(meta, "cached_tokens", int, place),
        weight_version=_weight_version(meta, place, doubt),
        id=_id(meta, place, doubt),
        meta_info=meta,
    )


def _tokens(
    item: dict[str, Any], meta: dict[str, Any], place: str, doubt: Doubt
) -> tuple[list[int], list[float] | None]:
    """Ids and log-probs out of the triples where there are any, compared with `output_ids` where both are there."""
    ids = typed(item, "output_ids", list, place)
    triples = typed(meta, "output_token_logprobs", list, place)
    if triples is None:
        if ids is None:
            raise ResponseRefused(f"{place}: the item has neither output_ids nor output_token_logprobs")
        check_ids(ids, place)
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
    check_ids(ids, place)
    check_logprobs(logprobs, place, doubt)
    return ids, logprobs


def _check_lengths(meta: dict[str, Any], ids: list[int], kind: str, place: str) -> None:
    counted = typed(meta, "completion_tokens", int, place)
    if counted is not None and counted != len(ids):
        raise ResponseRefused(f"{place}: {len(ids)} output_ids and completion_tokens {counted}")


def _prompt_tokens(meta: dict[str, Any], request: SampleRequest, kind: str, place: str, doubt: Doubt) -> int | None:
    """The engine's count of the prompt, equal to that of plain ids sent; an item aborted in the queue may lack it."""
    counted: int | None = typed(meta, "prompt_tokens", int, place)
    if counted is None and kind != "abort":
        doubt("missing_prompt_tokens", f"{place}: meta_info has no prompt_tokens")
    sent = len(request.input_ids) if request.input_ids is not None and not any(request.media.values()) else None
    if counted is not None and sent is not None and counted != sent:
        raise ResponseRefused(f"{place}: the prompt sent has {sent} tokens, the answer counts {counted}")
    return counted


def _weight_version(meta: dict[str, Any], place: str, doubt: Doubt) -> str | None:
    spans = typed(meta, "weight_versions", list, place) or []
    if not all(isinstance(span, dict) for span in spans):
        raise ResponseRefused(f"{place}: weight_versions are a list of objects, not {shown(spans)}")
    versions = {str(span.get("version")) for span in spans}
    if len(versions) > 1:
        found = f"{place}: one sample has tokens of {len(versions)} weight versions: {sorted(versions)}"
        doubt("mixed_weight_versions", found)
    version = meta.get("weight_version")
    if version is not None and not isinstance(version, str):
        doubt("weight_version_type", f"{place}: weight_version is str, not {shown(version)}")
        return str(version)
    return version


def _id(meta: dict[str, Any], place: str, doubt: Doubt) -> str | None:
    identity: str | None = typed(meta, "id", str, place)
    if not identity:
        doubt("missing_id", f"{place}: meta_info has no id")
    return identity or None
