"""How the real router spreads groups over workers whose service time follows decode tokens.

    python benchmarks/routing.py [--workers 8] [--groups 64] [--group-size 8] [--repeats 3] [--policy NAME ...]

The workers are stand-ins in a process of their own (`tests/support/paced_worker.py`): each decodes up to --slots
sequences at once, at a token every --token-seconds, so that a request of n costs n times the work of one for a single
sample. In front of them stands the sglang-router that is installed. `parity bench` asks per sample and native, with no
shared prefix, a quarter, a half and all of it; every rollout has prompts of its own. Prints, as Markdown, requests and
decode tokens of each worker over all repeats, their coefficient of variation, the largest over the mean, and the mean
wall time of a rollout. `cache_aware 4/1.1` is cache_aware with `--balance-abs-threshold 4 --balance-rel-threshold 1.1`.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from parity.commands.bench import run_bench
from parity.commands.bench.loads import metrics_source
from parity.engines import EngineProcess, router
from parity.engines.process import HOST, reserve_port
from parity.evidence.cost.benchmark import Summary, summarise
from parity.records.bench import BenchConfig, Workload, parse_mode

WORKER = Path(__file__).parents[1] / "tests" / "support" / "paced_worker.py"
EAGER = "cache_aware 4/1.1"
EAGER_FLAGS = ("--balance-abs-threshold", "4", "--balance-rel-threshold", "1.1")
SHARES = {"none": 0.0, "a quarter": 0.25, "half": 0.5, "all": 1.0}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--token-seconds", type=float, default=0.004)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--policy", nargs="+", default=["cache_aware", EAGER, "round_robin"])
    options = parser.parse_args()
    names = ("groups", "group_size", "prompt_tokens", "new_tokens")
    workload = Workload(**{name: getattr(options, name) for name in names}, concurrency=1 << 16)
    least = workload.samples / options.workers / options.slots * workload.new_tokens * options.token_seconds
    print(
        f"{options.workers} workers of {options.slots} slots, {options.token_seconds * 1e3:g} ms a token; "
        f"{workload.groups} groups x {workload.group_size} samples x {workload.new_tokens} tokens, prompts of "
        f"{workload.prompt_tokens}; {options.repeats} rollouts each; evenly spread, one takes {least:.2f} s at least\n"
    )
    print(
        "| policy | shared prefix | mode | requests of each worker | CV | max/mean | tokens: CV | max/mean | wall, s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with workers(options.workers, options.slots, options.token_seconds) as urls:
        for policy in options.policy:
            with routed(policy, urls) as url:
                for said, share in SHARES.items():
                    for found in measured(url, urls, replace(workload, shared_prefix=share), options.repeats):
                        print(row(policy, said, found), flush=True)


@contextlib.contextmanager
def workers(count: int, slots: int, token_seconds: float) -> Iterator[list[str]]:
    """The URLs of stand-in workers."""
    shape = ("--workers", str(count), "--slots", str(slots), "--token-seconds", str(token_seconds))
    with subprocess.Popen(
        [sys.executable, str(WORKER), *shape], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        try:
            yield [process.stdout.readline().strip() for _ in range(count)]
        finally:
            process.stdin.close()


@contextlib.contextmanager
def routed(policy: str, urls: Sequence[str]) -> Iterator[str]:
    """The URL of the real router in front of them."""
    name, flags = ("cache_aware", EAGER_FLAGS) if policy == EAGER else (policy, ())
    with tempfile.TemporaryDirectory() as logs, reserve_port() as metrics:
        process = EngineProcess(
            "router",
            lambda port: [*router.command(name, urls, port, metrics.getsockname()[1]), *flags],
            environment=router.ENVIRONMENT,
            log_dir=Path(logs),
            start_timeout=router.START_TIMEOUT,
            healthy=lambda port: router.ready(port, len(urls)),
        )
        with process:
            process.start()
            yield f"http://{HOST}:{process.port}"


def measured(url: str, urls: Sequence[str], workload: Workload, repeats: int) -> list[Summary]:
    """Both modes over some repeats, taking turns."""
    modes = (parse_mode("per-sample"), parse_mode("native"))
    config = BenchConfig(workload, modes, repeats, warm_up=0, engine=url)
    with tempfile.TemporaryDirectory() as scratch:
        result = run_bench(
            config, None, Path(scratch), vocabulary=1000, sources=[metrics_source(worker) for worker in urls]
        )
    return [summarise(workload, result.of(None, mode.name)) for mode in modes]


def row(policy: str, share: str, found: Summary) -> str:
    """A row of the table."""
    assert not found.defects and not found.uncounted_requests, (found.defects, found.uncounted_requests)
    assert found.request_spread and found.token_spread
    requests = sorted((round(load.requests or 0) for load in found.engines.values()), reverse=True)
    spreads = [f"{one.cv:.1%} | {one.max_over_mean:.2f}" for one in (found.request_spread, found.token_spread)]
    cells = (policy, share, found.mode, " ".join(map(str, requests)), *spreads, f"{found.seconds:.2f}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
