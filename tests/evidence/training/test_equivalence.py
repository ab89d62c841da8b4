"""The comparison of whole arms over simulated experiments: how often it errs, and what odd inputs make of it."""

from __future__ import annotations

import numpy as np
import pytest
from recorded_runs import noise

from parity.findings import Finding, Status
from parity.metrics import Curve, RunCurves
from parity.stats import secondary_findings, training_findings

METRICS = ("rollout/raw_reward", "other/a", "other/b")
SIMULATIONS = 100
LARGEST_SHARE = 0.05 + 3 * np.sqrt(0.05 * 0.95 / SIMULATIONS)


def correlated(name: str, rng: np.random.Generator, shift: float = 0.0, steps: int = 30) -> RunCurves:
    """Autoregressive curves around a level of the run, shifted in the first metric."""
    levels = rng.normal(0, 0.02, len(METRICS))
    levels[0] += shift
    return {
        metric: Curve(name, metric, np.arange(steps), level + 0.03 * noise(rng, steps))
        for metric, level in zip(METRICS, levels, strict=True)
    }


def tied(name: str, rng: np.random.Generator, shift: float = 0.0, steps: int = 30) -> RunCurves:
    """Curves of which each is one of three constants, so that runs tie."""
    return {metric: Curve(name, metric, np.arange(steps), np.full(steps, rng.integers(3) / 3)) for metric in METRICS}


def simulated(make: object, runs: int, shift: float, margin: float) -> list[list[Finding]]:
    rng = np.random.default_rng(7)
    return [
        training_findings(
            [make(f"b{k}", rng) for k in range(runs)],
            [make(f"e{k}", rng, shift) for k in range(runs)],
            dict.fromkeys(METRICS, margin),
        )
        for _ in range(SIMULATIONS)
    ]


@pytest.mark.parametrize(("make", "runs"), [(correlated, 2), (correlated, 3), (tied, 3)])
def test_equal_arms_are_called_different_at_most_one_time_in_twenty(make: object, runs: int) -> None:
    different = [any(finding.fails for finding in found) for found in simulated(make, runs, 0.0, margin=1e-6)]
    assert np.mean(different) <= LARGEST_SHARE


def test_a_difference_of_the_margin_passes_at_most_one_time_in_twenty() -> None:
    passed = [found[0].status is Status.PASS for found in simulated(correlated, 3, 0.1, margin=0.1)]
    assert np.mean(passed) <= LARGEST_SHARE
    assert np.mean([found[1].status is Status.PASS for found in simulated(correlated, 3, 0.0, margin=0.2)]) > 0.9


def test_a_margin_of_the_history_lets_a_difference_of_two_spreads_pass_at_most_one_time_in_twenty() -> None:
    rng = np.random.default_rng(3)
    passed = []
    for _ in range(SIMULATIONS):
        runs = [
            {"m": Curve(f"r{k}", "m", np.arange(30), np.full(30, rng.normal(2.0 if 5 <= k < 10 else 0.0, 1.0)))}
            for k in range(15)
        ]
        (found,) = training_findings(runs[:5], runs[5:10], {"m": None}, history=runs[10:])
        passed.append(found.status is Status.PASS)
    assert np.mean(passed) <= LARGEST_SHARE


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_constants_pass_within_the_margin_and_never_fail_by_themselves(apart: float) -> None:
    def constant(name: str, value: float) -> RunCurves:
        return {"m": Curve(name, "m", np.arange(30), np.full(30, value))}

    arms = [constant(f"b{k}", 0.5) for k in range(3)], [constant(f"e{k}", 0.5 + apart) for k in range(3)]
    (found,) = training_findings(*arms, {"m": 0.1})
    assert found.status is (Status.INCONCLUSIVE if apart else Status.PASS)


def test_flags_of_secondary_metrics_are_seldom_false() -> None:
    rng = np.random.default_rng(11)
    flagged = []
    for _ in range(60):
        arms = [
            [
                {f"m{k}": Curve(f"{arm}{run}", f"m{k}", np.arange(30), noise(rng, 30)) for k in range(10)}
                for run in range(3)
            ]
            for arm in "be"
        ]
        flagged.append(any(finding.status is Status.FAIL for finding in secondary_findings(arms[0], arms[1], [])))
    assert np.mean(flagged) <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / 60)


def constant_runs(arm: str, value: float, bad: float | None = None) -> list[RunCurves]:
    curves = [np.full(30, value) for _ in range(3)]
    if bad is not None:
        curves[1][4] = bad
    return [{"train/lr-pg_0": Curve(f"{arm}{k}", "train/lr-pg_0", np.arange(30), one)} for k, one in enumerate(curves)]


@pytest.mark.parametrize(("value", "differs"), [(2e-6, True), (1e-6, False), (float(np.float32(1e-6)), False)])
def test_a_setting_that_is_another_in_each_arm_is_named(value: float, differs: bool) -> None:
    found = secondary_findings(constant_runs("b", 1e-6), constant_runs("e", value), [])
    named = [finding for finding in found if finding.check == "setting_differs"]
    assert len(named) == differs
    assert all(not finding.fails and finding.where.field == "train/lr-pg_0" for finding in named)


def test_a_secondary_metric_that_cannot_be_summarised_is_said_to_be_left_out() -> None:
    found = secondary_findings(constant_runs("b", 1.0), constant_runs("e", 1.0, bad=float("nan")), [])
    (left_out,) = [finding for finding in found if finding.check == "secondary_metric"]
    assert left_out.status is Status.NOT_COMPARED
    assert left_out.where.field == "train/lr-pg_0"
    assert "e1" in left_out.message
    sound = secondary_findings(constant_runs("b", 1.0), constant_runs("e", 1.0), [])
    assert "secondary_metric" not in {finding.check for finding in sound}


def test_a_loss_that_crosses_zero_is_summarised_without_a_logarithm() -> None:
    rng = np.random.default_rng(1)

    def of_loss(name: str, series: np.ndarray) -> RunCurves:
        return {"train/loss": Curve(name, "train/loss", np.arange(40), series)}

    crossing = [of_loss(f"r{k}", rng.normal(0, 1, 40)) for k in range(6)]
    (found,) = training_findings(crossing[:3], crossing[3:], {"train/loss": 5.0})
    assert found.evidence["summary"] == "late median"
    positive = [of_loss(f"r{k}", rng.lognormal(0, 1, 40)) for k in range(6)]
    (found,) = training_findings(positive[:3], positive[3:], {"train/loss": 5.0})
    assert found.evidence["summary"] == "late median of the log"


def falling(rng: np.random.Generator, name: str, steps: int, fall: float) -> RunCurves:
    """A run whose reward falls from step 60 on."""
    values = 0.6 + rng.normal(0, 0.02) + rng.normal(0, 0.03, 200) - fall * (np.arange(200) >= 60)
    curve = Curve(name, "rollout/raw_reward", np.arange(steps), values[:steps])
    return {curve.metric: curve}


@pytest.mark.parametrize("runs", [3, 5])
def test_a_run_that_was_cut_hides_no_fall_that_came_later(runs: int) -> None:
    rng, seen = np.random.default_rng(9), []
    for _ in range(40):
        baseline = [falling(rng, f"b{k}", 40 if k == 0 else 200, 0.0) for k in range(runs)]
        experiment = [falling(rng, f"e{k}", 200, 0.2) for k in range(runs)]
        (found,) = training_findings(baseline, experiment, {"rollout/raw_reward": 0.1})
        assert found.evidence["cut"] == ["b0"]
        seen.append(found.status)
    assert seen.count(Status.PASS) == 0
    assert seen.count(Status.FAIL) >= 20


def test_a_run_that_was_cut_leaves_parity_where_both_ranges_show_it() -> None:
    rng, passed = np.random.default_rng(10), 0
    for _ in range(20):
        baseline = [falling(rng, f"b{k}", 40 if k == 0 else 200, 0.0) for k in range(5)]
        experiment = [falling(rng, f"e{k}", 200, 0.0) for k in range(5)]
        (found,) = training_findings(baseline, experiment, {"rollout/raw_reward": 0.1})
        passed += found.status is Status.PASS
    assert passed >= 15


def gradients(rng: np.random.Generator, name: str, idle: float) -> RunCurves:
    """Gradient norms, which are 0 in a share of steps."""
    values = np.exp(rng.normal(0, 0.3, 100)) * (rng.random(100) >= idle)
    curve = Curve(name, "train/grad_norm", np.arange(100), values)
    return {curve.metric: curve}


def test_gradient_norms_that_are_mostly_0_are_compared_by_the_others() -> None:
    rng = np.random.default_rng(11)
    arms = [[gradients(rng, f"{arm}{k}", 0.8) for k in range(5)] for arm in "be"]
    (found,) = training_findings(*arms, {"train/grad_norm": 0.5})
    assert found.status is Status.PASS
    idle = [[gradients(rng, f"{arm}{k}", 1.1) for k in range(3)] for arm in "be"]
    assert training_findings(*idle, {"train/grad_norm": 0.5})[0].status is Status.NOT_COMPARED
    (lost,) = training_findings(arms[0], idle[1], {"train/grad_norm": 0.5})
    assert lost.status is Status.INCONCLUSIVE, "one arm has gradients and the other none"
