"""The number of sequences in flight stays within the host's permits, whatever is asked for at once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_patch import Permits


async def take_all(permits: Permits, capacity: int) -> None:
    async with permits.hold(capacity) as held:
        assert held == capacity


async def test_a_request_for_more_than_there_are_takes_them_all() -> None:
    semaphore = asyncio.Semaphore(3)
    async with Permits(semaphore, 3).hold(8) as held:
        assert (held, semaphore.locked()) == (3, True)
    assert not semaphore.locked()


async def test_cancellation_while_waiting_gives_back_what_was_taken() -> None:
    semaphore = asyncio.Semaphore(3)
    permits = Permits(semaphore, 3)
    await semaphore.acquire()

    async def wait() -> None:
        async with permits.hold(3):
            raise AssertionError("two permits are not three")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    semaphore.release()
    await asyncio.wait_for(take_all(permits, 3), timeout=10)


def test_no_permits_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        Permits(asyncio.Semaphore(0), 0)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 5),
    counts=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    singles=st.integers(0, 6),
    cancelled=st.sets(st.integers(0, 7)),
)
def test_any_mix_of_requests_ends_and_never_exceeds_the_capacity(
    capacity: int, counts: list[int], singles: int, cancelled: set[int]
) -> None:
    async def run() -> None:
        semaphore = asyncio.Semaphore(capacity)
        permits = Permits(semaphore, capacity)
        in_flight, most = 0, 0

        async def work(held: int) -> None:
            nonlocal in_flight, most
            in_flight += held
            most = max(most, in_flight)
            try:
                await asyncio.sleep(0)
            finally:
                in_flight -= held

        async def many(count: int) -> None:
            async with permits.hold(count) as held:
                await work(held)

        async def single() -> None:
            async with semaphore:
                await work(1)

        tasks = [asyncio.create_task(many(count)) for count in counts]
        tasks += [asyncio.create_task(single()) for _ in range(singles)]
        await asyncio.sleep(0)
        for number in cancelled & set(range(len(counts))):
            tasks[number].cancel()
        done, pending = await asyncio.wait(tasks, timeout=10)
        assert not pending
        assert most <= capacity
        assert all(task.cancelled() or task.exception() is None for task in done)
        assert not semaphore.locked()
        await asyncio.wait_for(take_all(permits, capacity), timeout=10)

    asyncio.run(run())
