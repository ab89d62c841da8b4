"""What a report holds: the eight rows, where their values come from, and which findings carry them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parity.contract_checks import CHECKS
from parity.errors import InputError
from parity.findings import Finding, Level, Status, Verdict, Where, judge
from parity.report.document import ROW_RULES, Report, Row, build_report
from parity.report.runs import RunRecord

EIGHT = (
    "output count",
    "response length",
    "rollout_log_probs length",
    "finish_reason",
    "reward",
    "advantage",
    "loss",
    "grad norm",
)


def plain_run(arm: str, seed: int, design: str, metric: str, values: list[float | None]) -> RunRecord:
    rows = [{"step": step, metric: value} for step, value in enumerate(values)]
    return RunRecord(f"{design}-{arm}-{seed}", arm, seed, design, rows, {}, [])


def two_arms(metric: str, *pairs: tuple[list[float | None], list[float | None]], design: str = "paired") -> Report:
    runs = [
        plain_run(arm, seed, design, metric, values)
        for seed, pair in enumerate(pairs)
        for arm, values in zip(("per-sample", "native"), pair, strict=True)
    ]
    return build_report({"baseline": "per-sample", "experiment": "native"}, runs, [], judge([]))


def row(report: Report, name: str) -> Row:
    return next(row for row in report.rows if row.name == name)


def test_the_first_table_has_exactly_the_eight_rows_in_order(report):
    assert tuple(row.name for row in report.rows) == EIGHT


def test_the_contract_has_every_check_that_a_row_names():
    named = {check for rule in ROW_RULES for check in rule.checks}
    assert named <= {check.name for check in CHECKS}


def test_a_value_is_the_mean_over_runs_of_late_means():
    first = ([9.0, 9.0, 1.0, 3.0], [9.0, 9.0, 2.0, 4.0])
    second = ([0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 7.0, 7.0])
    reward = row(two_arms("rollout/raw_reward", first, second), "reward")
    assert reward.baseline == {"mean": 3.0}
    assert reward.experiment == {"mean": 5.0}
    assert reward.difference == {"mean": 2.0}


def test_a_run_that_ended_early_shortens_the_window_of_all_and_is_told():
    pair = ([1.0, 2.0, 3.0, 100.0], [1.0, 2.0, 3.0])
    reward = row(two_arms("rollout/raw_reward", pair), "reward")
    assert reward.baseline == {"mean": 2.5}
    assert reward.difference == {"mean": 0.0}
    assert reward.notes == ("paired-per-sample-0 has 1 step outside the common range, not used",)


def test_output_counts_are_totals_so_that_one_lost_sample_early_shows():
    counts = row(two_arms("rollout/samples", ([8.0, 8.0, 8.0, 8.0], [7.0, 8.0, 8.0, 8.0])), "output count")
    assert (counts.baseline, counts.experiment, counts.difference) == (
        {"total": 32.0},
        {"total": 31.0},
        {"total": -1.0},
    )


def test_nan_stays_nan_and_null_is_nan():
    for lost in (math.nan, None):
        reward = row(two_arms("rollout/raw_reward", ([1.0, 1.0], [1.0, lost])), "reward")
        assert math.isnan(reward.experiment["mean"])
        assert math.isnan(reward.difference["mean"])
        assert reward.baseline == {"mean": 1.0}
        assert "is NaN or infinite at 1 step (first 1)" in reward.notes[0]


def test_a_metric_that_one_run_lacks_is_not_compared():
    runs = [
        plain_run("per-sample", 0, "paired", "rollout/raw_reward", [1.0]),
        plain_run("native", 0, "paired", "train/loss", [1.0]),
    ]
    built = build_report({"baseline": "per-sample", "experiment": "native"}, runs, [], judge([]))
    assert row(built, "reward").baseline == {}
    assert row(built, "reward").difference == {}


def test_finish_reasons_are_shares(report):
    shares = row(report, "finish_reason")
    assert list(shares.baseline) == ["abort", "length", "stop"]
    assert sum(shares.baseline.values()) == pytest.approx(1)
    assert sum(shares.difference.values()) == pytest.approx(0)


def test_values_come_from_free_runs_where_there_are_some_and_else_from_the_twin(report, build):
    assert report.compared_design == "paired"
    assert report.compared_runs["native"] == ("native-seed1", "native-seed2", "native-seed3")
    twin = two_arms("rollout/raw_reward", ([1.0], [1.0]), design="twin")
    assert twin.compared_design == "twin"
    assert build(runs=[]).compared_design == ""


def test_every_row_carries_the_findings_that_test_it(report):
    carried = {row.name: [finding.check for finding in row.findings] for row in report.rows}
    assert carried == {
        "output count": ["output_count", "twin_samples"],
        "response length": ["response_length", "twin_response_length"],
        "rollout_log_probs length": ["rollout_log_probs_length", "twin_rollout/rollout_log_probs_len/mean"],
        "finish_reason": ["finish_reason", "twin_finish_reason"],
        "reward": ["reward_recomputed", "twin_reward", "training_parity"],
        "advantage": ["advantage_recomputed", "twin_advantage"],
        "loss": ["twin_train/loss"],
        "grad norm": ["twin_train/grad_norm"],
    }


def test_a_failing_finding_takes_the_row_and_the_rung_and_decides(report, build):
    where = Where("native-seed0", 7, 3, 2, "reward")
    fault = Finding("reward_recomputed", Level.CONTRACT, Status.FAIL, "reward 1 is recorded, 0 computed again", where)
    broken = build(findings=[*report.findings, fault])
    assert broken.verdict.verdict is Verdict.DIFFERENT
    assert row(broken, "reward").findings[0] is fault
    assert broken.ladder[0].strongest is fault
    assert report.verdict.verdict is Verdict.PARITY
    assert row(report, "reward").findings[0].status is Status.PASS


def test_a_cause_stands_above_its_consequences_and_an_earlier_step_above_all(report, build):
    def fault(check: str, step: int, level: Level = Level.CONTRACT) -> Finding:
        return Finding(check, level, Status.FAIL, check, Where("native-seed0", step))

    cause = fault("samples_received", 3)
    effects = [fault("reward_recomputed", 3), fault("twin_train/loss", 3, Level.REPLAY)]
    assert build(findings=[*report.findings, *effects, cause]).failing[0] is cause
    assert build(findings=[*report.findings, *effects, cause]).ladder[0].strongest is cause
    earlier = fault("advantage_recomputed", 2)
    assert build(findings=[*effects, cause, earlier]).failing[0] is earlier


def test_another_fields_failure_does_not_take_the_row(report, build):
    fault = Finding("clones", Level.CONTRACT, Status.FAIL, "two are one", Where("native-seed0", 0, 0, 1, "reward"))
    broken = build(findings=[*report.findings, fault])
    assert [finding.status for finding in row(broken, "reward").findings] == [Status.PASS] * 3


def test_how_runs_ended_is_counted_from_their_events(build):
    run = plain_run("native", 1, "paired", "perf/step_time", [2.0, 3.0])
    events = [
        {"event": "start", "time": 100.0, "step": 0},
        {"event": "retry", "time": 101.0, "step": 1, "message": "502"},
        {"event": "retry", "time": 102.0, "step": 1, "count": 2},
        {"event": "engine_restart", "time": 103.0, "step": 1},
        {"event": "resume", "time": 110.0, "step": 1},
    ]
    built = build(runs=[replace(run, events=events, outcome={"status": "running"})])
    ended = built.outcomes[0]
    assert (ended.status, ended.steps, ended.retries, ended.restarts, ended.resumes) == ("running", 2, 3, 1, 1)
    assert ended.seconds == 5.0
    assert built.provenance.seconds == 10.0
    assert [(mark.kind, mark.step) for mark in built.marks] == [("engine_restart", 1), ("resume", 1)]


def test_a_collapse_is_marked_where_the_reward_falls_and_stays_down_and_a_dip_is_not():
    healthy = [0.5 + 0.01 * step for step in range(40)]
    collapsed = [*healthy[:25], *[0.05] * 15]
    dipped = [*healthy[:25], 0.05, *healthy[26:]]
    marks = two_arms("rollout/raw_reward", (healthy, collapsed), (healthy, dipped)).marks
    assert [(mark.run, mark.kind) for mark in marks] == [("paired-native-0", "collapse")]
    assert 25 <= marks[0].step <= 28


def test_the_config_hash_follows_the_config_and_nothing_else(build):
    one, same = build(config={"a": 1, "b": 2}), build(config={"b": 2, "a": 1}, task="another")
    other = build(config={"a": 1, "b": 3})
    assert one.provenance.config_hash == same.provenance.config_hash != other.provenance.config_hash


@pytest.mark.parametrize("experiment", [{}, {"baseline": "native"}, {"baseline": "native", "experiment": "native"}])
def test_an_experiment_without_two_arms_is_refused(experiment):
    with pytest.raises(InputError, match="arms"):
        build_report(experiment, [], [], judge([]))


def test_two_runs_of_one_name_are_refused(build):
    run = plain_run("native", 1, "paired", "train/loss", [1.0])
    with pytest.raises(InputError, match="paired-native-1"):
        build(runs=[run, run])


def test_a_metric_that_is_no_number_is_refused_by_run_and_step(build):
    run = RunRecord("native-seed1", "native", 1, "paired", [{"step": 0, "train/loss": "low"}], {}, [])
    with pytest.raises(InputError, match=r"native-seed1, step 0: metric 'train/loss' is 'low'"):
        build(runs=[run])


def test_how_evenly_engines_were_loaded_is_a_row_of_the_cost_where_it_was_compared() -> None:
    experiment = {"baseline": "per-sample", "experiment": "native"}
    evidence = {"baseline": 1.2, "experiment": 3.0, "ratio": 2.5, "ci95": (2.0, 3.1)}
    where = Where(field="perf/engine_tokens/max_over_mean")
    balance = Finding("engine_balance", Level.COST, Status.FAIL, "ratio 2.5", where, evidence=evidence)
    *_, row = build_report(experiment, [], [balance], judge([balance])).cost
    assert (row.status, row.baseline, row.experiment, row.ratio) == (Status.FAIL, 1.2, 3.0, 2.5)
    for findings in ([], [replace(balance, status=Status.NOT_COMPARED)]):
        assert len(build_report(experiment, [], findings, judge(findings)).cost) == 3
