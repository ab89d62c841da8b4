"""The engine that parity starts by default, through the same door and the same client as any other."""

import psutil
import pytest

from parity.engines import open_engine
from parity.errors import EngineError, EngineUnavailable
from parity.trainer.policy import build_policy, save_policy
from rollout_patch import Capabilities

REQUEST = {"input_ids": [72, 101], "sampling_params": {"n": 4, "max_new_tokens": 8, "sampling_seed": 3}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    return [save_policy(build_policy(seed), directory / f"seed-{seed}") for seed in (1, 2)]


@pytest.fixture(scope="module")
def engine(checkpoints, tmp_path_factory):
    with open_engine("embedded", checkpoints[0], tmp_path_factory.mktemp("logs")) as running:
        yield running


async def ids(client):
    return [item["output_ids"] for item in await client.generate(REQUEST)]


async def test_it_is_fed_weights_and_keeps_the_old_ones_when_it_refuses(engine, checkpoints, tmp_path):
    async with engine.client() as client:
        assert await client.health()
        assert await client.capabilities() == Capabilities(seeded=True, seed_per_slot=True)
        first = await ids(client)
        await client.update_weights(checkpoints[1], "step-1")
        second = await ids(client)
        assert first != second
        with pytest.raises(EngineError, match="status 400"):
            await client.update_weights(tmp_path, "step-2")
        assert await ids(client) == second
        assert (await client.model_info())["weight_version"] == "step-1"
        await client.abort_all()
        await client.pause()
        await client.continue_()


async def test_killed_it_gives_no_answer_and_restarted_it_says_what_it_said(engine, checkpoints):
    async with engine.client() as client:
        await client.update_weights(checkpoints[0], "step-0")
        before = await ids(client)
        killed = psutil.Process(engine.pid)
        killed.kill()
        psutil.wait_procs([killed], timeout=10)
        with pytest.raises(EngineUnavailable):
            await ids(client)
        assert not engine.alive()
        engine.start()
        assert await ids(client) == before
