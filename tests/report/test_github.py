"""Workflow commands as GitHub parses them, and the step's summary."""

from __future__ import annotations

import re
from pathlib import Path

from parity.findings import Finding, Level, Severity, Status, Where
from parity.report import github, markdown

COMMAND = re.compile(r"::(notice|warning|error) title=([^:,\r\n]*)::([^\r\n]*)")


def parsed(line: str) -> tuple[str, str, str]:
    """As GitHub's runner reads a line (ActionCommand.cs): properties and data are unescaped apart."""
    match = COMMAND.fullmatch(line)
    assert match, line
    kind, title, message = match.groups()
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        title = title.replace(code, character)
        if character not in ":,":
            message = message.replace(code, character)
    return kind, title, message


def failing(number: int, message: str = "differs") -> Finding:
    return Finding("twin_loss", Level.REPLAY, Status.FAIL, message, Where("native-seed0", number))


def test_parity_is_a_notice_and_what_is_open_a_warning(report, build):
    assert [parsed(line)[0] for line in github.workflow_commands(report)] == ["notice"]
    undecided = Finding("spread", Level.TRAINING, Status.INCONCLUSIVE, "4 more runs")
    surprise = Finding("order", Level.CONTRACT, Status.FAIL, "odd", severity=Severity.WARNING)
    lines = [parsed(line) for line in github.workflow_commands(build(findings=[*report.findings, undecided, surprise]))]
    assert [line[:2] for line in lines[1:]] == [("warning", "L3 spread"), ("warning", "L0 order")]


def test_what_fails_is_an_error_with_its_place_and_nothing_ends_a_command_early(build):
    hostile = "100 %\r\n::error::forged, \ud800"
    kind, title, message = parsed(github.workflow_commands(build(findings=[failing(3, hostile)]))[1])
    assert (kind, title) == ("error", "L2 twin_loss")
    assert message == "100 %\r\n::error::forged, ? at run native-seed0, step 3"


def test_a_long_message_is_cut(build):
    lines = github.workflow_commands(build(findings=[failing(3, "x" * 1_000_000)]))
    assert max(map(len, lines)) < github.LONGEST + 200
    assert "x …" in parsed(lines[1])[2]


def test_more_than_github_shows_are_counted(build):
    lines = [parsed(line) for line in github.workflow_commands(build(findings=[failing(step) for step in range(40)]))]
    assert [line[0] for line in lines] == ["error"] * 10
    assert lines[-1][2] == "32 more in report.json"


def test_the_summary_is_appended_without_pictures(report, tmp_path: Path):
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    github.add_summary(report, path, "zh")
    said = path.read_text()
    assert said.startswith("before\n# Rollout 等价性：PARITY\n")  # noqa: RUF001 - the colon of Chinese
    assert "![" not in said
    assert len(said.encode()) < markdown.LIMIT
