"""What the tests of hosts share: the prompts, a clean end, samples as comparable rows, and what a queue aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

PROMPTS = ["one and one is", "two", "three times three"]
N = 4


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


def as_queued(item: dict[str, Any]) -> None:
    """Makes an aborted item one that the engine aborted in its queue, as SGLang answers it: without these fields."""
    item.update(text="", output_ids=[])
    meta = item["meta_info"]
    meta["finish_reason"]["message"] = "Abort in waiting queue"
    meta.update(completion_tokens=0, output_token_logprobs=[])
    for name in ("prompt_tokens", "cached_tokens"):
        del meta[name]
