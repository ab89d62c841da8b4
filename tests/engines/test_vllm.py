"""The client of vLLM: weights are pushed so that they arrive and end nothing, and a URL says what answers there."""

import asyncio

import pytest
from served import serve_here

from parity.engines.client import EngineClient
from parity.engines.detection import detect_determinism
from parity.engines.embedded.faults import FAULTS
from parity.engines.remote import recognised, remote_engine
from parity.engines.vllm import VllmClient
from parity.errors import EngineError
from parity.trainer.policy import build_policy, save_policy
from rollout_patch import VLLM


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
