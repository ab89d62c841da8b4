"""One embedded engine for all of these tests, and a proxy before it that plants faults on the wire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from served import serve_here

from parity.engines.embedded.served import ServedModel
from parity.trainer.policy import build_policy, image_policy_config, policy_config, save_policy

RUNNING = 12
Answer = tuple[int, Any]


class Fault:
    """A proxy's behaviour: by itself it changes nothing."""

    def request(self, path: str, body: Any) -> Any:
        """The body to send on; an `Answer` is given back instead of sending anything."""
        return body

    def response(self, path: str, body: Any, status: int, answer: Any) -> Answer:
        """What the client gets for what it sent as `body`."""
        return status, answer


@pytest.fixture(scope="session")
def checked_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an embedded engine that runs 12 sequences at once, context 1024."""
    with _engine(policy_config(max_position_embeddings=1024), tmp_path_factory.mktemp("engine")) as (url, _):
        yield url


@pytest.fixture(scope="session")
def seeing_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one that takes images, context 256."""
    with _engine(image_policy_config(), tmp_path_factory.mktemp("engine")) as (url, _):
        yield url


@pytest.fixture
def stale_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of one that keeps features of images through updates and flushes, as SGLang 0.5.23 does."""
    with _engine(image_policy_config(), tmp_path) as (url, engine):
        monkeypatch.setattr(engine.scheduler.features, "clear", lambda: None)
        yield url


def _engine(config: Any, directory: Path) -> AbstractContextManager[tuple[str, ServedModel]]:
    return serve_here(save_policy(build_policy(1, config), directory / "policy"), RUNNING)


@pytest.fixture(scope="session")
def through(checked_engine: str) -> Callable[[Fault], AbstractContextManager[tuple[str, list[str]]]]:
    """`through(fault)`: a context of a proxy's URL, and the methods and paths that it was asked for."""
    return lambda fault: _proxy(checked_engine, fault)


@pytest.fixture(scope="session")
def through_seeing(seeing_engine: str) -> Callable[[Fault], AbstractContextManager[tuple[str, list[str]]]]:
    """The same for the one that takes images."""
    return lambda fault: _proxy(seeing_engine, fault)


@contextmanager
def _proxy(url: str, fault: Fault) -> Iterator[tuple[str, list[str]]]:
    started, asked = threading.Event(), list[str]()
    box: dict[str, Any] = {}

    async def serve() -> None:
        stop = asyncio.Event()
        async with aiohttp.ClientSession() as session:

            async def handle(request: web.Request) -> web.StreamResponse:
                asked.append(f"{request.method} {request.path}")
                return await _forward(session, url, fault, request)

            app = web.Application(client_max_size=1 << 26)
            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            box.update(port=runner.addresses[0][1], loop=asyncio.get_running_loop(), stop=stop)
            started.set()
            await stop.wait()
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    try:
        yield f"http://127.0.0.1:{box['port']}", asked
    finally:
        box["loop"].call_soon_threadsafe(box["stop"].set)
        thread.join()


async def _forward(session: aiohttp.ClientSession, url: str, fault: Fault, request: web.Request) -> web.StreamResponse:
    body = None
    if request.body_exists:
        try:
            body = await request.json()
        except ValueError:
            body = (await request.read()).decode()
    sent = fault.request(request.path, body)
    if isinstance(sent, tuple):
        return _answer(*sent)
    extra = {"data": sent.encode()} if isinstance(sent, str) else {"json": sent}
    async with session.request(request.method, f"{url}{request.path_qs}", **extra) as response:
        if response.content_type == "application/json":
            return _answer(*fault.response(request.path, body, response.status, await response.json()))
        return _answer(*fault.response(request.path, body, response.status, await response.text()))


def _answer(status: int, answer: Any) -> web.Response:
    return (
        web.Response(text=answer, status=status)
        if isinstance(answer, str)
        else web.json_response(answer, status=status)
    )


@pytest.fixture(scope="session")
def no_fault() -> Fault:
    return Fault()


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """A URL at which nothing listens: port 1 of the loopback."""
    return "http://127.0.0.1:1"
