"""What the patch itself costs a group, against decoding the JSON of the same response.

Plans, validates and applies one native group, n = 8 with 4,096 tokens a sample, without and with the recorder, and
decodes the same response with the standard library's `json` and with orjson. They take turns, so that drift of the
machine is shared; medians and their ratios are printed. The package must be importable (`pip install -e .`).

    python benchmarks/patch_overhead.py [--repeats 60]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollout_patch import GroupReport, Output, Recorder, SampleRequest, generate_group, json_lines, sample_rows

SAMPLES, TOKENS, PROMPT_TOKENS = 8, 4096, 512


@dataclass
class HostSample:
    """A host's sample, with the fields that a trainer reads."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    loss_mask: list[int]


class Adapter:
    """Does what a host's adapter does with an output: joins prompt and response, and masks the response."""

    def request(self, sample: HostSample) -> SampleRequest:
        """Ids, with log-probabilities asked for."""
        return SampleRequest({"temperature": 1.0}, input_ids=sample.prompt, options={"return_logprob": True})

    def apply(self, sample: HostSample, output: Output) -> None:
        """Writes all fields anew."""
        sample.tokens = sample.prompt + output.output_ids
        sample.logprobs = list(output.logprobs or ())
        sample.loss_mask = [1] * len(output.output_ids)

    def snapshot(self, sample: HostSample) -> dict[str, Any]:
        """The fields as they are."""
        return dict(vars(sample))

    def restore(self, sample: HostSample, snapshot: Any) -> None:
        """The fields as they were."""
        vars(sample).update(snapshot)


def response(rng: random.Random) -> bytes:
    """A response as the engine sends it: (samples) x (tokens) triples of log-probability, id and null."""
    items = []
    for slot in range(SAMPLES):
        ids = [rng.randrange(150_000) for _ in range(TOKENS)]
        meta = {
            "id": f"{slot:032x}",
            "finish_reason": {"type": "length", "length": TOKENS},
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": TOKENS,
            "weight_version": "default",
            "output_token_logprobs": [[-rng.expovariate(1.0), token, None] for token in ids],
        }
        items.append({"text": "word " * TOKENS, "output_ids": ids, "meta_info": meta})
    return orjson.dumps(items)


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Prints medians in milliseconds and the ratios to both decoders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    body = response(random.Random(0))
    decoded = orjson.loads(body)
    loop = asyncio.new_event_loop()

    async def post(payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
        return decoded

    def patch(recorder: Recorder | None = None) -> GroupReport:
        samples = [HostSample([1] * PROMPT_TOKENS, [], [], []) for _ in range(SAMPLES)]
        work = generate_group("native", samples, adapter=Adapter(), post=post, recorder=recorder)
        return loop.run_until_complete(work)

    with tempfile.TemporaryDirectory() as folder:
        write_exchange = json_lines(Path(folder) / "run.exchanges.jsonl")
        write_sample = json_lines(Path(folder) / "run.samples.jsonl")

        def recorded() -> None:
            for row in sample_rows(patch(write_exchange), rollout_id=0, group_index=0):
                write_sample(row)

        works: dict[str, Callable[[], Any]] = {
            "patch": patch,
            "recorded": recorded,
            "json": lambda: json.loads(body),
            "orjson": lambda: orjson.loads(body),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(repeats):
            for name, work in works.items():
                times[name].append(seconds(work))
    loop.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"n = {SAMPLES}, {TOKENS} tokens a sample, {len(body) / 1e6:.2f} MB, median of {repeats}")
    for name, median in medians.items():
        print(f"  {name:8} {median * 1e3:7.2f} ms")
    for name in ("json", "orjson"):
        print(f"  patch / {name} = {medians['patch'] / medians[name]:.2f}")
        print(f"  recorded / {name} = {medians['recorded'] / medians[name]:.2f}")


if __name__ == "__main__":
    main()
