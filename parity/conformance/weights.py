"""Cases of weights and cache: updates from disk, their effect, versions and digests, and what is dropped."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from parity.conformance.checkpoints import LAYERS, served_checkpoint, with_reversed_rows, with_turned_matrix
from parity.conformance.phases import end_pause, long_request, pause
from parity.conformance.probe import (
    GREEDY,
    MIDDLE,
    PROMPT,
    Cases,
    NotCompared,
    Output,
    Probe,
    expect,
    ids_of,
    lengths,
    log_probs_of,
    meta_of,
    require,
    short,
)
from parity.engines.client import OF_NOTHING

DRAIN_SECONDS = 10
REFUSED = 400
LABEL = "parity-conformance"
DELAYS = (0.05, 0.02, 0.2, 0.5, 1.0)
"""Seconds after which a request is expected to run, tried one after the other: engines differ in speed."""
MOVED = 0.05
"""Nats by which log-probs of a prompt must move at least where every layer of one file of weights is another."""
CLOSE = 0.1
"""The gap of the old weights' log-probs, before and after, as the largest share of their gap from the new ones'."""

CASES = Cases()


async def update(probe: Probe, path: Path, **fields: Any) -> tuple[int, Any]:
    """Flushes, which waits for what runs, and updates from a checkpoint: status and response."""
    await _flush(probe)
    return await probe.post("/update_weights_from_disk", {"model_path": str(path), **fields})


async def push(probe: Probe, path: Path, **fields: Any) -> None:
    """An update that must be done."""
    _expect_updated(*await update(probe, path, **fields))


async def _flush(probe: Probe) -> None:
    await probe.control(f"/flush_cache?timeout={DRAIN_SECONDS}")


@asynccontextmanager
async def weights_kept(probe: Probe) -> AsyncIterator[Path]:
    """The checkpoint that is served; it and its weight version are put back at the end."""
    path, version = await served_checkpoint(probe)
    try:
        yield path
    finally:
        await push(probe, path, **({} if version is None else {"weight_version": version}))


@asynccontextmanager
async def other_weights(probe: Probe, names: re.Pattern[str], most_files: int | None = None) -> AsyncIterator[Path]:
    """A checkpoint like the one that is served, with some matrices changed; what is served is put back at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        async with weights_kept(probe) as path:
            with_reversed_rows(path, other := Path(scratch) / "other", names, most_files)
            yield other


def _expect_updated(status: int, response: Any, right: tuple[int, bool] = (200, True)) -> None:
    """Expects the response of an update to report this status and success."""
    success = response.get("success") if isinstance(response, dict) else None
    expect("status", (status, success), right, "status and success of {response}", response=short(response))


def _versions(outputs: list[Output]) -> list[Any]:
    return meta_of(outputs, "weight_version")


async def _version(probe: Probe) -> Any:
    return (await probe.client.model_info()).get("weight_version")


async def _greedy_ids(probe: Probe) -> list[int]:
    (output,) = await probe.ask(PROMPT, GREEDY)
    return ids_of(output)


async def _prompt_scores(probe: Probe) -> list[float]:
    """Log-probs of the prompt's tokens but the first."""
    (output,) = await probe.ask(PROMPT, {"max_new_tokens": 1}, logprob_start_len=0)
    return log_probs_of(output, "input_token_logprobs")[1:]


def gap(some: Sequence[float], others: Sequence[float]) -> float:
    """The mean absolute difference of log-probs."""
    return fmean(abs(a - b) for a, b in zip(some, others, strict=True))


@CASES.case(control=True)
async def weights_take_effect(probe: Probe) -> None:
    """Changed weights change the log-probs of a prompt, and the old weights bring the old log-probs back."""
    path, version = await served_checkpoint(probe)
    async with other_weights(probe, LAYERS, most_files=1) as other:
        before = await _prompt_scores(probe)
        await push(probe, other, weight_version=LABEL)
        moved = gap(before, await _prompt_scores(probe))
        require("input_token_logprobs", moved >= MOVED, f">= {MOVED} nats", moved, "effect of changed weights")
        await push(probe, path, **({} if version is None else {"weight_version": version}))
        left = gap(before, await _prompt_scores(probe))
        what = "gap to the first log-probs, with the old weights again"
        require("input_token_logprobs", left <= CLOSE * moved, f"<= {CLOSE * moved:.3g} nats", left, what)


# --- digests


async def _digests(probe: Probe) -> dict[str, str]:
    """The digest of each tensor by rank and name, from SGLang's endpoint or from vLLM's."""
    for path in ("/weights_checker", "/weight_checker"):
        status, response = await probe.post(path, {"action": "checksum"})
        if status == 200 and isinstance(response, dict):
            if isinstance(ranks := response.get("ranks"), list):
                return {f"{k}:{name}": str(v) for k, rank in enumerate(ranks) for name, v in rank["checksums"].items()}
            if isinstance(response.get("checksums"), dict):
                return {name: str(value) for name, value in response["checksums"].items()}
    raise NotCompared("neither /weights_checker nor /weight_checker reports digests")


@CASES.case(control=True)
async def digests_of_something(probe: Probe) -> None:
    """No digest of a weight is that of zero bytes."""
    digests = await _digests(probe)
    empty = [name for name, digest in digests.items() if digest == OF_NOTHING]
    what = "{count} of {total} tensors whose digest is the SHA-256 of zero bytes"
    require("checksums", bool(digests) and not empty, [], empty, what, count=len(empty), total=len(digests))


@CASES.case(control=True)
async def digests_follow_weights(probe: Probe) -> None:
    """Digests change with the weights, and return with the old weights."""
    path, version = await served_checkpoint(probe)
    before = await _digests(probe)
    async with other_weights(probe, LAYERS, most_files=1) as other:
        await push(probe, other, weight_version=LABEL)
        changed = await _digests(probe)
        require("checksums", changed != before, "other digests", "the same", "digests of changed weights")
        expect("checksums", sorted(changed), sorted(before), "tensors with a digest")
        await push(probe, path, **({} if version is None else {"weight_version": version}))
        after = await _digests(probe)
        left = [name for name, digest in before.items() if after.get(name) != digest]
        expect("checksums", left, [], "tensors whose digest differs with the old weights again")


# --- versions


@CASES.case(control=True)
async def weights_version(probe: Probe) -> None:
    """After an update, outputs and model_info carry its version."""
    async with weights_kept(probe) as path:
        await push(probe, path, weight_version=LABEL)
        expect("weight_version", await _version(probe), LABEL, "weight version at /model_info")
        outputs = [*await probe.ask(PROMPT, {"n": 2}), *await probe.ask([PROMPT, MIDDLE])]
        expect("weight_version", _versions(outputs), [LABEL] * 4, "weight versions of outputs")


@CASES.case(control=True)
async def weights_without_version(probe: Probe) -> None:
    """An update without a version keeps the label."""
    async with weights_kept(probe) as path:
        await push(probe, path, weight_version=LABEL)
        await push(probe, path)
        expect("weight_version", _versions(await probe.ask(PROMPT)), [LABEL], "weight versions of outputs")


@CASES.case(control=True)
async def weights_missing(probe: Probe) -> None:
    """An update from a directory that does not exist is refused, and the old weights serve on."""
    path, version = await served_checkpoint(probe)
    before = await _greedy_ids(probe)
    _expect_updated(*await update(probe, path / "not-there", weight_version=LABEL), (REFUSED, False))
    expect("output_ids", await _greedy_ids(probe), before, "greedy ids afterwards")
    expect("weight_version", await _version(probe), version, "weight version afterwards")


@CASES.case(control=True)
async def weights_wait(probe: Probe) -> None:
    """An update waits for running requests, which keep the old version whole."""
    async with weights_kept(probe) as path:
        (version,) = _versions(await probe.ask(PROMPT))
        for delay in DELAYS:
            running = asyncio.create_task(probe.outputs(long_request(probe, PROMPT, {"n": 4})))
            await asyncio.sleep(delay)
            updated = await probe.post("/update_weights_from_disk", {"model_path": str(path), "weight_version": LABEL})
            ran = _versions(await running)
            if updated[0] == REFUSED and delay != DELAYS[-1]:
                # the request was still queued, and the next try is later
                await push(probe, path, weight_version=version)
                continue
            _expect_updated(*updated)
            expect("weight_version", _versions(await probe.ask(PROMPT)), [LABEL], "weight version after the update")
            if ran == [version] * 4:
                return
            # the update came before the request, and the next try is later
            expect("weight_version", ran, [LABEL] * 4, "weight versions of a request sent with the update")
            await push(probe, path, weight_version=version)
        expect("weight_version", ran, [version] * 4, "weight versions of the running request")


@CASES.case(control=True, partial_versions=True)
async def weights_in_pause(probe: Probe) -> None:
    """A sequence paused during an update reports which tokens each version made."""
    async with weights_kept(probe) as path:
        (version,) = _versions(await probe.ask(PROMPT))
        for delay in DELAYS:
            running = asyncio.create_task(probe.outputs(long_request(probe, PROMPT)))
            await asyncio.sleep(delay)
            await pause(probe, "retract")
            try:
                body = {"model_path": str(path), "weight_version": LABEL}
                updated = await probe.post("/update_weights_from_disk", body)
            finally:
                await end_pause(probe)
            _expect_updated(*updated)
            (spans,) = meta_of(await running, "weight_versions")
            seen = [span.get("version") for span in spans or []]
            if seen == [version, LABEL]:
                return
            await push(probe, path, weight_version=version)
        expect("weight_versions", seen, [version, LABEL], "versions of its tokens")


# --- the prefix cache


async def _cached(probe: Probe) -> Any:
    """Cached tokens of a prompt."""
    (cached,) = meta_of(await probe.ask(PROMPT), "cached_tokens")
    return cached


async def _warm_up(probe: Probe) -> None:
    """Fills the prefix cache."""
    if not probe.about.prefix_cache:
        raise NotCompared("the engine has no prefix cache")
    await probe.ask(PROMPT)
    cached = await _cached(probe)
    require("cached_tokens", bool(cached), "more than 0", cached, "cached tokens of a prompt sent twice")


@CASES.case(control=True)
async def weights_drop_cache(probe: Probe) -> None:
    """An update drops the prefix cache, which holds keys and values of the old weights."""
    async with weights_kept(probe) as path:
        await _warm_up(probe)
        await push(probe, path, weight_version=LABEL)
        expect("cached_tokens", await _cached(probe), 0, "cached tokens after the update")


@CASES.case(control=True)
async def flush(probe: Probe) -> None:
    """Flushing drops the prefix cache."""
    await _warm_up(probe)
    await _flush(probe)
    expect("cached_tokens", await _cached(probe), 0, "cached tokens after the flush")


@CASES.case(control=True)
async def flush_busy(probe: Probe) -> None:
    """A flush while something runs is refused, and what runs is not disturbed."""
    body = long_request(probe, PROMPT, {"n": 2})
    cap = body["sampling_params"]["max_new_tokens"]
    for delay in DELAYS:
        running = asyncio.create_task(probe.outputs(body))
        await asyncio.sleep(delay)
        status, _ = await probe.post("/flush_cache")
        expect("output_ids", lengths(await running), [cap] * 2, "tokens")
        if status == REFUSED:
            return
    expect("status", status, REFUSED, "status of the flush")


@CASES.case(control=True, destructive=True)
async def weights_of_other_shape(probe: Probe) -> None:
    """An update from a checkpoint of another shape is refused, and the old weights serve on."""
    path, _ = await served_checkpoint(probe)
    before = await _greedy_ids(probe)
    with tempfile.TemporaryDirectory() as scratch:
        with_turned_matrix(path, other := Path(scratch) / "other-shape")
        status, response = await update(probe, other, weight_version=LABEL)
    expect("status", status, REFUSED, "status of {response}", response=short(response))
    expect("output_ids", await _greedy_ids(probe), before, "greedy ids afterwards")
