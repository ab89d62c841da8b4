"""One step's rollout through each arm, against an engine that answers from the seed alone."""

import asyncio
import random

import pytest
from arm_paths import one_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import UsageError
from parity.records.samples import SAMPLE_FIELDS, Rollout
from parity.records.training_config import TrainingConfig
from parity.trainer.policy import VOCABULARY, build_tokenizer
from parity.trainer.rollouts import generate_rollout, sampling_seed_base
from parity.trainer.tasks import Arithmetic
from rollout_patch import ARMS, Capabilities, RequestFailed

TASK, TOKENIZER = Arithmetic(), build_tokenizer()
CONFIG = TrainingConfig(groups_per_step=3, group_size=4)
EOS_ID = VOCABULARY["<eos>"]


def answer(prompt_ids, params, seed):
    """The right answer or a wrong one, drawn from prompt and seed."""
    prompt = TOKENIZER.decode(prompt_ids)
    drawn = random.Random(f"{prompt}/{seed}")
    total = sum(int(term) for term in prompt.removesuffix("=").split("+"))
    text = str(total) if drawn.random() < 0.5 else "1" * drawn.randint(1, 12)
    ids = [*TOKENIZER.encode(text), EOS_ID][: params["max_new_tokens"]]
    stopped = ids[-1] == EOS_ID
    meta = {
        "id": f"{drawn.getrandbits(64):x}",
        "finish_reason": {"type": "stop", "matched": EOS_ID} if stopped else {"type": "length", "length": len(ids)},
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_version": "v7",
        "output_token_logprobs": [[-0.01 * token, token, None] for token in ids],
    }
    return {"text": TOKENIZER.decode(ids, skip_special_tokens=True), "output_ids": ids, "meta_info": meta}


class Engine:
    """Answers as SGLang does, seeds per slot, and counts how many requests are open at once."""

    def __init__(self):
        self.requests, self.open, self.most_open, self.cancelled = 0, 0, 0, 0

    async def __call__(self, payload, headers):
        self.requests += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(0.001 * (self.requests % 3))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.open -= 1
        ids, params = payload["input_ids"], payload["sampling_params"]
        if isinstance(ids[0], list):
            every = params if isinstance(params, list) else [params] * len(ids)
            return [answer(i, p, p["sampling_seed"]) for i, p in zip(ids, every, strict=True)]
        n = params.get("n", 1)
        outputs = [answer(ids, params, params["sampling_seed"] + slot) for slot in range(n)]
        return outputs if n > 1 else outputs[0]


async def rollout(arm="per-sample", engine=None, **changes):
    arguments = {
        "task": TASK,
        "tokenizer": TOKENIZER,
        "config": CONFIG,
        "step": 5,
        "seed": 1,
        "arm": arm,
        "paths": one_engine(engine or Engine(), Capabilities(seeded=True, seed_per_slot=True)),
        "seeded": True,
    }
    return await generate_rollout(**(arguments | changes))


async def test_every_arm_brings_the_same_samples_by_its_own_number_of_requests():
    results = {arm: await rollout(arm) for arm in ARMS}
    assert {arm: len(result.exchanges) for arm, result in results.items()} == {
        "per-sample": 12,
        "batched": 3,
        "native": 3,
    }
    tables = [result.rollout.table.drop_columns(["arm"]) for result in results.values()]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    for arm, result in results.items():
        assert {report.arm_used for report in result.reports} == set(result.rollout.strings("arm")) == {arm}


async def test_samples_are_filled_in_whole_and_in_order():
    result = await rollout()
    samples = list(result.rollout.samples())
    assert [(sample.group_index, sample.index) for sample in samples] == [(g, i) for g in range(3) for i in range(4)]
    unknown = {name for sample in samples for name in SAMPLE_FIELDS if getattr(sample, name) is None}
    assert unknown == {"media_sha256"}
    prompts = TASK.prompts(1, 5, 3)
    for sample in samples:
        assert sample.extra == {"prompt": prompts[sample.group_index]}
        assert TOKENIZER.decode(sample.prompt_ids) == prompts[sample.group_index]
        assert sample.reward == TASK.reward(prompts[sample.group_index], sample.text)
        assert sample.status == {"stop": "completed", "length": "truncated"}[sample.finish_reason]
        assert sample.response_length == len(sample.output_ids) == len(sample.logprobs) == len(sample.loss_mask)
        assert (sample.rollout_id, sample.weight_versions, sample.engine_id) == (5, ["v7"], "engine-0")
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}
    assert sum(sample.advantage for sample in samples) == pytest.approx(0, abs=1e-9)


async def test_exchanges_say_whose_they_are():
    result = await rollout("native")
    assert [(e.rollout_id, e.group_index, e.engine_id, e.status) for e in result.exchanges] == [
        (5, group, "engine-0", 200) for group in range(3)
    ]


async def test_groups_are_asked_for_at_the_same_time():
    engine = Engine()
    await rollout("native", engine)
    assert engine.most_open == 3


async def test_another_step_or_seed_asks_other_prompts_with_other_seeds():
    results = [await rollout(), await rollout(step=6), await rollout(seed=2)]
    seeds = [set(result.rollout.integers("sampling_seed")) for result in results]
    assert len(set.union(*seeds)) == 36
    assert len({tuple(result.rollout.extra(row)["prompt"] for row in (0, 4, 8)) for result in results}) == 3


async def test_without_seeding_no_seed_is_sent():
    async def post(payload, headers):
        assert "sampling_seed" not in payload["sampling_params"]
        ids, params = payload["input_ids"], payload["sampling_params"]
        return [answer(ids, params, slot) for slot in range(params["n"])]

    result = await rollout("native", post, seeded=False)
    assert not result.rollout.has("sampling_seed")


async def test_what_is_done_after_scoring_shows_in_advantages_but_not_in_rewards():
    def exchange_texts(step, samples):
        assert step == 5
        assert all(sample.reward is not None and sample.advantage is None for sample in samples)
        samples[0].reward = 100.0

    changed = await rollout(after_scoring=exchange_texts)
    rewards, _ = changed.rollout.numbers("reward")
    advantages, _ = changed.rollout.numbers("advantage")
    assert rewards[0] == 100
    assert advantages[0] == pytest.approx(1.5, abs=0.01)  # (n - 1) / sqrt(n), the most that one of four can have


async def test_one_group_that_fails_ends_the_rollout_and_cancels_the_others():
    engine = Engine()
    bad = TOKENIZER.encode(TASK.prompts(1, 5, 3)[1])

    async def post(payload, headers):
        if payload["input_ids"] == bad:
            raise RequestFailed(503, "overloaded")
        await asyncio.sleep(0.001)
        return await engine({**payload, "sampling_params": payload["sampling_params"]}, headers)

    with pytest.raises(RequestFailed, match="503"):
        await rollout("native", post)
    assert engine.open == 0
    assert len([task for task in asyncio.all_tasks() if task is not asyncio.current_task()]) == 0


async def test_an_aborted_response_is_kept_and_not_trained_on():
    async def post(payload, headers):
        outputs = [answer(payload["input_ids"], payload["sampling_params"], slot) for slot in range(4)]
        outputs[2]["meta_info"]["finish_reason"] = {"type": "abort", "message": "Abort in waiting queue"}
        return outputs

    result = await rollout("native", post, seeded=False)
    aborted = [sample for sample in result.rollout.samples() if sample.status == "aborted"]
    assert [sample.index for sample in aborted] == [2, 2, 2]
    assert all(set(sample.loss_mask) == {0} and sample.reward is not None for sample in aborted)


@settings(derandomize=True)
@given(st.integers(0, 10**9), st.integers(0, 1000))
def test_sampling_seeds_of_neighbours_never_meet_and_fit_in_31_bits(seed, step):
    bases = [sampling_seed_base(CONFIG, seed, s, g) for s in (step, step + 1) for g in range(3)]
    seeds = [base + slot for base in bases for slot in range(4)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0 and max(seeds) < 2**31


def test_a_run_too_long_for_distinct_seeds_is_refused():
    with pytest.raises(UsageError, match="sampling seeds"):
        sampling_seed_base(CONFIG, 0, 2**30, 0)


async def test_a_rollout_survives_its_parquet_columns():
    result = await rollout()
    rebuilt = Rollout.from_samples(result.rollout.samples())
    assert rebuilt.table.equals(result.rollout.table)
