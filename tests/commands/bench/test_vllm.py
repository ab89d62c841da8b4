"""A benchmark in vLLM's dialect: the same work in every mode, counted from vLLM's answers and counters."""

from __future__ import annotations

import asyncio

import numpy as np
from served import serve_here

from parity.commands.bench.loads import read_counters
from parity.commands.bench.measuring import measure
from parity.commands.bench.prompts import Vocabulary, requests
from parity.engines.vllm import VllmClient
from parity.evidence.cost.benchmark import defects
from parity.records.bench import Load, Workload, parse_mode
from parity.trainer.policy import build_policy, policy_config, save_policy

WORK = Workload(groups=3, group_size=4, prompt_tokens=12, new_tokens=5)
METRICS = """\
# TYPE vllm:request_params_n histogram
vllm:request_params_n_bucket{engine="0",le="+Inf",model_name="m"} 7.0
vllm:request_params_n_count{engine="0",model_name="m"} 7.0
vllm:request_params_n_sum{engine="0",model_name="m"} 28.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 448.0
"""


def test_every_mode_asks_for_the_same_work(tmp_path):
    policy = save_policy(build_policy(0), tmp_path / "policy")
    vocabulary = Vocabulary(policy_config().vocab_size)

    async def measured(url, mode):
        async with VllmClient(url, "e0") as client:
            return await measure(client, parse_mode(mode), requests(WORK, vocabulary, np.random.default_rng(0)), WORK)

    with serve_here(policy, max_running=16, dialect="vllm") as (url, _):
        for mode, sent in (("per-sample", 12), ("batched", 3), ("native", 3), ("chunk=2", 6)):
            found = asyncio.run(measured(url, mode))
            assert (found.failure, found.requests) == (None, sent)
            assert (found.samples, found.output_tokens, found.at_cap, found.prompt_tokens) == (12, 60, 12, 144)
            assert defects(WORK, [found]) == ()
            assert (found.cached_tokens is None) == (mode != "per-sample"), "of several samples it counts one"


def test_requests_and_decode_tokens_are_read_off_its_counters():
    assert read_counters(METRICS, "vllm-0") == {"vllm-0": Load(7, 448)}
