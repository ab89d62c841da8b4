"""Words and numbers that Markdown and the terminal share; nothing here is escaped yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parity.findings import Finding, Level, Status, Verdict
from parity.reports.document import CostRow, Report, Row, Rung

NOT_COMPARED = "not compared"
COLUMNS = ("", "baseline", "experiment", "difference", "test", "finding")
QUESTIONS = {
    Level.CONTRACT: "does every exchange and sample obey the rules?",
    Level.SAMPLING: "at fixed weights, are both arms' groups equally distributed and independent inside a group?",
    Level.REPLAY: "do identical responses give identical samples, advantages, loss and gradients?",
    Level.TRAINING: "do the curves agree over a whole run?",
    Level.COST: "is it faster, and is load balanced?",
}


def number(value: float | None, signed: bool = False) -> str:
    """A number to four significant digits, whole numbers whole; only an exact 0 reads 0, NaN reads NaN."""
    if value is None:
        return NOT_COMPARED
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}"
    if value == 0:
        return "0"
    sign = "+" if signed else ""
    if float(value).is_integer() or abs(value) >= 9_999.5:
        return f"{value:{sign},.0f}" if abs(value) < 1e15 else f"{value:{sign}.3e}"
    return f"{value:{sign}.4g}" if abs(value) >= 1e-4 else f"{value:{sign}.3e}"


def status(value: Status) -> str:
    """A status as words."""
    return value.value.replace("_", " ")


def headline(report: Report) -> str:
    """The verdict in one sentence with what it rests on."""
    deciding = [rung for rung in report.ladder if rung.level is not Level.COST]
    failed = next((rung for rung in deciding if rung.status is Status.FAIL), None)
    if failed and failed.strongest:
        rung = f"{failed.level.rung} {failed.level.value}"
        return f"DIFFERENT: {report.experiment} differs from {report.baseline}, by {rung}, {said(failed.strongest)}"
    if report.verdict.verdict is Verdict.PARITY:
        lower = [rung for rung in deciding if rung.level is not Level.TRAINING and rung.status is Status.PASS]
        rests_on = " and ".join(f"{_rung(rung)}, none fails)" for rung in lower)
        training = status(next(rung.status for rung in deciding if rung.level is Level.TRAINING))
        parity = f"PARITY: {report.experiment} equals {report.baseline} by {rests_on}"
        return f"{parity}; L3 training, which can only falsify that: {training}."
    undecided = "; ".join(f"{_rung(rung)}): {status(rung.status)}" for rung in deciding)
    return f"{report.verdict.verdict.value}: {report.experiment} against {report.baseline}: {undecided}."


def _rung(rung: Rung) -> str:
    return f"{rung.level.rung} {rung.level.value} ({rung.compared} of {rung.total} findings compared"


def at(finding: Finding) -> str:
    """Where a finding points, as words to append; empty if it speaks of a whole metric or of everything."""
    return f" at {finding.where}" if set(finding.where.to_json()) - {"field"} else ""


def said(finding: Finding) -> str:
    """A finding in full: its check, where it points, and its message."""
    return f"{finding.check}{at(finding)}: {finding.message.removeprefix(f'{finding.check}: ')}"


def basis(report: Report) -> str:
    """Which runs the values of the first table come from."""
    if not report.compared_design:
        return "No design has a run of each arm with metrics, so that the table has no values."
    runs = " and ".join(f"{len(names)} {arm}" for arm, names in report.compared_runs.items())
    return (
        f"Values are means over runs ({report.compared_design}: {runs}), one number a run: the mean over the later "
        "half of the steps that all these runs have; output count is the total over all of these steps."
    )


def row_cells(row: Row) -> tuple[str, ...]:
    """The six cells of a row under `COLUMNS`."""
    return (
        row.name,
        _values(row, row.baseline),
        _values(row, row.experiment),
        _values(row, row.difference, signed=True),
        "; ".join(how_tested(finding) for finding in row.findings) or NOT_COMPARED,
        "; ".join(outcome(finding) for finding in row.findings) or NOT_COMPARED,
    )


def _values(row: Row, values: Mapping[str, float], signed: bool = False) -> str:
    if not values:
        return NOT_COMPARED
    if row.summary != "shares":
        return number(next(iter(values.values())), signed)
    unit = "pp" if signed else "%"
    return ", ".join(f"{name} {number(100 * share, signed)} {unit}" for name, share in values.items())


def outcome(finding: Finding) -> str:
    """A finding in a few words: its rung, what it found, and where."""
    found = status(finding.status)
    if finding.status is Status.FAIL and not finding.fails:
        found = "warning"
    return f"{finding.level.rung} {found}{at(finding) if finding.status is Status.FAIL else ''}"


def how_tested(finding: Finding) -> str:
    """How a finding was made, from the numbers of its evidence: its rung, method, margin, interval and units."""
    evidence = finding.evidence
    named = "equal bit for bit" if finding.level is Level.REPLAY else finding.check.replace("_", " ")
    method = str(evidence.get("method") or named)
    parts = [str(evidence["summary"]), method] if "summary" in evidence else [method]
    if isinstance(evidence.get("margin"), (int, float)):
        parts.append(f"margin ±{number(evidence['margin'])}")
    level = 90 if "margin" in evidence and finding.status is not Status.FAIL else 95
    if interval := evidence.get(f"ci{level}"):
        low, high = interval
        parts.append(f"{level} % CI [{number(low)}, {number(high)}]")
    if isinstance(units := evidence.get("units"), Sequence):
        parts.append(f"{' + '.join(map(str, units))} {evidence.get('unit', 'unit')}s")
    if isinstance(evidence.get("checked"), int):
        parts.append(f"{number(evidence['checked'])} checked")
    return f"{finding.level.rung} {', '.join(parts)}"


def cost_cells(row: CostRow) -> tuple[str, ...]:
    """The four cells of a cost: name, baseline, experiment, and experiment over baseline."""
    return row.name, number(row.baseline), number(row.experiment), number(row.ratio)


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds is None:
        return "not recorded"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min {rest} s"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.3g} s"
