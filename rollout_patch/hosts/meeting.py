"""The samples of one group meet where their host sends them.

The host's own code runs unchanged, from the group's first line to its rewards. Each of its samples comes to the
module's `post` with its own payload, and waits there. Once every sample that will come is there, the group is asked
for together, and each sample gets its own item of the answer, as if it had asked for it alone.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any

from rollout_patch.errors import PatchError, RequestFailed, UnsupportedHost
from rollout_patch.logs import log_seldom
from rollout_patch.permits import Permits

PATIENCE = 600.0
"""Seconds that a sample waits for its siblings, which hold their permits too and have only media to process."""


class RolloutEnded(BaseException):
    """Carries an error of the plug-in out of a rollout; no `except Exception` of the host's may turn it into a retry.

    Attributes:
        error: The error itself.
    """

    def __init__(self, error: PatchError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def errors_as_raised() -> Iterator[None]:
    """Lets an error of the plug-in leave the block as itself; inside it travels as `RolloutEnded`."""
    try:
        yield
    except RolloutEnded as ended:
        raise ended.error from ended.error.__cause__


@dataclass(frozen=True, slots=True)
class Asked:
    """What one sample's host code hands to `post`."""

    url: str
    payload: Mapping[str, Any]
    headers: Mapping[str, str]


Generate = Callable[[Mapping[int, Asked], Permits | None], Awaitable[Mapping[int, Any]]]
"""Asks the engine for samples by slot, with no more than the permits given in flight; gives each one's answer."""


class Meeting:
    """One group of a host on its way through the host's code.

    Args:
        group: The samples, in slot order.
        together: Whether they are asked for at once. Otherwise each is as it comes, by the host's own permits.
        trained: Whether these are the host's own samples, or copies that are only compared.
        generate: Asks the engine.
    """

    def __init__(self, group: Sequence[Any], together: bool, trained: bool, generate: Generate) -> None:
        self.together = together
        self.trained = trained
        self.answered: set[int] = set()
        self.met: set[int] = set()
        self.notes: list[str] = []
        self._slots = {id(sample): slot for slot, sample in enumerate(group)}
        self._generate = generate
        self._coming = set(range(len(group)))
        self._waiting: dict[int, tuple[Asked, asyncio.Future[Any]]] = {}
        self._work: set[asyncio.Future[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._seated: set[asyncio.Task[Any]] = set()
        self._holding: asyncio.Task[int] | None = None
        self._inside = 0
        self._permits: Permits | None = None
        self.known: dict[Any, Any] = {}

    async def run(self, group_code: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        """Runs the host's code for the group; whatever happens, nothing of the group runs on afterwards."""
        token = _MEETING.set(self)
        try:
            return list(await group_code)
        finally:
            _MEETING.reset(token)
            self._let_go()
            if self._timer is not None:
                self._timer.cancel()
            own = asyncio.current_task()
            left = [task for task in (*self._seated, *self._work) if not task.done() and task is not own]
            for task in left:
                task.cancel()
            if left:  # else the group returns in the very step in which its last sample is done, as in stock
                await asyncio.gather(*left, return_exceptions=True)

    @contextmanager
    def seat(self, sample: Any) -> Iterator[None]:
        """Holds the sample's place while the host's code for this one sample runs in the block."""
        slot = self._slots.get(id(sample))
        if slot is None or _SLOT.get() is not None:
            yield
            return
        token = _SLOT.set(slot)
        if (task := asyncio.current_task()) is not None:
            self._seated.add(task)
        try:
            yield
        finally:
            _SLOT.reset(token)
            self._coming.discard(slot)
            self._send_if_all_are_there()
            self._let_go_after_the_last()

    async def ask(self, slot: int, asked: Asked) -> Any:
        """The answer to one sample's request."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.met.add(slot)
        self._coming.discard(slot)
        self._waiting[slot] = (asked, future)
        if self._timer is None:
            # in a context of its own: the loop keeps that of a cancelled timer, and by this one's all of the group
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._give_up, context=Context())
        if self.together:
            self._send_if_all_are_there()
        else:
            self._send([slot])
        answer = await future
        self.answered.add(slot)
        return answer

    def _send_if_all_are_there(self) -> None:
        alive = sorted(slot for slot, (_, future) in self._waiting.items() if not future.done())
        if self.together and alive and not self._coming:
            self._send(alive)

    def _send(self, slots: list[int]) -> None:
        waiting = {slot: self._waiting.pop(slot) for slot in slots}
        self._work.add(asyncio.ensure_future(self._answer(waiting)))

    async def _answer(self, waiting: Mapping[int, tuple[Asked, asyncio.Future[Any]]]) -> None:
        try:
            permits = None
            if self._holding is not None and (held := self._holding.result()) < len(waiting):
                permits = Permits(asyncio.Semaphore(held), held)
            answers = await self._generate({slot: asked for slot, (asked, _) in waiting.items()}, permits)
        except RequestFailed as failure:
            log_seldom(f"a request for {len(waiting)} samples failed: {failure}", key=("failed", failure.status))
            error = failure.__cause__ or failure
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(str(failure))
            self._fail(waiting, error)
        except PatchError as error:
            self._fail(waiting, RolloutEnded(error))
        except Exception as error:
            failed = PatchError(f"the plug-in failed: {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._fail(waiting, RolloutEnded(failed))
        else:
            for slot, (_, future) in waiting.items():
                if not future.done():
                    future.set_result(answers[slot])

    def _give_up(self) -> None:
        if self._waiting:
            what = f"{len(self._waiting)} of a group's {len(self._slots)} samples came to the host's post"
            error = UnsupportedHost(f"{what}, and {len(self._coming)} did not in {PATIENCE:g} s")
            self._fail(self._waiting, RolloutEnded(error))

    @staticmethod
    def _fail(waiting: Mapping[int, tuple[Asked, asyncio.Future[Any]]], error: BaseException) -> None:
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(error)

    async def enter(self, permits: Permits) -> None:
        """Takes part in the group's permits: the first sample takes as many as there are samples, for all of them."""
        self._permits = permits
        if self._holding is None:
            self._holding = asyncio.ensure_future(permits.take(len(self._slots)))
        await asyncio.shield(self._holding)
        self._inside += 1

    def leave(self) -> None:
        """Gives the group's permits back with the last of its samples."""
        self._inside -= 1
        self._let_go_after_the_last()

    def _let_go_after_the_last(self) -> None:
        if not self._inside and not self._coming:
            self._let_go()

    def _let_go(self) -> None:
        holding, permits, self._holding = self._holding, self._permits, None
        if holding is None or permits is None:
            return

        def give_back(task: asyncio.Task[int]) -> None:
            if not task.cancelled() and task.exception() is None:
                permits.give_back(task.result())

        if holding.done():
            give_back(holding)
        else:
            holding.cancel()
            holding.add_done_callback(give_back)
            self._work.add(holding)

    async def once(self, key: Any, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The result of work that is the same for all samples of the group; it is done once."""
        if key not in self.known:
            self.known[key] = asyncio.ensure_future(work())
            self._work.add(self.known[key])
        return await asyncio.shield(self.known[key])


_MEETING: ContextVar[Meeting | None] = ContextVar("rollout_patch_meeting", default=None)
_SLOT: ContextVar[int | None] = ContextVar("rollout_patch_slot", default=None)


def current_meeting() -> Meeting | None:
    """The meeting of the group whose code is running, if any."""
    return _MEETING.get()


class SharedSemaphore:
    """A host's semaphore as its code sees it: the samples of a group that is asked for at once enter together.

    Everything else takes one permit each, as before.
    """

    def __init__(self, semaphore: asyncio.Semaphore) -> None:
        self.stock = semaphore
        self._permits = Permits(semaphore, max(1, semaphore._value))

    async def __aenter__(self) -> None:
        if (meeting := self._meeting()) is not None:
            await meeting.enter(self._permits)
        else:
            await self.stock.acquire()

    async def __aexit__(self, *error: object) -> None:
        if (meeting := self._meeting()) is not None:
            meeting.leave()
        else:
            self.stock.release()

    @staticmethod
    def _meeting() -> Meeting | None:
        meeting = _MEETING.get()
        return meeting if meeting is not None and meeting.together and _SLOT.get() is not None else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)


def post_function(stock_post: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A host's `post` that lets the samples of a group meet; a second request of a sample goes out by itself."""

    @functools.wraps(stock_post)
    async def post(url: str, payload: Any, *rest: Any, **options: Any) -> Any:
        meeting, slot = _MEETING.get(), _SLOT.get()
        if meeting is None or slot is None or not url.endswith("/generate") or slot in meeting.met:
            return await stock_post(url, payload, *rest, **options)
        return await meeting.ask(slot, Asked(url, payload, options.get("headers") or {}))

    return post


def sample_function(stock_sample: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A host's generation of one sample, which takes the sample's place in its group's meeting."""

    @functools.wraps(stock_sample)
    async def generate_and_rm(first: Any, sample: Any, *rest: Any, **named: Any) -> Any:
        if (meeting := _MEETING.get()) is None:
            return await stock_sample(first, sample, *rest, **named)
        with meeting.seat(sample):
            return await stock_sample(first, sample, *rest, **named)

    return generate_and_rm


def once_a_group(function: Callable[..., Any], key: Callable[..., Any]) -> Callable[..., Any]:
    """A host's work on media, done once for all samples of a group that give it the same.

    Args:
        function: The host's function, which may be a coroutine function.
        key: What its result depends on, from its arguments.
    """
    if asyncio.iscoroutinefunction(function):

        @functools.wraps(function)
        async def shared(*args: Any) -> Any:
            if (meeting := _MEETING.get()) is None:
                return await function(*args)
            return await meeting.once((function, key(*args)), lambda: function(*args))

        return shared

    @functools.wraps(function)
    def shared_at_once(*args: Any) -> Any:
        if (meeting := _MEETING.get()) is None:
            return function(*args)
        at = (function, key(*args))
        if at not in meeting.known:
            meeting.known[at] = function(*args)
        return meeting.known[at]

    return shared_at_once
