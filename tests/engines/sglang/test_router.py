"""Two real SGLang servers behind the real router: fed weights together, asked in every arm, left by nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import psutil
import pytest
from real_engine import needs_sglang

from parity.engines import Fleet, open_engine
from parity.records.exchanges import output_id
from parity.records.samples import Sample
from parity.trainer.group_sender import SampleAdapter
from parity.trainer.policy import build_policy, policy_config, save_policy
from rollout_patch import ARMS, generate_group

pytestmark = needs_sglang
WORKERS = {"sglang-0", "sglang-1"}
LONG_CONTEXT = policy_config(max_position_embeddings=2048)
LONG = {"input_ids": [72, 101], "sampling_params": {"max_new_tokens": 900, "ignore_eos": True, "temperature": 1.0}}


def test_two_servers_are_one_engine(tmp_path: Path) -> None:
    pytest.importorskip("sglang_router", reason="needs the package sglang-router")
    first, second = (save_policy(build_policy(seed, LONG_CONTEXT), tmp_path / f"seed-{seed}") for seed in (1, 2))
    with open_engine("sglang", first, tmp_path / "logs", workers=2, router="round_robin") as fleet:
        assert isinstance(fleet, Fleet)
        processes = [psutil.Process(part.pid) for part in (*fleet.workers, fleet.router)]
        processes += [child for process in processes for child in process.children(recursive=True)]
        asyncio.run(_hold(fleet, second))
    assert not [process for process in processes if process.is_running()], "no process may be left behind"


async def _hold(fleet: Fleet, checkpoint: Path) -> None:
    async with fleet.client() as client:
        await client.update_weights(checkpoint, "step-1")
        for arm in ARMS:
            samples = [Sample(0, slot, rollout_id=0, prompt_ids=[72, 101], max_new_tokens=4) for slot in range(4)]
            report = await generate_group(
                arm,
                samples,
                adapter=SampleAdapter(),
                post=client.generate,
                capabilities=await client.capabilities(),
            )
            assert (report.arm_used, report.requests) == (arm, 4 if arm == "per-sample" else 1)
            served = Counter(client.served_by(output.id) for output in report.outputs)
            assert served == (dict.fromkeys(WORKERS, 2) if arm == "per-sample" else Counter({next(iter(served)): 4}))
            assert served.keys() <= WORKERS
            assert {output.weight_version for output in report.outputs} == {"step-1"}
        running = [asyncio.create_task(client.generate(LONG)) for _ in WORKERS]
        await asyncio.sleep(0.5)
        await client.abort_all()
        answers = await asyncio.gather(*running)
        assert {client.served_by(output_id(answer)) for answer in answers} == WORKERS
        assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} == {"abort"}
