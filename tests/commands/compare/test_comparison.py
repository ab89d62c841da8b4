"""Recorded runs compared: planted differences are found, controls beside them pass, what is not known stays open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from recorded_runs import of_values, recorded

from parity.commands.compare import Question, compare, margins_of
from parity.errors import UsageError
from parity.findings import Finding, Severity, Status, Verdict
from parity.metrics import Curve
from parity.records.margins import by_curve
from parity.report import text
from parity.report.document import Report
from parity.sources.curves.recorded_runs import RecordedRun

MARGINS = {"response_length": 0.05}
QUESTION = Question(margins_of(MARGINS, history=False), stated=tuple(margins_of(MARGINS, history=False)))


def arm(name: str, count: int, first_seed: int, **changed: float) -> list[RecordedRun]:
    return [recorded(f"{name}{k}", first_seed + k, **changed) for k in range(count)]


def of_check(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


def one(report: Report, check: str, metric: str = "rollout/raw_reward") -> Finding:
    (finding,) = (found for found in of_check(report, check) if found.where.field == metric)
    return finding


def with_values(run: RecordedRun, metric: str, places: slice, value: float) -> RecordedRun:
    curve = run.curves[metric]
    values = curve.values.copy()
    values[places] = value
    return replace(run, curves={**run.curves, metric: replace(curve, values=values)})


def test_equal_arms_are_parity_and_the_cheaper_one_is_named() -> None:
    report = compare(arm("b", 5, 0), arm("e", 5, 100, seconds=8.0), question=QUESTION)
    assert report.verdict.verdict is Verdict.CURVES_AGREE
    assert text.headline(report).startswith(
        "CURVES AGREE: experiment trains as baseline (10 runs, 60 steps) within the"
    )
    assert "rollout/raw_reward ±0.1" in text.headline(report)
    assert "PARITY" not in text.headline(report)
    assert one(report, "rollout_time", "perf/rollout_time").status is Status.PASS
    assert len(of_check(report, "training_parity")) == 5
    assert one(report, "training_parity").evidence["band"]["outside"] == []


def test_a_shifted_reward_is_different_and_located() -> None:
    report = compare(arm("b", 5, 0), arm("e", 5, 100, shift=-0.2), question=QUESTION)
    assert report.verdict.verdict is Verdict.DIFFERENT
    found = one(report, "training_parity")
    assert found.status is Status.FAIL
    outside = found.evidence["band"]["outside"]
    assert len(outside) > 50, "at nearly every step of 60"
    assert {finding.status for finding in of_check(report, "training_parity") if finding is not found} == {Status.PASS}


def test_margins_that_nobody_stated_leave_curves_that_agree_inconclusive() -> None:
    unstated = compare(arm("b", 5, 0), arm("e", 5, 100), question=replace(QUESTION, stated=tuple(by_curve(MARGINS))))
    assert unstated.verdict.verdict is Verdict.INCONCLUSIVE
    assert "default margins" in text.headline(unstated)
    assert "rollout/raw_reward" in unstated.scope.default_margins
    assert not set(by_curve(MARGINS)) & set(unstated.scope.default_margins)
    different = replace(QUESTION, stated=())
    shifted = compare(arm("b", 5, 0), arm("e", 5, 100, shift=-0.3), question=different)
    assert shifted.verdict.verdict is Verdict.DIFFERENT


def test_a_shift_that_begins_late_is_located_there() -> None:
    changed = [with_values(run, "rollout/raw_reward", slice(40, None), 0.2) for run in arm("e", 5, 100)]
    outside = one(compare(arm("b", 5, 0), changed, question=QUESTION), "training_parity").evidence["band"]["outside"]
    assert outside and min(outside) >= 40 - 4


def test_one_run_an_arm_is_open_whatever_its_length_and_says_how_many_are_needed() -> None:
    baseline, experiment = [recorded("b", 0, steps=2000)], [recorded("e", 1, shift=0.3, steps=2000)]
    report = compare(baseline, experiment, question=QUESTION)
    assert report.verdict.verdict is Verdict.INCONCLUSIVE
    assert one(report, "training_parity").evidence["p_difference"] is None
    assert one(report, "training_parity").evidence["units"] == [1, 1]


def constants(name: str, reward: float) -> RecordedRun:
    return of_values(name, {"rollout/raw_reward": np.full(40, reward)})


def test_one_run_against_a_history_is_the_worked_prediction() -> None:
    """t, p and interval of one run of 0.60 against five runs, one of them the comparison's baseline."""
    earlier = [constants(f"h{k}", reward) for k, reward in enumerate([0.50, 0.52, 0.54, 0.51])]
    question = Question({"rollout/raw_reward": 0.05})
    report = compare([constants("b", 0.53)], [constants("e", 0.60)], earlier, question)
    found = one(report, "training_parity")
    assert found.evidence["p_difference"] == pytest.approx(0.0098900, abs=5e-8)
    assert found.status is Status.FAIL
    assert np.array(found.evidence["ci95"]) == pytest.approx([0.08 - 0.0480894, 0.08 + 0.0480894], abs=1e-6)
    inside = one(compare([constants("b", 0.53)], [constants("e", 0.54)], earlier, question), "training_parity")
    assert inside.status is Status.INCONCLUSIVE
    assert inside.evidence["ci95"][0] < 0 < inside.evidence["ci95"][1]
    assert inside.evidence["runs_needed"] > 1
    assert str(inside.evidence["runs_needed"]) in inside.message


def test_margins_come_from_the_history_unless_stated() -> None:
    margins = margins_of(MARGINS, history=True)
    assert margins["rollout/response_len/mean"] == 0.05
    assert margins["rollout/raw_reward"] is None
    history = arm("h", 6, 50)
    report = compare(arm("b", 5, 0), arm("e", 5, 100), history, Question(margins))
    found = one(report, "training_parity")
    values = np.array(list(found.evidence["history"].values()))
    assert 0 < found.evidence["margin"] < 2 * values.std(ddof=1)
    assert "history" in found.evidence["margin_source"]
    short = one(compare(arm("b", 5, 0), arm("e", 5, 100), history[:2], Question(margins)), "training_parity")
    assert short.status is Status.INCONCLUSIVE
    assert "--margin rollout/raw_reward" in short.message, "the option that would decide"


def test_a_metric_that_all_lack_is_not_compared_and_one_that_an_arm_lacks_stays_open() -> None:
    def without(run: RecordedRun, metric: str) -> RecordedRun:
        return replace(run, curves={name: curve for name, curve in run.curves.items() if name != metric})

    baseline, experiment = arm("b", 5, 0), arm("e", 5, 100)
    lone = [without(run, "rollout/group_reward_std") for run in experiment]
    report = compare(baseline, lone, question=QUESTION)
    assert one(report, "training_parity", "rollout/group_reward_std").status is Status.INCONCLUSIVE
    assert report.verdict.verdict is Verdict.INCONCLUSIVE
    neither = compare([without(run, "rollout/group_reward_std") for run in baseline], lone, question=QUESTION)
    assert one(neither, "training_parity", "rollout/group_reward_std").status is Status.NOT_COMPARED
    assert neither.verdict.verdict is Verdict.CURVES_AGREE
    unrewarded = [[without(run, "rollout/raw_reward") for run in runs] for runs in (baseline, experiment)]
    assert compare(*unrewarded, question=QUESTION).verdict.verdict is Verdict.INCONCLUSIVE


def test_collapsed_runs_are_a_rate_and_the_others_are_compared_among_themselves() -> None:
    collapsed = [with_values(run, "rollout/raw_reward", slice(30, None), 0.01) for run in arm("e", 5, 100)[:2]]
    report = compare(arm("b", 5, 0), [*collapsed, *arm("e", 5, 100)[2:]], question=QUESTION)
    rate = one(report, "collapse_rate")
    assert rate.evidence["experiment"] == [2, 5]
    assert "Jeffreys" in rate.evidence["prior"] and 0.5 < rate.evidence["probability_higher"] < 1
    assert one(report, "conditional_parity").status is Status.PASS
    assert one(report, "training_parity").severity is Severity.ERROR, "a collapse turns no other finding off"
    assert report.verdict.verdict is Verdict.INCONCLUSIVE
    all_of_them = [with_values(run, "rollout/raw_reward", slice(30, None), 0.01) for run in arm("e", 5, 100)]
    lost = compare(arm("b", 5, 0), all_of_them, question=QUESTION)
    assert lost.verdict.verdict is Verdict.DIFFERENT
    assert one(lost, "collapse_rate").fails


def cut_at(run: RecordedRun, steps: int, ending: str | None) -> RecordedRun:
    curves = {
        name: Curve(run.name, name, curve.steps[:steps], curve.values[:steps]) for name, curve in run.curves.items()
    }
    return replace(run, curves=curves, ending=ending)


def test_a_run_cut_off_leaves_parity_subject_to_censoring() -> None:
    experiment = arm("e", 5, 100)
    report = compare(arm("b", 5, 0), [cut_at(experiment[0], 40, "oom"), *experiment[1:]], question=QUESTION)
    (table,) = of_check(report, "runs_cut_off")
    assert table.evidence["table"]["experiment"] == {"oom": 1, "complete": 4}
    assert report.verdict.verdict is Verdict.CURVES_AGREE
    assert "subject to censoring" in text.headline(report)
    assert of_check(report, "run_lengths")[0].evidence["ranges"] == {"39": [5, 5], "59": [5, 4]}
    many = [cut_at(run, 40, None) for run in experiment]
    lost = compare(arm("b", 5, 0), many, question=QUESTION)
    assert lost.verdict.verdict is Verdict.INCONCLUSIVE
    assert {finding.status for finding in of_check(lost, "worst_case")} == {Status.INCONCLUSIVE}


def test_the_user_knows_best_how_a_run_ended() -> None:
    runs = arm("b", 2, 0), arm("e", 2, 100)
    told = compare(*runs, question=replace(QUESTION, ended={"e0": "502"}))
    assert of_check(told, "runs_cut_off")[0].evidence["table"]["experiment"] == {"502": 1, "complete": 1}
    with pytest.raises(UsageError, match="e7"):
        compare(*runs, question=replace(QUESTION, ended={"e7": "502"}))


def test_zeros_of_a_tracker_that_loses_nan_leave_the_metric_open() -> None:
    experiment = arm("e", 5, 100)
    odd = replace(with_values(experiment[0], "rollout/raw_reward", slice(50, 51), 0.0), zero_may_be_nan=True)
    report = compare(arm("b", 5, 0), [odd, *experiment[1:]], question=QUESTION)
    assert one(report, "training_parity").status is Status.INCONCLUSIVE
    assert "e0" in one(report, "training_parity").message
    zeros = of_check(report, "zeros_of_nan")[0]
    assert (zeros.where.run, zeros.evidence["metrics"]) == ("e0", ["rollout/raw_reward"])


def test_what_a_reader_left_out_is_listed_as_not_compared() -> None:
    odd = replace(recorded("e0", 100), skipped=("notes: not a number",))
    report = compare(arm("b", 2, 0), [odd, recorded("e1", 101)], question=QUESTION)
    assert ("e0", ["notes: not a number"]) in [
        (finding.where.run, finding.evidence.get("skipped")) for finding in report.not_compared
    ]


def test_a_run_given_twice_is_refused_and_a_copy_leaves_the_comparison_open() -> None:
    runs = arm("b", 5, 0)
    with pytest.raises(UsageError, match="b0"):
        compare(runs, [runs[0], *arm("e", 4, 100)], question=QUESTION)
    copied = [replace(run, name=f"copy-{run.name}") for run in runs]
    renamed = [
        replace(run, curves={name: replace(curve, run=run.name) for name, curve in run.curves.items()})
        for run in copied
    ]
    report = compare(runs, renamed, question=QUESTION)
    assert report.verdict.verdict is Verdict.INCONCLUSIVE
    assert of_check(report, "runs_distinct")[0].status is Status.INCONCLUSIVE


def test_secondary_metrics_raise_flags_that_do_not_decide() -> None:
    experiment = [with_values(run, "train/loss", slice(None), 0.3 + k / 100) for k, run in enumerate(arm("e", 5, 100))]
    report = compare(arm("b", 5, 0), experiment, question=QUESTION)
    flag = one(report, "secondary_difference", "train/loss")
    assert (flag.status, flag.severity) == (Status.FAIL, Severity.WARNING)
    assert report.verdict.verdict is Verdict.CURVES_AGREE


def test_a_run_that_counts_several_times_makes_no_difference_either() -> None:
    """Five copies of one shifted run have no spread of their own, and are no five runs."""
    shifted = recorded("e", 100, shift=0.05)
    copies = [
        replace(shifted, name=f"e{k}", curves={name: replace(one, run=f"e{k}") for name, one in shifted.curves.items()})
        for k in range(5)
    ]
    report = compare(arm("b", 5, 0), copies, question=QUESTION)
    assert report.verdict.verdict is Verdict.INCONCLUSIVE
    assert not [finding for finding in report.findings if finding.fails]
    assert compare(arm("b", 5, 0), arm("e", 5, 100, shift=0.15), question=QUESTION).verdict.verdict is Verdict.DIFFERENT


def test_a_run_that_collapsed_makes_no_margin_wider() -> None:
    margins = margins_of(MARGINS, history=True)
    history = arm("h", 6, 50)
    collapsed = [with_values(history[0], "rollout/raw_reward", slice(20, None), 0.0), *history[1:]]
    shifted = arm("e", 5, 100, shift=0.15)
    report = compare(arm("b", 5, 0), shifted, collapsed, Question(margins))
    assert one(report, "training_parity").fails
    assert [finding.evidence["onsets"].keys() for finding in of_check(report, "history")] == [{"h0"}]
    without = compare(arm("b", 5, 0), shifted, history[1:], Question(margins))
    assert one(report, "training_parity").evidence["margin"] == one(without, "training_parity").evidence["margin"]
    assert not of_check(without, "history")


def test_the_margins_of_the_history_hold_among_runs_that_did_not_collapse() -> None:
    baseline = arm("b", 5, 0)
    baseline[0] = with_values(baseline[0], "rollout/raw_reward", slice(30, None), 0.01)
    report = compare(baseline, arm("e", 5, 100), arm("h", 6, 50), Question(margins_of(MARGINS, history=True)))
    assert "history" in one(report, "conditional_parity").evidence["margin_source"]


@pytest.mark.parametrize("margin", [30.0, 0.03])
def test_a_margin_that_nothing_could_exceed_is_questioned(margin: float) -> None:
    question = Question(margins_of({**MARGINS, "rollout/raw_reward": margin}, history=False))
    questioned = of_check(compare(arm("b", 3, 0), arm("e", 3, 100), question=question), "margin_width")
    assert [finding.where.field for finding in questioned] == ["rollout/raw_reward"] * (margin > 1)
    assert {(finding.status, finding.severity) for finding in questioned} <= {(Status.FAIL, Severity.WARNING)}


def test_margins_that_nobody_stated_are_named() -> None:
    stated = {"rollout/raw_reward": 0.03, "rollout/response_len/mean": 0.07}
    report = compare(arm("b", 3, 0), arm("e", 3, 100), question=Question(margins_of(stated, history=False)))
    (named,) = of_check(report, "margin_defaults")
    assert "rollout/truncated_ratio" in named.message and not any(metric in named.message for metric in stated)
    history = Question(margins_of(stated, history=True))
    assert not of_check(compare(arm("b", 3, 0), arm("e", 3, 100), arm("h", 4, 50), history), "margin_defaults")


def test_a_margin_of_a_metric_that_no_run_has_is_refused_with_the_name_that_was_meant() -> None:
    misspelt = Question(margins_of({**MARGINS, "rollout/raw_rewrad": 0.03}, history=False))
    with pytest.raises(UsageError, match=r"rollout/raw_rewrad.*rollout/raw_reward"):
        compare(arm("b", 3, 0), arm("e", 3, 100), question=misspelt)


def test_rewards_that_never_vary_show_no_parity_and_rewards_of_another_name_are_pointed_to() -> None:
    def renamed(run: RecordedRun) -> RecordedRun:
        curves = {name.replace("rollout/raw_reward", "my/score"): curve for name, curve in run.curves.items()}
        return replace(run, curves=curves)

    arms = arm("b", 5, 0), arm("e", 5, 100)
    dead = [[with_values(run, "rollout/raw_reward", slice(None), 0.0) for run in runs] for runs in arms]
    report = compare(*dead, question=QUESTION)
    assert report.verdict.verdict is Verdict.INCONCLUSIVE
    assert of_check(report, "reward_recorded")[0].status is Status.INCONCLUSIVE
    other = compare(*[[renamed(run) for run in runs] for runs in arms], question=QUESTION)
    assert "my/score" in of_check(other, "reward_recorded")[0].message
    assert of_check(compare(*arms, question=QUESTION), "reward_recorded")[0].status is Status.PASS


def test_runs_that_end_early_are_told_how_to_say_that_they_were_to() -> None:
    short = [cut_at(run, 50, None) for run in arm("e", 5, 100)]
    report = compare(arm("b", 5, 0), short, question=QUESTION)
    assert "--ended RUN=completed" in of_check(report, "runs_cut_off")[0].message
    ended = replace(QUESTION, ended={run.name: "completed" for run in short})
    assert compare(arm("b", 5, 0), short, question=ended).verdict.verdict is Verdict.CURVES_AGREE
