"""Cost between runs made apart: hand-computed ratios, scipy's interval, and claims that are void."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from parity.evidence.cost.run_cost import run_cost_findings, run_ratio
from parity.findings import Finding, Status
from parity.metrics import Curve, RunCurves


def run(name: str, seconds: float, tokens: float = 500.0, steps: int = 20, seed: int = 0) -> RunCurves:
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.01, steps))
    values = {
        "perf/rollout_time": seconds * noise,
        "perf/tokens_per_gpu_per_sec": 1e4 / seconds / noise,
        "rollout/response_len/mean": np.full(steps, tokens),
    }
    return {metric: Curve(name, metric, np.arange(steps), series) for metric, series in values.items()}


def arms(factor: float, tokens: float = 500.0, runs: int = 3) -> dict[str, Finding]:
    baseline = [run(f"b{k}", 10.0 + k, seed=k) for k in range(runs)]
    experiment = [run(f"e{k}", (10.0 + k) * factor, tokens, seed=10 + k) for k in range(runs)]
    return {finding.check: finding for finding in run_cost_findings(baseline, experiment)}


def test_ratio_and_interval_are_those_of_a_paired_t_on_logs() -> None:
    baseline, experiment = np.array([10.0, 12.0, 11.0]), np.array([8.0, 9.5, 9.0])
    result = run_ratio(baseline, experiment)
    reference = stats.ttest_rel(np.log(experiment), np.log(baseline))
    assert result.p == pytest.approx(reference.pvalue)
    assert result.ci95 == pytest.approx(np.exp(reference.confidence_interval(0.95)))
    unequal = run_ratio(baseline, experiment[:2])
    welch = stats.ttest_ind(np.log(experiment[:2]), np.log(baseline), equal_var=False)
    assert unequal.ci95 == pytest.approx(np.exp(welch.confidence_interval(0.95)))


def test_faster_slower_and_equal() -> None:
    assert {finding.status for finding in arms(0.8).values()} == {Status.PASS}
    assert arms(0.8)["rollout_time"].evidence["ratio"] == pytest.approx(0.8, abs=0.01)
    assert {finding.status for finding in arms(1.3).values()} == {Status.FAIL}
    assert {finding.status for finding in arms(1.0).values()} == {Status.INCONCLUSIVE}


def test_one_run_an_arm_gives_a_ratio_without_an_interval() -> None:
    found = arms(0.8, runs=1)["rollout_time"]
    assert found.status is Status.INCONCLUSIVE
    assert found.evidence["ci95"] is None


def test_a_claim_with_other_lengths_is_void() -> None:
    found = arms(0.8, tokens=490.0)["rollout_time"]
    assert found.status is Status.INCONCLUSIVE
    assert found.evidence["ci95"][1] < 1, "it would be cheaper by its interval alone"
    assert "-2.0%" in found.message
    assert arms(0.8, tokens=496.0)["rollout_time"].status is Status.PASS


def test_the_warm_up_is_left_out() -> None:
    slow = [run(f"b{k}", 10.0, seed=k) for k in range(3)]
    for one in slow:
        one["perf/rollout_time"].values[:2] = 1e6
    found = run_cost_findings(slow, [run(f"e{k}", 10.0, seed=9 + k) for k in range(3)])[0]
    assert found.evidence["ratio"] == pytest.approx(1, abs=0.02)


def test_what_was_not_recorded_or_is_not_positive_is_no_claim() -> None:
    lone = {metric: curve for metric, curve in run("b0", 10.0).items() if metric != "rollout/response_len/mean"}
    assert run_cost_findings([lone], [run("e0", 8.0)])[0].status is Status.NOT_COMPARED
    zero = run("e0", 8.0)
    zero["perf/rollout_time"].values[7] = 0.0
    found = run_cost_findings([run("b0", 10.0)], [zero])[0]
    assert found.status is Status.INCONCLUSIVE
    assert "e0" in found.message
    short = [run(name, 8.0, steps=2) for name in ("b0", "e0")]
    assert run_cost_findings(short[:1], short[1:])[0].status is Status.NOT_COMPARED
