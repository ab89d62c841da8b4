"""Who may ask the embedded engine, and for what: a key, JSON alone, and weights of one directory."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from parity.errors import UsageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN_PATHS = ("/health", "/health_generate")
"""What needs no key: whoever balances load asks these."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What is asked of requests.

    Attributes:
        api_key: What ``Authorization: Bearer`` must hold; empty asks for none.
        weights_under: The directory that weights may be loaded from; `None` for any.
    """

    api_key: str = ""
    weights_under: Path | None = None

    @classmethod
    def of(cls, host: str, api_key: str, weights_under: Path | None) -> Guard:
        """The guard of an engine at an address; others than this machine reach it where that is no loopback address.

        Raises:
            UsageError: Others reach it, and there is no key, or no directory that they may load weights from.
        """
        if not is_loopback(host) and not (api_key and weights_under):
            raise UsageError(
                f"--host {host} is reached by others: set PARITY_API_KEY, which they must send, and --weights-under to "
                "the directory that weights may be loaded from"
            )
        return cls(api_key, weights_under and weights_under.resolve())

    def refuses_weights(self, path: Path) -> bool:
        """Whether a checkpoint lies outside the directory, links followed."""
        return self.weights_under is not None and not path.resolve().is_relative_to(self.weights_under)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses what has no key (401), or a body that says it is no JSON (415), as a page of a browser sends it."""
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        asks_key = self.api_key and request.path not in OPEN_PATHS
        if asks_key and not hmac.compare_digest(sent.encode(), self.api_key.encode()):
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        has_body = request.method == "POST" and (request.body_exists or "Origin" in request.headers)
        if has_body and request.content_type != "application/json":
            message = f"Content-Type must be application/json, not {request.content_type}."
            return web.json_response({"error": {"message": message}}, status=415)
        return await handler(request)


OPEN = Guard()
"""Of an engine that this machine alone reaches."""


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
