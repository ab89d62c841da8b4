"""What the patch still holds of a rollout's tokens after each group is done, in bytes a token.

Runs groups of 8 through the plug-in's own path for a host, against answers of so many tokens a sample as the engine
sends them, keeps nothing of the samples, and measures the memory that is still in use after each size of rollout. The
slope over the tokens says what is kept. The package must be importable (`pip install -e .`).

    python benchmarks/patch_memory.py [--tokens 1024] [--groups 8 32]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tracemalloc
import types
from typing import Any

from rollout_patch import Capabilities
from rollout_patch.hosts.calls import RolloutCalls, Way
from rollout_patch.hosts.meeting import post_function, sample_function
from rollout_patch.hosts.options import Options

SAMPLES, PROMPT = 8, list(range(64))
LARGE = 33_000_000
"""Tokens of a large rollout: 512 prompts, 8 samples each, of 8 thousand tokens."""


def answer(rng: random.Random, tokens: int) -> list[dict[str, Any]]:
    """One group's answer."""
    items = []
    for _ in range(SAMPLES):
        ids = [rng.randrange(150_000) for _ in range(tokens)]
        meta = {
            "id": f"{rng.getrandbits(128):032x}",
            "finish_reason": {"type": "length", "length": tokens},
            "prompt_tokens": len(PROMPT),
            "completion_tokens": tokens,
            "weight_version": "default",
            "output_token_logprobs": [[-rng.random(), token, None] for token in ids],
        }
        items.append({"text": "word " * tokens, "output_ids": ids, "meta_info": meta})
    return items


def make_host(rng: random.Random, tokens: int) -> types.ModuleType:
    """A module of a host's shape, whose samples keep only how long they are."""
    host = types.ModuleType("host")

    async def post(url: str, payload: Any, max_retries: int = 1, headers: Any = None) -> Any:
        return answer(rng, tokens)

    async def generate_and_rm(state: Any, sample: Any, params: dict[str, Any]) -> Any:
        async with state.semaphore:
            payload = {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True}
            output = await host.post("http://engine/generate", payload)
            sample.response_length = len(output["output_ids"])
        return sample

    async def generate_and_rm_group(state: Any, group: list[Any], evaluation: bool = False) -> list[Any]:
        return list(await asyncio.gather(*(host.generate_and_rm(state, sample, {}) for sample in group)))

    host.post, host.generate_and_rm = post, generate_and_rm  # type: ignore[attr-defined]
    host.generate_and_rm_group = generate_and_rm_group  # type: ignore[attr-defined]
    return host


async def bytes_after(groups: int, tokens: int) -> int:
    """The bytes still in use after a rollout of so many groups, above those before it."""
    host = make_host(random.Random(0), tokens)

    async def get(url: str) -> Any:
        return {"workers": []} if url.endswith("/workers") else {"version": "0"}

    args = types.SimpleNamespace(sglang_router_ip="engine", sglang_router_port=80)
    calls = RolloutCalls(Options(), Capabilities(), rollout_id=0, seed=0)
    way = Way(lambda state: state, "semaphore", host.post, get, 1, lambda group: [], args)
    generate = calls.group_function(way, host.generate_and_rm_group)
    host.generate_and_rm, host.post = sample_function(host.generate_and_rm), post_function(host.post)  # type: ignore[attr-defined]
    state = types.SimpleNamespace(semaphore=asyncio.Semaphore(64), aborted=False)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(groups):
        group = [types.SimpleNamespace(group_index=number, response_length=0, reward=1.0) for _ in range(SAMPLES)]
        await generate(state, group)
    del group
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    if calls.metrics()["rollout_patch/native_groups"] != groups:
        raise SystemExit(f"not every group went native: {calls.metrics()}")
    calls.close()
    return after - before


def main() -> None:
    """Prints the bytes at both sizes, the slope, and what it comes to for a large rollout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens a sample")
    parser.add_argument("--groups", type=int, nargs=2, default=(8, 32), help="two sizes of rollout")
    options = parser.parse_args()
    tracemalloc.start()
    asyncio.run(bytes_after(1, options.tokens))  # what is made once a process
    sizes = {groups: asyncio.run(bytes_after(groups, options.tokens)) for groups in options.groups}
    for groups, kept in sizes.items():
        print(f"{groups * SAMPLES * options.tokens:>10,} tokens: {kept:>12,} bytes kept")
    few, many = options.groups
    slope = (sizes[many] - sizes[few]) / ((many - few) * SAMPLES * options.tokens)
    print(f"slope: {slope:.4f} bytes a token; {slope * LARGE / 1e6:,.1f} MB for {LARGE:,} tokens")


if __name__ == "__main__":
    main()
