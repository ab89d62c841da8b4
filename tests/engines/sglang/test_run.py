"""The command on the real SGLang: started, fed weights each step, judged, stopped."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import psutil
from real_engine import needs_sglang
from small_experiment import SMALL, Parity

from parity.records.store import run_store

pytestmark = needs_sglang


def test_paired_training_on_the_real_engine(parity: Parity, tmp_path: Path) -> None:
    out = tmp_path / "out"
    size = ("--seeds", "1", "--steps", "3", *SMALL)
    process = parity("run", "--baseline", "--experiment", "native", "--engine", "sglang", *size, "--out", out)
    started: set[psutil.Process] = set()
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            started.update(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.5)
    printed, errors = process.communicate()
    assert process.returncode == 0, printed + errors
    report = json.loads((out / "report" / "report.json").read_bytes())
    assert report["verdict"] == "PARITY"
    # it cannot seed, so a recording takes the twin's place
    experiment = json.loads((out / "experiment.json").read_bytes())
    # it cannot seed, so a recording takes the twin's place
    assert experiment["designs"] == ["replay", "paired"]
    native = run_store(out, "native-seed1")
    for step, row in enumerate(native.metrics()):
        assert row["perf/requests"] == 4
        assert row["train/train_rollout_logprob_abs_diff"] < 1e-4, "the engine samples from the trainer's weights"
        versions = native.rollout(step).table.column("weight_versions").to_pylist()
        assert {tuple(version) for version in versions} == {(f"{experiment['nonce']}-native-seed1-step{step}",)}
    assert len(started) >= 4, "a supervisor, the server, its scheduler and its detokenizer"
    assert not [child for child in started if child.is_running()], "no process may be left behind"
