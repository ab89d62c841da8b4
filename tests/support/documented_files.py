"""The files that documented commands name: a recorded experiment under each of its names, dumps, recordings, logs."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from host_forms import rollout_dump, save_torch
from recorded_runs import recorded, write_log

from parity.commands.run import assess
from parity.faults.clean import clean_exchanges, clean_prompts, clean_rollout
from parity.metrics import rollout_metrics
from parity.records.experiment import ExperimentConfig
from parity.records.samples import Rollout, Sample
from parity.records.store import create_experiment, run_store
from parity.report.html import gather
from parity.report.write import write_report

GROUPS, SIZE = 8, 8
TWINS = ("mine", "yesterday", "today", "twin", "20260101-120000")


def samples(seed: int, arm: str = "native", steps: int = 1) -> list[Sample]:
    rng = np.random.default_rng(seed)
    rollout = clean_rollout(rng, clean_prompts(rng, GROUPS * steps), steps=steps, size=SIZE, arm=arm)
    return [replace(sample, extra={"prompt": "1+2="}) for sample in rollout.samples()]


def write_experiment(out: Path) -> None:
    """A twin and two pairs of two steps, as the runner leaves them, and its report."""
    designs = ("twin", "paired")
    config = ExperimentConfig("per-sample", "native", designs=designs, seeds=2, steps=2, twin_steps=2)
    policy = {"vocab_size": 200, "context_length": 64, "stop_token_ids": [2]}
    arms = {"baseline": "per-sample", "experiment": "native"}
    create_experiment(out, {**arms, "config": config.to_json(), "designs": designs, "policy": policy})
    for seed, arm in product(range(3), arms.values()):
        store = run_store(out, f"{arm}-seed{seed}")
        store.create()
        for step in range(2):
            own = [one for one in samples(seed, arm, steps=2) if one.rollout_id == step]
            rollout = Rollout.from_samples(own)
            store.write_step(step, rollout, clean_exchanges(own))
            store.append_metrics({"step": step, **rollout_metrics(rollout, 1.0), "train/loss": 0.5})
        store.write_outcome({"status": "completed"})
    (report,) = assess(out)
    write_report(report, out / "report", gather(report, out))


def write_recording(directory: Path, rows: Sequence[Sample], name: str = "rollout", compress: bool = False) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[dict[str, Any]]] = {
        "samples": [one.to_json() for one in rows],
        "exchanges": [one.to_json() for one in clean_exchanges(rows)],
    }
    for kind, content in lines.items():
        text = "".join(json.dumps(line) + "\n" for line in content).encode()
        if compress:
            (directory / f"{name}.{kind}.jsonl.gz").write_bytes(gzip.compress(text))
        else:
            (directory / f"{name}.{kind}.jsonl").write_bytes(text)


def switchback() -> list[Sample]:
    """Groups of both arms, by turns."""
    arms = {arm: samples(1, arm) for arm in ("per-sample", "native")}
    drawn = [arms[("per-sample", "native")[one.group_index % 2]][row] for row, one in enumerate(arms["native"])]
    fields = {"policy": "switchback", "probability": 0.5, "trained": True}
    return [replace(one, extra={**one.extra, "assignment": {**fields, "arm": one.arm}}) for one in drawn]


def write_files(directory: Path) -> None:
    """All of them, below a directory."""
    write_experiment(directory / "parity-out" / TWINS[0])
    for name in TWINS[1:]:
        shutil.copytree(directory / "parity-out" / TWINS[0], directory / "parity-out" / name)
    for name in ("DIR", "A", "B"):
        (directory / name).symlink_to(directory / "parity-out" / TWINS[0])
    native = [replace(one, extra={**one.extra, "prompt": "p"}) for one in samples(2)]
    for folder in ("rollout_data", "dumps/rollout_data", "path/to/dumps", "path/to/dump-details"):
        (directory / folder).mkdir(parents=True)
        save_torch(directory / folder / "0.pt", rollout_dump(native, SIZE))
    shutil.copy(directory / "rollout_data" / "0.pt", directory / "dumps" / "0.pt")
    write_recording(directory / "recordings", switchback())
    for folder in ("path/to/record", "shared/recording", "before", "after"):
        write_recording(directory / folder, switchback())
    write_recording(directory / "path" / "to" / "results" / "train", native)
    write_recording(directory / "relax-results" / "train", native)
    write_recording(directory, native, name="run", compress=True)
    for folder in ("logs", "tb", "old"):
        (directory / folder).mkdir()
    names = {"stock": ("stock.log", "tb/base1", "tb/base2", "old/a.log", "old/b.log", "old/c.log")}
    names["native"] = ("native.log", "tb/native1", "tb/native2")
    for arm, others in names.items():
        for seed, name in enumerate((*(f"logs/{arm}-{number}.log" for number in range(3)), *others)):
            write_log(directory / name, recorded(arm, 10 * (arm == "native") + seed))
    (directory / "my_task.py").write_text("from parity.faults.clean import reward_of as reward\n")
    prompts = (json.dumps({"prompt": f"prompt {number}"}) + "\n" for number in range(40))
    (directory / "train.jsonl").write_text("".join(prompts))
