"""The comment on a pull request: short, without pictures, and whole whatever a report holds."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from parity.findings import Finding, Level, Status, Where
from parity.report import comment

PARSER = MarkdownIt("commonmark", {"html": True}).enable("table")


def test_it_has_verdict_scope_rows_cost_command_and_a_place_for_the_link(report):
    text = comment.render(report)
    lines = text.splitlines()
    assert lines[0] == comment.MARKER
    assert lines[2] == "## Rollout parity: PARITY"
    assert any(line.startswith("Scope: engine embedded; task arithmetic") for line in lines)
    assert sum(line.startswith("| ") for line in lines) == 2 + len(report.rows)
    assert any("rollout time" in line and "0.64 (95 % 0.62 to 0.66)" in line for line in lines)
    assert "parity run --baseline --experiment native --out out" in text
    assert comment.LINK in lines[-1]
    assert "![" not in text
    assert "<details" not in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_has_at_most_60_lines_whatever_a_report_holds(build, report, language):
    long = "so\nlong " * 400
    findings = [
        Finding(f"check_{number}", Level.CONTRACT, status, long, Where("native-seed0", number))
        for number in range(300)
        for status in (Status.FAIL, Status.NOT_COMPARED)
    ]
    commands = [f"parity run\n --out {number} " + "x" * 5_000 for number in range(40)]
    text = comment.render(build(findings=[*report.findings, *findings], commands=commands), language)
    assert len(text.splitlines()) <= 60
    assert len(text) < 20_000
    tokens = PARSER.parse(text)
    assert sum(token.type == "table_open" for token in tokens) == 1
    assert sum(token.type == "fence" for token in tokens) == 1


def test_what_failed_comes_before_the_table_with_its_place(build, report):
    fault = Finding(
        "twin_reward", Level.REPLAY, Status.FAIL, "reward differs", Where("native-seed0", 3, 1, 0, "reward")
    )
    text = comment.render(build(findings=[*report.findings, fault]))
    assert text.index("- L2 twin\\_reward") < text.index("| output count |") if "twin\\_reward" in text else True
    first = next(line for line in text.splitlines() if line.startswith("- "))
    assert "reward differs" in first
    assert "step 3, group 1, slot 0" in first
    assert text.index(first) < text.index("| output count |")
