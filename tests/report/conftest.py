"""An experiment as a runner would hand it over: three paired seeds and a twin, with curves that look like training."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from parity.findings import Finding, Level, Severity, Status, Where, judge
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord

ARMS = ("per-sample", "native")


def metrics_of_step(step: int, steps: int, noise: random.Random, requests: float) -> dict[str, Any]:
    progress = 1 / (1 + math.exp(-8 * (step / steps - 0.4)))
    truncated = 0.12 * (1 - progress) + 0.01 * noise.random()
    return {
        "step": step,
        "rollout/samples": 512.0,
        "rollout/groups": 64.0,
        "rollout/raw_reward": 0.3 + 0.5 * progress + noise.gauss(0, 0.02),
        "rollout/response_len/mean": 9 - 2 * progress + noise.gauss(0, 0.15),
        "rollout/rollout_log_probs_len/mean": 9 - 2 * progress,
        "rollout/truncated_ratio": truncated,
        "rollout/finish_reason/abort": 0.0,
        "rollout/finish_reason/length": truncated,
        "rollout/finish_reason/stop": 1 - truncated,
        "rollout/group_reward_std": 0.45 - 0.15 * progress + noise.gauss(0, 0.01),
        "rollout/advantages": noise.gauss(0, 1e-8),
        "train/loss": noise.gauss(0, 0.004),
        "train/grad_norm": math.exp(-0.3 - 0.8 * progress + noise.gauss(0, 0.25)),
        "train/train_rollout_logprob_abs_diff": 2e-6 * (1 + noise.random()),
        "perf/rollout_time": (1.1 if requests > 64 else 0.7) * (1 + 0.1 * noise.random()),
        "perf/tokens_per_gpu_per_sec": (3600 if requests > 64 else 5600) * (1 + 0.1 * noise.random()),
        "perf/requests": requests,
        "perf/step_time": 2.0,
    }


def make_run(arm: str, seed: int, design: str = "paired", steps: int = 40) -> RunRecord:
    noise = random.Random(seed if design == "twin" else f"{arm} {seed}")
    requests = 64.0 if arm == "native" else 512.0
    events = [
        {"event": "start", "time": 1000.0 * seed, "step": 0},
        {"event": "end", "time": 1000.0 * seed + 90, "step": steps},
    ]
    outcome = {
        "status": "completed",
        "peak_memory_bytes": 3 << 29,
        "counts": {"samples": 512 * steps, "groups": 64 * steps},
    }
    metrics = [metrics_of_step(step, steps, noise, requests) for step in range(steps)]
    return RunRecord(f"{arm}-seed{seed}", arm, seed, design, metrics, outcome, events)


def make_runs(seeds: int = 3) -> list[RunRecord]:
    return [
        *(make_run(arm, 0, "twin", 20) for arm in ARMS),
        *(make_run(arm, seed) for seed in range(1, seeds + 1) for arm in ARMS),
    ]


def with_events(run: RunRecord, *events: dict[str, Any]) -> RunRecord:
    return replace(run, events=[*run.events, *events])


def contract(check: str, status: Status = Status.PASS, message: str = "", where: Where | None = None) -> Finding:
    said = message or f"161280 samples: {check} holds"
    evidence = {"checked": 161_280, "failed": 0, "not_compared": 0}
    return Finding(check, Level.CONTRACT, status, said, where or Where(), evidence=evidence)


def replay(check: str, checked: int) -> Finding:
    message = f"{check} is equal bit for bit in {checked}"
    return Finding(check, Level.REPLAY, Status.PASS, message, evidence={"checked": checked, "failed": 0})


def make_findings() -> list[Finding]:
    checks = ("output_count", "response_length", "rollout_log_probs_length", "finish_reason", "reward_recomputed")
    twins = ("samples", "rollout/rollout_log_probs_len/mean", "response_length", "finish_reason", "reward", "advantage")
    interval = {
        "summary": "late mean",
        "ci90": (-0.0076, 0.0357),
        "ci95": (-0.0129, 0.0409),
        "estimate": 0.014,
        "margin": 0.1,
        "units": [3, 3],
        "unit": "run",
        "method": "Welch t on one number a run, TOST against ±margin",
    }
    message = "rollout/raw_reward: late mean differs by +0.014 (3 + 3 runs)"
    return [
        *(contract(check) for check in (*checks, "advantage_recomputed")),
        *(replay(f"twin_{field}", 10_240) for field in twins),
        *(replay(f"twin_{metric}", 20) for metric in ("train/loss", "train/grad_norm")),
        Finding(
            "training_parity",
            Level.TRAINING,
            Status.PASS,
            message,
            Where(field="rollout/raw_reward"),
            evidence=interval,
        ),
        Finding("kl", Level.TRAINING, Status.NOT_COMPARED, "train/kl_loss: not recorded in 3 runs of the baseline"),
        Finding(
            "rollout_time",
            Level.COST,
            Status.PASS,
            "perf/rollout_time: ratio 0.64 (95 % interval 0.62 to 0.66) over 114 interleaved steps in 3 pairs of runs",
            Where(field="perf/rollout_time"),
            severity=Severity.WARNING,
            evidence={"baseline": 1.15, "experiment": 0.73, "ratio": 0.64, "ci95": (0.62, 0.66)},
        ),
    ]


def make_experiment(**changes: Any) -> dict[str, Any]:
    return {
        "baseline": "per-sample",
        "experiment": "native",
        "task": "arithmetic",
        "engine": "embedded",
        "steps": 40,
        "seeds": [1, 2, 3],
        "margins": {"rollout/raw_reward": 0.1, "train/grad_norm": 0.5},
        "commands": ["parity run --baseline --experiment native --out out"],
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "config": {"steps": 40, "training": {"learning_rate": 0.001}},
        **changes,
    }


@pytest.fixture
def runs() -> list[RunRecord]:
    """The runs of `report`."""
    return make_runs()


@pytest.fixture(scope="session")
def report() -> Report:
    """The report of a change that keeps parity."""
    return build_report(make_experiment(), make_runs(), make_findings(), judge(make_findings()))


Builder = Callable[..., Report]


@pytest.fixture
def build() -> Builder:
    """Builds a report of the same experiment with other runs, findings or settings."""

    def building(
        runs: Sequence[RunRecord] | None = None, findings: Sequence[Finding] | None = None, **changes: Any
    ) -> Report:
        chosen = make_runs() if runs is None else runs
        made = make_findings() if findings is None else findings
        return build_report(make_experiment(**changes), chosen, made, judge(made))

    return building
