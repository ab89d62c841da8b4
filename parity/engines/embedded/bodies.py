"""JSON off the wire and onto it."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from parity.engines.embedded.refusals import refused


async def body_of(request: web.Request) -> object:
    """The body, decoded.

    Raises:
        RequestRefused: It is no JSON.
    """
    try:
        body: object = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise refused(f"The body is not JSON: {error}.") from error
    return body


async def object_of(request: web.Request) -> dict[str, Any]:
    """The body, which is an object; an empty one where there is none.

    Raises:
        RequestRefused: It is no JSON object.
    """
    body = await body_of(request) if request.body_exists else {}
    if not isinstance(body, dict):
        raise refused("The body must be a JSON object.")
    return body


def answer(body: object, status: int = 200) -> web.Response:
    """An answer of JSON."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
