"""Checking samples from Parquet against reading the same columns with pyarrow alone.

    python benchmarks/contract_checks.py [--samples 100000] [--tokens 1000] [--repeats 3]

Prints the median ratio of interleaved runs, and the peak memory of the checking process.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parity.contract_checks import Rules, check_batches
from parity.findings import Status
from parity.records.samples import SCHEMA, Rollout

GROUP_SIZE = 8
STOP = 2
ROWS_PER_PART = 2_048

RULES = Rules(
    group_size=GROUP_SIZE,
    context_length=1 << 15,
    vocab_size=150_000,
    stop_token_ids=frozenset({STOP}),
    advantage="grpo",
)


def part(start: int, rows: int, tokens: int) -> pa.Table:
    """Sound samples `start` to `start + rows`, of 1 to 2 * `tokens` - 1 tokens, all stopped."""
    rng = np.random.default_rng(start)
    lengths = rng.integers(1, 2 * tokens, rows)
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    ids = rng.integers(3, 150_000, lengths.sum(), dtype=np.int32)
    ids[np.cumsum(lengths) - 1] = STOP
    logprobs = -rng.exponential(0.4, lengths.sum())
    place = np.arange(start, start + rows)
    prompt = np.repeat(np.random.default_rng(1).integers(3, 150_000, (rows // GROUP_SIZE, 100)), GROUP_SIZE, axis=0)
    reward = (place % 2).astype(np.float64)
    columns = {
        "rollout_id": place // (64 * GROUP_SIZE),
        "group_index": place // GROUP_SIZE % 64,
        "index": place % GROUP_SIZE,
        "prompt_ids": pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * 100, pa.int32()), prompt.ravel()),
        "output_ids": pa.ListArray.from_arrays(offsets, ids),
        "logprobs": pa.ListArray.from_arrays(offsets, logprobs),
        "loss_mask": pa.ListArray.from_arrays(offsets, np.ones(len(ids), np.int8)),
        "finish_reason": ["stop"] * rows,
        "status": ["completed"] * rows,
        "reward": reward,
        "advantage": (reward - 0.5) / (math.sqrt(2 / 7) + 1e-6),
        "response_length": lengths,
        "max_new_tokens": np.full(rows, 2 * tokens),
        "weight_versions": [["v0"]] * rows,
        "temperature": np.ones(rows),
        "prompt_tokens": np.full(rows, 100),
        "cached_tokens": np.full(rows, 99),
    }
    table = pa.table(
        {name: pa.array(values) if not isinstance(values, pa.Array) else values for name, values in columns.items()}
    )
    return Rollout.from_table(table, "benchmark").table


def write(path: Path, samples: int, tokens: int) -> None:
    """The samples, a row group at a time."""
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for start in range(0, samples, ROWS_PER_PART):
            writer.write_table(part(start, min(ROWS_PER_PART, samples - start), tokens))


def row_groups(path: Path) -> Iterator[pa.Table]:
    """Every column, a row group at a time."""
    source = pq.ParquetFile(path)
    for number in range(source.num_row_groups):
        yield source.read_row_group(number)


def read(path: Path) -> int:
    """Reads and drops every row group."""
    return sum(len(table) for table in row_groups(path))


def check(path: Path) -> None:
    """Reads and checks every row group; the benchmark's samples are sound."""
    findings = check_batches((Rollout(table) for table in row_groups(path)), RULES)
    failed = [finding for finding in findings if finding.status is Status.FAIL]
    if failed:
        raise SystemExit(f"sound samples failed: {failed[0].message}")


def seconds(work: Callable[[Path], object], path: Path) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work(path)
    return time.perf_counter() - began


def main() -> None:
    """Writes, then reads and checks in turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    samples = asked.samples // GROUP_SIZE * GROUP_SIZE
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "samples.parquet"
        write(path, samples, asked.tokens)
        times = [(seconds(read, path), seconds(check, path)) for _ in range(asked.repeats)]
    reading, checking = (statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(check_time / read_time for read_time, check_time in times)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{samples} samples of {asked.tokens} tokens on average, {asked.repeats} interleaved repeats")
    print(f"read {reading:.2f} s, read and check {checking:.2f} s, ratio {ratio:.2f}; peak memory {memory:.0f} MiB")


if __name__ == "__main__":
    main()
