"""What a plan takes from the history besides how much metrics vary."""

from __future__ import annotations

import json

import numpy as np

from parity.commands.plan import plan_designs
from parity.evidence.planning import Setting


def test_a_history_of_curves_says_what_a_step_takes(tmp_path):
    """Twenty seconds a step in each run, so that a plan costs what its steps take on the GPUs that are named."""
    for run in range(4):
        rng = np.random.default_rng(run)
        rows = [
            {"step": step, "rollout/raw_reward": 0.5 + rng.normal(0, 0.02), "perf/step_time": 20 + (step == 3) * 500}
            for step in range(60)
        ]
        (tmp_path / f"run{run}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    history = [str(path) for path in sorted(tmp_path.iterdir())]

    def planned(seconds: float | None) -> list[float | None]:
        setting = Setting(steps=60, seconds_per_step=seconds, gpus=9)
        made = plan_designs({"reward": 0.05}, {}, history, setting, 0, lambda *_: None)
        return [design["gpu_hours"] for design in made.to_json()["designs"]]

    assert planned(None) == planned(20.0)
    assert any(hours is not None and hours > 0 for hours in planned(None))
    assert planned(40.0) != planned(20.0)
