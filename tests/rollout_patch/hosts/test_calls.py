"""A group asked for in two arms: the host gets its own samples once, whatever happens to the other arm's copies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_patch import Capabilities, GroupReport, Output, SampleRequest, UnsupportedHost, fixed
from rollout_patch.hosts.calls import RolloutCalls, Turn
from rollout_patch.hosts.options import Options


def probing(**changes: Any) -> RolloutCalls:
    return RolloutCalls(Options(design="probe", share=1.0), Capabilities(), rollout_id=2, seed=5, **changes)


def make_group(index: int | None = 0) -> list[Any]:
    return [SimpleNamespace(group_index=index, tokens=[1, 2], metadata={"source": "a"}) for _ in range(3)]


async def in_arms(calls: RolloutCalls, group: list[Any], ask: Any) -> list[Any]:
    return await calls.in_its_arms(group, calls.assign(group), ask)


def write(group: list[Any], turn: Turn) -> list[Any]:
    """Changes samples in place, as a host's code may."""
    for sample in group:
        sample.tokens.append(turn.arm)
        sample.metadata["arm"] = turn.arm
    return group


async def test_both_arms_are_asked_and_the_copies_share_nothing_that_changes() -> None:
    turns: list[Turn] = []

    async def ask(group: list[Any], turn: Turn) -> list[Any]:
        turns.append(turn)
        await asyncio.sleep(0)
        return write(group, turn)

    group = make_group()
    assert await in_arms(probing(), group, ask) is group
    assert {turn.arm for turn in turns} == {"per-sample", "native"}
    (trained,) = [turn.arm for turn in turns if turn.trained]
    assert [sample.tokens for sample in group] == [[1, 2, trained]] * 3
    assert [sample.metadata for sample in group] == [{"source": "a", "arm": trained}] * 3


async def test_the_group_is_done_when_both_arms_are() -> None:
    done: list[bool] = []

    async def ask(group: list[Any], turn: Turn) -> list[Any]:
        for _ in range(1 if turn.trained else 20):
            await asyncio.sleep(0)
        done.append(turn.trained)
        return group

    await in_arms(probing(), make_group(), ask)
    assert done == [True, False]


async def test_a_failed_comparison_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(group: list[Any], turn: Turn) -> list[Any]:
        if not turn.trained:
            raise RuntimeError("the reward server is gone")
        return write(group, turn)

    calls, group = probing(), make_group()
    assert await in_arms(calls, group, ask) is group
    assert calls.metrics()["rollout_patch/compared_lost"] == 1
    assert "RuntimeError: the reward server is gone" in caplog.text


async def test_a_failed_group_is_the_hosts_error_and_ends_its_comparison() -> None:
    ended: list[str] = []

    async def ask(group: list[Any], turn: Turn) -> list[Any]:
        if turn.trained:
            await asyncio.sleep(0)
            raise RuntimeError("planted")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(turn.arm)
        raise AssertionError("never reached")

    with pytest.raises(RuntimeError, match="planted"):
        await in_arms(probing(), make_group(), ask)
    assert len(ended) == 1


@given(steps=st.tuples(st.integers(0, 5), st.integers(0, 5)), cancel_after=st.integers(0, 8))
def test_cancelled_at_any_await_nothing_runs_on(steps: tuple[int, int], cancel_after: int) -> None:
    running: set[str] = set()

    async def ask(group: list[Any], turn: Turn) -> list[Any]:
        running.add(turn.arm)
        try:
            for _ in range(steps[turn.trained]):
                await asyncio.sleep(0)
            return group
        finally:
            running.discard(turn.arm)

    async def scenario() -> None:
        group = make_group()
        task = asyncio.ensure_future(in_arms(probing(), group, ask))
        for _ in range(cancel_after):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert await task is group
        assert running == set()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("reward", "recorded"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (np.float32(0.25), 0.25),
        ({"score": 0.75, "format": 1}, 0.75),
        ({"format": 1}, None),
        (None, None),
        ("good", None),
    ],
)
def test_a_reward_is_recorded_where_it_is_a_number(reward: Any, recorded: float | None, tmp_path: Path) -> None:
    calls = RolloutCalls(Options(record=tmp_path), Capabilities(), rollout_id=2, seed=5, reward_key="score")
    output = Output("x", [7], [-0.5], "stop", None, 2, 0, "w1", "id", {})
    report = GroupReport("native", "native", (), 1, 0, (output,), (SampleRequest({}, input_ids=[1, 2]),))
    sample = SimpleNamespace(group_index=4, reward=reward)
    calls._record([sample], [sample], Turn(fixed("native"), "native", trained=True), [0], report)
    calls.close()
    (line,) = (tmp_path / "rollout.samples.jsonl").read_text().splitlines()
    assert json.loads(line).get("reward") == recorded


def test_arms_are_drawn_by_the_groups_number_and_refused_without_one() -> None:
    calls = probing()
    drawn = [calls.assign(make_group(index)) for index in range(32)]
    assert drawn == [calls.assign(make_group(index)) for index in range(32)]
    assert len(set(drawn)) == 2
    with pytest.raises(UnsupportedHost, match="group_index"):
        calls.assign(make_group(None))
    fixed = RolloutCalls(Options(), Capabilities(), rollout_id=2, seed=5)
    assert fixed.assign(make_group(None)).arms == ("native",)


def test_what_is_recorded_has_a_groups_number(tmp_path: Path) -> None:
    calls = RolloutCalls(Options(record=tmp_path), Capabilities(), rollout_id=2, seed=5)
    assert calls.assign(make_group(3)).arms == ("native",)
    with pytest.raises(UnsupportedHost, match="recorded by group_index"):
        calls.assign(make_group(None))


def test_lost_lines_are_among_the_metrics(tmp_path: Path) -> None:
    for number, lost in enumerate((0, 2)):
        calls = RolloutCalls(Options(record=tmp_path / str(number)), Capabilities(), rollout_id=2, seed=5)
        if lost:
            (tmp_path / str(number) / "rollout.samples.jsonl").mkdir()
        for _ in range(2):
            calls.recording.lines("samples", True, {})({"a": 1})  # type: ignore[union-attr]
        calls.groups = 1
        metrics = calls.finish(SimpleNamespace(metrics={"own": 1})).metrics
        assert (metrics["own"], metrics.get("rollout_patch/lines_lost", 0)) == (1, lost)


def test_a_rollout_without_a_group_is_an_error_unless_it_evaluates() -> None:
    with pytest.raises(UnsupportedHost, match="no group came by"):
        RolloutCalls(Options(), Capabilities(), rollout_id=2, seed=5).finish(SimpleNamespace(metrics=None))
    evaluating = RolloutCalls(Options(), Capabilities(), rollout_id=2, seed=5, evaluation=True)
    assert evaluating.finish(SimpleNamespace(metrics=None)).metrics["eval/rollout_patch/groups"] == 0


def test_the_recorders_thread_ends_with_its_rollout_however_that_ends(tmp_path: Path) -> None:
    calls = RolloutCalls(Options(record=tmp_path), Capabilities(), rollout_id=2, seed=5)
    calls.recording.lines("samples", True, {})({"a": 1})  # type: ignore[union-attr]
    calls.close()
    calls.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout_patch")]
    assert (tmp_path / "rollout.samples.jsonl").read_text() == '{"a":1}\n'
