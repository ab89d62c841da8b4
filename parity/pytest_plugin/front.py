"""The server of a test's requests: it passes them on to an engine or replays a recording, and keeps them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from aiohttp import web

from parity.engines.replaying import replaying_post
from parity.errors import InputError
from parity.records.exchanges import Exchange

MAX_BODY_BYTES = 64 << 20
_OF_A_ROUTER: dict[str, Callable[[str], Any]] = {
    "/workers": lambda url: {"workers": [{"url": url}]},
    "/list_workers": lambda url: {"urls": [url]},
}
"""What hosts request of a router before they abort; without a router the front is its own worker."""
_OF_THE_HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}


@dataclass(slots=True)
class Front:
    """A face of an engine on a loopback port.

    Attributes:
        url: The base URL.
        exchanges: The requests to `/generate` and their responses, in order of response; `arm` by their form.
        answers: The last status and body of every other method and path.
        refused: Why requests were refused.
    """

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def refuse(self, reason: str) -> web.Response:
        """Answers as SGLang refuses, and keeps the reason."""
        self.refused.append(reason)
        return web.json_response({"error": {"message": reason}}, status=400)

    def keep(self, payload: Mapping[str, Any], status: int, answer: Any, sent_at: float) -> None:
        """Keeps an exchange."""
        sent = Exchange(payload, status, answer, url="/generate", sent_at=sent_at, received_at=time.time())
        self.exchanges.append(
            replace(sent, arm="native" if sent.n > 1 else "batched" if sent.is_batch else "per-sample")
        )


def passing_on(upstream: str, control: bool) -> AbstractContextManager[Front]:
    """A front of an engine.

    Args:
        upstream: The engine's base URL.
        control: Whether requests may change the engine. Without, only `/generate` and what reads goes through.
    """
    sessions: list[aiohttp.ClientSession] = []

    async def connected(app: web.Application) -> AsyncIterator[None]:
        # A host has its own time-outs, and limits its own requests; a limit here would make an abort wait for the
        # requests that it is meant to end.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1)  # as `EngineClient` has it
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            sessions.append(session)
            yield

    async def answer(front: Front, request: web.Request, payload: dict[str, Any] | None) -> web.Response:
        reads = request.method == "GET" and request.path != "/flush_cache"
        if not (control or reads or payload is not None):
            return front.refuse(f"{_place(request)} changes the engine, which needs --parity-control")
        sent_at = time.time()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_THE_HOP}
        sent = sessions[0].request(
            request.method, upstream + request.path_qs, data=await request.read(), headers=headers
        )
        try:
            async with sent as response:
                body, status, kind = await response.read(), response.status, response.content_type
        except aiohttp.ClientError as error:
            body, status, kind = f"{upstream}: {error}".encode(), 502, "text/plain"
        if payload is not None:
            front.keep(payload, status, _decoded(body), sent_at)
        elif status == 404 and request.path in _OF_A_ROUTER:
            return web.json_response(_OF_A_ROUTER[request.path](front.url))
        else:
            front.answers[_place(request)] = (status, _decoded(body))
        return web.Response(body=body, status=status, content_type=kind)

    return _serving(answer, connected)


def replaying(exchanges: Iterable[Exchange], answers: Mapping[str, tuple[int, Any]]) -> AbstractContextManager[Front]:
    """A front without an engine: the outputs of a recording, for requests of any arm.

    Args:
        exchanges: The recording, see `replaying_post`.
        answers: The responses of other methods and paths; any other gets status 404.

    Raises:
        InputError: A recorded response has another number of outputs than was requested.
    """
    post = replaying_post(exchanges)

    async def answer(front: Front, request: web.Request, payload: dict[str, Any] | None) -> web.Response:
        if payload is None and request.path in _OF_A_ROUTER:
            return web.json_response(_OF_A_ROUTER[request.path](front.url))
        if payload is None:
            status, body = answers.get(_place(request), (404, f"{_place(request)} is not in the recording"))
            return web.json_response(body, status=status)
        sent_at = time.time()
        try:
            body = await post(payload, {})
        except InputError as error:
            return front.refuse(str(error))
        front.keep(payload, 200, body, sent_at)
        return web.json_response(body)

    return _serving(answer)


_Answer = Callable[[Front, web.Request, "dict[str, Any] | None"], Awaitable[web.Response]]


@contextmanager
def _serving(answer: _Answer, *contexts: Callable[[web.Application], AsyncIterator[None]]) -> Iterator[Front]:
    """Serves from a thread of its own; `answer` gets the payload of a request to `/generate`, `None` for others."""
    front = Front()

    async def handle(request: web.Request) -> web.Response:
        if request.path != "/generate":
            return await answer(front, request, None)
        payload = _decoded(await request.read())
        if not isinstance(payload, dict):
            return front.refuse(f"{_place(request)}: the body is no JSON object")
        if payload.get("stream"):
            return front.refuse(f"{_place(request)}: streamed answers are not recorded")
        return await answer(front, request, payload)

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.cleanup_ctx.extend(contexts)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result()
        front.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield front
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _place(request: web.Request) -> str:
    return f"{request.method} {request.path}"


def _decoded(body: bytes) -> Any:
    """JSON, NaN included, or text where it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
