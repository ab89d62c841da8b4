"""How many sequences in flight it takes until a seed gives another response: `parity check URL --determinism`.

Batch-invariant kernels give a sequence the same numbers whatever runs beside it; others part as soon as a batch is
large enough for another kernel, or as soon as a prompt comes from the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from parity.engines.client import EngineClient
from parity.engines.detection import Asker, Response, ask_group
from parity.engines.remote import RemoteEngine, recognised, remote_engine
from parity.findings import Finding, Level, Message, Progress, Severity, Status, Where
from parity.records.arms import WAYS

CHECK = "engine_determinism"

MOST = 64
"""Sequences in flight that are tried at most."""

TRIES = 2
"""Times that a number of sequences is tried; one that differs once is one at which a response may differ."""

TOKENS = 32
"""Of each response: so many that the first one runs still when the last one comes."""

FIRST_SEED = 30_011


@dataclass(frozen=True, slots=True)
class Steady:
    """Up to where responses do not depend on what else is in flight.

    Attributes:
        most: Sequences in flight that were tried at most.
        logprobs_from: The fewest at which a log-prob or a token differed; None: none up to `most`.
        tokens_from: The fewest at which a token differed, likewise.
    """

    most: int
    logprobs_from: int | None
    tokens_from: int | None


class Refused(Exception):
    """The engine does not take such a request."""


Ask = Callable[[int], Awaitable[list[Response]]]
"""Asks for the responses of the first so many seeds, all in flight at once."""


async def first_differences(ask: Ask, alone: Sequence[Response]) -> Steady:
    """Bisects for the fewest sequences in flight whose responses are not those of each seed alone.

    Bisection takes a number above one that differs to differ too. Where the engine refuses so many at once, half as
    many are tried.

    Args:
        ask: Asks for the responses of the first so many seeds at once.
        alone: The response of each seed when it is asked alone.

    Raises:
        Refused: Even one is refused.
    """
    seen: dict[int, tuple[bool, bool]] = {}

    async def differ(count: int) -> tuple[bool, bool]:
        """Whether (log-probs or tokens, tokens) of so many at once differ from those alone."""
        if count not in seen:
            tries = [await ask(count) for _ in range(TRIES)]
            pairs = [pair for found in tries for pair in zip(alone, found, strict=False)]
            seen[count] = any(one != two for one, two in pairs), any(one[0] != two[0] for one, two in pairs)
        return seen[count]

    most = len(alone)
    while True:
        try:
            await differ(most)
            break
        except Refused:
            if most == 1:
                raise
            most //= 2

    async def first(kind: int) -> int | None:
        if not (await differ(most))[kind]:
            return None
        equal, other = 0, most
        while other - equal > 1:
            middle = (equal + other) // 2
            if (await differ(middle))[kind]:
                other = middle
            else:
                equal = middle
        return other

    return Steady(most, await first(0), await first(1))


def check_determinism(
    url: str, *, control: bool = False, most: int = MOST, progress: Progress | None = None
) -> list[Finding]:
    """Finds for each way of asking, with a cold and a warm prefix cache, how many sequences in flight move a response.

    Args:
        url: The engine's base URL.
        control: Whether the cache may be flushed; else only what it holds already is tried.
        most: Sequences in flight that are tried at most.
        progress: Called before each search, with its name.

    Raises:
        UsageError: `url` is no URL of a server.
        EngineError: The engine does not answer.
    """
    return asyncio.run(_check(remote_engine(url, control=control), control, most, progress))


async def _check(engine: RemoteEngine, control: bool, most: int, progress: Progress | None) -> list[Finding]:
    async with (await recognised(engine)).client() as client:
        announced = await client.capabilities()
        alone = []
        for seed in range(FIRST_SEED, FIRST_SEED + most):
            if control:
                await client.flush_cache()
            alone += await _asked(client, "per-sample", 1, seed)
        again = await _asked(client, "per-sample", 1)
        if again[0][0] != alone[0][0]:
            lacking = Message("a seed alone does not repeat its tokens")
            return [_not_compared(way, state, lacking) for way, state in _ROWS]
        findings = []
        for number, (way, state) in enumerate(_ROWS):
            if progress:
                progress(number, len(_ROWS), f"{way}, {state} cache")
            if state == "cold" and not control:
                findings.append(_not_compared(way, state, Message("flushing the cache needs --control")))
                continue
            if way == "native" and not announced.seed_per_slot and not await _seed_per_slot(client, alone):
                findings.append(_not_compared(way, state, Message("its samples do not take the seeds that follow")))
                continue
            try:
                steady = await first_differences(partial(_at_once, client, way, state == "cold"), alone)
            except Refused as error:
                findings.append(_not_compared(way, state, Message("{error}", error=str(error))))
                continue
            findings.append(_finding(way, state, steady, announced.seeded))
    return findings


_ROWS = tuple((way, state) for state in ("cold", "warm") for way in WAYS)


async def _at_once(client: EngineClient, way: str, cold: bool, count: int) -> list[Response]:
    if cold:
        await client.flush_cache()
    return await _asked(client, way, count)


async def _asked(client: EngineClient, way: str, count: int, first: int = FIRST_SEED) -> list[Response]:
    asker = Asker(client.generate, client.dialect, await client.capabilities())
    answer = await ask_group(asker, way, range(first, first + count), tokens=TOKENS)
    if isinstance(answer, str):
        raise Refused(answer)
    return answer


async def _seed_per_slot(client: EngineClient, alone: Sequence[Response]) -> bool:
    try:
        return [tokens for tokens, _ in await _asked(client, "native", 2)] == [row[0] for row in alone[:2]]
    except Refused:
        return False


def _not_compared(way: str, state: str, reason: Message) -> Finding:
    message = Message("{way}, {state} cache: not compared: {reason}", way=way, state=state, reason=reason)
    evidence = {"checked": 0, "failed": 0, "not_compared": 1}
    where = Where(field=f"{way}, {state}")
    return Finding(CHECK, Level.CONTRACT, Status.NOT_COMPARED, message, where, evidence=evidence)


def _finding(way: str, state: str, steady: Steady, announced: bool) -> Finding:
    """A difference is an error where the engine announces that seeds hold, else a warning."""
    evidence = {
        "checked": steady.most,
        "failed": int(steady.logprobs_from is not None),
        "not_compared": 0,
        "logprobs_from": steady.logprobs_from,
        "tokens_from": steady.tokens_from,
    }
    where = Where(field=f"{way}, {state}")
    if steady.logprobs_from is None:
        message = Message(
            "{way}, {state} cache: the same tokens and log-probs with up to {most} sequences in flight",
            way=way,
            state=state,
            most=steady.most,
        )
        return Finding(CHECK, Level.CONTRACT, Status.PASS, message, where, evidence=evidence)
    tokens = (
        Message("tokens with up to {most} not", most=steady.most)
        if steady.tokens_from is None
        else Message("tokens from {count} on", count=steady.tokens_from)
    )
    message = Message(
        "{way}, {state} cache: log-probs differ from {count} sequences in flight on, {tokens}",
        way=way,
        state=state,
        count=steady.logprobs_from,
        tokens=tokens,
    )
    severity = Severity.ERROR if announced else Severity.WARNING
    return Finding(CHECK, Level.CONTRACT, Status.FAIL, message, where, severity=severity, evidence=evidence)
