"""An engine whose law is known: each token is the end with one chance in five, else one of fifty, alike likely.

It answers `/generate` in SGLang's shapes from a thread of its own. A fault may change a request before it is answered
and the answer before it is sent; `upstream` makes it pass requests on to a real engine instead, and lie about those.
`seeding` says what a response is drawn from, and `info` what `/server_info` says.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp import web

from parity.records.samples import Sample

END, WORDS, CHANCE = 2, range(3, 53), 0.2
Output = dict[str, Any]
Ask = Callable[[dict[str, Any]], object]
Lie = Callable[[dict[str, Any], list[Output]], object]
Seeding = Callable[[dict[str, Any], int], object]
"""From sampling parameters and the place in a request of n to what a response is a function of; None for chance."""


def reward(sample: Sample) -> float:
    """1 for an even number of tokens."""
    return float(len(sample.output_ids or ()) % 2 == 0)


def log_prob(token: int) -> float:
    return math.log(CHANCE if token == END else (1 - CHANCE) / len(WORDS))


class ToyEngine:
    """Draws responses; `asked` counts requests."""

    def __init__(
        self, seed: int, ask: Ask, lie: Lie, upstream: str | None, seeding: Seeding, info: dict[str, Any]
    ) -> None:
        self.random = random.Random(seed)
        self.ask, self.lie, self.upstream = ask, lie, upstream
        self.seeding, self.info = seeding, info
        self.asked = 0
        self.paths: set[str] = set()
        self.ids = itertools.count()
        self.url = ""

    async def generate(self, request: web.Request) -> web.Response:
        self.asked += 1
        payload = await request.json()
        self.ask(payload)
        if self.upstream is not None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(self.upstream + "/generate", json=payload) as got,
            ):
                outputs = await got.json()
        else:
            outputs = self.outputs(payload)
        self.lie(payload, outputs if isinstance(outputs, list) else [outputs])
        return web.json_response(outputs)

    def outputs(self, payload: dict[str, Any]) -> list[Output] | Output:
        prompt = payload.get("text", payload.get("input_ids"))
        batched = isinstance(prompt, list) and isinstance(prompt[0], (str, list))
        prompts, given = prompt if batched else [prompt], payload["sampling_params"]
        of_items = given if isinstance(given, list) else [given] * len(prompts)
        found = [
            self.output(one, params, payload, slot)
            for one, params in zip(prompts, of_items, strict=True)
            for slot in range(params.get("n", 1))
        ]
        return found if batched or len(found) > 1 else found[0]

    def output(self, prompt: str | list[int], params: dict[str, Any], payload: dict[str, Any], slot: int) -> Output:
        source = self.seeding(params, slot)
        draw = self.random if source is None else random.Random(f"{source}/{prompt}")
        ids = [3 + byte % 50 for byte in prompt.encode()] if isinstance(prompt, str) else prompt
        chance = params.get("chance", CHANCE)  # of the end; what it says of log-probs stays the same
        tokens: list[int] = []
        on = params.get("ignore_eos", False)
        while len(tokens) < params["max_new_tokens"] and (on or tokens[-1:] != [END]):
            tokens.append(END if draw.random() < chance else draw.choice(WORDS))
        stopped = tokens[-1:] == [END] and not on
        start = payload.get("logprob_start_len", -1)
        triples = [[log_prob(token), token, None] for token in ids]
        asked = [[None, *triples[start][1:]], *triples[start + 1 :]] if start >= 0 else []
        return {
            "text": " ".join(map(str, tokens)),
            "output_ids": tokens,
            "meta_info": {
                "id": f"toy-{next(self.ids)}",
                "finish_reason": {"type": "stop", "matched": END}
                if stopped
                else {"type": "length", "length": params["max_new_tokens"]},
                "prompt_tokens": len(ids),
                "completion_tokens": len(tokens),
                "cached_tokens": 0,
                "weight_version": "v0",
                "output_token_logprobs": [[log_prob(token), token, None] for token in tokens],
                "input_token_logprobs": asked,
            },
        }

    async def other(self, request: web.Request) -> web.Response:
        self.paths.add(request.path)
        return web.json_response({"version": "toy", **self.info})


def nothing(*_: object) -> None:
    """Changes nothing."""


def by_slot(params: dict[str, Any], slot: int) -> object:
    """As the embedded engine: slot i has the seed plus i; chance without a seed."""
    seed = params.get("sampling_seed")
    return None if seed is None else seed + slot


def one_seed(params: dict[str, Any], slot: int) -> object:
    """All n samples of a request have its seed; chance without one."""
    return params.get("sampling_seed")


def default_seed(params: dict[str, Any], slot: int) -> object:
    """As SGLang with deterministic inference: a request has one seed, and that is 42 where none is given."""
    return params.get("sampling_seed", 42)


def greedy(params: dict[str, Any], slot: int) -> object:
    """The same response for every seed."""
    return 0


@contextmanager
def toy_engine(
    *,
    seed: int = 0,
    ask: Ask = nothing,
    lie: Lie = nothing,
    upstream: str | None = None,
    seeding: Seeding = nothing,
    info: dict[str, Any] | None = None,
) -> Iterator[ToyEngine]:
    """A toy engine at a loopback URL."""
    engine = ToyEngine(seed, ask, lie, upstream, seeding, info or {})
    loop = asyncio.new_event_loop()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/generate", engine.generate)
    application.router.add_route("*", "/{path:.*}", engine.other)
    runner = web.AppRunner(application, access_log=None)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield engine
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
