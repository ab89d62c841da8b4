"""The HTTP face of the embedded engine: SGLang's native endpoints over a `Scheduler`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from transformers import AutoTokenizer

from parity import __version__
from parity.engines.embedded.guard import OPEN, Guard
from parity.engines.embedded.model import CheckpointError, Model
from parity.engines.embedded.protocol import (
    Generated,
    GenerateRequest,
    Limits,
    SequenceRequest,
    ids_to_decode,
    parse_generate,
    response_item,
    trim_stop_string,
)
from parity.engines.embedded.refusals import RequestRefused, refused
from parity.engines.embedded.scheduler import Scheduler
from parity.engines.embedded.sequence import Sequence
from parity.errors import InputError

MAX_BODY_BYTES = 64 << 20
HEALTH_TIMEOUT = 20.0
"""Seconds within which an idle engine must have generated a token to be called healthy."""
PAUSE_MODES = ("abort", "retract", "in_place")


@dataclass(eq=False)
class _Pending:
    """A `/generate` request under way: its latest results by place, and all of them in order if it streams."""

    request: GenerateRequest
    received: float
    done: asyncio.Future[None]
    results: list[Generated | None] = field(default_factory=list)
    changes: asyncio.Queue[tuple[int, Generated]] | None = None
    left: int = 0


class ServedModel:
    """The embedded engine of one checkpoint, inside a running event loop.

    Raises:
        CheckpointError: The checkpoint cannot be served.
    """

    def __init__(self, path: Path, max_running: int = 512) -> None:
        self.path = path
        self.model = Model(path)
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error
        self.limits = Limits(self.model.context_length, self.model.vocabulary_size)
        self.requests = 0
        self._tokenizer_size = len(self.tokenizer)
        self._loop = asyncio.get_running_loop()
        self._lock = _ReadersWriter()
        eos = self.model.config.eos_token_id
        stops = {*(eos if isinstance(eos, list) else [eos]), self.tokenizer.eos_token_id} - {None}
        self._images = _image_reader(path, self.model)
        self._reading = ThreadPoolExecutor(1, "images")
        self.scheduler = Scheduler(self.model, stops, self._stop_text, self._deliver, max_running)

    def stop(self) -> None:
        """Stops generating; what is under way is not answered."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        self.scheduler.stop()

    async def parse(self, body: object) -> GenerateRequest:
        """The sequences a body asks for, or `RequestRefused`; images are read on a thread of their own."""
        if self._images is None or not (isinstance(body, dict) and body.get("image_data")):
            return self._parse(body)
        return await self._loop.run_in_executor(self._reading, self._parse, body)

    def _parse(self, body: object) -> GenerateRequest:
        read_images = None if self._images is None else self._images.of_request()
        return parse_generate(body, self.limits, self._encode, lambda: uuid.uuid4().hex, read_images)

    async def generate(self, request: GenerateRequest) -> list[dict[str, Any]]:
        """Response items, in order.

        Raises:
            RequestRefused: A sequence failed inside the engine.
        """
        async with self._lock.reading(), self._submitted(request) as pending:
            await pending.done
            results = [result for result in pending.results if result is not None]
            for result in results:
                if status := (result.finish_reason or {}).get("status_code"):
                    raise RequestRefused({"error": {"message": (result.finish_reason or {})["message"]}}, status)
            return self._items(list(zip(request.sequences, results, strict=True)), pending.received)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[dict[str, Any]]:
        """Items as they grow: text and ids are cumulative, and lists carry their `index`."""
        async with self._lock.reading(), self._submitted(request) as pending:
            left = len(request.sequences)
            assert pending.changes is not None
            while left:
                index, result = await pending.changes.get()
                left -= result.finish_reason is not None
                item = self._items([(request.sequences[index], result)], pending.received)[0]
                yield item | {"index": index} if request.is_list else item

    async def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function of the scheduler between two of its turns."""
        return await asyncio.wrap_future(self.scheduler.call(function))

    async def update_weights(self, path: Path, version: str | None, flush: bool) -> tuple[bool, str]:
        """Whether the weights were taken, and what to say; waits for running requests unless the engine is paused."""
        if self.scheduler.paused:
            return await self._update_now(path, version, flush)
        async with self._lock.writing():
            return await self._update_now(path, version, flush)

    async def _update_now(self, path: Path, version: str | None, flush: bool) -> tuple[bool, str]:
        try:
            await self.call(lambda: self.scheduler.update_weights(path, version))
        except CheckpointError as error:
            return False, f"Failed to update weights: {error}"
        self.path = path
        if flush and not await self.call(self.scheduler.flush_cache):
            return False, (
                "Weights were updated, but the cache was not flushed because requests are still running. "
                "Retract or finish them, then call /flush_cache."
            )
        return True, "Succeeded to update model weights." + (
            f" Weight version updated to {version}." if version is not None else ""
        )

    @asynccontextmanager
    async def _submitted(self, request: GenerateRequest) -> AsyncIterator[_Pending]:
        count = len(request.sequences)
        changes: asyncio.Queue[tuple[int, Generated]] | None = asyncio.Queue() if request.stream else None
        pending = _Pending(request, time.time(), self._loop.create_future(), [None] * count, changes, count)
        self.requests += 1
        self.scheduler.submit(
            Sequence(one, owner=pending, index=index, stream=request.stream)
            for index, one in enumerate(request.sequences)
        )
        try:
            yield pending
        finally:
            # The client went away, or one sequence failed: nobody waits for the rest.
            if pending.left:
                self.scheduler.call(lambda: self.scheduler.abort(lambda sequence: sequence.owner is pending))

    def _deliver(self, changed: list[tuple[Sequence, Generated]]) -> None:
        self._loop.call_soon_threadsafe(self._receive, changed)

    def _receive(self, changed: list[tuple[Sequence, Generated]]) -> None:
        for sequence, result in changed:
            pending = sequence.owner
            pending.results[sequence.index] = result
            if pending.changes is not None:
                pending.changes.put_nowait((sequence.index, result))
            if result.finish_reason is not None:
                pending.left -= 1
                if pending.left == 0 and not pending.done.done():
                    pending.done.set_result(None)

    def _items(self, pairs: list[tuple[SequenceRequest, Generated]], received: float) -> list[dict[str, Any]]:
        texts = [""] * len(pairs)
        for skip in (True, False):
            chosen = [place for place, (request, _) in enumerate(pairs) if request.sampling.skip_special_tokens is skip]
            decoded = self.tokenizer.batch_decode(
                [ids_to_decode(*pairs[place], self._tokenizer_size) for place in chosen], skip_special_tokens=skip
            )
            for place, text in zip(chosen, decoded, strict=True):
                texts[place] = trim_stop_string(*pairs[place], text)
        version, now = self.scheduler.weight_version, time.time()
        return [
            response_item(request, result, text, weight_version=version, latency=now - received, sent_at=now)
            for (request, result), text in zip(pairs, texts, strict=True)
        ]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def _stop_text(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode([token if token < self._tokenizer_size else 0 for token in ids])
        return text


def _image_reader(path: Path, model: Model) -> Any:
    if not model.has_vision:
        return None
    from parity.engines.embedded.images import ImageReader  # which needs more of transformers than text does

    try:
        return ImageReader(path, model.whole_config)
    except InputError as error:
        raise CheckpointError(str(error)) from error


class _ReadersWriter:
    """Many requests or one weight update; requests that come while an update waits stand behind it."""

    def __init__(self) -> None:
        self._readers = 0
        self._writers = 0
        self._writing = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            await self._notify()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        self._writers += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._readers and not self._writing)
                self._writing = True
            try:
                yield
            finally:
                self._writing = False
        finally:
            self._writers -= 1
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def build_app(engine: ServedModel, guard: Guard = OPEN) -> web.Application:
    """The web application of an engine."""
    face = _Face(engine, guard)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[guard.check, _refusals])
    both: tuple[tuple[str, Callable[[web.Request], Awaitable[web.StreamResponse]]], ...] = (
        ("/health", face.health),
        ("/health_generate", face.health_generate),
        ("/model_info", face.model_info),
        ("/get_model_info", face.model_info),
        ("/server_info", face.server_info),
        ("/get_server_info", face.server_info),
        ("/workers", face.workers),
        ("/v1/loads", face.loads),
        ("/weights_checker", face.weights_checker),
        ("/metrics", face.metrics),
    )
    app.add_routes([web.get(path, handler) for path, handler in both])
    app.add_routes(
        [
            web.post("/generate", face.generate),
            web.post("/abort_request", face.abort_request),
            web.post("/update_weights_from_disk", face.update_weights_from_disk),
            web.post("/pause_generation", face.pause_generation),
            web.post("/continue_generation", face.continue_generation),
            web.post("/flush_cache", face.flush_cache),
            web.post("/weights_checker", face.weights_checker),
            web.get("/flush_cache", face.flush_cache),
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
        return _json(error.body, error.status)


class _Face:
    """The handlers; each translates one endpoint."""

    def __init__(self, engine: ServedModel, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self._started = time.time()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        parsed = await self._engine.parse(await _body(request))
        if parsed.stream:
            return await self._stream(request, parsed)
        items = await self._engine.generate(parsed)
        return _json(items if parsed.is_list else items[0])

    async def _stream(self, request: web.Request, parsed: GenerateRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for item in self._engine.stream(parsed):
            await response.write(b"data: " + orjson.dumps(item) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await _object(request)
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
        body = await _object(request)
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
        return _json({"success": success, "message": message, "num_paused_requests": 0}, 200 if success else 400)

    async def pause_generation(self, request: web.Request) -> web.Response:
        mode = (await _object(request)).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise refused(f"mode must be one of {', '.join(PAUSE_MODES)}, got {mode!r}.")
        await self._engine.call(lambda: self._engine.scheduler.pause(mode))
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        await _object(request)
        await self._engine.call(self._engine.scheduler.resume)
        return _json({"message": "Generation continued successfully.", "status": "ok"})

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
        action = (await _object(request)).get("action", "checksum")
        if action != "checksum":
            raise refused(f"action must be checksum, got {action!r}.")
        ranks = [{"checksums": await self._engine.call(self._engine.model.digests)}]
        return _json({"success": True, "message": "Success.", "ranks": ranks})

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
        return _json(
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
        return _json({"workers": [{"url": f"http://{request.host}", "is_healthy": True}], "total": 1})

    async def server_info(self, _: web.Request) -> web.Response:
        engine = self._engine
        return _json(
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
        return _json({"timestamp": now, "dp_rank_count": 1, "loads": [load]})

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


async def _body(request: web.Request) -> object:
    try:
        body: object = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise refused(f"The body is not JSON: {error}.") from error
    return body


async def _object(request: web.Request) -> dict[str, Any]:
    body = await _body(request) if request.body_exists else {}
    if not isinstance(body, dict):
        raise refused("The body must be a JSON object.")
    return body


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
