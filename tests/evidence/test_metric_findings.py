"""Findings from curves: a planted shift is found, the control beside it passes, and nothing unmeasured passes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from parity.errors import InputError, UsageError
from parity.findings import Finding, Level, Status
from parity.metrics import RunCurves, curves_of_run
from parity.stats import collapse_finding, cost_findings, training_findings

MARGINS = {"rollout/raw_reward": 0.05, "train/grad_norm": 0.3}


AB = (("base", 0.0), ("native", 1.0))


def arm_of_runs(arm: str, count: int, seed: int, shift: float = 0.0, steps: int = 40) -> list[RunCurves]:
    """Noisy climbing rewards and heavy-tailed gradient norms, with `shift` added to the reward of every step."""
    rng = np.random.default_rng(seed)
    found = []
    for run in range(count):
        reward = np.linspace(0.3, 0.8, steps) + rng.normal(0, 0.01) + rng.normal(0, 0.02, steps) + shift
        norm = rng.lognormal(0, 0.3, steps)
        lines = [
            {"step": step, "rollout/raw_reward": float(r), "train/grad_norm": float(g)}
            for step, (r, g) in enumerate(zip(reward, norm, strict=True))
        ]
        found.append(curves_of_run(f"{arm}-seed{run}", lines))
    return found


def by_metric(findings: list[Finding]) -> dict[str | None, Finding]:
    assert all(finding.check == "training_parity" and finding.level is Level.TRAINING for finding in findings)
    return {finding.where.field: finding for finding in findings}


def test_a_shifted_reward_fails_alone() -> None:
    found = by_metric(training_findings(arm_of_runs("base", 5, 0), arm_of_runs("native", 5, 1, shift=0.1), MARGINS))
    assert found["rollout/raw_reward"].status is Status.FAIL
    assert found["train/grad_norm"].status is Status.PASS


def test_equal_arms_pass_with_their_numbers_as_evidence() -> None:
    found = by_metric(training_findings(arm_of_runs("base", 5, 0), arm_of_runs("native", 5, 1), MARGINS))
    reward = found["rollout/raw_reward"]
    assert reward.status is Status.PASS
    assert reward.evidence["unit"] == "run"
    assert reward.evidence["units"] == [5, 5]
    assert reward.evidence["late_steps"] == [20, 39]
    assert set(reward.evidence["baseline"]) == {f"base-seed{run}" for run in range(5)}
    assert reward.expected == [-0.05, 0.05]
    json.dumps(reward.to_json(), allow_nan=False)


def test_one_run_an_arm_is_inconclusive_and_says_what_is_needed() -> None:
    found = training_findings(arm_of_runs("base", 1, 0), arm_of_runs("native", 1, 1, shift=0.4), MARGINS)
    assert {finding.status for finding in found} == {Status.INCONCLUSIVE}
    assert {finding.evidence["runs_needed"] for finding in found} == {None}
    assert {tuple(finding.evidence["units"]) for finding in found} == {(1, 1)}


def test_an_open_comparison_says_how_many_more_runs_it_takes() -> None:
    margins = {"rollout/raw_reward": 0.012}
    found = training_findings(arm_of_runs("base", 3, 0), arm_of_runs("native", 3, 1), margins)[0]
    assert found.status is Status.INCONCLUSIVE
    needed = found.evidence["runs_needed"]
    assert needed > 3
    assert str(needed) in found.message and str(needed - 3) in found.message


def test_a_margin_out_of_reach_and_runs_without_spread_say_so() -> None:
    tiny = training_findings(arm_of_runs("base", 3, 0), arm_of_runs("native", 3, 1), {"rollout/raw_reward": 1e-5})[0]
    assert tiny.evidence["runs_needed"] is None and tiny.evidence["sigma"] > 0
    assert "1,000" in tiny.message
    constant = [[curves_of_run(f"{arm}{k}", [{"step": s, "m": v} for s in range(30)]) for k in "abc"] for arm, v in AB]
    apart = training_findings(constant[0], constant[1], {"m": 0.1})[0]
    assert apart.status is Status.INCONCLUSIVE
    assert apart.evidence["sigma"] == 0 and apart.evidence["runs_needed"] is None


def test_a_metric_that_some_runs_lack_is_open_and_one_that_all_lack_is_not_compared() -> None:
    baseline, experiment = arm_of_runs("base", 3, 0), arm_of_runs("native", 3, 1)
    del experiment[1]["train/grad_norm"]
    found = by_metric(training_findings(baseline, experiment, {**MARGINS, "eval/none": 1.0}))
    assert found["train/grad_norm"].status is Status.INCONCLUSIVE
    assert found["train/grad_norm"].evidence["lacking"] == {"baseline": 0, "experiment": 1}
    assert found["eval/none"].status is Status.NOT_COMPARED


def test_a_nan_is_inconclusive_and_named() -> None:
    baseline, experiment = arm_of_runs("base", 3, 0), arm_of_runs("native", 3, 1)
    experiment[1]["rollout/raw_reward"].values[3] = math.nan
    found = by_metric(training_findings(baseline, experiment, MARGINS))["rollout/raw_reward"]
    assert found.status is Status.INCONCLUSIVE
    assert "native-seed1" in found.message


@pytest.mark.parametrize(("values", "status"), [({30: 0.0}, Status.PASS), ({30: -1.0}, Status.INCONCLUSIVE)])
def test_a_gradient_norm_may_be_zero_in_some_steps_and_negative_in_none(
    values: dict[int, float], status: Status
) -> None:
    baseline, experiment = arm_of_runs("base", 3, 0), arm_of_runs("native", 3, 1)
    for step, value in values.items():
        experiment[2]["train/grad_norm"].values[step] = value
    found = by_metric(training_findings(baseline, experiment, MARGINS))["train/grad_norm"]
    assert found.status is status
    assert ("native-seed2" in found.message) == (status is Status.INCONCLUSIVE)


def test_a_gradient_norm_that_is_mostly_zero_has_no_logarithm() -> None:
    baseline, experiment = arm_of_runs("base", 3, 0), arm_of_runs("native", 3, 1)
    experiment[2]["train/grad_norm"].values[:] = 0.0
    found = by_metric(training_findings(baseline, experiment, MARGINS))["train/grad_norm"]
    assert found.status is Status.INCONCLUSIVE
    assert "native-seed2" in found.message


def test_short_runs_are_inconclusive() -> None:
    runs = arm_of_runs("base", 5, 0, steps=12), arm_of_runs("native", 5, 1, steps=12)
    found = training_findings(*runs, MARGINS)
    assert {finding.status for finding in found} == {Status.INCONCLUSIVE}
    assert {finding.evidence["steps"] for finding in found} == {12}
    assert {finding.status for finding in training_findings(*runs, MARGINS, minimum_steps=12)} == {Status.PASS}


def test_many_missing_steps_are_inconclusive() -> None:
    baseline = arm_of_runs("base", 3, 0, steps=80)
    lines = [{"step": step, "rollout/raw_reward": 0.5} for step in (0, *range(30, 80))]
    experiment = [curves_of_run(f"native-seed{run}", lines) for run in range(3)]
    found = training_findings(baseline, experiment, {"rollout/raw_reward": 0.05})[0]
    assert found.status is Status.INCONCLUSIVE
    assert "36%" in found.message  # 29 of 80


def test_holm_holds_back_a_difference_that_stands_alone_among_many_metrics() -> None:
    """One metric with p between 1 % and 5 % among five is a difference alone, and no difference among the five."""
    baseline, experiment = [], []
    for run, (low, high) in enumerate(zip([0.0, 1.0, 2.0, 3.0], [2.5, 3.5, 4.0, 4.6], strict=True)):
        others = {f"other/{metric}": float((run + metric) % 4) for metric in range(4)}
        for arm, values, kept in (("base", low, baseline), ("native", high, experiment)):
            lines = [{"step": step, "m": values, **others} for step in range(30)]
            kept.append(curves_of_run(f"{arm}-seed{run}", lines))
    alone = training_findings(baseline, experiment, {"m": 0.5})[0]
    assert 0.01 < alone.evidence["p_difference"] < 0.05
    assert alone.status is Status.FAIL
    among = by_metric(training_findings(baseline, experiment, {"m": 0.5, **{f"other/{k}": 0.5 for k in range(4)}}))
    assert among["m"].status is Status.INCONCLUSIVE


def test_no_runs_and_runs_of_one_name_are_refused() -> None:
    runs = arm_of_runs("base", 2, 0)
    with pytest.raises(UsageError):
        training_findings(runs, [], MARGINS)
    with pytest.raises(InputError, match="more than once"):
        training_findings(runs, runs, MARGINS)


def arm_with_collapses(arm: str, count: int, collapsed: int, at: int = 30) -> list[RunCurves]:
    found = arm_of_runs(arm, count, 3, steps=60)
    for run in found[:collapsed]:
        run["rollout/raw_reward"].values[at:] = 0.01
    return found


def test_runs_that_do_not_collapse_pass_with_the_rate_that_stays_possible() -> None:
    found = collapse_finding(arm_with_collapses("base", 3, 0), arm_with_collapses("native", 3, 0))
    assert (found.check, found.level, found.status) == ("collapse_rate", Level.TRAINING, Status.PASS)
    assert found.evidence["baseline"] == found.evidence["experiment"] == [0, 3]
    assert "63%" in found.message  # 1 - 0.05^(1/3)


def test_one_collapse_against_none_is_inconclusive_and_three_against_none_fail() -> None:
    healthy = arm_with_collapses("base", 3, 0)
    one = collapse_finding(healthy, arm_with_collapses("native", 3, 1))
    assert one.status is Status.INCONCLUSIVE
    assert list(one.evidence["onsets"]) == ["native-seed0"]
    assert collapse_finding(healthy, arm_with_collapses("native", 3, 3)).status is Status.FAIL


def test_a_fall_at_the_very_end_is_named_as_undecided() -> None:
    found = collapse_finding(arm_with_collapses("base", 3, 0), arm_with_collapses("native", 3, 1, at=55))
    assert found.status is Status.INCONCLUSIVE
    assert found.evidence["suspects"] == ["native-seed0"]


def test_collapse_without_rewards_is_not_compared() -> None:
    runs = arm_with_collapses("base", 2, 0)
    del runs[0]["rollout/raw_reward"]
    assert collapse_finding(runs, arm_with_collapses("native", 2, 0)).status is Status.NOT_COMPARED
    assert collapse_finding([], runs).status is Status.NOT_COMPARED


def costed(run: str, requests: int, seconds: np.ndarray, tokens: float) -> RunCurves:
    lines = [
        {
            "step": step,
            "perf/requests": requests,
            "perf/rollout_time": float(time),
            "perf/tokens_per_gpu_per_sec": 1000 / float(time),
            "rollout/response_len/mean": tokens,
        }
        for step, time in enumerate(seconds)
    ]
    return curves_of_run(run, lines)


def cost_of(experiment_factor: float, tokens: float = 50.0, requests: int = 16) -> dict[str, Finding]:
    rng = np.random.default_rng(6)
    base, other = 2.0 + rng.normal(0, 0.05, (2, 30))
    pair = costed("base-seed0", 128, base, 50.0), costed("native-seed0", requests, other * experiment_factor, tokens)
    found = cost_findings([pair])
    assert {finding.level for finding in found} == {Level.COST}
    return {finding.check: finding for finding in found}


def test_a_faster_experiment_passes_on_all_three_costs() -> None:
    found = cost_of(0.8)
    assert {finding.status for finding in found.values()} == {Status.PASS}
    assert found["requests"].evidence["ratio"] == 16 / 128
    low, high = found["rollout_time"].evidence["ci95"]
    assert low < 0.8 < high < 1
    assert found["rollout_time"].evidence["units"] == 28


def test_a_slower_experiment_fails_and_an_equal_one_is_open() -> None:
    assert {finding.status for finding in cost_of(1.3, requests=200).values()} == {Status.FAIL}
    equal = cost_of(1.0)
    assert equal["rollout_time"].status is Status.INCONCLUSIVE
    assert equal["tokens_per_second"].status is Status.INCONCLUSIVE


def test_how_evenly_engines_were_loaded_is_a_cost_where_there_are_several() -> None:
    def with_engines(run: str, busiest: float) -> RunCurves:
        rng = np.random.default_rng(7)
        lines = [
            {
                "step": step,
                "perf/engine_tokens/max_over_mean": busiest * float(noise),
                "rollout/response_len/mean": 50.0,
            }
            for step, noise in enumerate(1 + (busiest > 1) * rng.uniform(0, 0.1, 20))
        ]
        return curves_of_run(run, lines)

    def found(busiest: float) -> Finding:
        pair = with_engines("base-seed0", 1.0), with_engines("native-seed0", busiest)
        (balance,) = (finding for finding in cost_findings([pair]) if finding.check == "engine_balance")
        return balance

    piled, even = found(4.0), found(1.0)
    assert piled.status is Status.FAIL and 4 < piled.evidence["ratio"] < 4.4
    assert even.status is Status.INCONCLUSIVE and even.evidence["ratio"] == 1
    assert "engine_balance" not in cost_of(0.8), "one engine has nothing to be balanced"


def test_a_speed_up_with_shorter_responses_is_void() -> None:
    found = cost_of(0.8, tokens=49.0)
    assert found["rollout_time"].status is Status.INCONCLUSIVE
    assert found["rollout_time"].evidence["ci95"][1] < 1, "it would be cheaper by its interval alone"
    assert found["rollout_time"].evidence["response_tokens"] == [50.0, 49.0]
    assert "-2.0%" in found["rollout_time"].message
    assert cost_of(0.8, tokens=49.6)["rollout_time"].status is Status.PASS


def test_costs_that_were_not_recorded_or_are_too_few_are_no_claim() -> None:
    assert {finding.status for finding in cost_findings([])} == {Status.NOT_COMPARED}
    short = [costed(run, 8, np.array([1.0, 1.1, 1.2]), 50.0) for run in ("base", "native")]
    found = {finding.check: finding for finding in cost_findings([(short[0], short[1])])}
    assert found["rollout_time"].status is Status.INCONCLUSIVE
    assert found["rollout_time"].evidence["ci95"] is None
    single = [costed(run, 8, np.array([1.0]), 50.0) for run in ("base", "native")]
    assert cost_findings([(single[0], single[1])])[1].status is Status.NOT_COMPARED
