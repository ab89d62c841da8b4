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
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import psutil
import torch
from transformers import AutoModelForCausalLM

SGLANG_OPTIONS = [
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--sampling-backend",
    "pytorch",
    "--disable-overlap-schedule",
    "--mem-fraction-static",
    "0.1",
    "--cuda-graph-backend-decode",
    "disabled",
    "--cuda-graph-backend-prefill",
    "disabled",
    "--dtype",
    "float32",
]


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
    random.seed(0)
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model_path).float().eval()
    vocabulary = model.config.vocab_size

    def prompts(count: int) -> list[list[int]]:
        return [[random.randrange(3, vocabulary) for _ in range(options.prompt_tokens)] for _ in range(count)]

    with contextlib.ExitStack() as stack:
        port = free_port()
        embedded = [
            sys.executable,
            "-m",
            "parity.engine.embedded",
            "--port",
            str(port),
            "--threads",
            str(options.threads),
        ]
        command = [*embedded, "--model-path", str(options.model_path)]
        urls = {"embedded": stack.enter_context(server(command, port))}
        if options.sglang_python:
            urls["sglang"] = stack.enter_context(sglang(options))
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


@contextlib.contextmanager
def sglang(options: argparse.Namespace) -> Iterator[str]:
    """The real SGLang with room for all sequences at once, as it runs on a CPU."""
    port = free_port()
    total = options.groups * options.samples * (options.prompt_tokens + options.new_tokens + 8)
    sizes = ["--max-total-tokens", str(total), "--max-running-requests", str(options.groups * options.samples)]
    where = ["--model-path", str(options.model_path), "--host", "127.0.0.1", "--port", str(port)]
    command = [options.sglang_python, "-m", "sglang.launch_server", *where, *SGLANG_OPTIONS, *sizes]
    with server(command, port, {"OMP_NUM_THREADS": str(options.threads)}) as url:
        yield url


@contextlib.contextmanager
def server(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[str]:
    """A server process and its URL, once it is healthy; the whole family ends with the block."""
    with tempfile.NamedTemporaryFile(suffix=".log", delete=False) as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | (environment or {}), start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"{url}/health", timeout=30).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                tail = re.sub(r"\s+\n", "\n", Path(log.name).read_text(errors="replace"))[-2000:]
                raise SystemExit(f"{command[:3]} did not get healthy:\n{tail}")
            time.sleep(0.2)
        yield url
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        Path(log.name).unlink()


def free_port() -> int:
    """A TCP port that is free on the loopback interface now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
