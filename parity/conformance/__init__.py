"""Suites of requests that a server must answer as its protocol says: SGLang's, or vLLM's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import aiohttp

from parity.conformance import answers, features, images, phases, refusals, vllm, weights
from parity.conformance.determinism import check_determinism
from parity.conformance.known import known_deviations
from parity.conformance.probe import Broken, ConformanceCase, NotCompared, Probe, about, small_request
from parity.contract_checks import Rules, check_exchanges
from parity.engines.client import EngineClient
from parity.engines.remote import RemoteEngine, recognised, remote_engine
from parity.errors import EngineError
from parity.findings import Finding, Level, Message, Progress, Severity, Status, Where, quantity
from rollout_patch import RequestFailed

__all__ = ["CASES", "VLLM_CASES", "ConformanceCase", "check_determinism", "check_engine"]

CASE_SECONDS = 60.0
"""Time within which each case must be through."""
SHOWN = 5
"""Breaches of one case that become a finding each."""

CASES: tuple[ConformanceCase, ...] = tuple(
    # what may end the engine comes last, so that it costs no other case
    sorted(
        (*answers.CASES, *refusals.CASES, *images.CASES, *phases.CASES, *weights.CASES, *features.CASES),
        key=lambda case: case.destructive,
    )
)
"""Every case of SGLang's dialect, in the order in which it is run."""

VLLM_CASES: tuple[ConformanceCase, ...] = tuple(vllm.CASES)
"""Every case of vLLM's dialect, likewise."""


def check_engine(
    url: str,
    *,
    destructive: bool = False,
    control: bool = False,
    progress: Progress | None = None,
    cases: Sequence[ConformanceCase] | None = None,
) -> list[Finding]:
    """Holds a running engine to the protocol, case by case, over HTTP; blocks until all are through.

    A case gives one passing finding, a failing one for each of its first few breaches, or one that says why it was not
    compared. A deviation that the real SGLang or its router is known for is a warning with the reason. The exchanges of
    each case are also held to `check_exchanges`.

    Args:
        url: The engine's base URL.
        destructive: Whether to send what is known to end some servers.
        control: Whether to update weights, flush, abort and pause; other clients of the engine would notice.
        progress: Called before each case, with its name.
        cases: The cases to run; by default those of the engine's dialect.

    Raises:
        UsageError: `url` is no URL of a server.
        EngineError: The engine does not answer, or reports nothing of itself.
    """
    return asyncio.run(_check(remote_engine(url, control=control), destructive, control, progress, cases))


async def _check(
    engine: RemoteEngine,
    destructive: bool,
    control: bool,
    progress: Progress | None,
    asked: Sequence[ConformanceCase] | None,
) -> list[Finding]:
    silent = f"{engine.url}: no information about the engine within {CASE_SECONDS:g} s"
    try:
        client = (await asyncio.wait_for(recognised(engine), CASE_SECONDS)).client()
    except asyncio.TimeoutError as error:
        raise EngineError(silent) from error
    cases = asked if asked is not None else VLLM_CASES if client.dialect.name == "vllm" else CASES
    findings: list[Finding] = []
    timeout = aiohttp.ClientTimeout(total=CASE_SECONDS)
    async with client, aiohttp.ClientSession(timeout=timeout) as session:
        try:
            told = await asyncio.wait_for(about(client, session), CASE_SECONDS)
        except asyncio.TimeoutError as error:
            raise EngineError(silent) from error
        known, gone = known_deviations(told), ""
        for number, case in enumerate(cases):
            if progress:
                progress(number, len(cases), case.name)
            if gone:
                findings.append(_not_compared(case, Message("the engine ended with the case {case}", case=gone)))
            elif case.destructive and not destructive:
                findings.append(_not_compared(case, Message("it ends some servers, so it needs --destructive")))
            elif case.control and told.router:
                findings.append(_not_compared(case, Message("a router has no such endpoint; its workers have")))
            elif case.control and not control:
                findings.append(_not_compared(case, Message("it changes the engine, so it needs --control")))
            else:
                results = await _run(case, Probe(client, session, told))
                findings += [_excused(finding, known.get(case.name)) for finding in results]
                if number + 1 < len(cases) and any(result.fails for result in results) and not await _alive(client):
                    gone = case.name
    return findings


async def _alive(client: EngineClient) -> bool:
    """Whether the engine is healthy and answers a small request, if only by refusing it, within a case's time."""
    try:
        if not await asyncio.wait_for(client.health(), CASE_SECONDS):
            return False
        await asyncio.wait_for(client.generate(small_request(client)), CASE_SECONDS)
    except asyncio.TimeoutError:
        return False
    except RequestFailed:
        return True
    return True


async def _run(case: ConformanceCase, probe: Probe) -> list[Finding]:
    started = time.monotonic()
    broken: Broken | None = None
    try:
        await asyncio.wait_for(case.run(probe), CASE_SECONDS)
    except NotCompared as reason:
        return [_not_compared(case, reason.message)]
    except Broken as error:
        broken = error
    except asyncio.TimeoutError:
        late = Message("not finished after {seconds:g} s", seconds=CASE_SECONDS)
        broken = Broken("response", f"within {CASE_SECONDS:g} s", None, late)
    except (EngineError, aiohttp.ClientError) as error:
        broken = Broken("response", "a response", None, Message("no response: {error}", error=error))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        # a case reads a response as the protocol defines it
        other = Message("a response of another shape: {error}", error=repr(error))
        broken = Broken("response", "the protocol's shape", None, other)
    breaches = _breaches(case, probe, broken)
    evidence = {
        "checked": max(len(probe.exchanges), 1),
        "failed": len(breaches),
        "not_compared": 0,
        "seconds": round(time.monotonic() - started, 3),
    }
    if not breaches:
        requests = quantity(len(probe.exchanges), "requests")
        message = Message("{rule} ({requests})", rule=Message(case.rule), requests=requests)
        return [Finding(_check_name(case), Level.CONTRACT, Status.PASS, message, evidence=evidence)]
    return [replace(breach, evidence=evidence) for breach in breaches[:SHOWN]]


def _breaches(case: ConformanceCase, probe: Probe, broken: Broken | None) -> list[Finding]:
    """The expectation of the case that does not hold, and what its exchanges break of the contract."""
    breaches = []
    if broken:
        message = Message("{rule}: {reason}", rule=Message(case.rule), reason=broken.message)
        where, values = Where(field=broken.field), (broken.expected, broken.observed)
        breaches.append(Finding(_check_name(case), Level.CONTRACT, Status.FAIL, message, where, *values))
    rules = Rules(
        context_length=probe.about.context_length,
        vocab_size=probe.about.vocab_size,
        media_placeholders=frozenset(filter(None, [probe.about.image_pad])),
        partial_versions=case.partial_versions,
    )
    exempt = case.exempt | {"exchange_status"}
    for finding in check_exchanges(probe.exchanges, rules):
        if finding.status is Status.FAIL and finding.check not in exempt:
            message = Message("{message} ({check})", message=finding.message, check=finding.check)
            breaches.append(replace(finding, check=_check_name(case), message=message))
    return breaches


def _check_name(case: ConformanceCase) -> str:
    return f"engine_{case.name}"


def _not_compared(case: ConformanceCase, reason: Message) -> Finding:
    evidence = {"checked": 0, "failed": 0, "not_compared": 1}
    message = Message("{rule}: not compared: {reason}", rule=Message(case.rule), reason=reason)
    return Finding(_check_name(case), Level.CONTRACT, Status.NOT_COMPARED, message, evidence=evidence)


def _excused(finding: Finding, reason: Message | None) -> Finding:
    """A known deviation as a warning with its reason; any other finding as it is."""
    if reason is None or finding.status is not Status.FAIL:
        return finding
    message = Message("known of {reason}: {message}", reason=reason, message=finding.message)
    evidence = {**finding.evidence, "known": reason}
    return replace(finding, severity=Severity.WARNING, message=message, evidence=evidence)
