"""Words and numbers that Markdown and the terminal share; nothing here is escaped yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from parity.findings import Finding, Level, Status, Verdict
from parity.reports.document import CostRow, Report, Row

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
    arms = f"{report.experiment} against {report.baseline}"
    rungs = {rung.level: rung for rung in report.ladder}

    def said(levels: Sequence[Level], wanted: Status) -> list[str]:
        return [
            f"{level.rung} {level.value} ({rungs[level].compared} of {rungs[level].total} findings compared)"
            for level in levels
            if rungs[level].status is wanted
        ]

    deciding = (Level.CONTRACT, Level.SAMPLING, Level.REPLAY, Level.TRAINING)
    failed = [rungs[level] for level in deciding if rungs[level].status is Status.FAIL]
    if failed:
        first = failed[0]
        where = f" at {first.strongest.where}" if first.strongest and first.strongest.where.to_json() else ""
        message = first.strongest.message if first.strongest else ""
        return f"{report.verdict.verdict.value}: {arms} fails {first.level.rung} {first.level.value}{where}: {message}"
    if report.verdict.verdict is Verdict.PARITY:
        passed = " and ".join(said(deciding[:3], Status.PASS))
        training = status(rungs[Level.TRAINING].status)
        return f"PARITY: {arms} passes {passed}; L3 training, which can only falsify, is: {training}."
    open_rungs = [f"{level.rung} {level.value} is: {status(rungs[level].status)}" for level in deciding]
    return f"{report.verdict.verdict.value}: {arms}; " + ", ".join(open_rungs) + "."


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
    where = f" at {finding.where}" if finding.status is Status.FAIL and finding.where.to_json() else ""
    return f"{finding.level.rung} {found}{where}"


def how_tested(finding: Finding) -> str:
    """How a finding was made, from the numbers of its evidence: its rung, method, margin, interval and units."""
    evidence = finding.evidence
    method = str(evidence.get("method") or finding.check.replace("_", " "))
    parts = [method]
    if isinstance(evidence.get("margin"), (int, float)):
        parts.append(f"margin ±{number(evidence['margin'])}")
    parts.extend(
        f"{level} % CI [{number(low)}, {number(high)}]"
        for level in (90, 95)
        if (interval := _interval(evidence.get(f"ci{level}"))) is not None
        for low, high in (interval,)
    )
    if isinstance(evidence.get("checked"), int):
        parts.append(f"{number(evidence['checked'])} checked")
    return f"{finding.level.rung} {', '.join(parts)}"


def _interval(value: Any) -> tuple[float, float] | None:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        low, high = value
        return float(low), float(high)
    return None


def cost_cells(row: CostRow) -> tuple[str, ...]:
    """The four cells of a cost: name, baseline, experiment, and experiment over baseline."""
    return row.name, number(row.baseline), number(row.experiment), number(row.ratio)


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds is None:
        return "not recorded"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.3g} s"
    )
