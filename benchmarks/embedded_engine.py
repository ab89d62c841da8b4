"""Tokens a second of the embedded engine, `transformers` generate and the real SGLang on one checkpoint, interleaved.

    python benchmarks/embedded_engine.py --model-path DIR [--sglang-python /path/to/python] [--repeats 3]

One measurement of a server is --groups x --samples x --new-tokens, one native request a group, all at once, over
loopback HTTP with log-probs, after one measurement that is not counted. `transformers` generate is called once a
request, that is once a group, for --reference-requests of them in float32, and its rate stands for the whole. Ratios
are of rates within a repeat; their median and range are printed. Prompts differ from measurement to measurement, so
that no prefix is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import torch
from transformers import AutoModelForCausalLM

from parity.engines import open_engine


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--sglang-python", help="the interpreter that has the real SGLang")
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--reference-requests", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.sglang_python:
        os.environ["PARITY_SGLANG_PYTHON"] = options.sglang_python
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    random.seed(0)
    torch.set_num_threads(options.threads)
    pretrained: Any = AutoModelForCausalLM.from_pretrained(options.model_path)
    model = pretrained.float().eval()
    vocabulary = model.config.vocab_size

    def prompts(count: int) -> list[list[int]]:
        return [[random.randrange(3, vocabulary) for _ in range(options.prompt_tokens)] for _ in range(count)]

    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls: dict[str, str] = {}
        for spec in ["embedded", "sglang"] if options.sglang_python else ["embedded"]:
            engine = open_engine(spec, options.model_path, logs)
            stack.callback(engine.stop)
            urls[spec] = engine.url
        methods: dict[str, Callable[[], float]] = {
            name: lambda url=url: asyncio.run(  # type: ignore[misc]
                served_rate(url, prompts(options.groups), options.samples, options.new_tokens)
            )
            for name, url in urls.items()
        }
        methods["transformers"] = lambda: generate_rate(
            model, prompts(options.reference_requests), options.samples, options.new_tokens
        )
        for method in methods.values():
            method()
        rates: dict[str, list[float]] = {name: [] for name in methods}
        for repeat in range(options.repeats):
            order = list(methods)
            random.shuffle(order)
            for name in order:
                rates[name].append(methods[name]())
                print(f"repeat {repeat + 1}: {name:<12} {rates[name][-1]:9.0f} tokens/s", flush=True)
    size = f"{options.groups} groups x {options.samples} samples x {options.new_tokens} new tokens"
    print(f"\n{size}, {options.threads} threads")
    for name, values in rates.items():
        print(f"{name:<12} median {statistics.median(values):9.0f} tokens/s, {min(values):.0f} to {max(values):.0f}")
    for name in rates.keys() - {"embedded"}:
        ratios = [ours / theirs for ours, theirs in zip(rates["embedded"], rates[name], strict=True)]
        print(f"embedded / {name}: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


async def served_rate(url: str, prompts: list[list[int]], samples: int, new_tokens: int) -> float:
    """Tokens a second of one native request a prompt, all in flight at once."""
    timeout = aiohttp.ClientTimeout(total=1800)
    params = {"n": samples, "max_new_tokens": new_tokens, "temperature": 1.0, "ignore_eos": True}
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def group(prompt: list[int]) -> int:
            body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
            async with session.post(f"{url}/generate", json=body) as response:
                response.raise_for_status()
                return sum(len(item["output_ids"]) for item in await response.json())

        start = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(group, prompts)))
        return tokens / (time.perf_counter() - start)


def generate_rate(model: torch.nn.Module, prompts: list[list[int]], samples: int, new_tokens: int) -> float:
    """Tokens a second of `generate` called once a prompt, with `num_return_sequences` as the samples."""
    start, tokens = time.perf_counter(), 0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        outputs = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            num_return_sequences=samples,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
        )
        tokens += outputs.shape[0] * (outputs.shape[1] - len(prompt))
    return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
