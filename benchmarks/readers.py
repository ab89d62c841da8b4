"""`parity check` on files against reading them alone: Parquet against pyarrow, a rollout dump against torch.load.

    python benchmarks/readers.py [--samples 100000] [--dump-samples 4096] [--tokens 1000] [--repeats 3]

Prints the median ratio of interleaved runs, and the peak memory of the process after each part.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contract_checks import GROUP_SIZE, RULES, part, read, seconds, write

from parity.checking import check_paths
from parity.samples import Rollout


def host_sample(row: dict[str, Any]) -> dict[str, Any]:
    """A sample as slime and Miles dump it."""
    return {
        "group_index": row["group_index"],
        "index": row["group_index"] * GROUP_SIZE + row["index"],
        "prompt": "",
        "tokens": row["prompt_ids"] + row["output_ids"],
        "response": "",
        "response_length": row["response_length"],
        "reward": row["reward"],
        "loss_mask": row["loss_mask"],
        "weight_versions": row["weight_versions"],
        "rollout_log_probs": row["logprobs"],
        "status": row["status"],
        "metadata": {},
        "prefix_cache_info": {"cached_tokens": row["cached_tokens"], "total_prompt_tokens": row["prompt_tokens"]},
    }


def write_dump(path: Path, samples: int, tokens: int) -> None:
    """One rollout, as a host saves it."""
    rows = Rollout(part(0, samples, tokens)).table.drop(["rollout_id"]).to_pylist()
    groups = [{**row, "group_index": number // GROUP_SIZE} for number, row in enumerate(rows)]
    torch.save({"rollout_id": 0, "samples": [host_sample(row) for row in groups]}, path)


def load(path: Path) -> int:
    """Reads a dump as its host's own tools would, in torch's safe mode."""
    return len(torch.load(path, weights_only=True)["samples"])


def check(path: Path) -> None:
    """Reads and checks a file; the benchmark's samples are sound."""
    result = check_paths([path], RULES)
    if failed := [finding.message for finding in result.findings if finding.fails]:
        raise SystemExit(f"sound samples failed: {failed[0]}")


def compare(name: str, reading: Callable[[Path], object], path: Path, repeats: int) -> None:
    """Prints how much longer checking takes than reading alone."""
    times = [(seconds(reading, path), seconds(check, path)) for _ in range(repeats)]
    alone, checking = (statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(check_time / read_time for read_time, check_time in times)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}: {alone:.2f} s, read and check {checking:.2f} s, ratio {ratio:.2f}; peak memory {memory:.0f} MiB")


def main() -> None:
    """Writes, then reads and checks in turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--dump-samples", type=int, default=4_096)
    parser.add_argument("--tokens", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    print(f"{asked.samples} samples in Parquet, {asked.dump_samples} in a dump, of {asked.tokens} tokens on average")
    with tempfile.TemporaryDirectory() as directory:
        table, dump = Path(directory) / "samples.parquet", Path(directory) / "0.pt"
        write(table, asked.samples // GROUP_SIZE * GROUP_SIZE, asked.tokens)
        compare("pyarrow alone", read, table, asked.repeats)
        write_dump(dump, asked.dump_samples // GROUP_SIZE * GROUP_SIZE, asked.tokens)
        compare("torch.load alone", load, dump, asked.repeats)


if __name__ == "__main__":
    main()
