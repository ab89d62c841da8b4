"""An engine scores given tokens as it drew them, in the dialects of SGLang and of vLLM alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from served import serve_here

from parity.commands.sample.scoring import rescore
from parity.engines.client import EngineClient
from parity.engines.vllm import VllmClient
from parity.records.samples import Rollout, Sample
from parity.stats import Rescored
from rollout_patch import Permits, RequestFailed

PROMPT = [5, 6, 7, 8]


async def drawn_and_scored(url: str, speaks: type[EngineClient]) -> Rescored:
    async with EngineClient(url, "engine") as client, speaks(url, "engine") as scorer:
        params = {"max_new_tokens": 6, "temperature": 1.0, "n": 3}
        answer = await client.generate({"input_ids": PROMPT, "sampling_params": params, "return_logprob": True})
        samples = [sample_of(slot, item) for slot, item in enumerate(answer)]
        permits = Permits(asyncio.Semaphore(16), 16)
        scored = await rescore(scorer, permits, Rollout.from_samples(samples), 1)
        broken = Rollout.from_samples([Sample(0, 0, prompt_ids=PROMPT, output_ids=[10_000], logprobs=[-1.0])])
        with pytest.raises(RequestFailed, match="400"):
            await rescore(scorer, permits, broken, 1)
    return scored


def sample_of(slot: int, item: Any) -> Sample:
    triples = item["meta_info"]["output_token_logprobs"]
    return Sample(
        0, slot, prompt_ids=PROMPT, output_ids=[row[1] for row in triples], logprobs=[row[0] for row in triples]
    )


@pytest.mark.parametrize("speaks", [EngineClient, VllmClient])
def test_tokens_are_scored_as_they_were_drawn(speaks: type[EngineClient], policy_cache: Path) -> None:
    (policy,) = (path.parent for path in policy_cache.rglob("config.json"))
    torch.set_num_threads(1)
    with serve_here(policy, max_running=16) as (url, _):
        scored = asyncio.run(drawn_and_scored(url, speaks))
    assert [len(values) for values in scored.recorded] == [sum(scored.lengths[0])]
    assert np.array_equal(scored.recorded[0], scored.prefilled[0])
