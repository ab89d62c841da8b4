"""A `/generate` body to the sequences that it asks for, and a sequence to its response item, as SGLang 0.5.23 does.

Two families of refusal, as there: a body of the wrong types gives `{"error": "<text>"}` in serde's words, a body
whose values make no sense gives `{"error": {"message": "<text>"}}`; both with status 400.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.engines.embedded.media import ReadImages, Vision, images_by_prompt
from parity.engines.embedded.refusals import RequestRefused, check_length, expect, is_integer, refused, unexpected
from parity.engines.embedded.sampling import TOP_K_ALL

MAX_SEQUENCES = 16_384
"""Prompts times n that one request may ask for."""
MAX_IMAGES = 1024
"""Different images that one request may show, where the context has no fewer tokens: each takes one at least."""
MAX_STOP_STRINGS = 32
MAX_TOP_LOGPROBS = 1024

_SAMPLING_FIELDS = (
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
    "logit_bias",
    "sampling_seed",
    "custom_params",
    "beam_width",
    "watermark",
    "choice",
)
_INTEGERS = ("max_new_tokens", "top_k", "n", "min_new_tokens", "stream_interval", "sampling_seed", "beam_width")
_FLOATS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_BOOLEANS = ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")
_NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "stop_regex": (None, []),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_new_tokens": (None, 0),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "logit_bias": (None, {}),
    "custom_params": (None, {}),
    "beam_width": (None, 1),
    "watermark": (None, {}),
    "choice": (None, []),
}
"""Sampling parameters that the embedded engine does not have, and the values that ask for nothing."""
_NOT_SERVED_FIELDS: dict[str, tuple[Any, ...]] = {
    name: (None, [], False)
    for name in (
        "input_embeds",
        "video_data",
        "audio_data",
        "token_ids_logprob",
        "return_hidden_states",
        "return_text_in_logprobs",
        "lora_path",
        "session_params",
        "session_id",
        "custom_logit_processor",
        "return_sampling_mask",
        "return_routed_experts",
    )
}

Tokenize = Callable[[str], list[int]]
NewId = Callable[[], str]


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How to sample one sequence; a temperature of 0 has become top_k = 1 at temperature 1. No seed: `seed` is None.

    `stop_token_ids` end it whatever `ignore_eos` says of the end of text. `raw_logprobs` are those of temperature 1.
    """

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    no_stop_trim: bool
    skip_special_tokens: bool
    raw_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to run.

    `logprob_start` is the first prompt position whose log-prob is asked for, None for none. `shares_prefix` says that
    it is one of n of its prompt, so that all of the prompt but its last token counts as cached. `vision` has its
    images, where it has any; `input_ids` are then its `ids`.
    """

    id: str
    input_ids: tuple[int, ...]
    sampling: SamplingParameters
    return_logprob: bool
    top_logprobs: int
    logprob_start: int | None
    shares_prefix: bool
    vision: Vision | None = None

    @property
    def key(self) -> tuple[int, ...]:
        """What the prompt is told apart by: its ids, with the content of its images in the place of theirs."""
        return self.input_ids if self.vision is None else self.vision.key


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """All sequences of a request, prompt-major; `is_list` says that the response is a list."""

    sequences: tuple[SequenceRequest, ...]
    is_list: bool
    stream: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model allows: context length and vocabulary in tokens."""

    context_length: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class Generated:
    """A sequence as far as it has come.

    `logprobs` and `prompt_logprobs` are natural logarithms; `top` and `prompt_top` hold one list of (log-prob, id) a
    token. `finish_reason` is the wire's object, None while the sequence runs. `versions` are (weight version, first
    token that it made).
    """

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[float, int], ...], ...]
    prompt_logprobs: tuple[float | None, ...]
    prompt_top: tuple[tuple[tuple[float, int], ...] | None, ...]
    finish_reason: dict[str, Any] | None
    cached_tokens: int
    retractions: int
    versions: tuple[tuple[str, int], ...]
    started: bool


def parse_generate(
    body: object, limits: Limits, tokenize: Tokenize, new_id: NewId, read_images: ReadImages | None = None
) -> GenerateRequest:
    """The sequences that a `/generate` body asks for; without `read_images` the model takes no images.

    Raises:
        RequestRefused: With the status and body that the request gets instead.
    """
    if not isinstance(body, dict):
        raise RequestRefused({"error": f"invalid type: {unexpected(body)}, expected struct GenerateRequest"})
    _check_types(body)
    for name, nothing in _NOT_SERVED_FIELDS.items():
        if body.get(name) not in nothing:
            raise refused(f"{name} is not served by the embedded engine.")
    prompts, single = _prompts(body)
    all_params = body.get("sampling_params")
    if isinstance(all_params, list):
        _check_length("sampling_params", all_params, len(prompts))
    params_list = all_params if isinstance(all_params, list) else [all_params or {}] * len(prompts)
    n = _samples_a_prompt(params_list)
    if len(prompts) * n > MAX_SEQUENCES:
        raise refused(f"{len(prompts)} prompts x {n} samples exceed the limit of {MAX_SEQUENCES} sequences a request.")
    is_list = not single or n > 1
    images = images_by_prompt(body.get("image_data"), len(prompts), is_list)
    if read_images is None and any(images):
        raise refused("image_data is not served: the model takes no images.")
    _check_images(images, limits)
    ids = _request_ids(body.get("rid"), len(prompts), n, is_list, new_id)
    options = [
        _each(body, name, default, len(prompts), n, is_list)
        for name, default in (("return_logprob", False), ("logprob_start_len", -1), ("top_logprobs_num", 0))
    ]
    sequences: list[SequenceRequest] = []
    asked = zip(prompts, images, params_list, *options, strict=True)
    for index, (prompt, pictures, params, *logprob_options) in enumerate(asked):
        input_ids = tuple(tokenize(prompt) if isinstance(prompt, str) else prompt)
        _check_prompt(input_ids, params.get("max_new_tokens"), limits)
        vision = read_images(input_ids, pictures) if read_images and pictures else None
        if vision is not None:
            input_ids = vision.ids
            _check_prompt(input_ids, params.get("max_new_tokens"), limits)
        sampling = _sampling(params, len(input_ids), limits)
        logprob, start, top = _logprob_options(*logprob_options, prompt_tokens=len(input_ids))
        for sample in range(n):
            seeded = sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + sample)
            sequences.append(
                SequenceRequest(ids[index * n + sample], input_ids, seeded, logprob, top, start, n > 1, vision)
            )
    return GenerateRequest(tuple(sequences), is_list, bool(body.get("stream")))


def response_item(
    request: SequenceRequest, result: Generated, text: str, *, weight_version: str, latency: float, sent_at: float
) -> dict[str, Any]:
    """One item of the response, its keys in SGLang's order; `latency` in seconds, `sent_at` since the epoch."""
    count = len(result.output_ids)
    spans = version_spans(result.versions, count, weight_version)
    meta: dict[str, Any] = {"id": request.id, "finish_reason": result.finish_reason}
    if not result.started:
        meta |= {"weight_version": weight_version, "e2e_latency": latency, "weight_versions": spans}
        if request.return_logprob:
            meta |= {"input_token_logprobs": [], "output_token_logprobs": [], "output_token_logprobs_length": 0}
        meta |= {"completion_tokens": 0, "response_sent_to_client_ts": sent_at}
        return {"text": "", "output_ids": [], "meta_info": meta}
    meta |= {
        "prompt_tokens": len(request.input_ids),
        "weight_version": weight_version,
        "num_retractions": result.retractions,
    }
    if request.return_logprob:
        # The engine names a token of an image 0.
        asked = [max(token, 0) for token in request.key[len(request.key) - len(result.prompt_logprobs) :]]
        meta |= {
            "input_token_logprobs": _triples(result.prompt_logprobs, asked),
            "output_token_logprobs": _triples(result.logprobs, result.output_ids),
            "output_token_logprobs_length": count,
        }
        if request.top_logprobs:
            meta |= {
                "input_top_logprobs": [
                    None if row is None else _triples(*zip(*row, strict=True)) for row in result.prompt_top
                ],
                "output_top_logprobs": [_triples(*zip(*row, strict=True)) for row in result.top],
            }
    meta |= {
        "reasoning_tokens": 0,
        "completion_tokens": count,
        "cached_tokens": result.cached_tokens,
        "weight_versions": spans,
        "cached_tokens_details": {"device": result.cached_tokens, "host": 0} if result.cached_tokens else None,
        **({} if request.vision is None else {"image_tokens": request.vision.image_tokens}),
        "dp_rank": None,
        "e2e_latency": latency,
        "response_sent_to_client_ts": sent_at,
    }
    return {"text": text, "output_ids": list(result.output_ids), "meta_info": meta}


def ids_to_decode(request: SequenceRequest, result: Generated, tokenizer_size: int) -> list[int]:
    """The output ids whose text is returned: no matched stop token, and id 0 for ids that the tokenizer lacks."""
    matched = (result.finish_reason or {}).get("matched")
    trimmed = isinstance(matched, int) and not request.sampling.no_stop_trim
    ids = result.output_ids[:-1] if trimmed else result.output_ids
    return [token if token < tokenizer_size else 0 for token in ids]


def trim_stop_string(request: SequenceRequest, result: Generated, text: str) -> str:
    """Text up to a matched stop string, or through it with `no_stop_trim`."""
    matched = (result.finish_reason or {}).get("matched")
    if not isinstance(matched, str) or (place := text.find(matched)) < 0:
        return text
    return text[: place + len(matched)] if request.sampling.no_stop_trim else text[:place]


def _triples(logprobs: Sequence[float | None], ids: Sequence[int]) -> list[list[float | int | None]]:
    return [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]


def version_spans(versions: Sequence[tuple[str, int]], count: int, weight_version: str) -> list[dict[str, Any]]:
    """Which tokens of `count` each version made; of none, the version that now holds."""
    starts = [start for _, start in versions]
    ends = [*starts[1:], count] if starts else []
    spans = [
        {"version": version, "start": start, "end": end}
        for (version, start), end in zip(versions, ends, strict=True)
        if start < end
    ]
    return spans or [{"version": weight_version, "start": 0, "end": 0}]


def _check_types(body: dict[str, Any]) -> None:
    for name, kinds, expected in (
        ("rid", (str, list), "a string or a list of strings"),
        ("text", (str, list), "a string or a list of strings"),
        ("input_ids", list, "a list of token ids or a list of lists of token ids"),
        ("stream", bool, "a boolean"),
        ("sampling_params", (dict, list), "a map or a list of maps"),
        ("return_logprob", (bool, list), "a boolean or a list of booleans"),
        ("logprob_start_len", (int, list), "an integer or a list of integers"),
        ("top_logprobs_num", (int, list), "an integer or a list of integers"),
    ):
        value = body.get(name)
        right = isinstance(value, kinds) and not (name.endswith(("len", "num")) and isinstance(value, bool))
        expect(value is None or right, value, expected)
    params = body.get("sampling_params")
    for one in params if isinstance(params, list) else [params or {}]:
        expect(isinstance(one, dict), one, "a map")
        _check_sampling_types(one)


def _check_sampling_types(params: dict[str, Any]) -> None:
    for name, value in params.items():
        if name not in _SAMPLING_FIELDS:
            listed = ", ".join(f"`{field}`" for field in _SAMPLING_FIELDS)
            raise RequestRefused({"error": f"unknown field `{name}`, expected one of {listed}"})
        if value is None and name != "n":
            continue
        if name in _INTEGERS:
            expect(is_integer(value), value, "i64")
        elif name in _FLOATS:
            expect(is_integer(value) or isinstance(value, float), value, "f64")
        elif name in _BOOLEANS:
            expect(isinstance(value, bool), value, "a boolean")
        elif name == "stop":
            strings = value if isinstance(value, list) else [value]
            expect(all(isinstance(string, str) for string in strings), value, "a string or a list of strings")
        elif name == "stop_token_ids":
            expect(isinstance(value, list) and all(map(is_integer, value)), value, "a list of integers")


def _prompts(body: dict[str, Any]) -> tuple[list[str] | list[list[int]], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if text is None and ids is None:
        raise refused("Either text, input_ids or input_embeds should be provided.")
    if text is not None and ids is not None:
        raise refused("text and input_ids cannot be provided at the same time.")
    if text is not None:
        texts = [text] if isinstance(text, str) else text
        expect(all(isinstance(one, str) for one in texts), text, "a string or a list of strings")
        if not texts:
            raise refused("text cannot be empty.")
        return texts, isinstance(text, str)
    assert isinstance(ids, list)
    if not ids:
        raise refused("input_ids cannot be empty.")
    single = not isinstance(ids[0], list)
    lists = [ids] if single else ids
    for one in lists:
        expect(isinstance(one, list), one, "a list of token ids")
        for token in one:
            expect(is_integer(token), token, "i64")
    return lists, single


def _samples_a_prompt(params_list: list[dict[str, Any]]) -> int:
    counts = {params.get("n", 1) for params in params_list}
    if len(counts) > 1:
        raise refused("The parallel_sample_num should be the same for all samples in sample params.")
    return max(1, int(counts.pop()))


def _request_ids(rid: object, prompts: int, n: int, is_list: bool, new_id: NewId) -> list[str]:
    if isinstance(rid, list):
        expect(all(isinstance(one, str) for one in rid), rid, "a string or a list of strings")
        if not is_list:
            raise refused("The rid should be a string.")
        if len(rid) != prompts:
            raise refused("The specified rids length mismatch with the batch_size for batch processing.")
        duplicates = [one for one, count in Counter(rid).items() if count > 1]
        if duplicates:
            raise refused(f"Duplicate request IDs detected within the request: {duplicates}")
    # With n > 1 the engine gives each sample a new id: abort by the caller's id finds nothing then.
    if n > 1 or rid is None:
        return [new_id() for _ in range(prompts * n)]
    if isinstance(rid, list):
        return rid
    return [f"{rid}_{index}" for index in range(prompts)] if is_list else [str(rid)]


def _each(body: dict[str, Any], name: str, default: Any, prompts: int, n: int, is_list: bool) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list):
        return [default if value is None else value] * prompts
    if n > 1:
        raise refused(f"Cannot use list {name} with parallel_sample_num > 1")
    if not is_list:
        raise refused(f"{name} should not be a list for a single request.")
    _check_length(name, value, prompts)
    for one in value:
        expect(isinstance(one, bool) if isinstance(default, bool) else is_integer(one), one, type(default).__name__)
    return value


def _check_length(name: str, values: list[Any], prompts: int) -> None:
    if len(values) != prompts:
        raise refused(f"The length of {name} ({len(values)}) should be equal to the batch size ({prompts}).")


def _check_images(images: list[list[Any]], limits: Limits) -> None:
    # SGLang has no such limit unless it is started with --limit-mm-data-per-request, whose words these are.
    count = len({item for of_prompt in images for item in of_prompt if isinstance(item, str)})
    if count > (limit := min(limits.context_length, MAX_IMAGES)):
        raise refused(f"Image count {count} exceeds limit {limit} per request.")


def _check_prompt(input_ids: tuple[int, ...], max_new_tokens: int | None, limits: Limits) -> None:
    count, context = len(input_ids), limits.context_length
    if count == 0:
        raise refused("input_ids cannot be empty.")
    check_length(count, context)
    outside = next((token for token in input_ids if not 0 <= token < limits.vocabulary_size), None)
    if outside is not None:
        raise refused(f"input_ids holds {outside}, which is outside the vocabulary of {limits.vocabulary_size} ids.")
    if max_new_tokens is not None and count + max_new_tokens > context:
        raise refused(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. "
            f"You requested a total of {count + max_new_tokens} tokens: {count} tokens from the input messages and "
            f"{max_new_tokens} tokens for the completion. Please reduce the number of tokens in the "
            "input messages or the completion to fit within the limit."
        )


def _sampling(params: dict[str, Any], prompt_tokens: int, limits: Limits) -> SamplingParameters:
    for name, nothing in _NOT_SERVED.items():
        if params.get(name) not in nothing:
            raise refused(f"{name} is not served by the embedded engine.")
    given = {name: value for name, value in params.items() if value is not None}
    temperature, top_p, min_p = (given.get("temperature", 1.0), given.get("top_p", 1.0), given.get("min_p", 0.0))
    if not math.isfinite(temperature) or temperature < 0.0:
        raise refused(f"temperature must be a non-negative finite number, got {temperature}.")
    if not 0.0 < top_p <= 1.0:
        raise refused(f"top_p must be in (0, 1], got {top_p}.")
    if not 0.0 <= min_p <= 1.0:
        raise refused(f"min_p must be in [0, 1], got {min_p}.")
    top_k = given.get("top_k", -1)
    if top_k != -1 and top_k < 1:
        raise refused(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    # Where nothing is said the default is 128, and the context bounds it; null bounds it by the context alone.
    asked = params.get("max_new_tokens", 128)
    room = limits.context_length - prompt_tokens
    max_new_tokens = room if asked is None else min(asked, room)
    if max_new_tokens < 0:
        raise refused(f"max_new_tokens must be at least 0, got {max_new_tokens}.")
    seed = given.get("sampling_seed")
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise refused(f"sampling_seed must be in [-2**63, 2**63 - 1], got {seed}.")
    stop = given.get("stop", [])
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise refused(f"at most {MAX_STOP_STRINGS} stop strings are allowed, got {len(strings)}")
    greedy, ignore_eos = temperature < 1e-6, given.get("ignore_eos", False)
    return SamplingParameters(
        max_new_tokens=max_new_tokens,
        temperature=1.0 if greedy else float(temperature),
        top_k=1 if greedy else TOP_K_ALL if top_k == -1 else min(top_k, TOP_K_ALL),
        top_p=float(top_p),
        min_p=float(min_p),
        seed=seed,
        stop=tuple(filter(None, strings)),
        # With ignore_eos SGLang ignores them too.
        stop_token_ids=frozenset(() if ignore_eos else known_ids(given.get("stop_token_ids", ()), limits)),
        ignore_eos=ignore_eos,
        no_stop_trim=given.get("no_stop_trim", False),
        skip_special_tokens=given.get("skip_special_tokens", True),
    )


def known_ids(ids: Iterable[int], limits: Limits) -> Iterator[int]:
    """The ids inside the vocabulary; one outside is never sampled, and may not fit into 64 bits."""
    return (token for token in ids if 0 <= token < limits.vocabulary_size)


def _logprob_options(return_logprob: bool, start: int, top: int, *, prompt_tokens: int) -> tuple[bool, int | None, int]:
    if not return_logprob:
        return False, None, 0
    if start < -1:
        raise refused(f"logprob_start_len must be -1 or at least 0, got {start}.")
    if start > prompt_tokens:
        raise refused(
            f"req.logprob_start_len={start} is higher than the number of input tokens "
            f"len(req.origin_input_ids)={prompt_tokens}. Please use a smaller logprob_start_len."
        )
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise refused(f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {top}.")
    return True, (start if 0 <= start < prompt_tokens else None), top
