"""The samples of a group wait for one another at the host's `post`, and for nobody who will not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from rollout_patch import PatchError, RequestAborted, RequestFailed, ResponseRefused, UnsupportedHost
from rollout_patch.hosts import meeting as meeting_module
from rollout_patch.hosts.calls import _sender
from rollout_patch.hosts.meeting import (
    Asked,
    Meeting,
    RolloutEnded,
    SharedSemaphore,
    errors_as_raised,
    once_a_group,
    post_function,
    sample_function,
)

N = 3


class Host:
    """A host whose samples do before, at and after `post` what a test says."""

    def __init__(self, before: Callable[[Any], Awaitable[bool]], times: int = 1) -> None:
        self.alone: list[Any] = []

        async def stock_post(url: str, payload: Any, headers: Any = None) -> Any:
            self.alone.append(payload)
            return payload

        async def generate_and_rm(args: Any, sample: Any) -> Any:
            if await before(sample):
                for _ in range(times):
                    sample.answers.append(await self.post("http://engine/generate", sample.slot))
            return sample

        self.post = post_function(stock_post)
        self.generate_and_rm = sample_function(generate_and_rm)
        self.group = [SimpleNamespace(slot=slot, answers=[]) for slot in range(N)]

    async def generate_group(self) -> list[Any]:
        return list(await asyncio.gather(*(self.generate_and_rm(None, sample) for sample in self.group)))


async def comes(sample: Any) -> bool:
    for _ in range(sample.slot):
        await asyncio.sleep(0)
    return True


def meet(host: Host, generate: Any, together: bool = True) -> tuple[Meeting, Any]:
    meeting = Meeting(host.group, together, True, generate)
    return meeting, meeting.run(host.generate_group())


def answering(asked_for: list[list[int]]) -> Any:
    async def generate(asked: Mapping[int, Asked], permits: Any) -> Mapping[int, Any]:
        asked_for.append(list(asked))
        await asyncio.sleep(0)
        return {slot: f"answer {one.payload}" for slot, one in asked.items()}

    return generate


@pytest.mark.parametrize(("together", "expected"), [(True, [[0, 1, 2]]), (False, [[0], [1], [2]])])
async def test_each_sample_gets_its_own_answer(together: bool, expected: list[list[int]]) -> None:
    host, asked_for = Host(comes), []
    _, run = meet(host, answering(asked_for), together)
    assert [sample.answers for sample in await run] == [["answer 0"], ["answer 1"], ["answer 2"]]
    assert (asked_for, host.alone) == (expected, [])


async def test_who_ends_without_a_request_is_not_waited_for() -> None:
    async def all_but_the_first(sample: Any) -> bool:
        await asyncio.sleep(0)
        return bool(sample.slot)

    host, asked_for = Host(all_but_the_first), []
    _, run = meet(host, answering(asked_for))
    assert [sample.answers for sample in await run] == [[], ["answer 1"], ["answer 2"]]
    assert asked_for == [[1, 2]]


async def test_a_second_request_of_a_sample_goes_out_by_itself() -> None:
    host, asked_for = Host(comes, times=2), []
    _, run = meet(host, answering(asked_for))
    assert [sample.answers[1] for sample in await run] == [0, 1, 2]
    assert (asked_for, sorted(host.alone)) == ([[0, 1, 2]], [0, 1, 2])


async def test_other_requests_and_other_groups_are_the_hosts_own() -> None:
    host = Host(comes)
    assert await host.post("http://engine/generate", "outside") == "outside"
    assert await host.generate_and_rm(None, host.group[0]) is host.group[0]
    assert host.alone == ["outside", 0]


class HTTPError(Exception):
    """As a host's client raises it."""


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ResponseRefused("planted"), ResponseRefused),
        (UnsupportedHost("planted"), UnsupportedHost),
        (ZeroDivisionError("planted"), PatchError),
        (RequestFailed(502, "planted"), HTTPError),
    ],
)
async def test_an_error_of_the_plug_in_is_no_exception_to_the_hosts_code(
    error: Exception, raised: type[Exception]
) -> None:
    """Only a request that failed is the host's own exception, which it may handle as it does."""

    async def generate(asked: Any, permits: Any) -> Any:
        raise error from HTTPError("502")

    caught: list[type[BaseException]] = []
    host = Host(comes)

    async def with_a_loop_that_goes_on() -> None:
        try:
            await meet(host, generate)[1]
        except Exception as own:
            caught.append(type(own))

    if raised is HTTPError:
        await with_a_loop_that_goes_on()
        assert caught == [HTTPError]
        return
    with pytest.raises(raised, match="planted"), errors_as_raised():
        await with_a_loop_that_goes_on()
    assert caught == []
    assert not issubclass(RolloutEnded, Exception)


async def test_a_sibling_that_never_comes_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def the_last_never(sample: Any) -> bool:
        if sample.slot == N - 1:
            await asyncio.Event().wait()
        return True

    monkeypatch.setattr(meeting_module, "PATIENCE", 0.01)
    with pytest.raises(UnsupportedHost, match="2 of a group's 3 samples"), errors_as_raised():
        await meet(Host(the_last_never), answering([]))[1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("capacity", [1, 2, 3, 8])
async def test_a_group_holds_a_permit_a_sample_or_all_there_are(capacity: int) -> None:
    stock = asyncio.Semaphore(capacity)
    semaphore = SharedSemaphore(stock)
    free: list[int] = []

    async def generate(asked: Mapping[int, Asked], permits: Any) -> Mapping[int, Any]:
        free.append(stock._value)
        assert (permits is None) is (capacity >= N)
        return dict.fromkeys(asked)

    host = Host(comes)
    stock_sample = host.generate_and_rm

    async def generate_and_rm(args: Any, sample: Any) -> Any:
        async with semaphore:
            return await stock_sample.__wrapped__(args, sample)  # type: ignore[attr-defined]

    host.generate_and_rm = sample_function(generate_and_rm)
    await meet(host, generate)[1]
    assert (free, stock._value) == ([max(0, capacity - N)], capacity)
    async with semaphore:
        assert stock._value == capacity - 1


async def test_work_that_is_the_same_for_all_is_done_once_a_group() -> None:
    done: list[Any] = []

    async def encode(image: str) -> str:
        done.append(image)
        await asyncio.sleep(0)
        return image.upper()

    def encode_at_once(image: str) -> str:
        done.append(image)
        return image.upper()

    shared, at_once = once_a_group(encode, str), once_a_group(encode_at_once, str)

    async def encodes(sample: Any) -> bool:
        sample.answers += [await shared("a"), at_once("b")]
        return False

    host = Host(encodes)
    await meet(host, answering([]))[1]
    assert [sample.answers for sample in host.group] == [["A", "B"]] * N
    assert done == ["a", "b"]
    assert (await shared("a"), at_once("b"), done) == ("A", "B", ["a", "b", "a", "b"])


class GenerationAborted(Exception):
    """As a newer Relax raises it from `post`."""


async def test_the_hosts_own_abort_is_no_failed_request() -> None:
    async def post(url: str, payload: Any, max_retries: int, headers: Any) -> Any:
        raise GenerationAborted("planted")

    with pytest.raises(RequestAborted):
        await _sender(post, "http://engine/generate")({}, {})
