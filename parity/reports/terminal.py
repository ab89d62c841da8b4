"""The verdict and the first table on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.findings import Status, Verdict
from parity.reports import text
from parity.reports.document import Report, Row

_COLOUR_OF_VERDICT = {Verdict.PARITY: "green", Verdict.DIFFERENT: "red", Verdict.INCONCLUSIVE: "yellow"}


def print_report(report: Report, console: Console) -> None:
    """Prints the eight rows, where their values come from, the ladder and, last, the verdict with what it rests on."""
    table = Table(*_without_test(text.COLUMNS), box=box.SIMPLE)
    for row in report.rows:
        table.add_row(*(Text(cell) for cell in _without_test(text.row_cells(row))), style=_style(row))
    console.print(table)
    console.print(Text(text.basis(report), style="dim"))
    for reason in report.verdict.reasons:
        console.print(Text(f"  {reason}"))
    console.print(Text(text.headline(report), style=f"bold {_COLOUR_OF_VERDICT[report.verdict.verdict]}"))


def _without_test(cells: Sequence[str]) -> list[str]:
    """The cells but the one on how a row was tested, which a terminal is too narrow for; report.md has it."""
    return [cell for cell, column in zip(cells, text.COLUMNS, strict=True) if column != "test"]


def _style(row: Row) -> str:
    if any(finding.fails for finding in row.findings):
        return "red"
    statuses = {finding.status for finding in row.findings}
    return "" if Status.PASS in statuses and Status.INCONCLUSIVE not in statuses else "yellow"
