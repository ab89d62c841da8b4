"""A worker that starts in half a second and keeps SGLang's rules of control; run as a script: light_worker.py PORT.

A token takes a hundredth of a second. An update of weights and a flush wait until nothing runs; a missing checkpoint is
refused. `/metrics` counts requests, so that what others say of it can be held against what it saw.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

import fake
from aiohttp import web

TOKEN_SECONDS = 0.01


class Worker:
    """What is running, and the label of the weights."""

    def __init__(self) -> None:
        self.version, self.requests, self.running = "default", 0, 0
        self.ids = itertools.count()
        self.aborted = asyncio.Event()

    async def generate(self, request: web.Request) -> web.Response:
        self.requests += 1
        payload = await request.json()
        params, version = payload["sampling_params"], self.version
        cap = params.get("max_new_tokens", 1)
        self.running += 1
        tokens = 0
        while tokens < cap and not self.aborted.is_set():
            await asyncio.sleep(TOKEN_SECONDS)
            tokens += 1
        self.running -= 1
        finish = {"type": "length", "length": cap} if tokens == cap else {"type": "abort", "message": ""}
        triples = [(-1.0, token) for token in range(3, 3 + tokens)]

        def output(prompt: list[int], _: object, __: int) -> fake.Output:
            return fake.output(f"{id(self)}-{next(self.ids)}", triples, finish, len(prompt), version=version)

        return web.json_response(fake.answer(payload, output))

    async def idle(self) -> None:
        while self.running:
            await asyncio.sleep(TOKEN_SECONDS)

    async def flush(self, request: web.Request) -> web.Response:
        await self.idle()
        return web.Response(text="Cache flushed.")

    async def update(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if not (Path(asked["model_path"]) / "config.json").exists():
            return web.json_response({"success": False, "message": "no such checkpoint"}, status=400)
        await self.idle()
        self.version = asked["weight_version"]
        return web.json_response({"success": True, "message": ""})

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.set()
        await self.idle()
        self.aborted.clear()
        return web.json_response({})

    async def info(self, request: web.Request) -> web.Response:
        path = str(Path(__file__).parent)  # a local directory: the router tries to fetch anything else
        return web.json_response({"version": "light", "model_path": path, "weight_version": self.version})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"sglang:num_http_requests_total {self.requests}\n")


if __name__ == "__main__":
    worker = Worker()
    app = web.Application()
    app.router.add_post("/generate", worker.generate)
    app.router.add_route("*", "/flush_cache", worker.flush)
    app.router.add_post("/update_weights_from_disk", worker.update)
    for path in ("/pause_generation", "/continue_generation"):
        app.router.add_post(path, worker.info)
    app.router.add_post("/abort_request", worker.abort)
    for path in ("/health", "/model_info", "/get_model_info", "/server_info", "/get_server_info"):
        app.router.add_get(path, worker.info)
    app.router.add_get("/metrics", worker.metrics)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
