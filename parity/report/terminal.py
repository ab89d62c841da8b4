"""The verdict and the first table on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.findings import Status, Verdict
from parity.report import text
from parity.report.document import Report, Row
from parity.report.sentences import in_language
from parity.report.words import Language, Say, one_line, speaker

FAILING_SHOWN = 5
NAME_WIDTH = 17
"""Characters of rollout_log_probs, which must not be cut."""
_COLOUR_OF_VERDICT = {Verdict.PARITY: "green", Verdict.DIFFERENT: "red", Verdict.INCONCLUSIVE: "yellow"}


def print_report(report: Report, console: Console, language: Language = "en") -> None:
    """Prints the eight rows, where their values come from, what failed, the ladder and the verdict."""
    say = speaker(language)
    report = in_language(report, language)
    table = Table(
        Column("", width=NAME_WIDTH),
        *map(say, ("baseline", "experiment", "difference", "finding")),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for row in report.rows:
        table.add_row(*map(Text, _cells(row, say)), style=_style(row))
    console.print(table)
    console.print(Text(text.basis(report, say), style="dim"))
    for finding in report.failing[:FAILING_SHOWN]:
        console.print(Text(f"  {finding.level.rung} {one_line(text.said(finding, say))}", style="red"))
    if (more := len(report.failing) - FAILING_SHOWN) > 0:
        console.print(Text(f"  {say('{number} more failing: see report.md', number=more)}", style="red"))
    undecided = [finding for finding in report.findings if finding.status is Status.INCONCLUSIVE]
    for finding in undecided[:FAILING_SHOWN]:
        console.print(Text(f"  {finding.level.rung} {one_line(text.said(finding, say))}", style="yellow"))
    for reason in text.reasons(report, say):
        console.print(Text(f"  {one_line(reason)}"))
    verdict = one_line(text.headline(report, say))
    console.print(Text(verdict, style=f"bold {_COLOUR_OF_VERDICT[report.verdict.verdict]}"))
    for sentence in filter(None, (text.planted(report, say), text.not_shown(report, say))):
        console.print(Text(one_line(sentence)))


def _cells(row: Row, say: Say) -> list[str]:
    """The cells of a row that fit 80 columns: shares stand one a line, and report.md has how each row was tested."""
    name, *values = text.row_cells(row, say)[:4]
    found = say(", ").join(text.short_outcome(one, say) for one in row.findings) or say(text.NOT_COMPARED)
    return [name, *(value.replace(", ", "\n").replace(" %", "%") for value in values), found]


def _style(row: Row) -> str:
    if any(finding.fails for finding in row.findings):
        return "red"
    statuses = {finding.status for finding in row.findings}
    return "" if Status.PASS in statuses and Status.INCONCLUSIVE not in statuses else "yellow"
