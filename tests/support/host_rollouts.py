"""What the tests of hosts share: prompts and arguments, a clean end, samples as rows, and what a queue aborted."""

from __future__ import annotations

import asyncio
import random
from array import array
from base64 import b64encode
from collections.abc import Collection
from pathlib import Path
from typing import Any

PROMPTS = ["one and one is", "two", "three times three"]
N = 4


def common_arguments(port: int, tokenizer: Path) -> dict[str, Any]:
    """The arguments that slime, Miles and Relax share, of a small rollout on an engine at a port."""
    return dict(
        sglang_router_ip="127.0.0.1",
        sglang_router_port=port,
        sglang_server_concurrency=32,
        sglang_dp_size=1,
        use_distributed_post=False,
        hf_checkpoint=str(tokenizer),
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=8,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_skip_special_tokens=True,
        rollout_seed=11,
        n_samples_per_prompt=N,
        rollout_batch_size=len(PROMPTS),
        over_sampling_batch_size=len(PROMPTS),
        rollout_global_dataset=True,
        ci_test=False,
        partial_rollout=False,
        mask_offpolicy_in_partial_rollout=False,
        custom_generate_function_path=None,
        custom_rm_path="host_test_reward.reward",
        use_rollout_routing_replay=False,
        dynamic_sampling_filter_path=None,
    )


async def settle(client: Any) -> None:
    """Ends what a failed rollout left running, and closes the client."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await client.aclose()


def rows_without(names: Collection[str], output: Any) -> list[dict[str, Any]]:
    """Every sample of a rollout, group after group, without the fields named."""
    return [
        {name: value for name, value in sample.to_dict().items() if name not in names}
        for group in output.samples
        for sample in group
    ]


REPLAY = {"use_rollout_routing_replay": True, "num_layers": 2, "moe_router_topk": 2}
"""Arguments of a host that replays the experts of a model of two layers."""


def routed_experts(prompt_length: int, ids: list[int]) -> str:
    """Experts of a response, drawn by its ids, as the engine sends them: for each token but the last, of each layer."""
    drawn = random.Random(str(ids)).choices(range(8), k=(prompt_length + len(ids) - 1) * 2 * 2)
    return b64encode(array("i", drawn).tobytes()).decode()


def routed(output: Any) -> list[Any]:
    """The experts that the samples of a rollout hold, by index."""
    samples = sorted((sample for group in output.samples for sample in group), key=lambda sample: sample.index)
    return [sample.rollout_routed_experts.tolist() for sample in samples]


def as_queued(item: dict[str, Any]) -> None:
    """Makes an aborted item one that the engine aborted in its queue, as SGLang answers it: without these fields."""
    item.update(text="", output_ids=[])
    meta = item["meta_info"]
    meta["finish_reason"]["message"] = "Abort in waiting queue"
    meta.update(completion_tokens=0, output_token_logprobs=[])
    for name in ("prompt_tokens", "cached_tokens"):
        del meta[name]
