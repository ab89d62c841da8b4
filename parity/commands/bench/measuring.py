"""One rollout, measured: the requests that `rollout_patch` plans, timed; answers are counted and not kept.

The patch's own checks of each answer are left out, so that the client costs no more than a bare script.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from parity.engines import EngineClient
from parity.errors import ExchangeError
from parity.records.bench import QUANTILES, Measurement, Mode, Workload
from rollout_patch import PatchError, Permits, PlannedRequest, SampleRequest, plan_requests


async def measure(
    client: EngineClient,
    mode: Mode,
    groups: Iterator[SampleRequest],
    workload: Workload,
    *,
    repeat: int = 0,
    pids: Sequence[int] = (),
    done: Callable[[int], object] = lambda samples: None,
) -> Measurement:
    """Generates one rollout in one mode. Only the times of requests take memory as their number grows.

    Args:
        client: Of the engine or router.
        mode: How.
        groups: What a sample of each group asks for, taken one by one as there is room.
        workload: Group size, cap and concurrency.
        repeat: The number that the result carries.
        pids: Processes whose CPU time is that of the engines, with all their children.
        done: Called with the number of samples of each group that came back or failed.
    """
    tally = _Tally(workload)
    permits = Permits(asyncio.Semaphore(workload.concurrency), workload.concurrency)

    async def take_turns() -> None:
        for request in groups:
            await tally.ask(client, mode, request, permits)
            done(workload.group_size)

    engine_before, client_before, begun = cpu_seconds(pids), time.process_time(), time.perf_counter()
    await asyncio.gather(*(take_turns() for _ in range(min(workload.groups, workload.concurrency))))
    seconds, client_cpu = time.perf_counter() - begun, time.process_time() - client_before
    return Measurement(
        mode=mode.name,
        repeat=repeat,
        seconds=seconds,
        requests=tally.requests,
        samples=tally.samples,
        output_tokens=tally.output_tokens,
        prompt_tokens=tally.prompt_tokens,
        cached_tokens=tally.cached_tokens,
        at_cap=tally.at_cap,
        failed_groups=tally.failed_groups,
        failure=tally.failure,
        request_seconds=quantiles(tally.request_seconds),
        group_seconds=quantiles(tally.group_seconds),
        client_cpu=client_cpu,
        engine_cpu=cpu_seconds(pids) - engine_before if pids else None,
    )


@dataclass(slots=True)
class _Tally:
    """Numbers of a rollout as they come."""

    workload: Workload
    requests: int = 0
    samples: int = 0
    output_tokens: int = 0
    prompt_tokens: int | None = 0
    cached_tokens: int | None = 0
    at_cap: int = 0
    failed_groups: int = 0
    failure: str | None = None
    request_seconds: array[float] = field(default_factory=lambda: array("d"))
    group_seconds: array[float] = field(default_factory=lambda: array("d"))

    async def ask(self, client: EngineClient, mode: Mode, request: SampleRequest, permits: Permits) -> None:
        """One group, counted however it ends."""
        begun: list[float] = []

        async def send(plan: PlannedRequest) -> None:
            async with permits.hold(len(plan.slots)):
                begun.append(time.perf_counter())
                start = begun[-1]
                self.requests += 1
                answer = await client.generate(plan.payload, plan.headers)
                self.request_seconds.append(time.perf_counter() - start)
            self.count(answer, len(plan.slots))

        plans = plan_requests(mode.arm, [request] * self.workload.group_size, mode.chunk, client.dialect)
        results = await asyncio.gather(*map(send, plans), return_exceptions=True)
        failures = [result for result in results if result is not None]
        for failure in failures:
            if not isinstance(failure, (PatchError, ExchangeError)):
                raise failure
        if failures:
            self.failed_groups += 1
            self.failure = self.failure or str(failures[0])[:500]
        else:
            self.group_seconds.append(time.perf_counter() - begun[0])

    def count(self, answer: Any, expected: int) -> None:
        """What came back for one request of so many samples.

        Raises:
            ExchangeError: An item lacks its tokens, how it ended, or is none; or there are more or fewer items.
        """
        try:
            samples = list(_samples(answer))
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ExchangeError(f"a response has no sample ({reason}): {str(answer)[:200]}") from error
        for tokens, ended, prompt, cached in samples:
            self.samples += 1
            self.output_tokens += tokens
            self.at_cap += ended == "length" and tokens == self.workload.new_tokens
            self.prompt_tokens = _sum(self.prompt_tokens, prompt)
            self.cached_tokens = _sum(self.cached_tokens, cached)
        if len(samples) != expected:  # the numbers of other requests may make up for it
            raise ExchangeError(f"a request for {expected} samples was answered with {len(samples)}")


def _samples(answer: Any) -> Iterator[tuple[int, str, Any, Any]]:
    """Of each sample of an answer, in either dialect: its tokens, how it ended, prompt tokens and cached ones.

    vLLM counts the prompt tokens of all prompts of a request together, once, and the cached ones of one sample.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if choices is not None:
        usage, alone = answer["usage"], len(choices) == 1
        details = usage.get("prompt_tokens_details") or {}
        for choice in choices:
            cached = details.get("cached_tokens") if alone else None
            prompt = choice.get("prompt_token_ids")
            of_one = usage["prompt_tokens"] if alone or "request_id" in answer else None
            counted = of_one if prompt is None else len(prompt)
            yield _length(choice["token_ids"]), choice["finish_reason"], counted, cached
        return
    for item in answer if isinstance(answer, list) else [answer]:
        meta = item["meta_info"]
        tokens = _length(item["output_ids"] if "output_ids" in item else meta["output_token_logprobs"])
        yield tokens, meta["finish_reason"]["type"], meta.get("prompt_tokens"), meta.get("cached_tokens")


def _length(tokens: Any) -> int:
    if not isinstance(tokens, list):
        raise TypeError(f"tokens are {type(tokens).__name__}, not list")
    return len(tokens)


def _sum(total: int | None, more: Any) -> int | None:
    """A sum that is not known once a part of it is not; a negative count is none."""
    return None if total is None or type(more) is not int or more < 0 else total + more


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """`QUANTILES` of some times; none of no times."""
    array = np.fromiter(values, np.float64)
    return (
        dict(zip(QUANTILES, np.quantile(array, list(QUANTILES.values())).tolist(), strict=True)) if array.size else {}
    )


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system CPU time of some processes and all their children, so far."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = member.cpu_times()
                    total += times.user + times.system
    return total
