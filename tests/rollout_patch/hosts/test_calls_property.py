"""Groups of a host in random designs, against a random engine, cancelled and aborted at any moment."""

from __future__ import annotations

import asyncio
import copy
import gc
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

from rollout_patch import Capabilities, GroupReport, Output, RequestFailed
from rollout_patch.hosts import calls as calls_module
from rollout_patch.hosts.calls import RolloutCalls, Way
from rollout_patch.hosts.meeting import post_function, sample_function
from rollout_patch.hosts.options import Options
from rollout_patch.responses import unsent_output

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
    """A module of a host's shape: one sample, a group of them, rewards and what they are sent with."""
    host = types.ModuleType("host")

    async def post(url: str, payload: Any, max_retries: int = 60, headers: Any = None) -> Any:
        try:
            return await engine.post(payload, headers or {})
        except RequestFailed as failure:
            raise HTTPError(failure.status) from failure

    async def generate_and_rm(state: Any, sample: HostSample, params: dict[str, Any]) -> HostSample:
        async with state.semaphore:
            if state.aborted:
                sample.status = "abort"
                return sample
            sample.tokens = sample.tokens or [1, 2, 3, sample.group_index]
            sample.metadata["nested"].append("primed")
            payload = {"input_ids": sample.tokens, "sampling_params": params, "return_logprob": True}
            output = await host.post("http://engine/generate", payload)
            sample.tokens = sample.tokens + output["output_ids"]
            sample.response_length += len(output["output_ids"])
            sample.log_probs = [item[0] for item in output["meta_info"]["output_token_logprobs"]]
            sample.status = output["meta_info"]["finish_reason"]["type"]
        await asyncio.sleep(0)
        sample.reward = float(len(sample.tokens))
        return sample

    async def generate_and_rm_group(state: Any, group: list[HostSample], evaluation: bool = False) -> list[HostSample]:
        if state.aborted:
            return group
        tasks = [asyncio.create_task(host.generate_and_rm(state, sample, {})) for sample in group]
        return list(await asyncio.gather(*tasks))

    host.post, host.generate_and_rm = post, generate_and_rm  # type: ignore[attr-defined]
    host.generate_and_rm_group = generate_and_rm_group  # type: ignore[attr-defined]
    return host


def plug_in(host: Any, calls: RolloutCalls) -> Any:
    """What each host's plug-in replaces, and the group's function."""

    async def get(url: str) -> Any:
        raise HTTPError(404)

    args = types.SimpleNamespace(sglang_router_ip="engine", sglang_router_port=80)
    way = Way(lambda state: state, "semaphore", host.post, get, 2, lambda group: [], args)
    group_function = calls.group_function(way, host.generate_and_rm_group)
    host.generate_and_rm = sample_function(host.generate_and_rm)
    host.post = post_function(host.post)
    return group_function


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
        semaphore = asyncio.Semaphore(capacity)
        state = types.SimpleNamespace(semaphore=semaphore, aborted=False)
        options = Options(design=design, share=1.0, chunk=chunk, record=folder)
        calls = RolloutCalls(options, Capabilities(), rollout_id=0, seed=seed)
        groups = [[HostSample(group, slot) for slot in range(N)] for group in range(count)]
        before = copy.deepcopy(groups)
        generate = plug_in(host, calls)
        tasks = [asyncio.create_task(generate(state, group)) for group in groups]
        for tick in range(10_000):
            state.aborted = abort_at is not None and tick >= abort_at
            if tick == cancel_at:
                tasks[-1].cancel()
            if all(task.done() for task in tasks):
                break
            await asyncio.sleep(0)

        calls.close()
        for _ in range(4):
            await asyncio.sleep(0)
        assert state.semaphore is semaphore
        assert all(task.done() for task in tasks)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (engine.in_flight, semaphore._value) == (0, capacity)
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
    """Given back as it was, marked as aborted, or applied whole by one arm's answers, which are those recorded."""
    failed = task.cancelled() or task.exception() is not None
    if group == old:
        event("as before")
        assert rows == []
        return
    if failed and {sample.response_length for sample in group} != {0}:
        event("cancelled after it was applied")
    elif not failed:
        event("applied")
        assert [id(sample) for sample in task.result()] == [id(sample) for sample in group]
    for sample in group:
        unsent = not sample.tokens
        assert len(sample.tokens) == (0 if unsent else 4 + sample.response_length)
        assert sample.status in (("abort",) if unsent else ("stop", "length", "abort"))
    assert len({id(sample.tokens) for sample in group}) == N
    if rows:
        made = [sample for sample in group if sample.tokens]
        assert [row["output_ids"] for row in rows] == [sample.tokens[4:] for sample in made]
        assert [row["reward"] for row in rows] == [sample.reward for sample in made]
        assert {row["extra"]["assignment"]["trained"] for row in rows} == {True}


async def test_what_was_refused_twice_is_not_asked_in_the_next_rollout() -> None:
    engine = RandomEngine(["400", "sound", "400", "sound"], [0])
    host = make_host(engine)
    state = types.SimpleNamespace(semaphore=asyncio.Semaphore(N), aborted=False)
    requests = []
    for rollout_id in range(3):
        calls = RolloutCalls(Options(), Capabilities(), rollout_id, seed=0)
        stock = dict(vars(host))
        await plug_in(host, calls)(state, [HostSample(0, slot) for slot in range(N)])
        vars(host).update(stock)
        calls.close()
        assert calls.metrics()["rollout_patch/fallback/refused_native"] == 1
        requests.append(calls.metrics()["rollout_patch/requests"])
        if rollout_id:
            engine.behaviours = itertools.repeat("sound")
    assert requests == [2, 2, 1]


async def test_nothing_of_a_group_is_kept_once_it_is_done() -> None:
    def held() -> int:
        gc.collect()
        return sum(type(one) in (Output, GroupReport) for one in gc.get_objects())

    before = held()
    longer = asyncio.get_running_loop().call_later(500, print)  # behind it, timers of groups that are done wait too
    host = make_host(RandomEngine(["sound"], [0]))
    calls = RolloutCalls(Options(), Capabilities(), rollout_id=0, seed=0)
    group_function = plug_in(host, calls)
    state = types.SimpleNamespace(semaphore=asyncio.Semaphore(N), aborted=False)
    for index in range(5):
        await group_function(state, [HostSample(index, slot) for slot in range(N)])
    assert calls.metrics()["rollout_patch/native_groups"] == 5
    await asyncio.sleep(0)
    assert held() == before
    longer.cancel()
    kept = [unsent_output()]
    assert held() == before + len(kept)  # what the count says of one that is kept
    calls.close()


def recorded(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rollout.samples.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
