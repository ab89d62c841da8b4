"""The front that a host's requests go through, before engines whose answers are known."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from parity.pytest_plugin.front import passing_on

WAITING = 120
"""More than the connections that an HTTP client opens by default."""


async def test_an_abort_overtakes_every_request_that_waits_for_it():
    arrived, aborted = asyncio.Semaphore(0), asyncio.Event()

    async def generate(request: web.Request) -> web.Response:
        arrived.release()
        await aborted.wait()
        return web.json_response({})

    async def abort(request: web.Request) -> web.Response:
        aborted.set()
        return web.json_response({})

    app = web.Application()
    app.add_routes([web.post("/generate", generate), web.post("/abort_request", abort)])
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with passing_on(f"http://127.0.0.1:{runner.addresses[0][1]}", control=True) as front:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as host:
                asked = [asyncio.create_task(host.post(f"{front.url}/generate", json={})) for _ in range(WAITING)]
                for _ in range(WAITING):
                    await asyncio.wait_for(arrived.acquire(), 30)
                await host.post(f"{front.url}/abort_request", json={})
                answers = await asyncio.gather(*asked)
            assert [answer.status for answer in answers] == [200] * WAITING
            assert len(front.exchanges) == WAITING
    finally:
        await runner.cleanup()
