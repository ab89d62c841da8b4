"""Cases of weights and cache: updates from disk, versions, what is dropped and what is kept."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from parity.conformance.checkpoints import served_checkpoint, with_turned_matrix
from parity.conformance.phases import end_pause, long_request, pause
from parity.conformance.probe import (
    MIDDLE,
    PROMPT,
    ConformanceCase,
    NotCompared,
    Output,
    Probe,
    case_of,
    expect,
    ids_of,
    lengths,
    require,
    triples_of,
)

DRAIN_SECONDS = 10
REFUSED = 400
LABEL = "parity-conformance"
DELAYS = (0.05, 0.02, 0.2, 0.5, 1.0)
"""Seconds after which a request is expected to run, tried one after the other: engines differ in speed."""


async def update(probe: Probe, path: Path, **fields: Any) -> tuple[int, Any]:
    """Flushes, which waits for what runs, and updates from a checkpoint: status and answer."""
    await _flush(probe)
    return await probe.control("/update_weights_from_disk", {"model_path": str(path), **fields})


async def _flush(probe: Probe) -> None:
    status, answer = await probe.control(f"/flush_cache?timeout={DRAIN_SECONDS}")
    expect("status", status, 200, f"status of /flush_cache, which said {str(answer)[:100]!r}")


@asynccontextmanager
async def weights_kept(probe: Probe) -> AsyncIterator[Path]:
    """The checkpoint served; it and its weight version are put back at the end."""
    path, version = await served_checkpoint(probe)
    try:
        yield path
    finally:
        expect_updated(*await update(probe, path, **({} if version is None else {"weight_version": version})))


def expect_updated(status: int, answer: Any) -> None:
    """Expects what an update was answered with to say that it was done."""
    success = answer.get("success") if isinstance(answer, dict) else None
    expect("status", (status, success), (200, True), f"status and success of {str(answer)[:200]!r}")


def _versions(outputs: list[Output]) -> list[Any]:
    return [output["meta_info"].get("weight_version") for output in outputs]


async def _greedy(probe: Probe) -> tuple[list[int], list[float]]:
    (output,) = await probe.ask(PROMPT, {"temperature": 0.0})
    return ids_of(output), [row[0] for row in triples_of(output)]


async def weights_version(probe: Probe) -> None:
    """After an update, outputs and model_info carry its version."""
    async with weights_kept(probe) as path:
        expect_updated(*await update(probe, path, weight_version=LABEL))
        expect("weight_version", (await probe.client.model_info()).get("weight_version"), LABEL, "at /model_info")
        outputs = [*await probe.ask(PROMPT, {"n": 2}), *await probe.ask([PROMPT, MIDDLE])]
        expect("weight_version", _versions(outputs), [LABEL] * 4, "of outputs")


async def weights_without_version(probe: Probe) -> None:
    """An update without a version keeps the label."""
    async with weights_kept(probe) as path:
        expect_updated(*await update(probe, path, weight_version=LABEL))
        expect_updated(*await update(probe, path))
        expect("weight_version", _versions(await probe.ask(PROMPT)), [LABEL], "of outputs")


async def weights_missing(probe: Probe) -> None:
    """An update from a directory that is not there is refused, and the old weights serve on."""
    path, version = await served_checkpoint(probe)
    before = await _greedy(probe)
    status, answer = await update(probe, path / "not-there", weight_version=LABEL)
    success = answer.get("success") if isinstance(answer, dict) else None
    expect("status", (status, success), (400, False), f"status and success of {str(answer)[:200]!r}")
    expect("output_ids", (await _greedy(probe))[0], before[0], "greedy ids afterwards")
    expect("weight_version", (await probe.client.model_info()).get("weight_version"), version, "afterwards")


async def weights_wait(probe: Probe) -> None:
    """An update waits for what runs, which keeps the old version whole."""
    async with weights_kept(probe) as path:
        (version,) = _versions(await probe.ask(PROMPT))
        for delay in DELAYS:
            running = asyncio.create_task(probe.outputs(long_request(probe, PROMPT, {"n": 4})))
            await asyncio.sleep(delay)
            body = {"model_path": str(path), "weight_version": LABEL}
            updated = await probe.control("/update_weights_from_disk", body)
            ran = _versions(await running)
            if updated[0] == REFUSED and delay != DELAYS[-1]:
                # it found the request still queued and says so, and the next try is later
                expect_updated(*await update(probe, path, weight_version=version))
                continue
            expect_updated(*updated)
            expect("weight_version", _versions(await probe.ask(PROMPT)), [LABEL], "of what came later")
            if ran == [version] * 4:
                return
            # the update came before the request, and the next try is later
            expect("weight_version", ran, [LABEL] * 4, "of what came with the update")
            expect_updated(*await update(probe, path, weight_version=version))
        expect("weight_version", ran, [version] * 4, "of what ran")


async def weights_in_pause(probe: Probe) -> None:
    """A sequence paused over an update says which tokens each version made."""
    async with weights_kept(probe) as path:
        (version,) = _versions(await probe.ask(PROMPT))
        for delay in DELAYS:
            running = asyncio.create_task(probe.outputs(long_request(probe, PROMPT)))
            await asyncio.sleep(delay)
            await pause(probe, "retract")
            try:
                body = {"model_path": str(path), "weight_version": LABEL}
                updated = await probe.control("/update_weights_from_disk", body)
            finally:
                await end_pause(probe)
            expect_updated(*updated)
            (output,) = await running
            spans = output["meta_info"].get("weight_versions")
            seen = [span.get("version") for span in spans or []]
            if seen == [version, LABEL]:
                return
            expect_updated(*await update(probe, path, weight_version=version))
        expect("weight_versions", seen, [version, LABEL], "versions of its tokens")


async def weights_drop_cache(probe: Probe) -> None:
    """An update drops the prefix cache, which holds keys and values of the old weights."""
    async with weights_kept(probe) as path:
        await _cached(probe)
        expect_updated(*await update(probe, path, weight_version=LABEL))
        expect("cached_tokens", await _cached(probe, once=True), 0, "cached tokens after the update")


async def _cached(probe: Probe, once: bool = False) -> Any:
    """Cached tokens of a prompt that, unless `once`, was asked before."""
    if not once:
        if not probe.about.prefix_cache:
            raise NotCompared("the engine runs without a prefix cache")
        await probe.ask(PROMPT)
    (output,) = await probe.ask(PROMPT)
    cached = output["meta_info"].get("cached_tokens")
    if not once:
        require("cached_tokens", bool(cached), "more than 0", cached, "cached tokens of a prompt asked twice")
    return cached


async def flush(probe: Probe) -> None:
    """Flushing drops the prefix cache."""
    await _cached(probe)
    await _flush(probe)
    expect("cached_tokens", await _cached(probe, once=True), 0, "cached tokens after the flush")


async def flush_busy(probe: Probe) -> None:
    """A flush while something runs is refused, and what runs is not disturbed."""
    body = long_request(probe, PROMPT, {"n": 2})
    cap = body["sampling_params"]["max_new_tokens"]
    for delay in DELAYS:
        running = asyncio.create_task(probe.outputs(body))
        await asyncio.sleep(delay)
        status, _ = await probe.control("/flush_cache")
        expect("output_ids", lengths(await running), [cap] * 2, "tokens")
        if status == 400:
            return
    expect("status", status, 400, "status of the flush")


async def weights_of_other_shape(probe: Probe) -> None:
    """An update from a checkpoint of another shape is refused, and the old weights serve on."""
    path, _ = await served_checkpoint(probe)
    before = await _greedy(probe)
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / "other-shape"
        with_turned_matrix(path, other)
        status, answer = await update(probe, other, weight_version=LABEL)
    expect("status", status, 400, f"status of {str(answer)[:200]!r}")
    expect("output_ids", (await _greedy(probe))[0], before[0], "greedy ids afterwards")


CASES: tuple[ConformanceCase, ...] = (
    *(
        case_of(run, control=True)
        for run in (
            weights_version,
            weights_without_version,
            weights_missing,
            weights_wait,
            weights_drop_cache,
            flush,
            flush_busy,
        )
    ),
    case_of(weights_in_pause, control=True, partial_versions=True),
    case_of(weights_of_other_shape, control=True, destructive=True),
)
