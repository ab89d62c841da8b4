"""Permits: how many sequences may be in flight at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
        held = await self.take(count)
        try:
            yield held
        finally:
            self.give_back(held)

    async def take(self, count: int) -> int:
        """Takes permits for `count` sequences, all of them or, when cancelled, none; gives how many."""
        held = min(count, self.capacity)
        async with self._taking:
            taken = 0
            try:
                for taken in range(held):  # noqa: B007 (how many are held when it is cancelled)
                    await self._semaphore.acquire()
            except BaseException:
                self.give_back(taken)
                raise
        return held

    def give_back(self, held: int) -> None:
        """Gives back what `take` gave."""
        for _ in range(held):
            self._semaphore.release()
