"""`parity check` over many dumps: time by processes, and peak memory by files.

    python benchmarks/check_files.py [--samples 256] [--tokens 1000] [--files 8 32] [--processes 1 2]

Each file is a rollout dump as slime writes it. A check is a process of its own, and its peak that of the largest
process of all that take part. On a machine that others use, compare processor seconds, which one process needs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from contract_checks import GROUP_SIZE, part
from readers import host_sample

from parity.records.samples import Rollout

CHECK = """
import resource, sys, time
from pathlib import Path
from parity.commands.check import check_paths
from parity.contract_checks import Rules
result = check_paths([Path(sys.argv[1])], Rules(group_size=int(sys.argv[2])), processes=int(sys.argv[3]))
assert not any(finding.fails for finding in result.findings), "sound samples fail"
print(result.counts["samples"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.process_time())
"""


def write(folder: Path, files: int, samples: int, tokens: int) -> int:
    """So many rollout dumps; their bytes."""
    folder.mkdir()
    for step in range(files):
        rows = Rollout(part(step * samples, samples, tokens)).table.drop(["rollout_id"]).to_pylist()
        dumped = [host_sample({**row, "group_index": number // GROUP_SIZE}) for number, row in enumerate(rows)]
        torch.save({"rollout_id": step, "samples": dumped}, folder / f"{step}.pt")
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    """Prints a row for each number of files and processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--files", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    asked = parser.parse_args()
    columns = ("files", "processes", "MB", "seconds", "million tokens/s", "peak MB", "processor seconds")
    print("".join(f"{name:<18}" for name in columns))
    with tempfile.TemporaryDirectory() as folder:
        for files in asked.files:
            path = Path(folder) / str(files)
            size = write(path, files, asked.samples, asked.tokens)
            for processes in asked.processes:
                began = time.perf_counter()
                command = [sys.executable, "-c", CHECK, str(path), str(GROUP_SIZE), str(processes)]
                done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds = time.perf_counter() - began
                count, peak, processor = map(float, done.split())
                speed = count * asked.tokens / seconds / 1e6
                row = (files, processes, round(size / 1e6), seconds, speed, round(peak), processor)
                print("".join(f"{value:<18.3g}" for value in row), flush=True)


if __name__ == "__main__":
    main()
