"""Where a seed stops holding is found by bisection: on made-up engines, and on one that breaks at known numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from served import serve_here

from parity.conformance.determinism import MOST, Refused, Steady, check_determinism, first_differences
from parity.engines.embedded.faults import FAULTS, STEADY_LOGPROBS, STEADY_TOKENS
from parity.findings import Severity, Status

NEVER = 1000
STATES = ("cold", "warm")
ALONE = [((number,), (-0.5,)) for number in range(MOST)]


def made_up(logprobs_from: int, tokens_from: int, most: int = NEVER) -> Callable[[int], Any]:
    """An engine whose first response moves with so many in flight, and that refuses more than `most`."""

    async def ask(count: int) -> list[Any]:
        if count > most:
            raise Refused(f"{count} are too many")
        rest = list(ALONE[1:count])
        if count >= tokens_from:
            return [((99,), (-0.5,)), *rest]
        return [((0,), (-0.25,) if count >= logprobs_from else (-0.5,)), *rest]

    return ask


@settings(derandomize=True, deadline=None)
@given(st.integers(1, MOST + 1), st.integers(1, MOST + 1))
def test_bisection_finds_the_first_number_that_differs(logprobs_from: int, tokens_from: int) -> None:
    found = asyncio.run(first_differences(made_up(logprobs_from, tokens_from), ALONE))
    first = min(logprobs_from, tokens_from)
    assert found == Steady(MOST, first if first <= MOST else None, tokens_from if tokens_from <= MOST else None)


def test_what_the_engine_refuses_is_not_asked_again() -> None:
    assert asyncio.run(first_differences(made_up(9, NEVER, most=20), ALONE)) == Steady(16, 9, None)
    with pytest.raises(Refused):
        asyncio.run(first_differences(made_up(9, NEVER, most=0), ALONE))


def found(url: str, control: bool) -> dict[str, tuple[Any, ...]]:
    findings = check_determinism(url, control=control, most=STEADY_TOKENS + 2)
    assert {finding.check for finding in findings} == {"engine_determinism"}
    return {
        str(one.where.field): (one.status, one.severity, *map(one.evidence.get, ("logprobs_from", "tokens_from")))
        for one in findings
    }


@pytest.mark.slow
def test_an_engine_that_breaks_at_known_numbers_is_found_to(policy_cache: Path) -> None:
    (policy,) = (path.parent for path in policy_cache.rglob("config.json"))
    torch.set_num_threads(1)
    with serve_here(policy, max_running=64) as (url, engine):
        sound = found(url, control=True)
        FAULTS["batch-dependent"][1](engine)
        broken = found(url, control=False)
    ways = ("per-sample", "batched", "native")
    assert sound == {f"{way}, {state}": (Status.PASS, Severity.ERROR, None, None) for way in ways for state in STATES}
    # It announces that seeds hold, so that it is an error.
    at = (Status.FAIL, Severity.ERROR, STEADY_LOGPROBS + 1, STEADY_TOKENS + 1)
    assert broken == {f"{way}, warm": at for way in ways} | {
        f"{way}, cold": (Status.NOT_COMPARED, Severity.ERROR, None, None) for way in ways
    }
