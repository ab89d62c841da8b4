"""The HTTP face of the embedded engine: SGLang's native endpoints, beside those of vLLM."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path

import orjson
from aiohttp import web

from parity import __version__
from parity.engines.embedded.bodies import answer, body_of, object_of
from parity.engines.embedded.guard import OPEN, Guard
from parity.engines.embedded.protocol import GenerateRequest
from parity.engines.embedded.refusals import RequestRefused, refused
from parity.engines.embedded.served import ServedModel
from parity.engines.embedded.vllm import vllm_routes

MAX_BODY_BYTES = 64 << 20
HEALTH_TIMEOUT = 20.0
"""Seconds within which an idle engine must have generated a token to be called healthy."""
PAUSE_MODES = ("abort", "retract", "in_place")


def build_app(engine: ServedModel, guard: Guard = OPEN, dialect: str | None = None) -> web.Application:
    """The web application of an engine, which answers in one dialect, `sglang` or `vllm`, or by default in both."""
    face = _Face(engine, guard)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[guard.check, _refusals])
    app.add_routes([web.get("/health", face.health), web.get("/metrics", face.metrics)])
    if dialect != "sglang":
        app.add_routes(vllm_routes(engine, guard, dialect == "vllm"))
    if dialect == "vllm":
        return app
    gets: tuple[tuple[str, Callable[[web.Request], Awaitable[web.StreamResponse]]], ...] = (
        ("/health_generate", face.health_generate),
        ("/model_info", face.model_info),
        ("/get_model_info", face.model_info),
        ("/server_info", face.server_info),
        ("/get_server_info", face.server_info),
        ("/workers", face.workers),
        ("/v1/loads", face.loads),
        ("/weights_checker", face.weights_checker),
        ("/flush_cache", face.flush_cache),
    )
    app.add_routes([web.get(path, handler) for path, handler in gets])
    app.add_routes(
        [
            web.post("/generate", face.generate),
            web.post("/abort_request", face.abort_request),
            web.post("/update_weights_from_disk", face.update_weights_from_disk),
            web.post("/pause_generation", face.pause_generation),
            web.post("/continue_generation", face.continue_generation),
            web.post("/flush_cache", face.flush_cache),
            web.post("/weights_checker", face.weights_checker),
        ]
    )
    return app


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRefused as error:
        return answer(error.body, error.status)


class _Face:
    """The handlers; each translates one endpoint."""

    def __init__(self, engine: ServedModel, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self._started = time.time()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        parsed = await self._engine.parse(await body_of(request))
        if parsed.stream:
            return await self._stream(request, parsed)
        items = await self._engine.generate(parsed)
        return answer(items if parsed.is_list else items[0])

    async def _stream(self, request: web.Request, parsed: GenerateRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for item in self._engine.stream(parsed):
            await response.write(b"data: " + orjson.dumps(item) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await object_of(request)
        rid, everything = body.get("rid") or "", body.get("abort_all") or False
        if not isinstance(rid, str) or not isinstance(everything, bool):
            raise refused("abort_request takes a rid (string) or abort_all (boolean).")
        if everything or rid:
            # The engine matches ids by prefix.
            await self._engine.call(
                lambda: self._engine.scheduler.abort(lambda sequence: everything or sequence.request.id.startswith(rid))
            )
        return web.Response()

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        body = await object_of(request)
        path, version = body.get("model_path"), body.get("weight_version")
        if not isinstance(path, str) or not (version is None or isinstance(version, str)):
            raise refused("update_weights_from_disk takes model_path (string) and weight_version (string or null).")
        if self._guard.refuses_weights(Path(path)):
            message = f"Weights are loaded from under {self._guard.weights_under} alone."
            raise RequestRefused({"error": {"message": message}}, 403)
        if body.get("abort_all_requests"):
            await self._engine.call(lambda: self._engine.scheduler.abort(lambda _: True))
        success, message = await self._engine.update_weights(
            Path(path), version, body.get("flush_cache", True) is not False
        )
        return answer({"success": success, "message": message, "num_paused_requests": 0}, 200 if success else 400)

    async def pause_generation(self, request: web.Request) -> web.Response:
        mode = (await object_of(request)).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise refused(f"mode must be one of {', '.join(PAUSE_MODES)}, got {mode!r}.")
        await self._engine.call(lambda: self._engine.scheduler.pause(mode))
        return answer({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        await object_of(request)
        await self._engine.call(self._engine.scheduler.resume)
        return answer({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        try:
            timeout = float(request.query.get("timeout", "0"))
        except ValueError as error:
            raise refused(f"timeout must be a number of seconds: {error}.") from error
        until = time.monotonic() + timeout
        while not (flushed := await self._engine.call(self._engine.scheduler.flush_cache)) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        if flushed:
            return web.Response(text="Cache flushed.\n")
        return web.Response(
            text="Timed out waiting for idle state.\n" if timeout else "Flush cache failed.\n", status=400
        )

    async def weights_checker(self, request: web.Request) -> web.Response:
        action = (await object_of(request)).get("action", "checksum")
        if action != "checksum":
            raise refused(f"action must be checksum, got {action!r}.")
        ranks = [{"checksums": await self._engine.call(self._engine.model.digests)}]
        return answer({"success": True, "message": "Success.", "ranks": ranks})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.scheduler.alive else 503)

    async def health_generate(self, _: web.Request) -> web.Response:
        scheduler = self._engine.scheduler
        if not scheduler.alive:
            return web.Response(status=503)
        if not scheduler.running and not scheduler.waiting:
            small = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
            try:
                probe = await self._engine.parse(small)
                await asyncio.wait_for(self._engine.generate(probe), HEALTH_TIMEOUT)
            except (asyncio.TimeoutError, RequestRefused):
                return web.Response(status=503)
        return web.Response()

    async def model_info(self, _: web.Request) -> web.Response:
        engine = self._engine
        path = str(engine.path)
        return answer(
            {
                "model_path": path,
                "served_model_name": path,
                "tokenizer_path": path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": engine.scheduler.weight_version,
                "load_format": "auto",
                "has_image_understanding": engine.model.has_vision,
                "has_audio_understanding": False,
                "model_type": engine.model.whole_config.model_type,
                "architectures": engine.model.whole_config.architectures,
            }
        )

    async def workers(self, request: web.Request) -> web.StreamResponse:
        """What a router says of its workers, so that a host can be tried without one."""
        return answer({"workers": [{"url": f"http://{request.host}", "is_healthy": True}], "total": 1})

    async def server_info(self, _: web.Request) -> web.Response:
        engine = self._engine
        return answer(
            {
                "engine": "parity-embedded",
                "version": __version__,
                "deterministic": True,
                "seed_per_slot": True,
                "model_path": str(engine.path),
                "context_length": engine.limits.context_length,
                "vocab_size": engine.limits.vocabulary_size,
                "max_running_requests": engine.scheduler.max_running,
                "dtype": "float64",
                "startup_time": self._started,
                "paused": engine.scheduler.paused,
            }
        )

    async def loads(self, _: web.Request) -> web.Response:
        scheduler = self._engine.scheduler
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        load = {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_total_reqs": running + waiting,
            "max_running_requests": scheduler.max_running,
        }
        now = datetime.now(timezone.utc).isoformat()
        return answer({"timestamp": now, "dp_rank_count": 1, "loads": [load]})

    async def metrics(self, _: web.Request) -> web.Response:
        scheduler, counters = self._engine.scheduler, self._engine.scheduler.counters
        rows = (
            ("num_running_reqs", "gauge", "Sequences running.", len(scheduler.running)),
            ("num_queue_reqs", "gauge", "Sequences waiting.", len(scheduler.waiting)),
            ("num_http_requests_total", "counter", "Requests to /generate that were accepted.", self._engine.requests),
            ("num_requests_total", "counter", "Sequences started.", counters.sequences),
            ("prompt_tokens_total", "counter", "Prompt tokens of sequences started.", counters.prompt_tokens),
            ("cached_tokens_total", "counter", "Prompt tokens that were cached.", counters.cached_tokens),
            ("generation_tokens_total", "counter", "Tokens sampled.", counters.generated_tokens),
            ("images_encoded_total", "counter", "Images that the vision encoder saw.", scheduler.features.encoded),
            ("images_cached_total", "counter", "Images whose features were cached.", scheduler.features.cached),
            ("scheduler_turns_total", "counter", "Turns of the scheduler.", counters.steps),
        )
        lines = [
            f"# HELP sglang:{name} {text}\n# TYPE sglang:{name} {kind}\nsglang:{name} {value}\n"
            for name, kind, text, value in rows
        ]
        return web.Response(text="".join(lines), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
