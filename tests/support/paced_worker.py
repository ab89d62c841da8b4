"""Stand-in workers whose service time follows decode tokens; run as a script: `paced_worker.py --workers 4`.

A worker decodes up to `slots` sequences at once, each at one token every `token_seconds`, and answers a request when
its last sequence is done; the others wait in line. So a request of n costs n times the decode work of a request for
one. Prefill costs nothing and nothing is cached. Answers and `/metrics` are of SGLang's form.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import web

VOCABULARY = 1000
logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a router first tries whether a worker speaks HTTP/2


class PacedWorker:
    """One worker; `requests` and `tokens` count what it served, `most_in_flight` the sequences it had at once."""

    def __init__(self, slots: int, token_seconds: float) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.token_seconds = token_seconds
        self.requests = self.tokens = self.in_flight = self.most_in_flight = 0
        self.paths: list[str] = []
        self.peers: list[object] = []
        self.ids = itertools.count()
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listens on a free loopback port."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_route("*", "/{path:.*}", self.other)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Stops listening."""
        assert self._runner
        await self._runner.cleanup()

    async def generate(self, request: web.Request) -> web.Response:
        """Each sequence takes a slot for as long as its tokens take."""
        self.requests += 1
        self.peers.append(request.transport.get_extra_info("peername"))
        payload = orjson.loads(await request.read())
        prompt, params = payload["input_ids"], payload["sampling_params"]
        batched = isinstance(prompt[0], list)
        n, new_tokens = params.get("n", 1), params["max_new_tokens"]
        prompts = [one for one in (prompt if batched else [prompt]) for _ in range(n)]
        await asyncio.gather(*(self.decode(new_tokens) for _ in prompts))
        outputs = [self.output(len(one), new_tokens) for one in prompts]
        return web.json_response(body=orjson.dumps(outputs if batched or n > 1 else outputs[0]))

    async def decode(self, tokens: int) -> None:
        """One sequence."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        async with self.slots:
            await asyncio.sleep(tokens * self.token_seconds)
        self.in_flight -= 1
        self.tokens += tokens

    def output(self, prompt_tokens: int, tokens: int) -> dict[str, Any]:
        """One item of an answer."""
        return {
            "text": "",
            "output_ids": [7] * tokens,
            "meta_info": {
                "id": f"paced-{next(self.ids)}",
                "finish_reason": {"type": "length", "length": tokens},
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "cached_tokens": 0,
                "weight_version": "default",
                "output_token_logprobs": [[-1.0, 7, None]] * tokens,
            },
        }

    async def metrics(self, _: web.Request) -> web.Response:
        """What SGLang exposes with --enable-metrics, as far as it counts here."""
        return web.Response(
            text="# TYPE sglang:http_requests_total counter\n"
            f'sglang:http_requests_total{{endpoint="/generate",method="POST"}} {self.requests}.0\n'
            "# TYPE sglang:generation_tokens_total counter\n"
            f'sglang:generation_tokens_total{{is_streaming="false",model_name="paced"}} {self.tokens}.0\n'
        )

    async def other(self, request: web.Request) -> web.Response:
        """Health and the like."""
        self.paths.append(request.path)
        return web.json_response({"model_path": "paced", "vocab_size": VOCABULARY, "version": "paced"})


@contextmanager
def paced_workers(count: int = 1, *, slots: int = 64, token_seconds: float = 0.0) -> Iterator[list[PacedWorker]]:
    """Workers at loopback URLs, served by a thread of their own."""
    loop = asyncio.new_event_loop()
    workers = [PacedWorker(slots, token_seconds) for _ in range(count)]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for worker in workers:
            asyncio.run_coroutine_threadsafe(worker.start(), loop).result()
        yield workers
    finally:
        for worker in workers:
            asyncio.run_coroutine_threadsafe(worker.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def serve(count: int, slots: int, token_seconds: float) -> None:
    """Runs until standard input ends; prints the URLs first, one a line."""
    workers = [PacedWorker(slots, token_seconds) for _ in range(count)]
    for worker in workers:
        await worker.start()
        print(worker.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for worker in workers:
        await worker.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--token-seconds", type=float, default=0.004)
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(asked.workers, asked.slots, asked.token_seconds))
