"""A comparison of recorded runs on a terminal: what decides, how it was tested, what is odd, and the verdict."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.findings import Finding, Level, Status, Verdict
from parity.reports import text
from parity.reports.document import Report
from parity.reports.words import one_line

SHOWN = 12
"""Remarks that are printed; report.md has the others."""
COLUMNS = ("baseline", "experiment", "difference", "margin", "finding")
_DECIDING = ("training_parity", "conditional_parity", "collapse_rate")
_COLOUR_OF_STATUS = {Status.FAIL: "red", Status.INCONCLUSIVE: "yellow", Status.NOT_COMPARED: "dim"}
_COLOUR_OF_VERDICT = {Verdict.PARITY: "green", Verdict.DIFFERENT: "red", Verdict.INCONCLUSIVE: "yellow"}


def print_comparison(report: Report, console: Console) -> None:
    """Prints the deciding metrics, what they mean, the cost, what is odd about the recordings, and the verdict."""
    deciding = [finding for finding in report.findings if finding.check in _DECIDING]
    table = Table(Column("metric", no_wrap=True), *COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for finding in deciding:
        if "baseline" in finding.evidence and finding.check != "collapse_rate":
            table.add_row(*map(Text, _cells(finding)), style=_COLOUR_OF_STATUS.get(finding.status, ""))
    if table.row_count:
        console.print(table)
    for finding in deciding:
        line = f"  {text.status(finding.status)}: {one_line(finding.message)}"
        console.print(Text(line, style=_COLOUR_OF_STATUS.get(finding.status, "")))
    for finding in report.findings:
        if finding.level is Level.COST:
            said = one_line(finding.message)
            console.print(Text(f"  {finding.level.rung} {text.status(finding.status)}: {said}"))
    _print_remarks([finding for finding in report.findings if _is_remark(finding)], console)
    verdict = report.verdict.verdict
    console.print(Text(one_line(text.headline(report)), style=f"bold {_COLOUR_OF_VERDICT[verdict]}"))


def _print_remarks(remarks: list[Finding], console: Console) -> None:
    for finding in remarks[:SHOWN]:
        console.print(Text(f"  {one_line(text.said(finding))}", style="dim"))
    if len(remarks) > SHOWN:
        console.print(Text(f"  {len(remarks) - SHOWN} more remarks are in report.md", style="dim"))


def _is_remark(finding: Finding) -> bool:
    """Whether a finding that does not decide has something to say."""
    if finding.level is not Level.TRAINING or finding.check in _DECIDING:
        return False
    cut_off = finding.check == "worst_case" or (finding.check == "runs_cut_off" and finding.observed is not None)
    return cut_off or finding.status is not Status.PASS


def _cells(finding: Finding) -> tuple[str, ...]:
    evidence = finding.evidence
    means = [sum(of_arm.values()) / len(of_arm) for of_arm in (evidence["baseline"], evidence["experiment"])]
    return (
        str(finding.where.field),
        *map(text.number, means),
        text.number(evidence["estimate"], signed=True),
        f"±{text.number(evidence['margin'])}",
        text.status(finding.status),
    )
