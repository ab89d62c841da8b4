"""What the tests of slime and Miles share: the prompts, a clean end, and samples as comparable rows."""

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
