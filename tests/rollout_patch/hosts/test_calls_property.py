"""Groups of a host in random designs, against a random engine, cancelled and aborted at any moment."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import event, given, settings
from hypothesis import strategies as st
from random_engine import BEHAVIOURS, RandomEngine
from rollout_patch.hosts.stock import Stock, StockAdapter

from rollout_patch import Capabilities, RequestFailed, fixed
from rollout_patch.hosts import calls as calls_module
from rollout_patch.hosts.calls import RolloutCalls, Turn
from rollout_patch.hosts.options import Options

N = 3


class HostSample:
    def __init__(self, group_index: int, slot: int) -> None:
        self.group_index = group_index
        self.index = group_index * N + slot
        self.tokens: list[int] = []
        self.response_length = 0
        self.log_probs: list[float] | None = None
        self.status = "pending"
        self.reward: float | None = None
        self.metadata: dict[str, Any] = {"nested": []}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostSample) and vars(self) == vars(other)


class HTTPError(Exception):
    """As a host's HTTP client raises it."""

    def __init__(self, status: int | None) -> None:
        super().__init__("planted")
        self.response = types.SimpleNamespace(status_code=status, text="planted") if status else None


def make_host(engine: RandomEngine) -> types.ModuleType:
    host = types.ModuleType("host")

    async def post(url: str, payload: Any, max_retries: int = 60, headers: Any = None) -> Any:
        try:
            return await engine.post(payload, headers or {})
        except RequestFailed as failure:
            raise HTTPError(failure.status) from failure

    async def generate(sample: HostSample, params: dict[str, Any]) -> HostSample:
        sample.tokens = sample.tokens or [1, 2, 3, sample.group_index]
        sample.metadata["nested"].append("primed")
        payload = {"input_ids": sample.tokens, "sampling_params": params, "return_logprob": True}
        output = await host.post("http://engine/generate", payload)
        sample.tokens = sample.tokens + output["output_ids"]
        sample.response_length += len(output["output_ids"])
        sample.log_probs = [item[0] for item in output["meta_info"]["output_token_logprobs"]]
        sample.status = output["meta_info"]["finish_reason"]["type"]
        return sample

    host.post, host.generate = post, generate  # type: ignore[attr-defined]
    return host


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    design=st.sampled_from(["probe", "probe", "switchback", "fixed"]),
    seed=st.integers(0, 7),
    count=st.integers(1, 3),
    behaviours=st.lists(st.just("sound") | st.sampled_from(BEHAVIOURS), min_size=1, max_size=6),
    delays=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    capacity=st.integers(1, 7),
    chunk=st.none() | st.integers(1, 3),
    cancel_at=st.none() | st.integers(0, 15),
    abort_at=st.none() | st.integers(0, 15),
)
def test_the_host_gets_each_sample_once_or_as_it_was(
    design: str,
    seed: int,
    count: int,
    behaviours: list[str],
    delays: list[int],
    capacity: int,
    chunk: int | None,
    cancel_at: int | None,
    abort_at: int | None,
) -> None:
    async def run(folder: Path) -> None:
        engine = RandomEngine(behaviours, delays)
        host = make_host(engine)
        own = (host.post, host.generate)
        semaphore = asyncio.Semaphore(capacity)
        options = Options(design=design, share=1.0, chunk=chunk, record=folder)
        calls = RolloutCalls(options, Capabilities(), rollout_id=0, seed=seed)
        groups = [[HostSample(group, slot) for slot in range(N)] for group in range(count)]
        before = copy.deepcopy(groups)
        aborted = False

        async def ask(group: list[Any], turn: Turn) -> list[Any] | None:
            report = await calls.generate(
                group,
                StockAdapter(Stock(host.generate, host), group, [{}] * N, lambda sample: None, "abort"),
                turn=turn,
                post=host.post,
                encoder=lambda kind, items: asyncio.sleep(0, items),
                attempts=2,
                semaphore=semaphore,
                capacity=capacity,
                aborted=lambda: aborted,
                circumstances=(),
            )
            if report is None or report.aborted:
                return None if report is None else group
            for sample in group:
                await asyncio.sleep(0)
                sample.reward = float(len(sample.tokens))
            calls.record(group, turn, report)
            return group

        tasks = [asyncio.create_task(calls.in_its_arms(group, ask)) for group in groups]
        for tick in range(10_000):
            aborted = abort_at is not None and tick >= abort_at
            if tick == cancel_at:
                tasks[-1].cancel()
            if all(task.done() for task in tasks):
                break
            await asyncio.sleep(0)

        calls.recording.close()  # type: ignore[union-attr]
        assert all(task.done() for task in tasks)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (engine.in_flight, semaphore._value) == (0, capacity)
        assert (host.post, host.generate) == own
        trained, compared = recorded(folder), recorded(folder / "compared")
        for rows in (trained, compared):
            assert set(Counter((row["group_index"], row["index"]) for row in rows).values()) <= {1}
        for task, group, old in zip(tasks, groups, before, strict=True):
            check_group(task, group, old, [row for row in trained if row["group_index"] == group[0].group_index])
        theirs = {tuple(row["output_ids"]) for row in compared if row["output_ids"]}
        assert not theirs & {tuple(sample.tokens[4:]) for group in groups for sample in group}

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(calls_module, "SECONDS_BETWEEN", 0):
        asyncio.run(run(Path(folder)))


def check_group(
    task: asyncio.Task[Any], group: list[HostSample], old: list[HostSample], rows: list[dict[str, Any]]
) -> None:
    """Given back as it was, or applied whole by one arm's answers, which are those recorded."""
    if group == old:
        event("as before")
        assert rows == []
        return
    event("cancelled after it was applied" if task.cancelled() else "applied")
    assert task.cancelled() or task.result() is group
    for sample in group:
        unsent = not sample.tokens
        assert len(sample.tokens) == (0 if unsent else 4 + sample.response_length)
        assert sample.status in (("abort",) if unsent else ("stop", "length", "abort"))
    assert len({id(sample.tokens) for sample in group}) == N
    if rows:
        assert [row["output_ids"] for row in rows] == [sample.tokens[4:] for sample in group]
        assert [row["reward"] for row in rows] == [sample.reward for sample in group]
        assert {row["extra"]["assignment"]["trained"] for row in rows} == {True}


async def test_what_was_refused_in_one_rollout_is_not_asked_in_the_next() -> None:
    engine = RandomEngine(["400", "sound"], [0])
    host, semaphore = make_host(engine), asyncio.Semaphore(N)
    ways = []
    for rollout_id in range(2):
        group = [HostSample(0, slot) for slot in range(N)]
        calls = RolloutCalls(Options(), Capabilities(), rollout_id, seed=0)
        report = await calls.generate(
            group,
            StockAdapter(Stock(host.generate, host), group, [{}] * N, lambda sample: None, "abort"),
            turn=Turn(fixed("native"), "native", trained=True),
            post=host.post,
            encoder=lambda kind, items: asyncio.sleep(0, items),
            attempts=1,
            semaphore=semaphore,
            capacity=N,
            aborted=lambda: False,
            circumstances=(),
        )
        assert report is not None
        ways.append((report.arm_used, report.reasons, report.requests))
        engine.behaviours = itertools.repeat("sound")
    assert ways == [("batched", ("refused_native",), 2), ("batched", ("refused_native",), 1)]


def recorded(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rollout.samples.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
