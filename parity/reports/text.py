"""Words and numbers that Markdown and the terminal share; nothing here is escaped yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parity.findings import Finding, Level, Status, Verdict
from parity.reports.document import ADVANTAGE, ROUNDING, CostRow, Report, Row, Rung

NOT_COMPARED = "not compared"
TIMES = "\u00d7"
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
    failed = next((finding for finding in report.failing if finding.level is not Level.COST), None)
    if failed:
        first = f"first difference{at(failed)}" if at(failed) else "a difference"
        found = f"{first}: {failed.message} ({failed.level.rung} {failed.level.value}, {failed.check})"
        return f"DIFFERENT: {report.experiment} differs from {report.baseline}, {found}"
    if report.verdict.verdict is Verdict.PARITY:
        lower = [rung for rung in deciding if rung.level is not Level.TRAINING and rung.status is Status.PASS]
        if not lower:
            named = next(_rung(rung) for rung in deciding if rung.level is Level.TRAINING)
            alone = "curves alone are the weakest evidence, which `parity check`, `parity sample` and a replay add to"
            return f"PARITY of the curves: {report.experiment} trains as {report.baseline} by {named}); {alone}."
        rests_on = " and ".join(f"{_rung(rung)}, none fails)" for rung in lower)
        training = status(next(rung.status for rung in deciding if rung.level is Level.TRAINING))
        parity = f"PARITY: {report.experiment} equals {report.baseline} by {rests_on}"
        return f"{parity}; L3 training, which can only falsify that: {training}."
    part_of_it = [rung for rung in deciding if rung.total] or deciding
    undecided = "; ".join(f"{_rung(rung)}): {status(rung.status)}" for rung in part_of_it)
    return f"{report.verdict.verdict.value}: {report.experiment} against {report.baseline}: {undecided}."


def planted(report: Report) -> str:
    """That faults were planted on purpose, and which; empty without one."""
    places = [f"{name} at step {step} of {report.experiment}" for name, _, step in map(_parts, report.plants)]
    what = "A fault was" if len(places) == 1 else "Faults were"
    return f"{what} planted on purpose: {', '.join(places)}." if places else ""


def _parts(plant: str) -> tuple[str, str, str]:
    return plant.rpartition("@")


def not_shown(report: Report) -> str:
    """What the verdict leaves open; empty where L1 was compared."""
    sampling = next(rung for rung in report.ladder if rung.level is Level.SAMPLING)
    if sampling.status is not Status.NOT_COMPARED:
        return ""
    return "Not shown: that free sampling is equally distributed in both arms at fixed weights (L1)."


def reasons(report: Report) -> list[str]:
    """One line a rung: its status with the check and place that decide a failure, and what the change costs."""
    return [_reason(rung) for rung in report.ladder if rung.level is not Level.COST] + [_cost_line(report)]


def _reason(rung: Rung) -> str:
    name = f"{rung.level.rung} {rung.level.value}"
    if not rung.total:
        return f"{name}: not part of this run"
    if rung.status is Status.FAIL and rung.strongest:
        return f"{name}: fail ({rung.strongest.check}{at(rung.strongest)})"
    return f"{name}: {status(rung.status)} ({rung.compared} of {rung.total} findings compared)"


def _cost_line(report: Report) -> str:
    measured = [row for row in report.cost if row.ratio is not None]
    if not measured:
        return "L4 cost: not compared"
    costs = [f"{row.name.partition(' a step')[0]} {ratio(row)}" for row in measured]
    return f"L4 cost: {', '.join(costs)}"


def ratio(row: CostRow) -> str:
    """Experiment over baseline with its interval, and whether that is worse or undecided."""
    if row.ratio is None:
        return NOT_COMPARED
    interval = f" (95 % {row.interval[0]:.3g} to {row.interval[1]:.3g})" if row.interval else ""
    verdict = {Status.FAIL: ", worse", Status.INCONCLUSIVE: ", inconclusive"}.get(row.status, "")
    return f"{TIMES}{row.ratio:.3g}{interval}{verdict}"


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
    if row.metric == ADVANTAGE:
        # Advantages are centred within their group, so that their mean is 0 by construction and the rest is rounding.
        values = {name: 0.0 if abs(value) < ROUNDING else value for name, value in values.items()}
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


def short_outcome(finding: Finding) -> str:
    """A finding in as few words as a narrow table takes: its rung, what it found, and the step of a failure."""
    step = finding.where.rollout_id
    if not finding.fails:
        return outcome(finding).partition(" at ")[0]
    return f"{finding.level.rung} FAIL{'' if step is None else f' at step {step}'}"


def how_tested(finding: Finding) -> str:
    """How a finding was made, from the numbers of its evidence: its rung, method, margin, interval and units."""
    evidence = finding.evidence
    named = "equal bit for bit" if finding.level is Level.REPLAY else finding.check.replace("_", " ")
    method = str(evidence.get("method") or named)
    parts = [str(evidence["summary"]), method] if "summary" in evidence else [method]
    if isinstance(evidence.get("margin"), (int, float)):
        margin = evidence["margin"]
        in_log = str(evidence.get("summary", "")).endswith("of the log")
        scale = f"{TIMES}/÷ {number(math.exp(margin))}, which in the log is " if in_log else ""
        parts.append(f"margin {scale}±{number(margin)}")
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
    return row.name, number(row.baseline), number(row.experiment), ratio(row)


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds is None:
        return "not recorded"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min {rest} s"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.3g} s"
