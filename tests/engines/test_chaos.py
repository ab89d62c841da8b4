"""The proxy does what its kinds say, the same again by its seed, and a client asks through it as through nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from toy_engine import by_slot, toy_engine

from parity.engines import client as client_module
from parity.engines.answers import REQUEST_RETRIES, SteadyPost
from parity.engines.chaos import COUNTS_PATH, KINDS, Chaos, ChaosProxy
from parity.engines.client import EngineClient, Waits
from parity.errors import UsageError
from rollout_patch import RequestFailed

SOUND = {"text": "a", "output_ids": [1], "meta_info": {"weight_version": "v1"}}


@asynccontextmanager
async def disturbed(chaos: Chaos, upstream: str) -> AsyncIterator[tuple[ChaosProxy, str]]:
    proxy = ChaosProxy(upstream, chaos)
    async with TestServer(proxy.app()) as server:
        yield proxy, str(server.make_url("")).rstrip("/")


async def outcome(url: str) -> Any:
    """Status and body of one request, or why there is none."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.post(f"{url}/generate", json={}, allow_redirects=False) as response,
        ):
            return response.status, await response.text()
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        return type(error).__name__, ""


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_does_what_it_says_and_nothing_happens_at_a_share_of_0(kind: str) -> None:
    reached = []

    async def answer(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.json_response(SOUND)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as engine:
        upstream = str(engine.make_url("")).rstrip("/")
        async with disturbed(Chaos(0.0, kinds=(kind,)), upstream) as (_, url):
            untouched = await outcome(url)
            assert (untouched[0], len(reached)) == (200, 1)
        reached.clear()
        async with disturbed(Chaos(1.0, kinds=(kind,), hold=0.2), upstream) as (proxy, url):
            seen = await outcome(url)
            async with aiohttp.ClientSession() as session, session.get(url + COUNTS_PATH) as counts:
                assert await counts.json() == {"requests": 1, "injected": {kind: 1}}
    assert proxy.passed == 1
    times = {"doubled": 2, "unavailable": 0, "error": 0, "outage": 0, "redirect": 0, "reset-before": 0, "hung": 0}
    assert len(reached) == times.get(kind, 1)
    assert (seen == untouched) is (kind in ("doubled", "slow"))


async def test_the_same_seed_disturbs_the_same_requests() -> None:
    async def kinds(seed: int) -> list[str]:
        proxy = ChaosProxy("http://nowhere", Chaos(0.5, seed))
        return [proxy._drawn("/generate")[0] for _ in range(200)]

    assert await kinds(1) == await kinds(1) != await kinds(2)


PAYLOADS = [
    {"input_ids": [5, 6, seed], "sampling_params": {"n": 3, "sampling_seed": seed, "max_new_tokens": 5}}
    for seed in range(30)
]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_a_client_asks_through_faults_as_if_there_were_none(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "INFO_SECONDS", 0.5)
    monkeypatch.setattr(client_module, "LOOK_SECONDS", 0.2)

    async def ask(post: SteadyPost, payload: dict[str, Any]) -> Any:
        for _ in range(REQUEST_RETRIES):
            try:
                return await post(payload, {})
            except RequestFailed as failure:
                assert failure.status is None or failure.status in (429, 500, 502, 503)
        return await post(payload, {})

    async def ask_all(upstream: str) -> tuple[list[Any], ChaosProxy]:
        async with disturbed(Chaos(share, seed=3, hold=0.3), upstream) as (proxy, url):
            waits = Waits(patience=0.5, notice_after=0.2, note=lambda _: None)
            async with EngineClient(url, "toy", waits=waits) as client:
                assert (await client.capabilities()).seeded
                client.weights = "v0"
                post = SteadyPost(client)
                return await asyncio.gather(*(ask(post, payload) for payload in PAYLOADS)), proxy

    with toy_engine(seeding=by_slot, info={"deterministic": True}) as engine:
        answers, proxy = asyncio.run(ask_all(engine.url))
        expected = [engine.outputs(payload) for payload in PAYLOADS]
    assert [[item["output_ids"] for item in answer] for answer in answers] == [
        [item["output_ids"] for item in answer] for answer in expected
    ]
    assert sum(proxy.injected.values()) > 0


@pytest.mark.parametrize("spec", ["", "2", "-0.1", "nan", "0.1,kinds=none", "0.1,hold=0", "0.1,seed=x", "0.1,other=1"])
def test_a_specification_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="--chaos"):
        Chaos.parse(spec)


def test_a_specification_is_read() -> None:
    assert Chaos.parse("0.2") == Chaos(0.2)
    assert Chaos.parse("0.5,seed=7,kinds=hung+error,hold=2") == Chaos(0.5, 7, ("hung", "error"), 2.0)
