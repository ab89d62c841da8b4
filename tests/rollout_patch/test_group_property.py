"""Random groups against a random, misbehaving engine, cancelled and aborted at any moment."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from random_engine import BEHAVIOURS, RandomEngine

from rollout_patch import ARMS, Capabilities, GroupReport, Output, PatchError, Permits, SampleRequest, generate_group


@dataclass
class HostSample:
    """A host's sample: mutable, primed while its request is made."""

    prompt: list[int]
    seed: int | None
    images: list[str]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    status: str = "pending"
    applied: list[str] = field(default_factory=list)


class HostAdapter:
    """Fails on purpose when it is told which sample to fail at."""

    def __init__(self, fails_at: HostSample | None) -> None:
        self.fails_at = fails_at

    def request(self, sample: HostSample) -> SampleRequest:
        sample.tokens = sample.tokens or list(sample.prompt)
        params = {"stop": ["x"], **({} if sample.seed is None else {"sampling_seed": sample.seed})}
        return SampleRequest(
            params, input_ids=sample.tokens, media={"image_data": sample.images}, options={"return_logprob": True}
        )

    def apply(self, sample: HostSample, output: Output) -> None:
        sample.tokens = sample.tokens + output.output_ids
        sample.logprobs = output.logprobs
        sample.status = output.finish_reason
        sample.applied.append(output.id)
        if sample is self.fails_at:
            raise ArithmeticError("an adapter's own fault")

    def snapshot(self, sample: HostSample) -> dict[str, Any]:
        return {**vars(sample), "applied": list(sample.applied)}

    def restore(self, sample: HostSample, snapshot: Mapping[str, Any]) -> None:
        vars(sample).clear()
        vars(sample).update(copy.deepcopy(dict(snapshot)))


@st.composite
def groups(draw: st.DrawFn) -> list[HostSample]:
    size = draw(st.sampled_from([2, 3, 4, 5, 1]))
    kind = draw(st.sampled_from(["same", "same", "same", "same", "prompts", "seeds", "images"]))
    return [
        HostSample(
            prompt=[1, 2, 3, *([slot] * slot if kind == "prompts" else [])],
            seed=slot if kind == "seeds" else None,
            images=[f"image {slot}"] if kind == "images" else [],
        )
        for slot in range(size)
    ]


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    samples=st.lists(groups(), min_size=1, max_size=3),
    arms=st.lists(st.sampled_from(["native", "native", *ARMS]), min_size=3, max_size=3),
    behaviours=st.lists(st.just("sound") | st.sampled_from(BEHAVIOURS), min_size=1, max_size=6),
    delays=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    retries=st.integers(0, 2),
    chunk=st.none() | st.integers(1, 3),
    capacity=st.integers(1, 6),
    cancel_at=st.none() | st.integers(0, 12),
    abort_at=st.none() | st.integers(0, 12),
    fails_at=st.none() | st.integers(0, 4),
)
def test_every_sample_is_applied_once_or_exactly_as_before(
    samples: list[list[HostSample]],
    arms: list[str],
    behaviours: list[str],
    delays: list[int],
    retries: int,
    chunk: int | None,
    capacity: int,
    cancel_at: int | None,
    abort_at: int | None,
    fails_at: int | None,
) -> None:
    async def run() -> None:
        engine = RandomEngine(behaviours, delays)
        semaphore = asyncio.Semaphore(capacity)
        aborted = False
        recorded: list[dict[str, Any]] = []
        failing = samples[0][fails_at] if fails_at is not None and fails_at < len(samples[0]) else None
        before = copy.deepcopy(samples)
        encoded: list[str] = []

        async def encoder(kind: str, items: Sequence[Any]) -> list[str]:
            await asyncio.sleep(0)
            encoded.extend(f"encoded {item}" for item in items)
            return encoded[-len(items) :]

        permits = Permits(semaphore, capacity)
        tasks = [
            asyncio.create_task(
                generate_group(
                    arm,
                    group,
                    adapter=HostAdapter(failing),
                    post=engine.post,
                    capabilities=Capabilities(seeded=False),
                    retries=retries,
                    retry_wait=0,
                    recorder=recorded.append,
                    chunk=chunk,
                    permits=permits,
                    encoder=encoder,
                    aborted=lambda: aborted,
                )
            )
            for arm, group in zip(arms, samples, strict=False)
        ]
        for tick in range(10_000):
            aborted = abort_at is not None and tick >= abort_at
            if tick == cancel_at:
                tasks[-1].cancel()
            if all(task.done() for task in tasks):
                break
            await asyncio.sleep(0)

        assert all(task.done() for task in tasks)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (engine.in_flight, semaphore._value) == (0, capacity)
        largest = max(map(len, samples))
        assert engine.most_in_flight <= max(capacity, largest if chunk is None else min(chunk, largest))
        for task, group, old in zip(tasks, samples, before, strict=True):
            check_group_state(task, group, old)
        ids = [one for group in samples for sample in group for one in sample.applied if one]
        assert len(set(ids)) == len(ids)
        assert not any(one in repr(samples) for one in encoded)
        assert all(row["request"] is not None and isinstance(row["status"], int) for row in recorded)

    asyncio.run(run())


def check_group_state(task: asyncio.Task[GroupReport], group: list[HostSample], old: list[HostSample]) -> None:
    """All samples applied by the outputs reported, or all exactly as before."""
    failed = task.cancelled() or task.exception() is not None
    if failed or task.result().aborted:
        assert group == old
        event("cancelled" if task.cancelled() else type(task.exception()).__name__ if failed else "aborted")
        if failed and not task.cancelled():
            assert isinstance(task.exception(), (PatchError, ZeroDivisionError, ArithmeticError))
        return
    report = task.result()
    event(f"applied {report.arm_used}")
    for sample, was, output in zip(group, old, report.outputs, strict=True):
        assert sample.applied == [output.id]
        assert sample.tokens == [*was.prompt, *output.output_ids]
        assert (sample.logprobs, sample.status) == (output.logprobs, output.finish_reason)
        assert (sample.prompt, sample.seed, sample.images) == (was.prompt, was.seed, was.images)
        assert output.id == "" or output.output_ids == [] or output.output_ids[0] == int(output.id.removeprefix("id-"))
    assert len({id(sample.tokens) for sample in group}) == len(group)
