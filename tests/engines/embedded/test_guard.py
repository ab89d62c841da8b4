"""Who reaches the engine from elsewhere has a key, sends JSON, and loads weights from one directory alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from parity.engines.embedded.guard import Guard
from parity.errors import UsageError

JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def guarded(guard: Guard) -> AsyncIterator[TestClient]:  # type: ignore[type-arg]
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application(middlewares=[guard.check])
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_a_key_is_asked_for_everywhere_but_at_health() -> None:
    async with guarded(Guard("a key")) as client:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer other"}, 401),
            ({"Authorization": "Bearer a key"}, 200),
        ):
            assert (await client.get("/model_info", headers=headers)).status == status
            assert (await client.post("/generate", data=b"{}", headers={**JSON, **headers})).status == status
        assert (await client.get("/health")).status == 200
    async with guarded(Guard()) as client:
        assert (await client.get("/model_info")).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_that_a_page_of_a_browser_can_send_is_refused(kind: str) -> None:
    async with guarded(Guard()) as client:
        assert (await client.post("/generate", data=b"{}", headers={"Content-Type": kind})).status == 415
        assert (await client.post("/abort_request", headers={"Origin": "http://evil"})).status == 415
        assert (await client.post("/generate", data=b"{}", headers=JSON)).status == 200
        assert (await client.post("/flush_cache")).status == 200


def test_weights_are_loaded_from_under_one_directory(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
    (inside / "link").symlink_to(outside)
    guard = Guard.of("127.0.0.1", "", inside)
    assert not guard.refuses_weights(inside / "step-000001")
    for path in (outside, inside / ".." / "out", inside / "link" / "a", Path("/")):
        assert guard.refuses_weights(path)
    assert not Guard.of("127.0.0.1", "", None).refuses_weights(outside)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "engine.example"])
def test_an_engine_that_others_reach_needs_a_key_and_a_directory(host: str, tmp_path: Path) -> None:
    for key, folder in (("", None), ("a key", None), ("", tmp_path)):
        with pytest.raises(UsageError, match="PARITY_API_KEY"):
            Guard.of(host, key, folder)
    assert Guard.of(host, "a key", tmp_path) == Guard("a key", tmp_path)
    assert Guard.of("::1", "", None) == Guard()
