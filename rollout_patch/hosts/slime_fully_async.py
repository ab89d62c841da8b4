"""slime's fully asynchronous rollout, with groups asked for as the options say.

``--rollout-function-path rollout_patch.hosts.slime_fully_async.generate_rollout_fully_async``. slime's worker makes
groups from rollout to rollout on a thread of its own, so that the plug-in stays in place from the first rollout on.
Read with slime of August 2026 (`slime/rollout/fully_async_rollout.py`).
"""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rollout_patch.errors import PatchError, UnsupportedHost
from rollout_patch.hosts import slime as plug_in
from rollout_patch.hosts.calls import RolloutCalls
from rollout_patch.hosts.guard import Used, check_host
from rollout_patch.hosts.meeting import RolloutEnded
from rollout_patch.hosts.options import allows_unknown_host
from rollout_patch.hosts.samples import replaced


class _InPlace:
    """The plug-in between rollouts.

    Attributes:
        calls: The groups since the first rollout.
        error: What of the plug-in went wrong in slime's worker, which only logs what its groups raise.
    """

    def __init__(self, calls: RolloutCalls) -> None:
        self.calls = calls
        self.error: PatchError | None = None
        self.places = ExitStack()

    def watched(self, group_function: Callable[..., Any]) -> Callable[..., Any]:
        """A group's function that keeps an error of the plug-in for the next look at what is done."""

        @functools.wraps(group_function)
        async def generate_and_rm_group(*given: Any, **named: Any) -> Any:
            try:
                return await group_function(*given, **named)
            except RolloutEnded as ended:
                self.error = self.error or ended.error
                raise ended.error from ended.error.__cause__

        return generate_and_rm_group

    def looked_at(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """The worker's own look at what is done, which ends the rollout where the plug-in went wrong."""

        @functools.wraps(stock)
        def get_completed_groups(*given: Any, **named: Any) -> Any:
            if self.error is not None:
                raise self.error
            return stock(*given, **named)

        return get_completed_groups


_in_place: _InPlace | None = None


def generate_rollout_fully_async(args: Any, rollout_id: int, data_buffer: Any, evaluation: bool = False) -> Any:
    """The fully asynchronous rollout function of slime; its counts are of the groups that ended since the last one.

    Raises:
        UnsupportedHost: slime's functions are others than the known ones, or a design or a recording is asked for,
            which need rollouts that end.
        ResponseRefused: An answer broke the protocol.
        ValueError: An option has no such value.
    """
    stock = importlib.import_module("slime.rollout.fully_async_rollout")
    if evaluation:
        return stock.generate_rollout_fully_async(args, rollout_id, data_buffer, evaluation=True)
    calls = _put_in_place(args, rollout_id).calls
    groups = stock.generate_rollout_fully_async(args, rollout_id, data_buffer)
    if not calls.groups:
        raise UnsupportedHost("the rollout ended, and no group came by the plug-in")
    metrics = calls.metrics()
    calls.counts = Counter()
    output = importlib.import_module("slime.rollout.base_types").RolloutFnTrainOutput
    return output(samples=groups, metrics=metrics)


def _put_in_place(args: Any, rollout_id: int) -> _InPlace:
    global _in_place
    if _in_place is not None:
        return _in_place
    stock = importlib.import_module("slime.rollout.fully_async_rollout")
    slime = importlib.import_module("slime.rollout.sglang_rollout")
    unknown = check_host("slime", uses(), allows_unknown_host(args))
    calls = RolloutCalls.of(args, rollout_id)
    if calls.options.design != "fixed" or calls.options.record is not None:
        calls.close()
        raise UnsupportedHost("a fully asynchronous rollout goes on into the next: designs and recordings need an end")
    calls.unknown_host = unknown
    calls.warn_if_never(plug_in.conditions_of(args))
    one = _InPlace(calls)
    group_function = one.watched(calls.group_function(plug_in.way_of(slime, args), stock.generate_and_rm_group))
    worker = stock.AsyncRolloutWorker
    one.places.enter_context(
        replaced(
            (stock, "generate_and_rm_group", group_function),
            (worker, "get_completed_groups", one.looked_at(worker.get_completed_groups)),
            *plug_in.places_of(slime, calls),
        )
    )
    one.places.callback(calls.close)
    _in_place = one
    return one


def take_out() -> None:
    """Gives slime its own functions back, once its worker has ended."""
    global _in_place
    if _in_place is not None:
        _in_place.places.close()
        _in_place = None


def uses() -> list[Used]:
    """What the plug-in uses of slime."""
    stock = importlib.import_module("slime.rollout.fully_async_rollout")
    return [
        *plug_in.uses(),
        Used(stock, "generate_rollout_fully_async"),
        Used(stock, "generate_and_rm_group"),
        Used(stock.AsyncRolloutWorker, "_loop", calls=("generate_and_rm_group",)),
        Used(stock.AsyncRolloutWorker, "get_completed_groups"),
    ]
