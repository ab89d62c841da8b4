"""A proxy that disturbs requests to an engine: seeded faults of networks, routers and engines, on every endpoint.

What is drawn for a request depends on the seed, its path and how many of that path came before, so that a run can be
disturbed again in the same way as far as its requests come in the same order.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from parity.errors import UsageError

KINDS = (
    "unavailable",
    "error",
    "outage",
    "redirect",
    "reset-before",
    "reset-after",
    "truncated",
    "damaged",
    "wrong-types",
    "old-weights",
    "doubled",
    "hung",
    "slow",
)
"""What can happen to a request: 429, 502 or 503; 500; 503 for this and the next four; 307 to another host; the
connection closed before it reaches the engine, or after the engine has answered; an answer cut in its middle; half an
answer as if it were whole; JSON of other types; an answer of other weights; sent to the engine twice; no answer; a late
one."""

COUNTS_PATH = "/chaos"
"""Where the proxy says what it has injected, by kind."""
_OUTAGE_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Chaos:
    """What is injected.

    Attributes:
        share: The share of requests that something happens to.
        seed: Of the draws.
        kinds: Which of `KINDS`, alike likely.
        hold: Seconds that a hung request is held before its connection is closed.
    """

    share: float
    seed: int = 0
    kinds: tuple[str, ...] = KINDS
    hold: float = 30.0

    @classmethod
    def parse(cls, spec: str) -> Chaos:
        """Reads ``SHARE[,seed=N][,kinds=KIND+KIND][,hold=SECONDS]``, the share as a fraction.

        Raises:
            UsageError: It is not of that form, or a kind is unknown.
        """
        share, *others = spec.split(",")
        given = dict(part.partition("=")[::2] for part in others)
        try:
            chaos = cls(
                float(share),
                int(given.pop("seed", 0)),
                tuple(given.pop("kinds", "+".join(KINDS)).split("+")),
                float(given.pop("hold", 30)),
            )
        except ValueError as error:
            raise UsageError(f"--chaos {spec}: {error}; expected SHARE[,seed=N][,kinds=KIND+KIND][,hold=S]") from error
        if given or not 0 <= chaos.share <= 1 or not chaos.hold > 0 or not set(chaos.kinds) <= set(KINDS):
            raise UsageError(
                f"--chaos {spec}: expected a share from 0 to 1, then seed, kinds or hold; kinds are {', '.join(KINDS)}"
            )
        return chaos


@dataclass(slots=True)
class ChaosProxy:
    """Passes requests on to an engine, and disturbs some.

    Attributes:
        upstream: The engine's base URL.
        chaos: What is injected.
        injected: How many requests each kind happened to.
        passed: How many requests came in all.
    """

    upstream: str
    chaos: Chaos
    injected: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    _of_path: Counter[str] = field(default_factory=Counter)
    _outage: int = 0
    _session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """The proxy as a web application."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get(COUNTS_PATH, self._counts)
        app.router.add_route("*", "/{path:.*}", self._answer)
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, _: web.Application) -> Any:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=3600)) as session:
            self._session = session
            yield

    async def _counts(self, _: web.Request) -> web.Response:
        return web.json_response({"requests": self.passed, "injected": dict(self.injected)})

    def _drawn(self, path: str) -> tuple[str, random.Random]:
        """What happens to the next request to a path, empty for nothing, and the generator of its details."""
        rng = random.Random(f"{self.chaos.seed} {path} {self._of_path[path]}")
        self._of_path[path] += 1
        if self._outage:
            self._outage -= 1
            return "outage", rng
        kind = rng.choice(self.chaos.kinds) if rng.random() < self.chaos.share else ""
        if kind == "outage":
            self._outage = _OUTAGE_REQUESTS
        return kind, rng

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.passed += 1
        kind, rng = self._drawn(request.path)
        self.injected.update([kind] if kind else [])
        if kind in ("unavailable", "outage", "error"):
            status = 503 if kind == "outage" else 500 if kind == "error" else rng.choice((429, 502, 503))
            return web.json_response({"error": {"message": f"injected: {kind}"}}, status=status)
        if kind == "redirect":
            return web.Response(status=307, headers={"Location": "http://elsewhere.invalid/"})
        if kind == "reset-before":
            return _closed(request)
        if kind == "hung":
            await asyncio.sleep(self.chaos.hold)
            return _closed(request)
        if kind == "slow":
            await asyncio.sleep(rng.uniform(0.01, 0.3))
        status, content_type, content = await self._forward(request, body)
        if kind == "doubled":
            await self._forward(request, body)
        if kind == "reset-after":
            return _closed(request)
        if kind == "truncated" and len(content) > 1:
            response = web.StreamResponse(status=status, headers={"Content-Length": str(len(content))})
            await response.prepare(request)
            await response.write(content[: len(content) // 2])
            _closed(request)
            return response
        if kind == "damaged":
            content = content[: len(content) // 2]
        elif kind in _CHANGES and status == 200:
            content = _changed(content, _CHANGES[kind])
        return web.Response(status=status, body=content, content_type=content_type)

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, str, bytes]:
        """What the engine answers; its request ends when the one to the proxy does."""
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_CONNECTION}
        url = self.upstream + request.path_qs
        try:
            async with self._session.request(
                request.method, url, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                return response.status, response.content_type, await response.read()
        except (aiohttp.ClientError, OSError) as error:
            return 502, "text/plain", str(error).encode()


_OF_CONNECTION = ("host", "content-length", "connection", "accept-encoding", "transfer-encoding")


def _closed(request: web.Request) -> web.Response:
    """Closes the connection; what is returned reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _changed(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A JSON answer with its first object changed; as it is where it has none."""
    try:
        answer = json.loads(content)
    except ValueError:
        return content
    first = answer[0] if isinstance(answer, list) and answer else answer
    if isinstance(first, dict):
        change(first)
    return json.dumps(answer).encode()


def _of_other_types(output: dict[str, Any]) -> None:
    for name, value in output.items():
        output[name] = str(value) if isinstance(value, (dict, list)) else [value]


def _of_old_weights(output: dict[str, Any]) -> None:
    meta = output.get("meta_info")
    if isinstance(meta, dict) and "weight_version" in meta:
        meta["weight_version"] = "00000000-of-before-step0"


_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "wrong-types": _of_other_types,
    "old-weights": _of_old_weights,
}


async def serve_chaos(proxy: ChaosProxy, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves a proxy until it is cancelled; `ready` is told its URL."""
    runner = web.AppRunner(proxy.app(), handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        ready(f"http://{host}:{runner.addresses[0][1]}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
