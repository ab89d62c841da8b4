"""An engine that answers by a script, samples that remember, and the recorded exchanges of the real engine."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollout_patch import Output, SampleRequest

DATA = Path(__file__).parents[1] / "data"


class ScriptedEngine:
    """Answers `/generate` soundly, except where its script has an exception, or a change of the answer."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.script: list[BaseException | Callable[[Any], Any] | None] = []
        self.numbers = itertools.count(1)
        self.in_flight = 0

    async def post(self, payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
        self.sent.append(copy.deepcopy(payload))
        self.headers.append(dict(headers))
        step = self.script.pop(0) if self.script else None
        self.in_flight += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        if isinstance(step, BaseException):
            raise step
        answer = self.answer(payload)
        return step(answer) if step else answer

    def answer(self, payload: Mapping[str, Any]) -> Any:
        prompt = payload.get("input_ids", payload.get("text"))
        is_list = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
        prompts = prompt if is_list else [prompt]
        params = payload["sampling_params"]
        n = params.get("n", 1) if isinstance(params, dict) else 1
        items = [self.item(len(one)) for one in prompts for _ in range(n)]
        return items if is_list or n > 1 else items[0]

    def item(self, prompt_tokens: int) -> dict[str, Any]:
        number = next(self.numbers)
        return {
            "text": f"answer {number}",
            "output_ids": [number, 7],
            "meta_info": {
                "id": f"id-{number}",
                "finish_reason": {"type": "stop", "matched": 7},
                "prompt_tokens": prompt_tokens,
                "cached_tokens": 0,
                "completion_tokens": 2,
                "weight_version": "w1",
                "weight_versions": [{"version": "w1", "start": 0, "end": 2}],
                "output_token_logprobs": [[-0.5, number, None], [-0.25, 7, None]],
            },
        }


class NamespaceAdapter:
    """Samples are namespaces with their request in `asks`; like a host's, it primes the sample before it is sent."""

    def request(self, sample: SimpleNamespace) -> SampleRequest:
        sample.tokens = sample.asks.prompt
        return sample.asks

    def apply(self, sample: SimpleNamespace, output: Output) -> None:
        sample.tokens = [*sample.asks.prompt, *output.output_ids]
        sample.logprobs = output.logprobs
        sample.status = output.finish_reason

    def snapshot(self, sample: SimpleNamespace) -> dict[str, Any]:
        return dict(vars(sample))

    def restore(self, sample: SimpleNamespace, snapshot: dict[str, Any]) -> None:
        vars(sample).clear()
        vars(sample).update(snapshot)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def adapter() -> NamespaceAdapter:
    return NamespaceAdapter()


@pytest.fixture
def make_group() -> Callable[..., list[SimpleNamespace]]:
    """Builds n fresh samples of one prompt; keyword arguments change what each asks for."""

    def make(n: int = 4, **changes: Any) -> list[SimpleNamespace]:
        asks = {"sampling_params": {"temperature": 1.0}, "input_ids": [1, 2, 3], "options": {"return_logprob": True}}
        requests = [SampleRequest(**copy.deepcopy({**asks, **changes})) for _ in range(n)]
        return [SimpleNamespace(asks=request, tokens=[], logprobs=None, status="pending") for request in requests]

    return make


@pytest.fixture(scope="session")
def recorded() -> dict[str, dict[str, Any]]:
    """The first exchange of each case, text and images, as the real engine answered."""
    cases: dict[str, dict[str, Any]] = {}
    for name in ("sglang-0.5.23-cpu", "sglang-0.5.23-cpu-qwen2.5-vl"):
        for line in (DATA / f"{name}.exchanges.jsonl").read_text().splitlines():
            row = json.loads(line)
            cases.setdefault(row["case"], row)
    return cases
