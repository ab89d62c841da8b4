"""The client of vLLM: weights are pushed so that they arrive and end nothing, and a URL says what answers there."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from served import serve_here

from parity.engines import open_engine
from parity.engines.client import EngineClient
from parity.engines.detection import detect_determinism
from parity.engines.embedded.faults import FAULTS
from parity.engines.remote import recognised, remote_engine
from parity.engines.vllm import VllmClient
from parity.errors import EngineError, UsageError
from parity.trainer.policy import build_policy, save_policy
from rollout_patch import VLLM

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return [save_policy(build_policy(seed), folder / str(seed)) for seed in (1, 2)]


@pytest.fixture(scope="module")
def served(policies):
    with serve_here(policies[0], max_running=64, dialect="vllm") as served:
        yield served


def client(url):
    return VllmClient(url, "e0")


@pytest.mark.parametrize(("dialect", "speaks"), [(None, EngineClient), ("sglang", EngineClient), ("vllm", VllmClient)])
def test_a_url_is_spoken_to_as_what_answers_there(policies, dialect, speaks):
    with serve_here(policies[0], max_running=4, dialect=dialect) as (url, _):
        assert asyncio.run(recognised(remote_engine(url, control=False))).speaks is speaks


async def test_what_is_no_engine_is_said_with_what_it_answered(served):
    with pytest.raises(EngineError, match="neither SGLang nor vLLM"):
        await recognised(remote_engine(served[0] + "/elsewhere", control=False))


async def test_weights_arrive_under_their_label_and_nothing_stays_paused(served, policies):
    async with client(served[0]) as engine:
        for number, policy in enumerate([*policies, policies[1], policies[0]]):
            await engine.update_weights(policy, f"v{number}")
            assert engine.weights == (await engine.model_info())["weight_version"] == f"v{number}"
        assert not served[1].scheduler.paused
        await engine.pause()
        assert served[1].scheduler.paused
        await engine.continue_()
        await engine.abort_all()
        await engine.flush_cache()
        assert not served[1].scheduler.paused


async def test_weights_that_do_not_arrive_are_an_error(policies):
    with serve_here(policies[0], max_running=4, dialect="vllm") as (url, engine):
        FAULTS["old-weights"][1](engine)
        async with client(url) as asked:
            await asked.update_weights(policies[0], "v0")
            await asked.update_weights(policies[0], "v1")  # the same weights: nothing to see, and no error
            with pytest.raises(EngineError, match="did not arrive"):
                await asked.update_weights(policies[1], "v2")
            assert asked.weights is None


async def test_a_reload_that_failed_leaves_the_engine_paused(policies, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.engines.client.CONTROL_ATTEMPTS", 1)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with serve_here(policies[0], max_running=4, dialect="vllm") as (url, engine):
        async with client(url) as asked:
            with pytest.raises(EngineError, match=r"no \*.safetensors"):
                await asked.update_weights(tmp_path / "missing", "v1")
            assert not engine.scheduler.paused, "nothing was asked of the engine"
            with pytest.raises(EngineError, match="/collective_rpc: status 500"):
                await asked.update_weights(tmp_path, "v1")
            assert engine.scheduler.paused
            await asked.update_weights(policies[1], "v2")
            assert not engine.scheduler.paused


async def test_what_it_promises_is_seen_by_asking(served):
    async with client(served[0]) as asked:
        seen = await detect_determinism(asked.generate, await asked.capabilities(), VLLM)
    assert {name: fact.holds for name, fact in seen.facts.items() if fact.holds is not True} == {
        "lists take a seed per item": None
    }
    assert (seen.capabilities.seed_per_slot, seen.capabilities.most_samples) == (True, 64)
    assert seen.contradictions == ()


async def test_a_router_is_asked_for_samples_and_given_no_control(served):
    """It hands a control call to one worker of several, and answers 200."""

    async def pass_on(request):
        if request.path == "/list_workers":
            return web.json_response({"urls": ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]})
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, served[0] + request.path, data=await request.read(), headers=JSON
            ) as answer,
        ):
            return web.json_response(await answer.json(), status=answer.status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pass_on)
    async with TestServer(app) as server, client(str(server.make_url("")).rstrip("/")) as router:
        seen = await detect_determinism(router.generate, await router.capabilities(), VLLM)
        assert seen.capabilities.seed_per_slot
        for call in (router.flush_cache(), router.abort_all(), router.pause(), router.continue_()):
            with pytest.raises(UsageError, match=r"one of its workers.*10\.0\.0\.2"):
                await call
    async with client(served[0]) as engine:
        assert await engine.workers() == ()


@pytest.mark.parametrize("more", [{"workers": 2}, {"router": "round_robin"}])
def test_no_router_is_started_in_front_of_it(policies, tmp_path, more):
    with pytest.raises(UsageError, match="vllm-router"):
        open_engine("vllm", policies[0], tmp_path, **more)
