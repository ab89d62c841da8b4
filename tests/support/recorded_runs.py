"""Runs as trainers record them: correlated curves with an effect of the seed, in the form of a log or as curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parity.metrics import Curve
from parity.sources.curves.recorded_runs import RecordedRun

METRICS = ("rollout/raw_reward", "rollout/response_len/mean", "rollout/truncated_ratio", "train/grad_norm")


def noise(rng: np.random.Generator, steps: int, memory: float = 0.9) -> np.ndarray:
    """An autoregressive series of unit variance."""
    drawn = rng.normal(size=steps)
    series = np.empty(steps)
    series[0] = drawn[0]
    for step in range(1, steps):
        series[step] = memory * series[step - 1] + np.sqrt(1 - memory**2) * drawn[step]
    return series


def recorded(name: str, seed: int, shift: float = 0.0, steps: int = 60, seconds: float = 10.0) -> RecordedRun:
    """A run whose reward climbs from 0.3 to 0.7; `shift` is added to every reward."""
    rng = np.random.default_rng(seed)
    values = {
        "rollout/raw_reward": np.linspace(0.3, 0.7, steps) + rng.normal(0, 0.01) + 0.02 * noise(rng, steps) + shift,
        "rollout/response_len/mean": 500 + rng.normal(0, 2) + 3 * noise(rng, steps),
        "rollout/truncated_ratio": np.abs(0.05 + 0.005 * noise(rng, steps)),
        "rollout/group_reward_std": 0.4 + rng.normal(0, 0.005) + 0.01 * noise(rng, steps),
        "train/grad_norm": np.exp(rng.normal(0, 0.05) + 0.3 * noise(rng, steps)),
        "train/loss": 0.01 * noise(rng, steps),
        "perf/rollout_time": seconds * np.exp(0.02 * noise(rng, steps)),
        "perf/tokens_per_gpu_per_sec": 1e4 / seconds * np.exp(0.02 * noise(rng, steps)),
    }
    return of_values(name, values)


def of_values(name: str, values: dict[str, np.ndarray]) -> RecordedRun:
    """A run with these values from step 0 on."""
    curves = {metric: Curve(name, metric, np.arange(len(series)), series) for metric, series in values.items()}
    return RecordedRun(name, "test", curves)


def write_log(path: Path, run: RecordedRun) -> str:
    """Writes a run as slime prints it."""
    lines = []
    for step in range(len(run.curves["train/loss"].steps)):
        row = {metric: float(curve.values[step]) for metric, curve in run.curves.items()}
        train = {metric: value for metric, value in row.items() if metric.startswith("train/")}
        rollout = {metric: value for metric, value in row.items() if not metric.startswith("train/")}
        lines.append(f"(RolloutManager pid=1) [2026-08-18 11:58:09] rollout_metrics.py:268 - perf {step}: {rollout}")
        lines.append(f"(Trainer pid=2) [2026-08-18 11:58:09] model.py:918 - step {step}: {train}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)
