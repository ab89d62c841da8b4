"""A comparison of recorded runs on a terminal: what decides, how it was tested, what is odd, and the verdict."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.findings import Finding, Level, Status
from parity.report import text
from parity.report.colours import STATUS_COLOURS
from parity.report.document import Report
from parity.report.sentences import in_language
from parity.report.terminal import print_verdict
from parity.report.words import Language, Say, one_line, speaker

SHOWN = 12
"""Remarks that are printed; report.md has the others."""
COLUMNS = ("baseline", "experiment", "difference", "margin", "finding")
_DECIDING = ("training_parity", "conditional_parity", "collapse_rate")


def print_comparison(report: Report, console: Console, language: Language = "en") -> None:
    """Prints the deciding metrics, what they mean, the cost, what is odd about the recordings, and the verdict."""
    say = speaker(language)
    report = in_language(report, language)
    deciding = [finding for finding in report.findings if finding.check in _DECIDING]
    metric = Column(say("metric"), no_wrap=True)
    table = Table(metric, *map(say, COLUMNS), box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for finding in deciding:
        if "baseline" in finding.evidence and finding.check != "collapse_rate":
            table.add_row(*map(Text, _cells(finding, say)), style=STATUS_COLOURS[finding.status])
    if table.row_count:
        console.print(table)
    for finding in deciding:
        line = f"  {text.status(finding.status, say)}{say(': ')}{one_line(finding.message)}"
        console.print(Text(line, style=STATUS_COLOURS[finding.status]))
    for finding in report.findings:
        if finding.level is Level.COST:
            line = f"{finding.level.rung} {text.status(finding.status, say)}{say(': ')}{one_line(finding.message)}"
            console.print(Text(f"  {line}"))
    _print_remarks([finding for finding in report.findings if _is_remark(finding)], console, say)
    print_verdict(report, console, say)


def _print_remarks(remarks: list[Finding], console: Console, say: Say) -> None:
    for finding in remarks[:SHOWN]:
        console.print(Text(f"  {one_line(text.sentence(finding, say))}", style="dim"))
    if (more := len(remarks) - SHOWN) > 0:
        console.print(Text(f"  {say('{number} more: see report.md', number=more)}", style="dim"))


def _is_remark(finding: Finding) -> bool:
    """Whether a finding that does not decide has something to say."""
    if finding.level is not Level.TRAINING or finding.check in _DECIDING:
        return False
    cut_off = finding.check == "worst_case" or (finding.check == "runs_cut_off" and finding.observed is not None)
    return cut_off or finding.status is not Status.PASS


def _cells(finding: Finding, say: Say) -> tuple[str, ...]:
    evidence = finding.evidence
    means = [sum(of_arm.values()) / len(of_arm) for of_arm in (evidence["baseline"], evidence["experiment"])]
    return (
        say("{metric}, log", metric=finding.where.field) if text.in_log(finding) else str(finding.where.field),
        *map(text.number, means),
        text.number(evidence["estimate"], signed=True),
        text.margin_of(finding, say),
        text.status(finding.status, say),
    )
