"""Permits: how many sequences may be in flight at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager


class Permits:
    """A host's semaphore, of which a request for n samples takes n.

    The host's own requests may use the same semaphore, one permit each. Only one request at a time is in the middle of
    taking several, so that two that each hold a part can never wait for one another; one that asks for more than there
    are takes them all.
    """

    def __init__(self, semaphore: asyncio.Semaphore, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; with no permit nothing can be sent")
        self.capacity = capacity
        self._semaphore = semaphore
        self._taking = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[int]:
        """Holds permits for `count` sequences, and gives how many: `count`, or the capacity if that is less."""
        held = min(count, self.capacity)
        async with AsyncExitStack() as stack:
            async with self._taking:
                for _ in range(held):
                    await stack.enter_async_context(self._semaphore)
            yield held
