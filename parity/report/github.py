"""What GitHub Actions shows of a report: annotations, and the summary of a job's step."""

from __future__ import annotations

from pathlib import Path

from parity.findings import Finding, Status, Verdict
from parity.report import comment, markdown, text
from parity.report.document import Report
from parity.report.words import Language, shortened

LONGEST = 4_000
"""Characters of an annotation's text; a longer one ends in an ellipsis."""

MOST = 10
"""Annotations of one kind that GitHub shows for a step."""


_KINDS = {
    Verdict.PARITY: "notice",
    Verdict.CURVES_AGREE: "notice",
    Verdict.PASS: "notice",
    Verdict.DIFFERENT: "error",
    Verdict.FAIL: "error",
}


def workflow_commands(report: Report) -> list[str]:
    """Workflow commands to print: the verdict, then what fails as errors and what is open as warnings.

    The format is that of https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    kind = _KINDS.get(report.verdict.verdict, "warning")
    sentences = " ".join((text.headline(report), *text.beside(report)))
    verdict = _command(kind, f"rollout parity: {report.verdict.verdict.words}", sentences)
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
    lines = [
        _command(kind, f"{finding.level.rung} {finding.check}", f"{finding.message}{text.at(finding)}")
        for finding in shown
    ]
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
    content = markdown.render(report, None, language) if report.experiment else comment.render(report, language)
    with path.open("ab") as summary:
        summary.write(content.encode() + b"\n")
