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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fake
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

    def application(self) -> web.Application:
        """What it answers to."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_route("*", "/{path:.*}", self.other)
        return app

    async def generate(self, request: web.Request) -> web.Response:
        """Each sequence takes a slot for as long as its tokens take."""
        self.requests += 1
        self.peers.append(request.transport.get_extra_info("peername"))
        payload = orjson.loads(await request.read())
        outputs = fake.answer(payload, self.output)
        tokens = payload["sampling_params"]["max_new_tokens"]
        await asyncio.gather(*(self.decode(tokens) for _ in (outputs if isinstance(outputs, list) else [outputs])))
        return web.json_response(body=orjson.dumps(outputs))

    async def decode(self, tokens: int) -> None:
        """One sequence."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        async with self.slots:
            await asyncio.sleep(tokens * self.token_seconds)
        self.in_flight -= 1
        self.tokens += tokens

    def output(self, prompt: list[int], params: dict[str, Any], slot: int) -> fake.Output:
        """One item of an answer."""
        tokens = params["max_new_tokens"]
        finish = {"type": "length", "length": tokens}
        return fake.output(f"paced-{next(self.ids)}", [(-1.0, 7)] * tokens, finish, len(prompt))

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
    workers = [PacedWorker(slots, token_seconds) for _ in range(count)]
    with fake.serving(*(worker.application() for worker in workers)) as urls:
        for worker, url in zip(workers, urls, strict=True):
            worker.url = url
        yield workers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--token-seconds", type=float, default=0.004)
    given = parser.parse_args()
    with paced_workers(given.workers, slots=given.slots, token_seconds=given.token_seconds) as started:
        print(*(worker.url for worker in started), sep="\n", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
