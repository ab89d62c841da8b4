"""What changed between two reports of one experiment."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.errors import InputError, UsageError
from parity.findings import Finding, Level, Status, Where
from parity.report import data
from parity.report.diff import Change, diff, read_report


def as_json(report: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(data.render(report))
    return content


FAULT = Finding("twin_reward", Level.REPLAY, Status.FAIL, "reward differs", Where("native-seed0", 3, 0, 1, "reward"))


def test_a_report_has_not_changed_from_itself(report):
    assert diff(as_json(report), as_json(report)) == []


def test_a_new_failure_changes_the_verdict_and_is_named_with_its_place(report, build):
    kept = [finding for finding in report.findings if finding.check != "twin_reward"]
    changes = diff(as_json(report), as_json(build(findings=[*kept, FAULT])))
    assert changes[0] == Change("verdict", "verdict", "PARITY", "DIFFERENT")
    place = "run native-seed0, step 3, group 0, slot 1, field reward"
    assert changes[1:] == [Change("finding", "replay twin_reward", "pass", f"fail at {place}")]


def test_a_fault_seen_at_many_places_is_one_change(report, build):
    many = [replace(FAULT, where=Where("native-seed0", step)) for step in range(9)]
    changes = diff(as_json(report), as_json(build(findings=[*report.findings, *many])))
    assert [change.name for change in changes] == ["verdict", "replay twin_reward"]
    assert changes[1].after == "fail at run native-seed0, step 0 and 8 more"
    fewer = diff(as_json(build(findings=many)), as_json(build(findings=many[:8])))
    assert [(change.kind, change.after) for change in fewer] == [("message", None)]


def test_a_message_with_other_numbers_is_no_other_conclusion(report, build):
    first, *rest = report.findings
    changes = diff(as_json(report), as_json(build(findings=[replace(first, message="9 samples"), *rest])))
    assert [(change.kind, change.after) for change in changes] == [("message", "9 samples")]


def test_numbers_runs_and_settings_are_compared_one_by_one(report, build, runs):
    short = [replace(run, metrics=run.metrics[:9]) if run.arm == "native" else run for run in runs]
    changes = diff(as_json(report), as_json(build(runs=short, commit="f" * 40, config={"steps": 41})))
    named = {(change.kind, change.name): (change.before, change.after) for change in changes}
    assert named["run", "native-seed1, steps"] == (40, 9)
    assert named["number", "output count, experiment"] == (20_480.0, 4_608.0)
    assert named["provenance", "config.steps"] == (40, 41)
    assert named["provenance", "config.training.learning_rate"] == (0.001, None)
    assert named["provenance", "commit"] == ("0123456789abcdef0123456789abcdef01234567", "f" * 40)


def test_the_order_of_findings_is_no_change(report, build):
    twice = [FAULT, replace(FAULT, status=Status.PASS)]
    assert diff(as_json(build(findings=twice)), as_json(build(findings=twice[::-1]))) == []


def test_nan_equals_itself_and_no_number(build, report):
    cost = [replace(one, evidence={**one.evidence, "ratio": math.nan}) for one in report.findings]
    lost = as_json(build(findings=cost))
    assert diff(lost, lost) == []
    assert ("rollout time a step, s, ratio", 0.64, "NaN") in [
        (change.name, change.before, change.after) for change in diff(as_json(report), lost)
    ]


def test_reports_of_other_arms_are_refused(report, build):
    with pytest.raises(UsageError, match=r"native .*per-sample .*native .*batched"):
        diff(as_json(report), as_json(build(baseline="batched")))


def test_a_report_is_found_by_its_file_its_directory_or_its_experiment(report, tmp_path: Path):
    folder = tmp_path / "out" / "report"
    folder.mkdir(parents=True)
    (folder / "report.json").write_bytes(data.render(report))
    assert (
        read_report(folder / "report.json") == read_report(folder) == read_report(tmp_path / "out") == as_json(report)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 1}, "schema_version is 1, where 2 is read"),
        ({"findings": {}}, "findings is dict, not list"),
        ({"findings": [{"status": "odd", "where": {}}]}, "finding 0: its status is 'odd'"),
        ({"table": [3]}, "table holds something that is no object"),
        ({"verdict": None}, "verdict is NoneType, not str"),
        ({"table": [{"name": "loss", "baseline": [1, 2]}]}, "table: the values of row 'loss' are no objects"),
        ({"provenance": ["commit"]}, "provenance is list, not dict"),
        ({"comparisons": [{"experiment": "fp8"}, {"experiment": "int8"}]}, "several arms: .*, fp8, int8"),
    ],
)
def test_what_is_no_report_is_named(change: dict[str, Any], said: str, report, tmp_path: Path):
    (tmp_path / "report.json").write_text(json.dumps({**as_json(report), **change}))
    with pytest.raises(InputError, match=said):
        read_report(tmp_path)


def test_a_directory_without_a_report_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(InputError, match=r"no report\.json here nor in report/; `parity report"):
        read_report(tmp_path)
