"""The client of `parity bench` against a bare aiohttp script that sends the same requests, and its memory.

    python benchmarks/bench_client.py [--groups 512] [--group-size 8] [--repeats 7] [--memory-requests 100000]

Both ask stand-in workers in a process of their own, which answer at once: first per sample, then native, taking turns,
after one round that is not counted. The bare script posts with `json=`, reads `response.json()`, holds a semaphore, and
counts tokens; it validates nothing. Prints the median ratio of wall time and of client CPU with its range, then the
peak memory of `parity bench` over 2,000 and over 100,000 requests, each in a fresh process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np

from parity.commands.bench.measuring import measure
from parity.commands.bench.prompts import Vocabulary, requests
from parity.engines import EngineClient
from parity.records.bench import Workload, parse_mode
from rollout_patch import SampleRequest

WORKER = Path(__file__).parents[1] / "tests" / "support" / "paced_worker.py"
VOCABULARY = Vocabulary(1000)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-requests", type=int, default=100_000)
    parser.add_argument("--memory-of", nargs=2, metavar=("URL", "REQUESTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(peak_memory(options.memory_of[0], int(options.memory_of[1])))
        return
    with stand_in() as url:
        workload = Workload(options.groups, options.group_size, new_tokens=options.new_tokens)
        print(f"{workload.groups} groups x {workload.group_size} x {workload.new_tokens} tokens")
        for arm in ("per-sample", "native"):
            walls, cpus = compare(url, arm, workload, options.repeats)
            for what, found in (("wall time", walls), ("client CPU", cpus)):
                print(
                    f"{arm:<10} parity bench / bare aiohttp, {what}: median {statistics.median(found):.2f}, "
                    f"{min(found):.2f} to {max(found):.2f}",
                    flush=True,
                )
        for count in (2000, options.memory_requests):
            command = [sys.executable, __file__, "--memory-of", url, str(count)]
            peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"peak memory of {count:,} requests: {peak / 1024:.0f} MiB", flush=True)


@contextlib.contextmanager
def stand_in() -> Iterator[str]:
    """The URL of a worker that answers at once."""
    command = [sys.executable, str(WORKER), "--workers", "1", "--slots", "100000", "--token-seconds", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def compare(url: str, arm: str, workload: Workload, repeats: int) -> tuple[list[float], list[float]]:
    """Ratios of wall time and of client CPU, one a repeat."""
    walls, cpus = [], []
    for repeat in range(-1, repeats):
        asked = list(requests(workload, VOCABULARY, np.random.default_rng(repeat + 1)))
        order = ("parity", "bare") if repeat % 2 else ("bare", "parity")
        found = {}
        for name in order:
            work = ours(url, arm, workload, asked) if name == "parity" else bare(url, arm, workload, asked)
            begun, cpu = time.perf_counter(), time.process_time()
            tokens = asyncio.run(work)
            found[name] = time.perf_counter() - begun, time.process_time() - cpu
            assert tokens == workload.samples * workload.new_tokens
        if repeat >= 0:
            walls.append(found["parity"][0] / found["bare"][0])
            cpus.append(found["parity"][1] / found["bare"][1])
    return walls, cpus


async def ours(url: str, arm: str, workload: Workload, asked: list[SampleRequest]) -> int:
    """One rollout as `parity bench` measures it."""
    async with EngineClient(url, "stand-in") as client:
        return (await measure(client, parse_mode(arm), iter(asked), workload)).output_tokens


async def bare(url: str, arm: str, workload: Workload, asked: list[SampleRequest]) -> int:
    """The same requests by a script of a few lines."""
    n, copies = (1, workload.group_size) if arm == "per-sample" else (workload.group_size, 1)
    room = asyncio.Semaphore(max(1, workload.concurrency // n))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(request: SampleRequest) -> int:
            body = {
                "input_ids": request.input_ids,
                "sampling_params": {**request.sampling_params, "n": n},
                "return_logprob": True,
            }
            async with room, session.post(f"{url}/generate", json=body) as response:
                answer = await response.json()
            return sum(len(item["output_ids"]) for item in (answer if n > 1 else [answer]))

        return sum(await asyncio.gather(*(post(request) for request in asked for _ in range(copies))))


def peak_memory(url: str, count: int) -> int:
    """KiB of this process at its largest, after so many per-sample requests."""
    workload = Workload(groups=count // 8, group_size=8, new_tokens=16, concurrency=256)
    asked = requests(workload, VOCABULARY, np.random.default_rng(0))

    async def run() -> None:
        async with EngineClient(url, "stand-in") as client:
            measured = await measure(client, parse_mode("per-sample"), asked, workload)
            assert measured.samples == workload.samples

    asyncio.run(run())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
