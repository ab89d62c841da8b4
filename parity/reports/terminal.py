"""The verdict and the first table on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.findings import Status, Verdict
from parity.reports import text
from parity.reports.document import Report, Row
from parity.reports.words import one_line

FAILING_SHOWN = 5
NAME_WIDTH = 17
"""Characters of rollout_log_probs, which must not be cut."""
_COLOUR_OF_VERDICT = {Verdict.PARITY: "green", Verdict.DIFFERENT: "red", Verdict.INCONCLUSIVE: "yellow"}


def print_report(report: Report, console: Console) -> None:
    """Prints the eight rows, where their values come from, what failed, the ladder and the verdict."""
    table = Table(
        Column("", width=NAME_WIDTH),
        "baseline",
        "experiment",
        "difference",
        "finding",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for row in report.rows:
        table.add_row(*map(Text, _cells(row)), style=_style(row))
    console.print(table)
    console.print(Text(text.basis(report), style="dim"))
    for finding in report.failing[:FAILING_SHOWN]:
        console.print(Text(f"  {finding.level.rung} {one_line(text.said(finding))}", style="red"))
    if (more := len(report.failing) - FAILING_SHOWN) > 0:
        console.print(Text(f"  {more} more failing findings are in report.md", style="red"))
    undecided = [finding for finding in report.findings if finding.status is Status.INCONCLUSIVE]
    for finding in undecided[:FAILING_SHOWN]:
        console.print(Text(f"  {finding.level.rung} {one_line(text.said(finding))}", style="yellow"))
    for reason in text.reasons(report):
        console.print(Text(f"  {one_line(reason)}"))
    console.print(Text(one_line(text.headline(report)), style=f"bold {_COLOUR_OF_VERDICT[report.verdict.verdict]}"))
    for sentence in filter(None, (text.planted(report), text.not_shown(report))):
        console.print(Text(one_line(sentence)))


def _cells(row: Row) -> list[str]:
    """The cells of a row that fit 80 columns: shares stand one a line, and report.md has how each row was tested."""
    name, *values = text.row_cells(row)[:4]
    found = ", ".join(map(text.short_outcome, row.findings)) or text.NOT_COMPARED
    return [name, *(value.replace(", ", "\n").replace(" %", "%") for value in values), found]


def _style(row: Row) -> str:
    if any(finding.fails for finding in row.findings):
        return "red"
    statuses = {finding.status for finding in row.findings}
    return "" if Status.PASS in statuses and Status.INCONCLUSIVE not in statuses else "yellow"
