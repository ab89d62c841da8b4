"""The endpoints of vLLM 0.32.0: its requests become those that a `/generate` asks for, and its answers their results.

What is not as in vLLM: log-probs are rounded to a grid, and have no `rank`; a refusal has this engine's words; draws
without a seed do not follow from a seed of the server; a checkpoint that cannot be loaded leaves the old weights as
they are, and one that is loaded empties the caches. Nothing is streamed, and sampling parameters that a `/generate`
lacks are refused.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from aiohttp import web

from parity import __version__
from parity.engines.embedded.bodies import answer, body_of, object_of
from parity.engines.embedded.guard import Guard
from parity.engines.embedded.media import Vision
from parity.engines.embedded.model import CheckpointError
from parity.engines.embedded.protocol import (
    Generated,
    GenerateRequest,
    SequenceRequest,
    known_ids,
    version_spans,
)
from parity.engines.embedded.refusals import RequestRefused, refused
from parity.engines.embedded.served import ServedModel
from parity.engines.vllm import OWNER

MAX_LOGPROBS = 20
COLDEST, HOTTEST = 0.01, 2.0
"""What temperatures above 0 are raised to, and above which they are refused."""

_PASSED = (
    *("temperature", "top_p", "min_p", "stop", "ignore_eos", "skip_special_tokens"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
)
"""Sampling parameters that a `/generate` takes under the same name."""
_NOT_SERVED = (
    *("min_tokens", "allowed_token_ids", "bad_words", "structured_outputs", "logprob_token_ids"),
    *("include_stop_str_in_output", "echo", "suffix"),
)

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


def vllm_routes(engine: ServedModel, guard: Guard, alone: bool) -> list[web.RouteDef]:
    """The endpoints, for an application; `/server_info`, which is also SGLang's, where they are `alone`."""
    face = _Face(engine, guard)
    gets: Mapping[str, Handler] = {
        "/version": face.version,
        "/v1/models": face.models,
        "/weight_info": face.weight_info,
        "/is_paused": face.is_paused,
        **({"/server_info": face.server_info} if alone else {}),
    }
    posts: Mapping[str, Handler] = {
        "/inference/v1/generate": face.generate,
        "/v1/completions": face.completions,
        "/abort_requests": face.abort_requests,
        "/pause": face.pause,
        "/resume": face.resume,
        "/collective_rpc": face.collective_rpc,
        "/update_weight_version": face.update_weight_version,
        "/reset_prefix_cache": face.reset_cache,
        "/reset_encoder_cache": face.reset_cache,
        "/weight_checker": face.weight_checker,
    }
    return [
        *(web.get(path, _worded(handler)) for path, handler in gets.items()),
        *(web.post(path, _worded(handler)) for path, handler in posts.items()),
    ]


def _worded(handler: Handler) -> Handler:
    """Refusals as vLLM's errors."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestRefused as refusal:
            inner = refusal.body.get("error") if isinstance(refusal.body, dict) else refusal.body
            message = inner.get("message") if isinstance(inner, dict) else inner
            kind = {404: "NotFoundError", 400: "BadRequestError"}.get(refusal.status, "InternalServerError")
            error = {"message": message, "type": kind, "param": None, "code": refusal.status}
            return answer({"error": error}, refusal.status)

    return handle


class _Face:
    """The handlers; each translates one endpoint."""

    def __init__(self, engine: ServedModel, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self._name = str(engine.path)

    # --- samples

    async def generate(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        prompt, params = body.get("token_ids"), body.get("sampling_params")
        if not isinstance(prompt, list) or not prompt or not isinstance(params, dict):
            raise refused("token_ids must be a list of token ids, not empty, and sampling_params an object.")
        n = self._n(params)
        if n > self._engine.scheduler.max_running:
            limit = self._engine.scheduler.max_running
            raise refused(f"sampling_params.n must be at most the server's max_num_seqs ({limit}), got {n}.")
        name = f"generate-tokens-{_request_id(request, body)}"
        ids = [_whole(token, "token_ids") for token in prompt]
        images = _images(body)
        given = {"input_ids": ids, "image_data": [images] if images and n > 1 else images}
        # A prompt under a salt is computed anew, as one whose log-probs are asked for is.
        whole = params | ({"prompt_logprobs": 0} if body.get("cache_salt") else {})
        parsed = await self._parse(given, whole, n, lambda _: name, params.get("max_tokens"))
        vision = parsed.sequences[0].vision
        if len(images) != (0 if vision is None else len(vision.images)):
            raise RequestRefused({"error": "Failed to apply prompt replacement: images and placeholders differ."}, 500)
        async with self._engine.finished(parsed) as (results, received):
            pairs = list(zip(parsed.sequences, results, strict=True))
        mode = "text" if body.get("output_mode") == "text" else "tokens"
        texts = [{"text": text} for text in self._engine.texts(pairs)] if mode == "text" else [{}] * n
        first, result = pairs[0]
        prompt_logprobs: Any = None
        if params.get("prompt_logprobs") is not None:
            rows = zip(first.input_ids, result.prompt_logprobs, strict=True)
            prompt_logprobs = [None if value is None else {str(token): {"logprob": value}} for token, value in rows]
        return answer(
            {
                "request_id": name,
                "model": self._name,
                "created": int(received),
                "usage": _usage(parsed, results),
                "prompt_logprobs": prompt_logprobs,
                "prompt_token_id_logprobs": None,
                "prompt_token_ids": list(first.input_ids) if body.get("return_token_ids") else None,
                "mm_placeholders": {"image": _places(vision)} if vision else None,
                "metrics": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "output_mode": mode,
                "choices": [self._choice(index, *pair) | texts[index] for index, pair in enumerate(pairs)],
            }
        )

    def _choice(self, index: int, asked: SequenceRequest, result: Generated) -> dict[str, Any]:
        version = self._engine.scheduler.weight_version
        content = [_entry(*row, asked.top_logprobs) for row in _with_best(asked, result)]
        return {
            "index": index,
            **_finish(asked, result),
            "token_ids": list(result.output_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": version_spans(result.versions, len(result.output_ids), version),
            "logprobs": {"content": content} if asked.return_logprob else None,
        }

    async def completions(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        prompt = body.get("prompt")
        listed = isinstance(prompt, list) and prompt and isinstance(prompt[0], (list, str))
        prompts: list[Any] = prompt if isinstance(prompt, list) and listed else [prompt]
        if not all(isinstance(one, (list, str)) and one for one in prompts):
            raise refused("You must pass at least one prompt, and none may be empty.")
        text = all(isinstance(one, str) for one in prompts)
        given: dict[str, Any] = {"text": prompts}
        if not text:
            given = {"input_ids": [[_whole(token, "prompt") for token in one] for one in prompts]}
        n = self._n(body)
        name = f"cmpl-{_request_id(request, body)}"
        cap = body.get("max_tokens", 16)
        parsed = await self._parse(given, body, n, lambda place: f"{name}-{place // n}", cap)
        async with self._engine.finished(parsed) as (results, received):
            pairs = list(zip(parsed.sequences, results, strict=True))
        texts = self._engine.texts(pairs)
        with_ids = bool(body.get("return_token_ids"))
        named = bool(body.get("return_tokens_as_token_ids"))
        choices = [
            {
                "index": index,
                "text": texts[index],
                "logprobs": self._completion_logprobs(asked, result, named) if asked.return_logprob else None,
                **_finish(asked, result),
                "token_ids": list(result.output_ids) if with_ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": list(asked.input_ids) if with_ids else None,
                "routed_experts": None,
            }
            for index, (asked, result) in enumerate(pairs)
        ]
        return answer(
            {
                "id": name,
                "object": "text_completion",
                "created": int(received),
                "model": self._name,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": f"{OWNER}-{__version__}",
                "usage": _usage(parsed, results),
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _completion_logprobs(self, asked: SequenceRequest, result: Generated, named: bool) -> dict[str, Any]:
        def token_text(token: int) -> str:
            return f"token_id:{token}" if named else str(self._engine.tokenizer.decode([token]))

        rows = [_entry(*row, asked.top_logprobs)["top_logprobs"] for row in _with_best(asked, result)]
        tokens = [token_text(token) for token in result.output_ids]
        return {
            "text_offset": [0, *accumulate(map(len, tokens))][:-1] if tokens else [],
            "token_logprobs": list(result.logprobs),
            "tokens": tokens,
            "top_logprobs": [{token_text(one["token_id"]): one["logprob"] for one in row} for row in rows],
        }

    async def _asked(self, request: web.Request) -> dict[str, Any]:
        body = await body_of(request)
        if not isinstance(body, dict):
            raise refused("The body must be a JSON object.")
        if body.get("stream"):
            raise refused("stream is not served by the embedded engine.")
        if body.get("model", self._name) not in (self._name, None):
            raise RequestRefused({"error": f"The model `{body['model']}` does not exist."}, 404)
        return body

    def _n(self, params: Mapping[str, Any]) -> int:
        n = _whole(params.get("n", 1), "n")
        if n < 1:
            raise refused(f"n must be at least 1, got {n}.")
        if n > 1 and params.get("temperature") == 0:
            raise refused(f"n must be 1 when using greedy sampling, got {n}.")
        return n

    async def _parse(
        self, given: dict[str, Any], params: Mapping[str, Any], n: int, name: Callable[[int], str], cap: object
    ) -> GenerateRequest:
        """The sequences of a request; its ids are given by `name`, from the place of a sequence."""
        for field in _NOT_SERVED:
            if params.get(field) not in (None, 0, [], False):
                raise refused(f"{field} is not served by the embedded engine.")
        sampling = {field: params[field] for field in _PASSED if params.get(field) is not None}
        if isinstance(temperature := sampling.get("temperature"), (int, float)):
            if temperature > HOTTEST:
                raise refused(f"temperature must be in [0, {HOTTEST:g}], got {temperature}.")
            sampling["temperature"] = max(temperature, COLDEST) if temperature > 0 else temperature
        top_k = _whole(params.get("top_k") or 0, "top_k")
        seed = _whole(-1 if params.get("seed") is None else params["seed"], "seed")
        if not -1 <= seed < 2**64:
            raise refused(f"seed must be from 0 to 2**64 - 1, or -1 for none, got {seed}.")
        if cap is not None and _whole(cap, "max_tokens") < 1:
            raise refused(f"max_tokens must be at least 1, got {cap}.")
        logprobs = params.get("logprobs")
        top = 0 if logprobs is None else _whole(logprobs, "logprobs")
        if not 0 <= top <= MAX_LOGPROBS:
            raise refused(f"logprobs must be from 0 to {MAX_LOGPROBS}, got {top}.")
        parsed = await self._engine.parse(
            {
                **given,
                "sampling_params": {
                    **sampling,
                    "n": n,
                    "max_new_tokens": None,
                    "top_k": top_k or -1,
                    "sampling_seed": None if seed == -1 else seed % 2**63,
                },
                "return_logprob": logprobs is not None or params.get("prompt_logprobs") is not None,
                "top_logprobs_num": top if top > 1 else 0,
                "logprob_start_len": -1 if params.get("prompt_logprobs") is None else 0,
            }
        )
        stops = params.get("stop_token_ids") or []
        if not isinstance(stops, list):
            raise refused("stop_token_ids must be a list of token ids.")
        stop_ids = frozenset(known_ids([_whole(token, "stop_token_ids") for token in stops], self._engine.limits))

        def as_vllm(place: int, one: SequenceRequest) -> SequenceRequest:
            room = one.sampling.max_new_tokens
            length = room if cap is None else min(room, _whole(cap, "max_tokens"))
            how = replace(one.sampling, max_new_tokens=length, stop_token_ids=stop_ids, raw_logprobs=True)
            return replace(one, id=name(place), sampling=how, return_logprob=logprobs is not None)

        return replace(parsed, sequences=tuple(as_vllm(*each) for each in enumerate(parsed.sequences)))

    # --- what it says of itself

    async def version(self, _: web.Request) -> web.Response:
        return answer({"version": __version__})

    async def models(self, _: web.Request) -> web.Response:
        model = {"id": self._name, "object": "model", "created": int(time.time()), "owned_by": OWNER}
        model |= {"root": str(self._engine.path), "max_model_len": self._engine.limits.context_length}
        return answer({"object": "list", "data": [model]})

    async def server_info(self, _: web.Request) -> web.Response:
        scheduler = {"max_num_seqs": self._engine.scheduler.max_running, "enable_chunked_prefill": False}
        model = {"dtype": "torch.float64", "logprobs_mode": "raw_logprobs", "max_logprobs": MAX_LOGPROBS}
        return answer({"vllm_config": {"model_config": model, "scheduler_config": scheduler}})

    async def weight_info(self, _: web.Request) -> web.Response:
        return answer({"weight_version": self._engine.scheduler.weight_version})

    async def is_paused(self, _: web.Request) -> web.Response:
        return answer({"is_paused": self._engine.scheduler.paused})

    # --- what changes it

    async def abort_requests(self, request: web.Request) -> web.Response:
        ids = (await object_of(request)).get("request_ids")
        if ids is not None and not (isinstance(ids, list) and all(isinstance(one, str) for one in ids)):
            raise refused("request_ids must be a list of strings.")
        chosen = None if ids is None else frozenset(ids)
        scheduler = self._engine.scheduler
        await self._engine.call(lambda: scheduler.abort(lambda one: chosen is None or one.request.id in chosen))
        return answer({"status": "aborted", "aborted": len(ids or ())})

    async def pause(self, request: web.Request) -> web.Response:
        mode, scheduler = request.query.get("mode", "abort"), self._engine.scheduler
        if mode not in ("abort", "wait", "keep"):
            raise refused("mode must be 'abort', 'wait' or 'keep'.")
        # What runs in a pause already does not end before it.
        async with self._engine.idle() if mode == "wait" and not scheduler.paused else nullcontext():
            await self._engine.call(lambda: scheduler.pause("abort" if mode == "abort" else "retract"))
            if request.query.get("clear_cache") != "false":
                await self._engine.call(scheduler.forget)
        return answer({"status": "paused"})

    async def resume(self, _: web.Request) -> web.Response:
        await self._engine.call(self._engine.scheduler.resume)
        return answer({"status": "resumed"})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await object_of(request)
        if body.get("method") != "reload_weights":
            raise RequestRefused({"error": f"collective_rpc serves reload_weights, not {body.get('method')!r}."}, 500)
        kwargs = body.get("kwargs") or {}
        path = Path(str(kwargs.get("weights_path", self._engine.path)))
        if self._guard.refuses_weights(path):
            raise RequestRefused({"error": f"Weights are loaded from under {self._guard.weights_under} alone."}, 403)
        try:
            await self._engine.call(lambda: self._engine.scheduler.update_weights(path, None))
        except CheckpointError as error:
            raise RequestRefused({"error": str(error)}, 500) from error
        self._engine.path = path
        return answer({"results": [None]})

    async def update_weight_version(self, request: web.Request) -> web.Response:
        version = (await object_of(request)).get("new_version")
        if not isinstance(version, str):
            raise refused("new_version must be a string.")
        await self._engine.call(lambda: self._engine.scheduler.label(version))
        return answer({"success": True, "new_version": version})

    async def reset_cache(self, _: web.Request) -> web.Response:
        return answer({"success": await self._engine.call(self._engine.scheduler.flush_cache)})

    async def weight_checker(self, request: web.Request) -> web.Response:
        if (action := (await object_of(request)).get("action")) != "checksum":
            raise refused(f"action must be checksum, got {action!r}.")
        return answer({"checksums": await self._engine.call(self._engine.model.digests)})


def _request_id(request: web.Request, body: Mapping[str, Any]) -> str:
    """The caller's id of a request, the header first."""
    given = request.headers.get("X-Request-Id") or body.get("request_id")
    return given if isinstance(given, str) and given else uuid.uuid4().hex[:16]


def _whole(value: object, name: str) -> int:
    """A whole number, also as text or as a float, as vLLM's validation has it."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)
    raise refused(f"{name} must be a whole number, got {value!r}.")


def _images(body: Mapping[str, Any]) -> list[str]:
    """The images of a body; parts of other types are ignored."""
    parts = body.get("content_parts") or []
    if not isinstance(parts, list):
        raise refused("content_parts must be a list.")
    given = [part.get("url") for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]
    urls = [url for url in given if isinstance(url, str)]
    if len(urls) < len(given):
        raise refused("an image_url part has its URL, as text, under url.")
    return urls


def _places(vision: Vision) -> list[dict[str, int]]:
    """Where the tokens of each image stand in a prompt."""
    places, offset = [], 0
    for token, run in groupby(vision.key):
        length = len(list(run))
        places += [{"offset": offset, "length": length}] if token < 0 else []
        offset += length
    return places


def _finish(asked: SequenceRequest, result: Generated) -> dict[str, Any]:
    reason = result.finish_reason or {}
    matched = reason.get("matched")
    stated = isinstance(matched, str) or matched in asked.sampling.stop_token_ids
    return {"finish_reason": reason.get("type"), "stop_reason": matched if stated else None}


def _usage(parsed: GenerateRequest, results: list[Generated]) -> dict[str, Any]:
    """Tokens, each prompt counted once; of cached ones those of the last sample."""
    n = len({one.id for one in parsed.sequences})
    prompt = sum(len(one.input_ids) for one in parsed.sequences[:: len(parsed.sequences) // n])
    completion = sum(len(result.output_ids) for result in results)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {
            "cached_tokens": results[-1].cached_tokens,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


def _with_best(asked: SequenceRequest, result: Generated) -> list[tuple[int, float, tuple[tuple[float, int], ...]]]:
    """Each token with its log-prob and the best ones at its place."""
    best = result.top if asked.top_logprobs else ((),) * len(result.output_ids)
    return list(zip(result.output_ids, result.logprobs, best, strict=True))


def _entry(token: int, logprob: float, best: tuple[tuple[float, int], ...], most: int) -> dict[str, Any]:
    """A token's log-prob, and first among those asked for its own, then the best."""
    own = {"token_id": token, "logprob": logprob, "rank": None}
    others = [{"token_id": other, "logprob": value, "rank": None} for value, other in best if other != token]
    return {**own, "top_logprobs": [own, *others][: max(most, 1)]}
