"""vLLM's requests and answers in SGLang's words, so that one set of rules reads both.

The wire is that of vLLM 0.32.0: `/inference/v1/generate` and `/v1/completions`. Nothing is mended on the way: a choice
that is missing stays missing, and a number that is wrong stays wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

RENAMED = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "include_stop_str_in_output": "no_stop_trim",
    "seed": "sampling_seed",
}
_PARAMS = frozenset(
    {*RENAMED, "n", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos", "logprobs"}
    | {"prompt_logprobs", "logit_bias", "allowed_token_ids", "bad_words", "detokenize", "skip_special_tokens"}
    | {"spaces_between_special_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty", "output_kind"}
    | {"structured_outputs", "logprob_token_ids", "repetition_detection", "skip_reading_prefix_cache", "flat_logprobs"}
    | {"extra_args", "stream_interval", "truncate_prompt_tokens"}
)
"""The sampling parameters that vLLM knows; it drops others without a word."""

_OF_THE_WIRE = frozenset(
    {"token_ids", "prompt", "content_parts", "sampling_params", "request_id", "stream", "stream_options"}
    | {"return_token_ids", "return_tokens_as_token_ids", "output_mode"}
)
"""Fields that say how to answer, or that stand under another name here."""

_ID = "token_id:"


def is_vllm(request: Mapping[str, Any]) -> bool:
    """Whether a request asks in vLLM's dialect."""
    return "token_ids" in request or "prompt" in request


def request_in_common(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request by SGLang's names; parameters that vLLM does not know are left out, since it drops them."""
    listed = "prompt" in request
    params = request if listed else request.get("sampling_params")
    given = params if isinstance(params, Mapping) else {}
    rest = {
        name: value for name, value in request.items() if name not in _OF_THE_WIRE and not (listed and name in _PARAMS)
    }
    common: dict[str, Any] = {
        **rest,
        _prompt_field(request): request["prompt" if listed else "token_ids"],
        "sampling_params": {
            RENAMED.get(name, name): value for name, value in given.items() if name in _PARAMS and name != "logprobs"
        },
    }
    if given.get("logprobs") is not None:
        common["return_logprob"] = True
    if "request_id" in request:
        common["rid"] = request["request_id"]
    if isinstance(parts := request.get("content_parts"), list):
        common["image_data"] = [part.get("url") if isinstance(part, dict) else part for part in parts]
    return common


def _prompt_field(request: Mapping[str, Any]) -> str:
    prompt = request.get("prompt")
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    return "text" if isinstance(first, str) else "input_ids"


def ignored(request: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a request that vLLM drops without a word."""
    params = request.get("sampling_params")
    beside = {name: value for name, value in request.items() if name in RENAMED.values()}
    if "prompt" in request or not isinstance(params, Mapping):
        return beside
    wrong_place = {name: value for name, value in request.items() if name in _PARAMS}
    return {**beside, **wrong_place, **{name: value for name, value in params.items() if name not in _PARAMS}}


def response_in_common(request: Mapping[str, Any], response: Any) -> Any:
    """The answer to a request as SGLang would give it; one without a list of choices stays as it is.

    Args:
        request: The request as it was sent.
        response: The body of a 200, decoded; of a stream its events, as text.
    """
    if request.get("stream") is True:
        response = _settled(response)
    choices = response.get("choices") if isinstance(response, Mapping) else None
    if not isinstance(response, Mapping) or not isinstance(choices, list):
        return response
    items = [_item(choice, response, request, len(choices)) for choice in choices]
    params = request.get("sampling_params", request)
    n = params.get("n", 1) if isinstance(params, Mapping) else 1
    prompt = request.get("prompt")
    several = (isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)) or n != 1
    return items if several or len(items) != 1 else items[0]


def _item(choice: Any, response: Mapping[str, Any], request: Mapping[str, Any], count: int) -> Any:
    """One choice as an item of SGLang's."""
    if not isinstance(choice, Mapping):
        return choice
    ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    finish = {"type": reason, "matched": choice.get("stop_reason")}
    if reason == "stop" and finish["matched"] is None and isinstance(ids, list) and ids:
        finish["matched"] = ids[-1]  # null stands for the end of sequence, which is the last token
    if reason == "abort":
        finish["message"] = ""
    name = response.get("request_id", response.get("id"))
    meta: dict[str, Any] = {
        "id": None if name is None else f"{name}-{choice.get('index')}",
        "finish_reason": finish,
        **_prompt_counts(choice, response, count),
    }
    if (triples := _triples(choice.get("logprobs"), ids)) is not None:
        meta["output_token_logprobs"] = triples
    if spans := choice.get("weight_versions"):
        meta["weight_versions"] = spans
        if isinstance(spans, list) and isinstance(spans[-1], Mapping):
            meta["weight_version"] = spans[-1].get("version")
    item: dict[str, Any] = {"index": choice.get("index"), "output_ids": ids, "meta_info": meta}
    if _prompt_field(request) == "text":
        item["text"] = choice.get("text")
    if isinstance(prompt := choice.get("prompt_token_ids", response.get("prompt_token_ids")), list):
        item["prompt_token_ids"] = prompt
    return item


def _prompt_counts(choice: Mapping[str, Any], response: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Prompt tokens of one choice; its cached ones only where it is the only one, as the count of several is of one."""
    usage, prompt = response.get("usage"), choice.get("prompt_token_ids")
    usage = usage if isinstance(usage, Mapping) else {}
    counts = {"prompt_tokens": len(prompt)} if isinstance(prompt, list) else {}
    if not counts and "request_id" in response and usage.get("prompt_tokens") is not None:
        counts["prompt_tokens"] = usage["prompt_tokens"]
    details = usage.get("prompt_tokens_details")
    if count == 1 and isinstance(details, Mapping) and details.get("cached_tokens") is not None:
        counts["cached_tokens"] = details["cached_tokens"]
    return counts


def _triples(logprobs: Any, ids: Any) -> list[list[Any]] | None:
    """Log-prob, id and text a token; where the answer names texts alone, the ids are those of the choice."""
    if not isinstance(logprobs, Mapping):
        return None
    known = ids if isinstance(ids, list) else []
    values: list[Any]
    if isinstance(content := logprobs.get("content"), list):
        entries = [entry if isinstance(entry, Mapping) else {} for entry in content]
        values = [entry.get("logprob") for entry in entries]
        named = [entry["token_id"] if "token_id" in entry else _known(known, at) for at, entry in enumerate(entries)]
    else:
        given, tokens = logprobs.get("token_logprobs"), logprobs.get("tokens")
        if not isinstance(given, list) or not isinstance(tokens, list):
            return []
        named = [_named(token, known, at) for at, token in enumerate(tokens)]
        values = [*given, *[None] * (len(named) - len(given))]
        named += [None] * (len(values) - len(named))
    return [[value, token, None] for value, token in zip(values, named, strict=True)]


def _named(token: Any, ids: Sequence[Any], at: int) -> Any:
    number = token.removeprefix(_ID) if isinstance(token, str) and token.startswith(_ID) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) < 20 else _known(ids, at)


def _known(ids: Sequence[Any], at: int) -> Any:
    return ids[at] if at < len(ids) else None


def _settled(response: Any) -> Any:
    """The answer that the events of a stream add up to; what is no such stream stays as it is."""
    lines = response.splitlines() if isinstance(response, str) else []
    try:
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    except ValueError:
        return response
    whole: dict[str, Any] = {}
    choices: dict[Any, dict[str, Any]] = {}
    for event in events:
        if not isinstance(event, Mapping) or not isinstance(event.get("choices"), list):
            return response
        whole |= {name: value for name, value in event.items() if value is not None and name != "choices"}
        for part in event["choices"]:
            if not isinstance(part, Mapping) or not isinstance(part.get("index"), int):
                return response
            _add(choices.setdefault(part["index"], {}), part)
    return {**whole, "choices": [choices[index] for index in sorted(choices)]} if choices else response


def _add(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Adds what one event says of a choice: tokens go on, the rest is the latest."""
    for name, value in part.items():
        if name == "token_ids" and isinstance(value, list):
            choice.setdefault(name, []).extend(value)
        elif name == "logprobs" and isinstance(value, Mapping) and isinstance(value.get("content"), list):
            choice.setdefault(name, {"content": []})["content"].extend(value["content"])
        elif value is not None:
            choice[name] = value
