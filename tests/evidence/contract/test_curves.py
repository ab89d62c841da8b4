"""Recorded metrics and curves: what trackers lose, shift and repeat is found; what they may do passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from parity.contract_checks import check_curves, check_metrics
from parity.findings import Finding, Severity, Status
from parity.metrics import RunCurves, curves_of_run, rollout_metrics
from parity.records.samples import Rollout, Sample

Build = Callable[..., list[Sample]]
Record = dict[str, Any]


def failing(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in reversed(findings) if finding.status is Status.FAIL}


def records(steps: Sequence[int], **values: float) -> list[Record]:
    return [{"step": step, "train/loss": 0.5, "rollout/raw_reward": 0.25, **values} for step in steps]


def curves(*runs: list[Record]) -> list[RunCurves]:
    return [curves_of_run(f"run{number}", run) for number, run in enumerate(runs)]


def judged(baseline: list[Record], experiment: list[Record]) -> dict[str, Finding]:
    first, second = curves(baseline, experiment)
    return failing(check_curves([first], [second]))


@pytest.fixture
def rollouts(valid_samples: Build) -> dict[int, Rollout]:
    samples = valid_samples(steps=3)
    return {step: Rollout.from_samples(s for s in samples if s.rollout_id == step) for step in range(3)}


def test_metrics_of_the_samples_pass_whatever_the_clock_said(rollouts: dict[int, Rollout]) -> None:
    rows = [{"step": step, **rollout_metrics(rollout, 3.0)} for step, rollout in rollouts.items()]
    (finding,) = check_metrics(rollouts, rows)
    assert finding.status is Status.PASS
    assert finding.evidence["checked"] > 30


def test_a_metric_off_by_a_rounding_of_32_bits_passes_and_by_more_does_not(rollouts: dict[int, Rollout]) -> None:
    mean = rollout_metrics(rollouts[0], 1.0)["rollout/response_len/mean"]
    assert (
        check_metrics(rollouts, [{"step": 0, "rollout/response_len/mean": mean * (1 + 1e-7)}])[0].status is Status.PASS
    )
    (finding,) = check_metrics(rollouts, [{"step": 0, "rollout/response_len/mean": mean * (1 + 1e-5)}])
    assert finding.status is Status.FAIL
    assert (finding.where.rollout_id, finding.where.field) == (0, "rollout/response_len/mean")
    assert finding.expected == pytest.approx(mean)


def test_a_metric_of_the_step_before_is_found_at_its_step(rollouts: dict[int, Rollout]) -> None:
    rows = [{"step": 2, "rollout/rollout_log_probs": rollout_metrics(rollouts[1], 1.0)["rollout/rollout_log_probs"]}]
    (finding,) = check_metrics(rollouts, rows)
    assert (finding.status, finding.where.rollout_id) == (Status.FAIL, 2)


@pytest.mark.parametrize("value", [None, float("nan"), "0.5"])
def test_a_metric_that_is_no_number_fails(value: Any, rollouts: dict[int, Rollout]) -> None:
    (finding,) = check_metrics(rollouts, [{"step": 1, "rollout/raw_reward": value}])
    assert finding.status is Status.FAIL


def test_steps_without_samples_and_metrics_that_samples_lack_are_not_compared(rollouts: dict[int, Rollout]) -> None:
    (finding,) = check_metrics(rollouts, [{"step": 9, "rollout/raw_reward": 0.5}, {"step": 0, "train/loss": 7.0}])
    assert finding.status is Status.NOT_COMPARED
    assert finding.evidence == {"checked": 0, "failed": 0, "not_compared": 1, "unit": "metrics"}


def test_sound_curves_pass_every_rule() -> None:
    gap = {"train/train_rollout_logprob_abs_diff": 0.01}
    first, second = curves(records(range(12), **gap), records(range(12), **gap))
    findings = check_curves([first], [second])
    assert {finding.status for finding in findings} == {Status.PASS}
    assert {finding.check: finding.evidence["checked"] for finding in findings} == {
        "curve_regular_steps": 6,
        "curve_steps_once": 6,
        "curve_finite_values": 6,
        "curve_train_rollout_gap": 2,
        "curve_climbing_gap": 2,
        "curve_arms_same_steps": 3,
    }


@pytest.mark.parametrize(
    ("steps", "place", "expected", "observed"),
    [([0, 1, 2, 4, 5], 2, 3, 4), ([0, 1, 2, 3, 4, 10, 11], 4, 5, 10), ([0, 5, 10, 11], 0, 1, 5)],
)
def test_a_gap_is_found_where_it_begins(steps: list[int], place: int, expected: int, observed: int) -> None:
    finding = judged(records(steps), records(steps))["curve_regular_steps"]
    assert (finding.where.rollout_id, finding.expected, finding.observed) == (place, expected, observed)


@pytest.mark.parametrize("lost", [range(3, 4), range(3, 7)])
def test_a_stretch_that_one_metric_lacks_and_others_have_is_a_hole(lost: range) -> None:
    rows = records(range(12))
    for row in rows:
        if row["step"] in lost:
            del row["train/loss"]
    finding = judged(records(range(12)), rows)["curve_regular_steps"]
    assert (finding.where.run, finding.where.field, finding.where.rollout_id) == ("run1", "train/loss", 2)
    assert (finding.expected, finding.observed) == (3, lost.stop)


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("rollout/zero_std/count_0.0", {4}),
        ("rollout/zero_std/count_0.3", set(range(12)) - {5}),
        ("rollout_patch/fallback/media", {0, 1, 2, 7}),
        ("diagnostics/overlong", {1, 2, 5, 8, 9}),
    ],
)
def test_a_metric_of_what_happened_is_absent_where_nothing_did(name: str, absent: set[int]) -> None:
    baseline, experiment = records(range(12)), records(range(12))
    for row in experiment:
        if row["step"] not in absent:
            row[name] = 1.0
    for row in baseline[2::5]:
        row[name] = 1.0
    assert judged(baseline, experiment) == {}


def test_an_evaluation_at_every_tenth_step_loses_one() -> None:
    rows = records(range(51))
    for step in (0, 10, 20, 40, 50):
        rows[step]["eval/reward"] = 0.5
    finding = judged(rows, rows)["curve_regular_steps"]
    assert (finding.where.field, finding.where.rollout_id, finding.expected, finding.observed) == (
        "eval/reward", 20, 30, 40,
    )  # fmt: skip


@pytest.mark.parametrize("steps", [[7], [0, 10, 20], [3, 4]])
def test_any_regular_stride_passes(steps: list[int]) -> None:
    assert judged(records(steps), records(steps)) == {}


def test_a_step_logged_twice_warns_with_the_first_of_them() -> None:
    again = [*records(range(6)), *records(range(4, 8))]
    finding = judged(records(range(8)), again)["curve_steps_once"]
    assert (finding.severity, finding.where.rollout_id, finding.observed) == (Severity.WARNING, 4, 2)
    assert set(judged(records(range(8)), again)) == {"curve_steps_once"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_value_that_is_not_finite_is_found_at_its_step(value: float | None) -> None:
    rows = records(range(5))
    rows[3]["train/loss"] = value
    rows[4]["train/loss"] = value
    finding = judged(records(range(5)), rows)["curve_finite_values"]
    assert (finding.evidence["checked"], finding.evidence["failed"]) == (4, 1)
    assert (finding.where.run, finding.where.rollout_id, finding.where.field) == ("run1", 3, "train/loss")


@pytest.mark.parametrize(("gap", "fails"), [(0.09, False), (0.11, True)])
def test_trainer_and_engine_may_differ_by_a_tenth_of_a_nat(gap: float, fails: bool) -> None:
    name = "train/train_rollout_logprob_abs_diff"
    rows = records(range(5), **{name: 0.001})
    rows[2][name] = gap
    found = judged(records(range(5), **{name: 0.001}), rows)
    assert set(found) == ({"curve_train_rollout_gap"} if fails else set())
    if fails:
        assert (found["curve_train_rollout_gap"].where.rollout_id, found["curve_train_rollout_gap"].observed) == (
            2,
            gap,
        )


def test_without_the_difference_recorded_it_is_not_compared() -> None:
    first, second = curves(records(range(4)), records(range(4)))
    (finding,) = (f for f in check_curves([first], [second]) if f.check == "curve_train_rollout_gap")
    assert (finding.status, finding.evidence["not_compared"]) == (Status.NOT_COMPARED, 2)


def test_a_metric_or_steps_of_one_arm_alone_are_found() -> None:
    lone = judged(records(range(5), extra=1.0), records(range(5)))["curve_arms_same_steps"]
    assert (lone.where.field, lone.expected, lone.observed) == ("extra", 5, 0)
    short = judged(records(range(5)), records(range(3)))["curve_arms_same_steps"]
    assert (short.where.rollout_id, short.expected, short.observed) == (3, 5, 3)


def test_a_metric_with_one_gap_has_the_same_steps_in_both_arms() -> None:
    found = judged(records(range(8)), records([0, 1, 2, 4, 5, 6, 7]))["curve_arms_same_steps"]
    assert (found.where.rollout_id, found.expected, found.observed) == (3, 8, 7)


@pytest.mark.parametrize("name", ["rollout/avg_cached_tokens_per_sample", "rollout/prefix_cache_hit_rate"])
def test_what_an_engine_counts_a_request_may_be_of_one_arm_alone(name: str) -> None:
    alone = curves(records(range(5), **{name: 1.0}), records(range(5)))
    found = [f for f in check_curves([alone[0]], [alone[1]]) if f.check == "curve_arms_same_steps"]
    assert {f.status for f in found} == {Status.PASS, Status.NOT_COMPARED}
    assert {f.evidence["not_compared"] for f in found} == {1}
    short = judged(records(range(5), **{name: 1.0}), records(range(3), **{name: 1.0}))["curve_arms_same_steps"]
    assert (short.expected, short.observed) == (5, 3)
