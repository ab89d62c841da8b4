"""vLLM's dialect: `/inference/v1/generate` for one prompt of token ids, `/v1/completions` for lists and for text.

The fields are those of vLLM 0.32.0. `generate` takes and gives token ids; with n, choice i takes the seed plus i.
A list of prompts goes to `completions`, which has one set of parameters for all of them, restarts every prompt at the
seed, and says neither weight versions nor, unless asked, token ids. Both drop unknown fields without a word, so that a
name that is not known here is refused. A stop token or end of sequence is the last of the token ids; log-probabilities
are those before temperature unless the server was started otherwise, and -9999 stands for minus infinity and for NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rollout_patch.eligibility import Capabilities, Rule, params_differ
from rollout_patch.errors import ResponseRefused
from rollout_patch.media import named_by_content
from rollout_patch.requests import SEED, PlannedRequest, SampleRequest
from rollout_patch.responses import FINISH_REASONS, Doubt, Output, check_ids, check_logprobs, refuse, shown, typed

CAPABILITIES = Capabilities(seeded=True, seed_per_slot=True, free_clones=False)
"""What vLLM does unless it was seen to do otherwise."""

_RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    SEED: "seed",
}
_PARAMS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos", "logit_bias"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
    | {"skip_special_tokens", "spaces_between_special_tokens"}
)
"""Sampling parameters that have the same name in both dialects."""

_OPTIONS = frozenset({"return_logprob", "model", "cache_salt", "priority", "rid"})

_NOT_FINITE = -9999.0


def path_of(payload: Mapping[str, Any]) -> str:
    """Where a payload is sent."""
    return "/v1/completions" if "prompt" in payload else "/inference/v1/generate"


def body_of(arm: str, members: Sequence[SampleRequest]) -> dict[str, Any]:
    """The body of one request for some samples of a group.

    Raises:
        ValueError: A sample asks for what this dialect has no word for, or leaves `max_new_tokens` out, for which the
            two endpoints have different defaults.
    """
    first = members[0]
    listed = arm == "batched" and len(members) > 1
    params = _params(first)
    if len(members) > 1 and not listed:
        params["n"] = len(members)
    options = {name: value for name, value in first.options.items() if name != "return_logprob" and value is not None}
    if unknown := options.keys() - _OPTIONS:
        raise ValueError(f"vLLM has no request options {sorted(unknown)}, and would ignore them")
    if "rid" in options:
        options["request_id"] = options.pop("rid")
    if listed or first.text is not None:
        if any(items for member in members for items in member.media.values()):
            raise ValueError("vLLM's /v1/completions takes no media")
        prompt = [member.prompt for member in members] if listed else first.prompt
        # ids in the log-probabilities, since texts of tokens do not tell them apart
        asked = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        return {"prompt": prompt, **params, **asked, **options}
    return {"token_ids": first.prompt, "sampling_params": params, **_content(first), **options}


def _params(request: SampleRequest) -> dict[str, Any]:
    given = {name: value for name, value in request.sampling_params.items() if value is not None}
    if unknown := given.keys() - _RENAMED.keys() - _PARAMS:
        raise ValueError(f"vLLM has no sampling parameters {sorted(unknown)}, and would ignore them")
    if "max_new_tokens" not in given:
        raise ValueError("max_new_tokens is not given; vLLM's endpoints take different numbers then")
    params = {_RENAMED.get(name, name): _own(value) for name, value in given.items()}
    return {**params, **({"logprobs": 0} if request.options.get("return_logprob") else {})}


def _own(value: Any) -> Any:
    """A copy of a list or mapping, so that a change of the payload reaches no sibling or caller."""
    return value.copy() if isinstance(value, (list, dict)) else value


def _content(request: SampleRequest) -> dict[str, Any]:
    """Images as content parts, for one placeholder each; the prompt as the engine expands it is asked back."""
    if others := [name for name, items in request.media.items() if items and name != "image_data"]:
        raise ValueError(f"{others} were not seen with vLLM")
    images = request.media.get("image_data")
    if not images:
        return {}
    return {"return_token_ids": True, "content_parts": [{"type": "image_url", "url": url} for url in images]}


def without_media(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload as a recording keeps it: images are told apart and counted, and not there."""
    parts = payload.get("content_parts")
    if not parts:
        return dict(payload)
    return {**payload, "content_parts": [{**part, "url": named_by_content(part["url"])} for part in parts]}


def weight_calls(folder: str, version: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls by which an engine loads the weights of a folder and labels them; a pause empties its caches.

    After a load that failed it stays paused, since the next request would end it.
    """
    return [
        ("/pause?mode=wait", {}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}),
        ("/update_weight_version", {"new_version": version}),
        ("/resume", {}),
    ]


RULES: Mapping[str, Rule] = {
    "greedy_with_n": lambda requests, _: any(request.sampling_params.get("temperature") == 0 for request in requests),
    "list_restarts_seed": lambda requests, _: any(
        request.sampling_params.get(SEED) is not None for request in requests
    ),
    "sampling_params_lists_refused": lambda requests, _: params_differ(requests),
    "media_lists_refused": lambda requests, _: any(items for request in requests for items in request.media.values()),
    "client_request_id": lambda requests, _: False,  # kept, with a prefix; all samples of a request are aborted by it
}
"""The conditions that hold in this dialect otherwise than in SGLang's."""


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
        ResponseRefused: The body is of another type, has other choices than were asked for, or one breaks the protocol.
    """
    count = len(planned.slots)
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(response, dict) or not isinstance(choices, list):
        raise ResponseRefused(f"a request for {count} samples is answered with choices, not {shown(response)}")
    indices = [choice.get("index") if isinstance(choice, dict) else None for choice in choices]
    if indices != list(range(count)) or any(type(index) is not int for index in indices):
        raise ResponseRefused(f"asked for {count} samples, got {len(choices)}, with indices {shown(indices)}")
    outputs = [
        _read_choice(choice, response, requests[slot], count, f"slot {slot}", doubt)
        for slot, choice in zip(planned.slots, choices, strict=True)
    ]
    counted = typed(_usage(response), "completion_tokens", int, "usage")
    if counted is not None and counted != (found := sum(len(output.output_ids) for output in outputs)):
        raise ResponseRefused(f"usage counts {counted} completion_tokens, the choices hold {found} token_ids")
    return outputs


def _usage(response: dict[str, Any]) -> dict[str, Any]:
    usage: dict[str, Any] | None = typed(response, "usage", dict, "the answer")
    return usage or {}


def _read_choice(
    choice: dict[str, Any], response: dict[str, Any], request: SampleRequest, count: int, place: str, doubt: Doubt
) -> Output:
    reason = choice.get("finish_reason")
    if reason not in FINISH_REASONS:
        raise ResponseRefused(f"{place}: finish_reason is one of {FINISH_REASONS}, not {shown(reason)}")
    ids = typed(choice, "token_ids", list, place)
    if ids is None:
        raise ResponseRefused(f"{place}: the choice has no token_ids")
    check_ids(ids, place)
    logprobs = _logprobs(choice, ids, place, doubt)
    if logprobs is None and request.options.get("return_logprob"):
        if ids:
            raise ResponseRefused(f"{place}: log-probabilities were asked for, and the choice has none")
        logprobs = []  # aborted before the first token
    matched = choice.get("stop_reason")
    if matched is not None and (not isinstance(matched, (int, str)) or isinstance(matched, bool)):
        raise ResponseRefused(f"{place}: stop_reason is a token id, a string or null, not {shown(matched)}")
    details = typed(_usage(response), "prompt_tokens_details", dict, "usage") or {}
    name = response.get("request_id", response.get("id"))
    if not isinstance(name, str) or not name:
        doubt("missing_id", f"{place}: the answer has no id")
        name = None
    return Output(
        text=typed(choice, "text", str, place) if request.text is not None else None,
        output_ids=ids,
        logprobs=logprobs,
        finish_reason=reason,
        matched=matched,
        prompt_tokens=_prompt_tokens(choice, response, request, place, doubt),
        # with n the count is that of one sample, and does not say which
        cached_tokens=typed(details, "cached_tokens", int, "usage") if count == 1 else None,
        weight_version=_weight_version(choice, len(ids), place, doubt),
        id=None if name is None else output_id(name, choice["index"]),
        meta_info={key: value for key, value in choice.items() if key not in ("token_ids", "logprobs", "text")},
    )


def output_id(request_id: str, index: int) -> str:
    """The name of one choice of an answer, which has none of its own."""
    return f"{request_id}-{index}"


def _logprobs(choice: dict[str, Any], ids: list[int], place: str, doubt: Doubt) -> list[float] | None:
    """The log-probability of each token, with its id compared where it is there."""
    given = typed(choice, "logprobs", dict, place)
    if given is None:
        return None
    content = typed(given, "content", list, place)
    try:
        if content is not None:
            values, own_ids = [entry["logprob"] for entry in content], [entry["token_id"] for entry in content]
        else:
            values, own_ids = given["token_logprobs"], _ids_of_tokens(given["tokens"], ids)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResponseRefused(
            f"{place}: logprobs hold no value and id for each token: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(values, list) or not len(values) == len(own_ids) == len(ids):
        lengths = f"{len(own_ids)} ids and {len(values) if isinstance(values, list) else shown(values)} values"
        raise ResponseRefused(f"{place}: {len(ids)} token_ids, and logprobs with {lengths}")
    if own_ids != ids:
        at = next(at for at, pair in enumerate(zip(ids, own_ids, strict=True)) if pair[0] != pair[1])
        raise ResponseRefused(f"{place}: token {at} is {ids[at]} in token_ids and {shown(own_ids[at])} in logprobs")
    check_logprobs(values, place, doubt)
    if _NOT_FINITE in values:
        at = values.index(_NOT_FINITE)
        raise ResponseRefused(
            f"{place}: the log-probability of token {at} is {_NOT_FINITE}, which stands for minus infinity and NaN"
        )
    return values


_ID = "token_id:"


def _ids_of_tokens(tokens: Sequence[str], ids: Sequence[int]) -> list[int]:
    """The ids that tokens name; where a server writes texts in their place, their number alone is compared."""
    if any(token.startswith(_ID) for token in tokens):
        return [int(token.removeprefix(_ID)) for token in tokens]
    return [*ids[: len(tokens)], *(-1 for _ in tokens[len(ids) :])]


def _prompt_tokens(
    choice: dict[str, Any], response: dict[str, Any], request: SampleRequest, place: str, doubt: Doubt
) -> int | None:
    """The engine's count of the prompt; where plain ids were sent, their number, and their values where they came."""
    sent = list(request.input_ids) if request.input_ids is not None and not any(request.media.values()) else None
    holder = choice if "prompt_token_ids" in choice else response
    prompt = typed(holder, "prompt_token_ids", list, place)
    if prompt is not None and sent is not None and prompt != sent:
        raise ResponseRefused(
            f"{place}: the choice is of another prompt: {len(sent)} tokens were sent, {shown(sent)}; "
            f"it is of {len(prompt)}, {shown(prompt)}"
        )
    counted: int | None = None
    if prompt is not None:
        counted = len(prompt)
    elif "request_id" in response:  # of one prompt; completions count all prompts of a list together
        counted = typed(_usage(response), "prompt_tokens", int, "usage")
    if counted is None:
        doubt("missing_prompt_tokens", f"{place}: the answer says neither prompt_token_ids nor prompt_tokens")
    elif sent is not None and counted != len(sent):
        raise ResponseRefused(f"{place}: the prompt sent has {len(sent)} tokens, the answer counts {counted}")
    return counted


def _weight_version(choice: dict[str, Any], count: int, place: str, doubt: Doubt) -> str | None:
    """The version that made the last token; the spans cover the tokens without a gap."""
    spans = typed(choice, "weight_versions", list, place)
    if not spans:
        return None
    try:
        edges = [(span["start"], span["end"]) for span in spans]
        versions = [str(span["version"]) for span in spans]
    except (KeyError, TypeError) as error:
        raise ResponseRefused(f"{place}: weight_versions hold version, start and end, unlike {shown(spans)}") from error
    if edges[0][0] != 0 or edges[-1][1] != count or any(one[1] != other[0] for one, other in pairwise(edges)):
        raise ResponseRefused(f"{place}: weight_versions cover {edges} of {count} tokens")
    if len(set(versions)) > 1:
        found = f"{place}: one sample has tokens of {len(set(versions))} weight versions: {sorted(set(versions))}"
        doubt("mixed_weight_versions", found)
    return versions[-1]
