"""The trainer and the embedded engine together: the same policy on both sides of the wire."""

import pytest
from arm_paths import one_engine
from served import serve_here

from parity.engines.remote import remote_engine
from parity.records.training_config import TrainingConfig
from parity.trainer.policy import build_policy, build_tokenizer, image_policy_config, policy_config, save_policy
from parity.trainer.rollouts import generate_rollout, placeholders_of
from parity.trainer.tasks import get_task
from parity.trainer.trainer import Trainer

CONFIG = TrainingConfig(groups_per_step=2, group_size=4, learning_rate=1e-2, updates_per_step=1, threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture(scope="module", params=["arithmetic", "digit-sum"])
def task(request):
    return get_task(request.param)


@pytest.fixture(scope="module")
def checkpoint(folder, task):
    shape = image_policy_config if task.has_images else policy_config
    config = shape(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    return save_policy(build_policy(0, config), folder / task.name)


@pytest.fixture(scope="module")
def engine(checkpoint):
    with serve_here(checkpoint, max_running=64) as (url, _):
        yield remote_engine(url, control=True)


def reward_by_slot(step, samples):
    """So untrained a policy is never right, and without a difference in reward nothing would move."""
    for sample in samples:
        sample.reward = float(sample.index)


async def rollout(task, client, arm, step):
    return await generate_rollout(
        task=task,
        tokenizer=build_tokenizer(images=task.has_images),
        config=CONFIG,
        step=step,
        seed=0,
        arm=arm,
        paths=one_engine(
            client.generate, await client.capabilities(), client.served_by, placeholders=placeholders_of(task)
        ),
        seeded=True,
        after_scoring=reward_by_slot,
    )


@pytest.mark.bits
async def test_the_engine_samples_from_the_policy_that_the_trainer_holds_before_and_after_a_weight_sync(
    engine, checkpoint, task, folder
):
    trainer = Trainer(checkpoint, CONFIG, task=task)
    async with engine.client() as client:
        for step in range(2):
            native, per_sample = [(await rollout(task, client, arm, step)).rollout for arm in ("native", "per-sample")]
            apart = ["arm", "cached_tokens"]  # the two columns that an arm may change
            assert native.table.drop_columns(apart).equals(per_sample.table.drop_columns(apart))
            difference = trainer.train(native)["train/train_rollout_logprob_abs_diff"]
            assert difference < 1e-5
            trainer.save(folder / "trained")
            await client.update_weights(folder / "trained", f"step-{step}")
        in_step, stale = [
            trainer.train((await rollout(task, client, "native", step)).rollout)["train/train_rollout_logprob_abs_diff"]
            for step in (2, 3)  # the engine is not told of the weights that the first of them makes
        ]
        assert in_step < 1e-5
        assert stale > 1e-3
