"""The embedded engine in this process, on a thread of its own, over real HTTP: ready at once, since torch is loaded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from parity.engines.embedded.served import ServedModel
from parity.engines.embedded.server import build_app


@contextmanager
def serve_here(path: Path, max_running: int, dialect: str | None = None) -> Iterator[tuple[str, ServedModel]]:
    """URL and engine, for the block."""
    started, stop = threading.Event(), asyncio.Event()
    box: dict[str, object] = {}

    async def serve() -> None:
        engine = ServedModel(path, max_running)
        runner = web.AppRunner(build_app(engine, dialect=dialect), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        box.update(url=f"http://127.0.0.1:{runner.addresses[0][1]}", engine=engine, loop=asyncio.get_running_loop())
        started.set()
        await stop.wait()
        engine.stop()
        await runner.cleanup()

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield str(box["url"]), box["engine"]  # type: ignore[misc]
    finally:
        if "loop" in box:
            box["loop"].call_soon_threadsafe(stop.set)  # type: ignore[attr-defined]
        thread.join()
