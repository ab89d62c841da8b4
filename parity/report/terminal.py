"""The verdict and the first table on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.findings import Finding, Status
from parity.report import text
from parity.report.colours import COLOURS, STATUS_COLOURS
from parity.report.document import Report, Row
from parity.report.sentences import in_language
from parity.report.words import Language, Say, one_line, speaker

FAILING_SHOWN = 5
ROOMY = 96
"""Columns from which on the findings of a row stand in one line."""
NAME_WIDTH = 17
"""Characters of rollout_log_probs, which must not be cut."""


def print_report(report: Report, console: Console, language: Language = "en") -> None:
    """Prints the eight rows, where their values come from, what failed, the ladder and the verdict."""
    say = speaker(language)
    report = in_language(report, language)
    table = Table(
        Column("", width=NAME_WIDTH),
        *map(say, ("baseline", "experiment", "difference", "margin", "finding")),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for row in report.rows:
        cells = _cells(row, say, "\n" if console.width < ROOMY else say(", "))
        table.add_row(*map(Text, cells), style=_style(row))
    console.print(table)
    console.print(Text(text.basis(report, say), style="dim"))
    undecided = [finding for finding in report.findings if finding.status is Status.INCONCLUSIVE]
    print_findings(report.failing, say("more failing"), console, say)
    print_findings(undecided, say("more inconclusive"), console, say)
    for reason in text.reasons(report, say):
        console.print(Text(f"  {one_line(reason)}"))
    print_verdict(report, console, say)


def print_verdict(report: Report, console: Console, say: Say) -> None:
    """Prints the verdict, what it speaks of, and what it does not show."""
    console.print(Text(one_line(text.headline(report, say)), style=f"bold {COLOURS[report.verdict.verdict]}"))
    for line in text.beside(report, say):
        console.print(Text(one_line(line)))


def print_findings(findings: Sequence[Finding], rest: str, console: Console, say: Say) -> None:
    """Prints the first findings, each in the colour of its status, and how many there are beside them."""
    for finding in findings[:FAILING_SHOWN]:
        line = f"  {finding.level.rung} {one_line(text.sentence(finding, say))}"
        console.print(Text(line, style=STATUS_COLOURS[finding.status]))
    if (more := len(findings) - FAILING_SHOWN) > 0:
        line = say("{number} {rest}: see report.md", number=more, rest=rest)
        console.print(Text(f"  {line}", style=STATUS_COLOURS[findings[0].status]))


def _cells(row: Row, say: Say, between: str) -> list[str]:
    """The cells of a row that fit 80 columns: shares stand one a line, and report.md has how each row was tested."""
    name, *values, _, _ = text.row_cells(row, say)
    shown = between.join(text.short_outcome(finding, say) for finding in row.findings) or say(text.NOT_COMPARED)
    return [name, *(value.replace(", ", "\n").replace(" %", "%") for value in values), shown]


def _style(row: Row) -> str:
    if any(finding.fails for finding in row.findings):
        return "red"
    statuses = {finding.status for finding in row.findings}
    return "" if Status.PASS in statuses and Status.INCONCLUSIVE not in statuses else "yellow"
