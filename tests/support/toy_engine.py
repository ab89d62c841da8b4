"""An engine whose law is known: each token is the end with one chance in five, else one of fifty, alike likely.

It answers `/generate` in SGLang's shapes from a thread of its own. A fault may change a request before it is answered
and the answer before it is sent; `upstream` makes it pass requests on to a real engine instead, and lie about those.
`seeding` says what a response is drawn from, and `info` what `/server_info` says.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiohttp
import fake
from aiohttp import web
from fake import Output

from parity.records.samples import Sample

END, WORDS, CHANCE = 2, range(3, 53), 0.2
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
        return fake.answer(payload, partial(self.output, payload))

    def output(self, payload: dict[str, Any], prompt: str | list[int], params: dict[str, Any], slot: int) -> Output:
        source = self.seeding(params, slot)
        draw = self.random if source is None else random.Random(f"{source}/{prompt}")
        ids = [3 + byte % 50 for byte in prompt.encode()] if isinstance(prompt, str) else prompt
        chance = params.get("chance", CHANCE)  # of the end; what it says of log-probs stays the same
        tokens: list[int] = []
        on = params.get("ignore_eos", False)
        while len(tokens) < params["max_new_tokens"] and (on or tokens[-1:] != [END]):
            tokens.append(END if draw.random() < chance else draw.choice(WORDS))
        length = {"type": "length", "length": params["max_new_tokens"]}
        finish = {"type": "stop", "matched": END} if tokens[-1:] == [END] and not on else length
        start = payload.get("logprob_start_len", -1)
        triples = [[log_prob(token), token, None] for token in ids]
        asked = [[None, *triples[start][1:]], *triples[start + 1 :]] if start >= 0 else []
        return fake.output(
            f"toy-{next(self.ids)}",
            [(log_prob(token), token) for token in tokens],
            finish,
            len(ids),
            text=" ".join(map(str, tokens)),
            version="v0",
            input_token_logprobs=asked,
        )

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
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/generate", engine.generate)
    application.router.add_route("*", "/{path:.*}", engine.other)
    with fake.serving(application) as (engine.url,):
        yield engine
