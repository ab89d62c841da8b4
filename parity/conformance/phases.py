"""Cases of requests that are interrupted: aborts in each phase, pauses, clients that go away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from parity.conformance.probe import (
    MIDDLE,
    PROMPT,
    TOKENS,
    Cases,
    NotCompared,
    Output,
    Probe,
    expect,
    finishes,
    lengths,
    new_id,
    request,
    require,
    together,
)

LONG = 192
"""Tokens of a request that is to be interrupted, where the context allows."""
FRACTIONS = (0.3, 0.15, 0.5, 0.05, 0.7)
"""Moments at which an interruption is tried, as a share of the time that the request takes undisturbed."""
GONE_SECONDS = 30.0
MANY_RUNNING = 64
"""A queue is only filled where this many sequences, or fewer, may run at once."""

Act = Callable[[], Awaitable[object]]
CASES = Cases()


def long_request(
    probe: Probe, prompt: object, params: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A request that runs for long enough to be interrupted."""
    cap = probe.room(len(PROMPT), LONG)
    return request(prompt, {"max_new_tokens": cap, **(params or {})}, **fields)


async def _disturbed(probe: Probe, bodies: list[dict[str, Any]], seconds: float, act: Act) -> list[list[Output]]:
    """The outputs of each request, where `act` was done so long after they were sent."""

    async def later() -> list[Output]:
        await asyncio.sleep(seconds)
        await act()
        return []

    *answers, _ = await together(*map(probe.outputs, bodies), later())
    return answers


async def _interrupted(
    probe: Probe, bodies: list[dict[str, Any]], act: Act, hit: Callable[[list[list[Output]]], bool]
) -> list[list[Output]]:
    """The outputs of each request, where `act` was done while they ran.

    When that is depends on the engine's speed, which may change: several moments are tried until the outputs `hit`.
    """
    started = time.monotonic()
    await together(*map(probe.outputs, bodies))
    undisturbed = time.monotonic() - started
    answers: list[list[Output]] = []
    for fraction in FRACTIONS:
        answers = await _disturbed(probe, bodies, undisturbed * fraction, act)
        if hit(answers):
            return answers
    seen = [list(zip(finishes(outputs), lengths(outputs), strict=True))[:4] for outputs in answers]
    what = "finish reasons and tokens after the last of {tries} interruptions, none of which had the effect"
    require("finish_reason", False, "abort", seen, what, tries=len(FRACTIONS))
    return answers


def _partial(answers: list[list[Output]]) -> bool:
    """Whether every output was aborted with some of its tokens."""
    outputs = [output for answer in answers for output in answer]
    return set(finishes(outputs)) == {"abort"} and min(lengths(outputs)) > 0


def _abort(probe: Probe, **body: Any) -> Act:
    return lambda: probe.control("/abort_request", body)


def _abort_all(probe: Probe) -> Act:
    return _abort(probe, abort_all=True)


@CASES.case(control=True)
async def abort_idle(probe: Probe) -> None:
    """Aborting all where nothing runs changes nothing."""
    await _abort_all(probe)()
    expect("output_ids", lengths(await probe.ask(PROMPT)), [TOKENS], "tokens of the next request")


async def _abort_running(prompt: object, params: Mapping[str, Any], probe: Probe) -> None:
    await _interrupted(probe, [long_request(probe, prompt, params)], _abort_all(probe), _partial)
    await probe.alive()


CASES.table(
    _abort_running,
    (
        ("abort_single", "Aborting all ends a request and returns what it has so far", PROMPT, {}),
        ("abort_native", "Aborting all ends each of n = 4 and returns what it has so far", PROMPT, {"n": 4}),
        ("abort_list", "Aborting all ends each of a list and returns what it has so far", [PROMPT] * 3, {}),
    ),
    control=True,
)


@CASES.case(control=True)
async def abort_arms_at_once(probe: Probe) -> None:
    """Aborting all ends requests of every arm that run at once."""
    bodies = [long_request(probe, PROMPT), long_request(probe, PROMPT, {"n": 3}), long_request(probe, [PROMPT, MIDDLE])]
    await _interrupted(probe, bodies, _abort_all(probe), _partial)


@CASES.case(control=True)
async def abort_at_start(probe: Probe) -> None:
    """A request that is aborted while it arrives is answered whole: all its samples, each aborted or complete."""
    for delay in (0.0, 0.002, 0.01):
        (outputs,) = await _disturbed(probe, [long_request(probe, PROMPT, {"n": 4})], delay, _abort_all(probe))
        kinds = finishes(outputs)
        require("finish_reason", set(kinds) <= {"abort", "length"}, ["abort", "length"], kinds, "finish reasons")


@CASES.case(control=True)
async def abort_queued(probe: Probe) -> None:
    """What is aborted in the queue has no tokens and no log-probs, and its siblings that ran have theirs."""
    running = probe.about.max_running
    if running is None or running > MANY_RUNNING:
        what = "a queue is only filled where at most {most} sequences run at once, and the engine reports {running}"
        raise NotCompared(what, most=MANY_RUNNING, running=running)

    def mixed(answers: list[list[Output]]) -> bool:
        counts = lengths(answers[0])
        return set(finishes(answers[0])) == {"abort"} and 0 in counts and max(counts) > 0

    body = long_request(probe, PROMPT, {"n": running + 4})
    (outputs,) = await _interrupted(probe, [body], _abort_all(probe), mixed)
    empty = lengths(outputs).count(0)
    require("output_ids", empty >= 4, "4 or more", empty, "outputs without tokens")


_SAME_IDS = frozenset({"exchange_unique_ids"})


@CASES.case(control=True, exempt=_SAME_IDS)
async def abort_rid(probe: Probe) -> None:
    """Aborting one id ends that request and no other."""
    rids = [new_id(), new_id()]
    bodies = [long_request(probe, PROMPT, rid=rid) for rid in rids]
    ends = [["abort"], ["length"]]
    await _interrupted(probe, bodies, _abort(probe, rid=rids[0]), lambda answers: list(map(finishes, answers)) == ends)


@CASES.case(control=True, exempt=_SAME_IDS)
async def abort_rid_in_list(probe: Probe) -> None:
    """Aborting the id of one prompt of a list ends that one alone."""
    rids = [new_id(), new_id()]
    body = long_request(probe, [PROMPT, MIDDLE], rid=rids)
    ends = [["length", "abort"]]
    await _interrupted(probe, [body], _abort(probe, rid=rids[1]), lambda answers: list(map(finishes, answers)) == ends)


@CASES.case(control=True)
async def abort_rid_of_n(probe: Probe) -> None:
    """Aborting the id of a request with n = 4 ends all of its samples or none."""
    rid = new_id()
    for delay in (0.05, 0.2):
        body = long_request(probe, PROMPT, {"n": 4}, rid=rid)
        (outputs,) = await _disturbed(probe, [body], delay, _abort(probe, rid=rid))
        kinds = finishes(outputs)
        require("finish_reason", len(set(kinds)) == 1, "all alike", kinds, "finish reasons")


@CASES.case(control=True, exempt=_SAME_IDS)
async def abort_rid_after(probe: Probe) -> None:
    """Aborting an id whose request is finished changes nothing."""
    rid = new_id()
    await probe.ask(PROMPT, rid=rid)
    await _abort(probe, rid=rid)()
    expect("output_ids", lengths(await probe.ask(PROMPT, rid=rid)), [TOKENS], "tokens under the same id later")


# --- pauses


async def pause(probe: Probe, mode: str) -> None:
    """Pauses the engine; modes are abort, retract and in_place."""
    await probe.control("/pause_generation", {"mode": mode})


async def end_pause(probe: Probe) -> None:
    """Lets a paused engine go on."""
    await probe.control("/continue_generation")


@CASES.case(control=True)
async def pause_holds(probe: Probe) -> None:
    """A request sent during a pause waits for its end."""
    started = time.monotonic()
    await probe.ask(PROMPT)
    undisturbed = time.monotonic() - started
    await pause(probe, "abort")
    waiting = asyncio.create_task(probe.ask(PROMPT))
    try:
        done, _ = await asyncio.wait([waiting], timeout=0.5 + 4 * undisturbed)
    finally:
        await end_pause(probe)
    expect("response", len(done), 0, "responses during the pause")
    expect("output_ids", lengths(await waiting), [TOKENS], "tokens after the pause")


@CASES.case(control=True)
async def pause_aborts(probe: Probe) -> None:
    """A pause by abort ends running requests and returns what they have so far."""

    async def act() -> None:
        await pause(probe, "abort")
        await end_pause(probe)

    await _interrupted(probe, [long_request(probe, PROMPT, {"n": 2})], act, _partial)


async def _pause_keeps(mode: str, probe: Probe) -> None:
    async def act() -> None:
        await pause(probe, mode)
        await asyncio.sleep(0.1)
        await end_pause(probe)

    body = long_request(probe, PROMPT, {"n": 2})
    (outputs,) = await _disturbed(probe, [body], 0.1, act)
    expect("output_ids", lengths(outputs), [body["sampling_params"]["max_new_tokens"]] * 2, "tokens")


CASES.table(
    _pause_keeps,
    (
        ("pause_retract", "A request goes on whole after a pause by retract", "retract"),
        ("pause_in_place", "A request goes on whole after a pause in place", "in_place"),
    ),
    control=True,
)


@CASES.case(control=True)
async def pause_mode_unknown(probe: Probe) -> None:
    """An unknown mode of pausing is refused."""
    status, _ = await probe.post("/pause_generation", {"mode": "gently"})
    if status == 200:
        await end_pause(probe)
    expect("status", status, 400, "status")
    await probe.alive()


# --- clients that go away


async def _running(probe: Probe) -> int:
    status, response = await probe.get("/v1/loads")
    loads = response.get("loads") if isinstance(response, dict) else None
    if status != 200 or not isinstance(loads, list):
        raise NotCompared("/v1/loads does not report what runs: status {status}", status=status)
    return sum(int(load.get("num_running_reqs", 0)) for load in loads)


@CASES.case()
async def client_gone(probe: Probe) -> None:
    """When its client goes away a request ends: the count of running requests returns to what it was."""
    before = await _running(probe)
    waiting = asyncio.create_task(probe.send(long_request(probe, PROMPT, {"n": 4})))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait([waiting])
    until = time.monotonic() + GONE_SECONDS
    while (running := await _running(probe)) > before and time.monotonic() < until:
        await asyncio.sleep(0.2)
    what = "running requests {seconds:.0f} s later"
    require("num_running_reqs", running <= before, before, running, what, seconds=GONE_SECONDS)
    await probe.alive()
