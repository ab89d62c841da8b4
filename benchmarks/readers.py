"""`parity check` on files against reading them alone.

    python benchmarks/readers.py [--samples 100000] [--dump-samples 4096] [--tokens 1000] [--repeats 3]

Parquet is held against pyarrow, a rollout dump against torch.load, samples with their exchanges as JSON lines against
orjson. Prints the median ratio of interleaved runs, and the peak memory of `parity check` as a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psutil
import pyarrow.parquet as pq
import torch
from contract_checks import GROUP_SIZE, RULES, part, read, seconds, write

from parity.commands.check import check_paths
from parity.records.samples import Rollout


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


def exchange(group: list[dict[str, Any]]) -> dict[str, Any]:
    """The native request that brought a group."""
    params = {"n": len(group), "max_new_tokens": group[0]["max_new_tokens"], "temperature": group[0]["temperature"]}
    place = {name: group[0][name] for name in ("rollout_id", "group_index")}
    request = {"input_ids": group[0]["prompt_ids"], "sampling_params": params, "return_logprob": True}
    return {"request": request, "status": 200, "response": list(map(output, group)), "arm": "native", **place}


def output(row: dict[str, Any]) -> dict[str, Any]:
    """What the engine answered for a sample."""
    ids = row["output_ids"]
    meta = {
        "id": f"{row['rollout_id']}-{row['group_index']}-{row['index']}",
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "prompt_tokens": row["prompt_tokens"],
        "cached_tokens": row["cached_tokens"],
        "completion_tokens": len(ids),
        "weight_version": "v0",
        "output_token_logprobs": [[value, token, None] for value, token in zip(row["logprobs"], ids, strict=True)],
    }
    return {"text": "", "output_ids": ids, "meta_info": meta}


def write_recording(directory: Path, samples: int, tokens: int) -> None:
    """Samples in Parquet, and the exchanges that they came from."""
    directory.mkdir()
    write(directory / "samples.parquet", samples, tokens)
    with (directory / "run.exchanges.jsonl").open("wb") as lines:
        for batch in pq.ParquetFile(directory / "samples.parquet").iter_batches(64 * GROUP_SIZE):
            rows = batch.to_pylist()
            for start in range(0, len(rows), GROUP_SIZE):
                lines.write(orjson.dumps(exchange(rows[start : start + GROUP_SIZE])) + b"\n")


def parse(directory: Path) -> int:
    """Reads the samples with pyarrow and the exchanges with orjson, and drops them."""
    with (directory / "run.exchanges.jsonl").open("rb") as lines:
        return read(directory / "samples.parquet") + sum(len(orjson.loads(line)) for line in lines)


def check(path: Path) -> None:
    """Reads and checks what lies at a path; the benchmark's samples are sound."""
    result = check_paths([path], RULES)
    if failed := [finding.message for finding in result.findings if finding.fails]:
        raise SystemExit(f"sound samples failed: {failed[0]}")


def compare(name: str, reading: Callable[[Path], object], path: Path, repeats: int) -> None:
    """Prints how much longer checking takes than reading alone."""
    times = [(seconds(reading, path), seconds(check, path)) for _ in range(repeats)]
    alone, checking = (statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(check_time / read_time for read_time, check_time in times)
    print(f"{name}: {alone:.2f} s, read and check {checking:.2f} s, ratio {ratio:.2f}; peak {peak_memory(path)} MiB")


def peak_memory(path: Path) -> int:
    """Peak resident memory of the command on its own, in MiB."""
    command = [sys.executable, "-m", "parity", "check", str(path), "--group-size", str(GROUP_SIZE), "--quiet"]
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            peak = max(peak, process.memory_info().rss)
        time.sleep(0.01)
    return peak >> 20


def main() -> None:
    """Writes, then reads and checks in turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--dump-samples", type=int, default=4_096)
    parser.add_argument("--tokens", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    counts = f"{asked.samples} samples in Parquet, {asked.dump_samples} in a dump and in a recording"
    print(f"{counts}, of {asked.tokens} tokens on average")
    with tempfile.TemporaryDirectory() as directory:
        table, dump, recording = (Path(directory) / name for name in ("samples.parquet", "0.pt", "recording"))
        write(table, asked.samples // GROUP_SIZE * GROUP_SIZE, asked.tokens)
        compare("pyarrow alone", read, table, asked.repeats)
        write_dump(dump, asked.dump_samples // GROUP_SIZE * GROUP_SIZE, asked.tokens)
        compare("torch.load alone", load, dump, asked.repeats)
        write_recording(recording, asked.dump_samples // GROUP_SIZE * GROUP_SIZE, asked.tokens)
        compare("pyarrow and orjson alone", parse, recording, asked.repeats)


if __name__ == "__main__":
    main()
