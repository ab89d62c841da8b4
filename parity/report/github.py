"""What GitHub Actions shows of a report: annotations, and the summary of a job's step."""

from __future__ import annotations

from pathlib import Path

from parity.findings import Finding, Status
from parity.report import markdown, text
from parity.report.document import Report
from parity.report.words import Language, shortened

LONGEST = 4_000
"""Characters of an annotation's text; a longer one ends in an ellipsis."""

MOST = 10
"""Annotations of one kind that GitHub shows for a step."""


def workflow_commands(report: Report) -> list[str]:
    """Workflow commands to print: the verdict, then what fails as errors and what is open as warnings.

    The format is that of https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    kind = {"PARITY": "notice", "DIFFERENT": "error"}.get(report.verdict.verdict.value, "warning")
    verdict = _command(kind, f"rollout parity: {report.verdict.verdict.value}", text.headline(report))
    warnings = [finding for finding in report.findings if _warns(finding)]
    return [
        verdict,
        *_commands("error", report.failing, MOST - (kind == "error")),
        *_commands("warning", warnings, MOST - (kind == "warning")),
    ]


def _warns(finding: Finding) -> bool:
    return finding.status is Status.INCONCLUSIVE or (finding.status is Status.FAIL and not finding.fails)


def _commands(kind: str, findings: tuple[Finding, ...] | list[Finding], most: int) -> list[str]:
    """One command a finding; where there are too many, the last one says how many are left."""
    shown = findings if len(findings) <= most else findings[: most - 1]
    lines = [_command(kind, f"{one.level.rung} {one.check}", f"{one.message}{text.at(one)}") for one in shown]
    left = len(findings) - len(shown)
    return [*lines, _command(kind, "rollout parity", f"{left} more in report.json")] if left else lines


def _command(kind: str, title: str, message: str) -> str:
    escaped = title
    for character in "%\r\n:,":
        escaped = escaped.replace(character, f"%{ord(character):02X}")
    message = shortened(message, LONGEST)
    for character in "%\r\n":
        message = message.replace(character, f"%{ord(character):02X}")
    return f"::{kind} title={escaped}::{message}".encode(errors="replace").decode()


def add_summary(report: Report, path: Path, language: Language = "en") -> None:
    """Appends the report as Markdown, without its pictures, to the file that ``$GITHUB_STEP_SUMMARY`` names."""
    with path.open("ab") as summary:
        summary.write(markdown.render(report, None, language).encode() + b"\n")
