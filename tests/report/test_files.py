"""The files of a report: JSON under its schema, JUnit, pictures, and how they are written."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from importlib import resources
from xml.etree import ElementTree

import jsonschema
import pytest

from parity.findings import Finding, Level, Severity, Status, Where
from parity.report import SCHEMA_VERSION, data, junit, plots, text
from parity.report.runs import RunRecord
from parity.report.write import write_report


@pytest.fixture(scope="module")
def schema():
    return json.loads((resources.files("parity.report") / "report.schema.json").read_text())


def finding(check: str, status: Status, message: str = "said", **rest: object) -> Finding:
    return Finding(check, Level.CONTRACT, status, message, **rest)  # type: ignore[arg-type]


def run_with(values: list[float], name: str = "native-seed1", arm: str = "native", **columns: list[float]) -> RunRecord:
    rows = [{"step": step, "rollout/raw_reward": value} for step, value in enumerate(values)]
    for metric, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            row[f"perf/{metric}"] = value
    return RunRecord(name, arm, 1, "paired", rows, {"status": "completed"}, [])


def two_runs(values: list[float], other: list[float]) -> list[RunRecord]:
    return [run_with(values, "per-sample-seed1", "per-sample"), run_with(other)]


def test_the_schema_is_one(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema_version"] == {"const": SCHEMA_VERSION}


def test_json_keeps_to_the_schema(report, build, schema):
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(json.loads(data.render(report)))
    validator.validate(json.loads(data.render(build(runs=[], findings=[], commit=None))))
    validator.validate(json.loads(data.render(build(runs=two_runs([1.0, math.nan], [math.inf, 0.0])))))


def test_the_schema_refuses_rows_in_another_order_and_a_ninth(report, schema):
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(data.render(report))
    table = document["table"]
    assert validator.is_valid(document)
    assert not validator.is_valid(document | {"table": table[::-1]})
    assert not validator.is_valid(document | {"table": [*table, table[0]]})


def test_json_has_the_envelope_of_a_check(report):
    document = json.loads(data.render(report))
    assert document["verdict"] == "PARITY"
    assert document["counts"] == {"samples": 143_360, "groups": 17_920}
    assert document["findings"] == [json.loads(json.dumps(item.to_json())) for item in report.findings]


def test_json_has_no_number_for_what_is_none(build):
    document = json.loads(data.render(build(runs=two_runs([0.5, math.nan], [0.5, -math.inf]))))
    reward = document["table"][4]
    assert reward["baseline"] == {"mean": "NaN"}
    assert reward["experiment"] == {"mean": "-Infinity"}
    assert document["table"][6]["baseline"] == {}


def test_junit_has_one_case_a_check(build):
    found = [
        finding("output_count", Status.PASS),
        finding("reward_recomputed", Status.FAIL, "reward 1, not 0", where=Where("native-seed0", 7, 3, 2, "reward")),
        finding("reward_recomputed", Status.FAIL, "reward 0, not 1"),
        finding("row_order", Status.FAIL, "out of order", severity=Severity.WARNING),
        finding("context", Status.NOT_COMPARED, "no context length"),
        Finding("training_parity", Level.TRAINING, Status.INCONCLUSIVE, "4 more runs an arm"),
        Finding("training_parity", Level.TRAINING, Status.PASS, "inside the margin"),
    ]
    built = build(findings=found)
    root = ElementTree.fromstring(junit.render(built))
    scope = {known.get("name"): known.get("value") for known in root.iter("property")}
    assert (scope["scope.engine"], scope["scope.task"], scope["scope.steps"]) == ("embedded", "arithmetic", "40")
    assert root.attrib == {
        "name": text.headline(built),
        "tests": "5",
        "failures": "1",
        "skipped": "2",
        "errors": "0",
    }
    outcome = {
        case.get("name"): [child.tag for child in case if child.tag != "system-out"] for case in root.iter("testcase")
    }
    assert outcome == {
        "output_count": [],
        "reward_recomputed": ["failure"],
        "row_order": [],
        "context": ["skipped"],
        "training_parity": ["skipped"],
    }
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.get("message") == "reward 1, not 0"
    assert "fail at run native-seed0, step 7, group 3, slot 2, field reward: reward 1, not 0" in (failure.text or "")
    assert len((failure.text or "").splitlines()) == 2
    skipped = {case.get("message") for case in root.iter("skipped")}
    assert skipped == {"not compared: no context length", "inconclusive: 4 more runs an arm"}


def test_junit_cuts_what_is_long_and_says_so(build):
    content = junit.render(build(findings=[finding("x", Status.FAIL, "y" * 1_000_000)]))
    assert len(content) < 4 * junit.LONGEST
    assert "y …" in ElementTree.fromstring(content).find(".//failure").get("message")


def test_junit_holds_what_xml_cannot(build):
    root = ElementTree.fromstring(junit.render(build(findings=[finding("x", Status.FAIL, "<a> & \x00\x1b\ud800 ]]>")])))
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.get("message") == "<a> & \ufffd\ufffd\ufffd ]]>"


def size_of_png(content: bytes) -> tuple[int, int]:
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_each_design_has_its_picture_at_a_width_that_github_shows(report, build):
    def short(run: str) -> list[dict[str, float]]:
        curves = {name: report.curves[run][name] for name in ("rollout/raw_reward", "perf/rollout_time")}
        return [
            {"step": step} | {name: float(curve.values[step]) for name, curve in curves.items()} for step in range(9)
        ]

    runs = [RunRecord(run.run, run.arm, run.seed, run.design, short(run.run), {}, []) for run in report.outcomes]
    pictures = {picture.file_name: picture for picture in plots.draw(build(runs=runs))}
    assert list(pictures) == ["curves-paired.png", "curves-twin.png", "rollout-time.png"]
    assert {size_of_png(picture.content)[0] for picture in pictures.values()} == {1300}
    assert "90 % t interval of that mean, over runs, not steps" in pictures["curves-paired.png"].caption
    assert "No band: one over runs takes at least 3 runs an arm." in pictures["curves-twin.png"].caption


def test_what_was_not_recorded_is_not_drawn_and_said(build):
    (picture,) = plots.draw(build(runs=two_runs([0.1, 0.2], [0.1, 0.3])))
    assert "Not recorded, so not drawn: response length, tokens; truncated" in picture.caption
    assert plots.draw(build(runs=[])) == []


def test_nan_and_marks_change_the_picture(build):
    def drawn(runs: list[RunRecord]) -> bytes:
        return plots.draw(build(runs=runs))[0].content

    whole = two_runs([0.1, 0.2, 0.3], [0.1, 0.3, 0.3])
    marked = [whole[0], replace(whole[1], events=[{"event": "engine_restart", "step": 1}])]
    beyond = [whole[0], replace(whole[1], events=[{"event": "resume", "step": 3}])]
    lost = two_runs([0.1, 0.2, 0.3], [0.1, math.nan, 0.3])
    assert len({drawn(runs) for runs in (whole, marked, beyond, lost)}) == 4


def test_an_infinite_value_in_a_banded_mean_is_drawn_as_a_gap(build):
    def runs(value: float) -> list[RunRecord]:
        return [
            run_with([0.1, value, 0.3], f"{arm}-seed{seed}", arm)
            for arm in ("per-sample", "native")
            for seed in range(3)
        ]

    infinite, huge, lost = (plots.draw(build(runs=runs(value)))[0] for value in (math.inf, -1e308, math.nan))
    assert "The band is" in infinite.caption
    assert infinite.content == huge.content == lost.content


@pytest.mark.parametrize("margin", [1e6, math.nan, math.inf])
def test_a_margin_without_an_end_is_said_and_drawn_nowhere(build, margin):
    evidence = {"margin": margin, "summary": "late median of the log", "method": "t"}
    where = Where(field="train/grad_norm")
    held = Finding("training_parity", Level.TRAINING, Status.PASS, "inside", where, evidence=evidence)
    built = build(findings=[held])
    assert f"margin {text.TIMES}/" in text.tested_cells(built.rows[-1])[1]
    assert plots.draw(built)


def test_the_margin_of_a_finding_is_drawn_around_the_baseline_and_told(build, report):
    margins = [finding for finding in report.findings if finding.check == "training_parity"]
    with_margin, without = (plots.draw(build(findings=findings))[0] for findings in (margins, []))
    assert "around the baseline's mean" in with_margin.caption
    assert "around the baseline's mean" not in without.caption
    assert with_margin.content != without.content


def test_a_report_is_written_whole_and_the_same_bytes_each_time(build, tmp_path):
    built = build(runs=two_runs([0.1, 0.2], [0.1, 0.3]))
    first, second = (write_report(built, tmp_path / name / "report") for name in ("one", "two"))
    assert [path.name for path in first] == [
        "curves-paired.png",
        "report.json",
        "junit.xml",
        "report.html",
        "comment.md",
        "report.md",
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(first) == sorted((tmp_path / "one" / "report").iterdir())
    assert "![Curves, paired design, 2 runs](curves-paired.png)" in first[-1].read_text()
