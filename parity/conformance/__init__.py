"""A suite of requests that any SGLang-compatible server must answer as SGLang's protocol says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import aiohttp

from parity.conformance import answers, features, images, phases, refusals, weights
from parity.conformance.known import known_deviations
from parity.conformance.probe import Broken, ConformanceCase, NotCompared, Probe, about
from parity.contract_checks import Rules, check_exchanges
from parity.engines.client import EngineClient
from parity.engines.remote import remote_engine
from parity.errors import EngineError
from parity.findings import Finding, Level, Severity, Status, Where
from rollout_patch import RequestFailed

__all__ = ["CASES", "ConformanceCase", "check_engine"]

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
"""Every case, in the order in which it is run."""

Progress = Callable[[int, int, str], None]
"""Told before each case: cases done, cases in all, name of the case."""


def check_engine(
    url: str,
    *,
    destructive: bool = False,
    control: bool = False,
    progress: Progress | None = None,
    cases: Sequence[ConformanceCase] = CASES,
) -> list[Finding]:
    """Holds a running engine to the protocol, case by case, over HTTP; blocks until all are through.

    A case gives one passing finding, a failing one for each of its first few breaches, or one that says why it was not
    compared. What the real SGLang and its router are known to do otherwise is a warning with the reason. Each case's
    exchanges are also held to `check_exchanges`.

    Args:
        url: The engine's base URL.
        destructive: Whether to send what is known to end some servers.
        control: Whether to update weights, flush, abort and pause; other clients of the engine would notice.
        progress: Told before each case.
        cases: Those to run.

    Raises:
        UsageError: `url` is no URL of a server.
        EngineError: The engine does not answer, or says nothing of itself.
    """
    return asyncio.run(_check(remote_engine(url, control=control).client(), destructive, control, progress, cases))


async def _check(
    client: EngineClient, destructive: bool, control: bool, progress: Progress | None, cases: Sequence[ConformanceCase]
) -> list[Finding]:
    findings: list[Finding] = []
    timeout = aiohttp.ClientTimeout(total=CASE_SECONDS)
    async with client, aiohttp.ClientSession(timeout=timeout) as session:
        try:
            engine = await asyncio.wait_for(about(client, session), CASE_SECONDS)
        except asyncio.TimeoutError as error:
            raise EngineError(f"{client.url}: said nothing of itself within {CASE_SECONDS:g} s") from error
        known, gone = known_deviations(engine), ""
        for number, case in enumerate(cases):
            if progress:
                progress(number, len(cases), case.name)
            if gone:
                findings.append(_not_compared(case, f"the engine did not survive the case {gone}"))
            elif case.destructive and not destructive:
                findings.append(_not_compared(case, "known to end some servers, so not sent without --destructive"))
            elif case.control and engine.router:
                findings.append(_not_compared(case, "a router has no such endpoint; its workers have"))
            elif case.control and not control:
                findings.append(_not_compared(case, "changes the engine, which needs --control"))
            else:
                found = await _run(case, Probe(client, session, engine))
                findings += [
                    _excused(finding, known[case.name]) if case.name in known else finding for finding in found
                ]
                if number + 1 < len(cases) and any(finding.fails for finding in found) and not await _alive(client):
                    gone = case.name
    return findings


async def _alive(client: EngineClient) -> bool:
    """Whether the engine calls itself healthy and answers a small request, be it with a refusal, in a case's time."""
    small = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}
    try:
        if not await asyncio.wait_for(client.health(), CASE_SECONDS):
            return False
        await asyncio.wait_for(client.generate(small), CASE_SECONDS)
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
        return [_not_compared(case, str(reason))]
    except Broken as error:
        broken = error
    except asyncio.TimeoutError:
        broken = Broken("response", f"within {CASE_SECONDS:g} s", None, f"not through after {CASE_SECONDS:g} s")
    except (EngineError, aiohttp.ClientError) as error:
        broken = Broken("response", "an answer", None, f"no answer: {error}")
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        # a case reads the answer as the protocol has it
        broken = Broken("response", "the protocol's shape", None, f"an answer of another shape: {error!r}")
    breaches = _breaches(case, probe, broken)
    requests = len(probe.exchanges)
    evidence = {
        "checked": max(requests, 1),
        "failed": len(breaches),
        "not_compared": 0,
        "seconds": round(time.monotonic() - started, 3),
    }
    if not breaches:
        message = f"{case.rule} ({requests} request{'s' * (requests != 1)})"
        return [Finding(_check_name(case), Level.CONTRACT, Status.PASS, message, evidence=evidence)]
    return [replace(breach, evidence=evidence) for breach in breaches[:SHOWN]]


def _breaches(case: ConformanceCase, probe: Probe, broken: Broken | None) -> list[Finding]:
    """What the case expected in vain, and what the exchanges break of the contract."""
    breaches = []
    if broken:
        message = f"{case.rule}: {broken.message}"
        where = Where(field=broken.field)
        breaches.append(
            Finding(_check_name(case), Level.CONTRACT, Status.FAIL, message, where, broken.expected, broken.observed)
        )
    rules = Rules(
        context_length=probe.about.context_length,
        vocab_size=probe.about.vocab_size,
        media_placeholders=frozenset(filter(None, [probe.about.image_pad])),
        partial_versions=case.partial_versions,
    )
    exempt = case.exempt | {"exchange_status"}
    for finding in check_exchanges(probe.exchanges, rules):
        if finding.status is Status.FAIL and finding.check not in exempt:
            message = f"{finding.message} ({finding.check})"
            breaches.append(replace(finding, check=_check_name(case), message=message))
    return breaches


def _check_name(case: ConformanceCase) -> str:
    return f"engine_{case.name}"


def _not_compared(case: ConformanceCase, reason: str) -> Finding:
    evidence = {"checked": 0, "failed": 0, "not_compared": 1}
    message = f"{case.rule}: not compared: {reason}"
    return Finding(_check_name(case), Level.CONTRACT, Status.NOT_COMPARED, message, evidence=evidence)


def _excused(finding: Finding, reason: str | None) -> Finding:
    """A known deviation as a warning with its reason; any other finding as it is."""
    if reason is None or finding.status is not Status.FAIL:
        return finding
    message = f"known of {reason}: {finding.message}"
    evidence = {**finding.evidence, "known": reason}
    return replace(finding, severity=Severity.WARNING, message=message, evidence=evidence)
