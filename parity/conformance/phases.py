"""Cases of requests that are interrupted: aborts in each phase, pauses, clients that go away."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from parity.conformance.probe import (
    MIDDLE,
    PROMPT,
    TOKENS,
    Broken,
    ConformanceCase,
    NotCompared,
    Output,
    Probe,
    case_of,
    expect,
    finishes,
    lengths,
    request,
    require,
    together,
)

LONG = 192
"""Tokens of a request that is to be interrupted, where the context allows."""
FRACTIONS = (0.3, 0.15, 0.5, 0.05, 0.7)
"""Moments at which an interruption is tried, as a part of the time that the request takes undisturbed."""
GONE_SECONDS = 30.0
MANY_RUNNING = 64
"""A queue is only filled where this many sequences, or fewer, may run at once."""

Act = Callable[[], Awaitable[object]]


def long_request(
    probe: Probe, prompt: object, params: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A request that runs for long enough to be interrupted."""
    cap = probe.room(len(PROMPT), LONG)
    return request(prompt, {"max_new_tokens": cap, **(params or {})}, **fields)


async def _interrupted(probe: Probe, bodies: list[dict[str, Any]], act: Act, hit: Callable[[Any], bool]) -> Any:
    """The answers to requests that `act` was done to while they ran.

    When that is depends on the engine's speed, which may change: several moments are tried until the answers `hit`.
    """
    started = time.monotonic()
    await together(*(probe.outputs(body) for body in bodies))
    undisturbed = time.monotonic() - started
    answers: Any = None
    for fraction in FRACTIONS:
        answers, _ = await together(_gather(probe, bodies), _later(undisturbed * fraction, act))
        if hit(answers):
            return answers
    seen = [list(zip(finishes(outputs), lengths(outputs), strict=True))[:4] for outputs in answers]
    what = f"tried {len(FRACTIONS)} times on running requests, without effect; finish reasons and tokens at last"
    raise Broken("finish_reason", "abort", seen, f"{what}: {seen}")


async def _gather(probe: Probe, bodies: list[dict[str, Any]]) -> list[list[Output]]:
    return await together(*(probe.outputs(body) for body in bodies))


async def _later(seconds: float, act: Act) -> list[list[Output]]:
    await asyncio.sleep(seconds)
    await act()
    return []


async def _abort(probe: Probe, **what: Any) -> None:
    status, answer = await probe.control("/abort_request", what)
    expect("status", status, 200, f"status of /abort_request, which said {str(answer)[:100]!r}")


def _partial(answers: list[list[Output]]) -> bool:
    """Whether every output was aborted with a part of its tokens."""
    outputs = [output for answer in answers for output in answer]
    return set(finishes(outputs)) == {"abort"} and min(lengths(outputs)) > 0


async def abort_idle(probe: Probe) -> None:
    """Aborting all where nothing runs changes nothing."""
    await _abort(probe, abort_all=True)
    expect("output_ids", lengths(await probe.ask(PROMPT)), [TOKENS], "tokens of the next request")


async def _abort_running(prompt: object, params: dict[str, Any], probe: Probe) -> None:
    body = long_request(probe, prompt, params)
    await _interrupted(probe, [body], lambda: _abort(probe, abort_all=True), _partial)
    await probe.alive()


async def abort_arms_at_once(probe: Probe) -> None:
    """Aborting all ends requests of every arm that run at once."""
    bodies = [long_request(probe, PROMPT), long_request(probe, PROMPT, {"n": 3}), long_request(probe, [PROMPT, MIDDLE])]
    await _interrupted(probe, bodies, lambda: _abort(probe, abort_all=True), _partial)


async def abort_at_start(probe: Probe) -> None:
    """A request that is aborted while it arrives is answered whole: all its samples, each aborted or complete."""
    body = long_request(probe, PROMPT, {"n": 4})
    for delay in (0.0, 0.002, 0.01):
        answers, _ = await together(_gather(probe, [body]), _later(delay, lambda: _abort(probe, abort_all=True)))
        (outputs,) = answers
        kinds = finishes(outputs)
        require("finish_reason", set(kinds) <= {"abort", "length"}, ["abort", "length"], kinds, "finish reasons")


async def abort_queued(probe: Probe) -> None:
    """What is aborted in the queue has no tokens and no log-probs, and its siblings that ran have theirs."""
    running = probe.about.max_running
    if running is None or running > MANY_RUNNING:
        raise NotCompared(f"a queue needs an engine that runs at most {MANY_RUNNING} sequences at once, not {running}")
    body = long_request(probe, PROMPT, {"n": running + 4})

    def mixed(answers: list[list[Output]]) -> bool:
        counts = lengths(answers[0])
        return set(finishes(answers[0])) == {"abort"} and 0 in counts and max(counts) > 0

    ((outputs),) = await _interrupted(probe, [body], lambda: _abort(probe, abort_all=True), mixed)
    counts = lengths(outputs)
    require("output_ids", counts.count(0) >= 4, "4 or more", counts.count(0), "outputs without tokens")


async def abort_rid(probe: Probe) -> None:
    """Aborting one id ends that request and no other."""
    rids = [uuid.uuid4().hex, uuid.uuid4().hex]
    bodies = [long_request(probe, PROMPT, rid=rid) for rid in rids]

    def first_alone(answers: list[list[Output]]) -> bool:
        return [finishes(answer) for answer in answers] == [["abort"], ["length"]]

    await _interrupted(probe, bodies, lambda: _abort(probe, rid=rids[0]), first_alone)


async def abort_rid_in_list(probe: Probe) -> None:
    """Aborting the id of one prompt of a list ends that one alone."""
    rids = [uuid.uuid4().hex, uuid.uuid4().hex]
    body = long_request(probe, [PROMPT, MIDDLE], rid=rids)
    await _interrupted(
        probe, [body], lambda: _abort(probe, rid=rids[1]), lambda answers: finishes(answers[0]) == ["length", "abort"]
    )


async def abort_rid_of_n(probe: Probe) -> None:
    """Aborting the id of a request with n = 4 ends all of its samples or none."""
    rid = uuid.uuid4().hex
    body = long_request(probe, PROMPT, {"n": 4}, rid=rid)
    for delay in (0.05, 0.2):
        answers, _ = await together(_gather(probe, [body]), _later(delay, lambda: _abort(probe, rid=rid)))
        kinds = finishes(answers[0])
        require("finish_reason", len(set(kinds)) == 1, "all alike", kinds, "finish reasons")


async def abort_rid_after(probe: Probe) -> None:
    """Aborting an id that is done already changes nothing."""
    rid = uuid.uuid4().hex
    await probe.ask(PROMPT, rid=rid)
    await _abort(probe, rid=rid)
    expect("output_ids", lengths(await probe.ask(PROMPT, rid=rid)), [TOKENS], "tokens under the same id later")


# --- pauses


async def pause(probe: Probe, mode: str) -> None:
    """Pauses the engine; modes are abort, retract and in_place."""
    status, answer = await probe.control("/pause_generation", {"mode": mode})
    expect("status", status, 200, f"status of /pause_generation, which said {str(answer)[:100]!r}")


async def end_pause(probe: Probe) -> None:
    """Lets a paused engine go on."""
    status, answer = await probe.control("/continue_generation")
    expect("status", status, 200, f"status of /continue_generation, which said {str(answer)[:100]!r}")


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
    require("response", not done, "no answer", "an answer", "during the pause there was")
    expect("output_ids", lengths(await waiting), [TOKENS], "tokens after the pause")


async def pause_aborts(probe: Probe) -> None:
    """A pause by abort ends what runs with what it has so far."""

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
    answers, _ = await together(_gather(probe, [body]), _later(0.1, act))
    expect("output_ids", lengths(answers[0]), [body["sampling_params"]["max_new_tokens"]] * 2, "tokens")


async def pause_mode_unknown(probe: Probe) -> None:
    """An unknown mode of pausing is refused."""
    status, _ = await probe.control("/pause_generation", {"mode": "gently"})
    if status == 200:
        await end_pause(probe)
    expect("status", status, 400, "status")
    await probe.alive()


# --- clients that go away


async def _running(probe: Probe) -> int:
    status, answer = await probe.look("/v1/loads")
    loads = answer.get("loads") if isinstance(answer, dict) else None
    if status != 200 or not isinstance(loads, list):
        raise NotCompared(f"the engine does not say at /v1/loads what it runs: status {status}")
    return sum(int(load.get("num_running_reqs", 0)) for load in loads)


async def client_gone(probe: Probe) -> None:
    """When its client goes away a request ends: the count of what runs comes back to what it was."""
    before = await _running(probe)
    waiting = asyncio.create_task(probe.send(long_request(probe, PROMPT, {"n": 4})))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait([waiting])
    until = time.monotonic() + GONE_SECONDS
    while (running := await _running(probe)) > before and time.monotonic() < until:
        await asyncio.sleep(0.2)
    require("num_running_reqs", running <= before, before, running, f"running {GONE_SECONDS:.0f} s later")
    await probe.alive()


_RUNNING: tuple[tuple[str, str, object, dict[str, Any]], ...] = (
    ("abort_single", "Aborting all ends a request with what it has so far", PROMPT, {}),
    ("abort_native", "Aborting all ends each of n = 4 with what it has so far", PROMPT, {"n": 4}),
    ("abort_list", "Aborting all ends each of a list with what it has so far", [PROMPT] * 3, {}),
)

_SAME_IDS = frozenset({"exchange_unique_ids"})

CASES: tuple[ConformanceCase, ...] = (
    *(
        ConformanceCase(name, rule, partial(_abort_running, prompt, params), control=True)
        for name, rule, prompt, params in _RUNNING
    ),
    *(
        case_of(run, control=True)
        for run in (
            abort_idle,
            abort_arms_at_once,
            abort_at_start,
            abort_queued,
            abort_rid_of_n,
            pause_holds,
            pause_aborts,
            pause_mode_unknown,
        )
    ),
    *(case_of(run, control=True, exempt=_SAME_IDS) for run in (abort_rid, abort_rid_in_list, abort_rid_after)),
    ConformanceCase(
        "pause_retract",
        "A request goes on whole after a pause by retract",
        partial(_pause_keeps, "retract"),
        control=True,
    ),
    ConformanceCase(
        "pause_in_place",
        "A request goes on whole after a pause in place",
        partial(_pause_keeps, "in_place"),
        control=True,
    ),
    case_of(client_gone),
)
