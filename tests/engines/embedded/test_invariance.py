"""A seeded response depends on prompt, weights, seed and parameters alone; and log-probs are those of the model."""

import asyncio
import random

import numpy as np
import pytest
import torch
from answers import everything_at_once, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from parity.engines.embedded.model import Model
from parity.engines.embedded.sampling import LOGPROB_GRID

PARAMS = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(1, 24), "temperature": st.sampled_from([0, 0.3, 1.0, 2.5])},
    optional={
        "top_k": st.integers(1, 30),
        "top_p": st.floats(0.2, 1.0),
        "min_p": st.floats(0.0, 0.3),
        "stop_token_ids": st.lists(st.integers(0, 255), max_size=40),
        "ignore_eos": st.booleans(),
    },
)
PROMPTS = st.lists(st.integers(0, 255), min_size=1, max_size=40)


@pytest.mark.bits
@settings(derandomize=True, max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROMPTS, PARAMS, st.integers(-(2**40), 2**40), st.randoms(use_true_random=False))
def test_a_seeded_response_is_the_same_alone_batched_native_and_amid_traffic(
    engine_url, ask, prompt, params, seed, rng
):
    def body(ids, sampling):
        return {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}

    assert ask(engine_url, "/flush_cache?timeout=20", {})[0] == 200
    each = [params | {"sampling_seed": seed + slot} for slot in range(4)]
    alone = [outcome(ask(engine_url, "/generate", body(prompt, one))[1]) for one in each]
    traffic = [
        body([rng.randrange(256) for _ in range(rng.randrange(1, 60))], {"max_new_tokens": rng.randrange(40), "n": 3})
        for _ in range(4)
    ]
    native = body(prompt, params | {"sampling_seed": seed, "n": 4})
    batched = body([prompt] * 4, each)
    longer = [*prompt, 7, 8]
    singles = [body(prompt, one) for one in each]
    # With the prefix cached, amid other prompts; then without it, in another order.
    sent = [native, batched, *singles, *traffic, body(longer, {"max_new_tokens": 2})]
    for _ in range(2):
        order = list(range(len(sent)))
        rng.shuffle(order)
        answers = asyncio.run(everything_at_once(engine_url, [sent[place] for place in order]))
        got = dict(zip(order, answers, strict=True))
        assert [outcome(item) for item in got[0]] == alone
        assert [outcome(item) for item in got[1]] == alone
        assert [outcome(got[place]) for place in range(2, 6)] == alone
        assert ask(engine_url, "/flush_cache?timeout=20", {})[0] == 200


@pytest.mark.bits
def test_the_shape_of_the_batch_moves_logits_by_rounding_of_float64_alone(tiny_checkpoint):
    model = Model(tiny_checkpoint)
    ids = torch.randint(0, 256, (33, 40), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(40).expand(33, -1)

    def whole(rows):
        return model.logits(model.forward(ids[:rows], positions[:rows], model.new_slab(rows, 40))[0])

    def stepwise(rows):
        slab = model.new_slab(rows, 64)
        steps = [model.forward(ids[:rows, step, None], positions[:rows, step, None], slab)[0] for step in range(40)]
        return model.logits(torch.cat(steps))

    alone = whole(1)
    assert np.abs(alone).max() > 1
    for rows in (1, 2, 7, 32, 33):
        assert np.abs(whole(rows) - alone).max() < 1e-10
        assert np.abs(stepwise(rows) - alone).max() < 1e-10


def test_samples_of_one_request_differ_and_unseeded_ones_do_not_repeat(engine_url, ask):
    def ids(params):
        body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 24, "ignore_eos": True, "n": 6} | params}
        return [tuple(item["output_ids"]) for item in ask(engine_url, "/generate", body)[1]]

    assert len(set(ids({"temperature": 1.5, "sampling_seed": 1}))) == 6
    assert len({*ids({"temperature": 1.5}), *ids({"temperature": 1.5})}) == 12
    assert len(set(ids({"temperature": 0}))) == 1


@pytest.fixture(scope="module")
def reference(tiny_checkpoint):
    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint, attn_implementation="eager").float().eval()


def test_logprobs_are_those_of_transformers_at_the_temperature(engine_url, ask, reference):
    rng = random.Random(3)
    prompts = [[rng.randrange(256) for _ in range(length)] for length in (1, 2, 17, 64, 65, 130)]
    # Shared prefixes, sequences that end at different times, and more than may run at once.
    prompts += [prompts[5][:100], prompts[5] + [9, 9], prompts[3] * 3]
    temperature = [0.5 + 0.25 * (place % 3) for place in range(len(prompts))]
    params = [{"max_new_tokens": rng.randrange(3, 90), "temperature": one, "ignore_eos": True} for one in temperature]
    bodies = [
        {"input_ids": prompts, "sampling_params": params, "return_logprob": True, "logprob_start_len": start}
        for start in (0, -1)
    ]
    for answers in asyncio.run(everything_at_once(engine_url, bodies)):
        for prompt, heat, item in zip(prompts, temperature, answers, strict=True):
            with torch.inference_mode():
                logits = reference(torch.tensor([prompt + item["output_ids"]])).logits[0, :-1].double()
            meta = item["meta_info"]
            values, ids, _ = zip(*meta["output_token_logprobs"], strict=True)
            want = torch.log_softmax(logits[len(prompt) - 1 :] / heat, -1)[torch.arange(len(ids)), list(ids)]
            # float32 against float64 through two layers, and the grid.
            assert torch.allclose(torch.tensor(values, dtype=torch.float64), want, atol=2e-4)
            scored = [value for value, _, _ in meta["input_token_logprobs"]]
            if scored:
                assert scored[0] is None
                want = torch.log_softmax(logits[: len(prompt) - 1], -1)[torch.arange(len(prompt) - 1), prompt[1:]]
                assert torch.allclose(torch.tensor(scored[1:], dtype=torch.float64), want, atol=2e-4)
            assert all(value / LOGPROB_GRID == round(value / LOGPROB_GRID) for value in values)


@pytest.mark.bits
def test_an_aborted_sequence_resumed_with_its_seed_goes_on_as_if_it_had_not_been_aborted(engine_url, ask):
    params = {"max_new_tokens": 30, "sampling_seed": 11, "ignore_eos": True}
    whole = ask(engine_url, "/generate", {"input_ids": [5, 6, 7], "sampling_params": params})[1]["output_ids"]
    rest = params | {"max_new_tokens": 18}
    resumed = ask(engine_url, "/generate", {"input_ids": [5, 6, 7, *whole[:12]], "sampling_params": rest})[1]
    assert resumed["output_ids"] == whole[12:]
