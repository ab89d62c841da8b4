"""How often a report reads the samples of each step, its time and its peak memory.

    python benchmarks/report_reading.py [--steps 200] [--samples 1024] [--tokens 64] [--folder DIR]

A twin of so many steps and samples a step in each arm is written first, by another process; its arms are equal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from parity.commands.run import assess
from parity.metrics import rollout_metrics
from parity.records.experiment import ExperimentConfig, weight_version
from parity.records.samples import SCHEMA, Rollout
from parity.records.store import create_experiment, run_store
from parity.report.html import gather
from parity.report.write import write_report
from parity.trainer.tasks import get_task

GROUP_SIZE = 8
ARMS = ("per-sample", "native")
VOCABULARY, STOP = 150_000, 2


def rollout(step: int, samples: int, tokens: int, run: str, arm: str) -> Rollout:
    """Sound samples of one step, the same for each arm; responses have up to twice as many tokens."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(1, 2 * tokens, samples)
    answer, prompt = "3", "1+2="
    reward = get_task("arithmetic").reward(prompt, answer)
    columns = {
        "rollout_id": [step] * samples,
        "group_index": [row // GROUP_SIZE for row in range(samples)],
        "index": [row % GROUP_SIZE for row in range(samples)],
        "prompt_ids": [[3, 1, 4, row // GROUP_SIZE] for row in range(samples)],
        "output_ids": [[*rng.integers(3, VOCABULARY, length - 1).tolist(), STOP] for length in lengths],
        "logprobs": [(-rng.exponential(0.5, length)).tolist() for length in lengths],
        "text": [answer] * samples,
        "finish_reason": ["stop"] * samples,
        "status": ["completed"] * samples,
        "reward": [reward] * samples,
        "advantage": [0.0] * samples,
        "loss_mask": [[1] * int(length) for length in lengths],
        "response_length": lengths.tolist(),
        "weight_versions": [[weight_version("", run, step)]] * samples,
        "extra": [json.dumps({"prompt": prompt})] * samples,
    }
    return Rollout.from_table(
        pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}), arm
    )


def make(directory: Path, steps: int, samples: int, tokens: int) -> None:
    """A twin on disk."""
    config = ExperimentConfig(*ARMS, designs=("twin",), twin_steps=steps)
    policy = {"vocab_size": VOCABULARY, "context_length": 8_192, "stop_token_ids": [STOP]}
    facts = {"baseline": ARMS[0], "experiment": ARMS[1], "config": config.to_json(), "designs": ["twin"]}
    create_experiment(directory, {**facts, "policy": policy, "seeds": [0], "steps": steps})
    for arm in ARMS:
        store = run_store(directory, f"{arm}-seed0")
        store.create()
        store.append_event("start", 1.0, step=0)
        for step in range(steps):
            made = rollout(step, samples, tokens, store.name, arm)
            store.write_step(step, made, [])
            store.append_metrics({"step": step, **rollout_metrics(made, 1.0), "train/loss": 0.5})
        store.write_outcome({"status": "completed", "counts": {"samples": samples * steps}})


def main() -> None:
    """Writes an experiment, and its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=1_024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="keeps the experiment, and takes it from there the next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = options.folder or Path(folder) / "experiment"
        if not directory.exists():
            sizes = (options.steps, options.samples, options.tokens)
            writer = multiprocessing.get_context("spawn").Process(target=make, args=(directory, *sizes))
            writer.start()
            writer.join()
        reads: Counter[Path] = Counter()
        read = Rollout.read_parquet

        def counted(path: Path) -> Rollout:
            reads[path] += 1
            return read(path)

        Rollout.read_parquet = counted  # type: ignore[method-assign]
        started = time.perf_counter()
        (report,) = assess(directory)
        judged, of_checks = time.perf_counter(), max(reads.values())
        write_report(report, directory / "report", gather(report, directory))
        written = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{options.steps} steps of 2 x {options.samples} samples: {report.verdict.verdict.value}")
    print(f"a step's samples are read {of_checks} times to judge, {max(reads.values())} with the page")
    print(f"judged in {judged - started:.1f} s, written in {written - judged:.1f} s, peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()
