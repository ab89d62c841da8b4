"""Words and numbers that Markdown, the page and the terminal share; nothing here is escaped yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parity.findings import Finding, Level, Status, Verdict, quantity
from parity.report.document import ADVANTAGE, ROUNDING, CostRow, Report, Row, Rung
from parity.report.runs import RunOutcome
from parity.report.scope import FIXED_WEIGHTS, SAMPLED, Scope
from parity.report.words import Say, english

NOT_COMPARED = "not compared"
TIMES = "\u00d7"
_LARGEST_LOG = 700.0
"""Above this, e to its power is no float."""
COLUMNS = ("", "baseline", "experiment", "difference", "margin", "interval", "finding")
"""Of the eight metrics, as narrow as a comment is wide."""
TESTED_COLUMNS = ("", "how it was tested")
OUTCOME_COLUMNS = (
    "run",
    "design",
    "steps",
    "how it ended",
    "retries",
    "engine restarts",
    "resumes",
    "time in steps",
    "peak memory",
)
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


def status(value: Status, say: Say = english) -> str:
    """A status as words."""
    return say(value.value.replace("_", " "))


def warns(finding: Finding) -> bool:
    """Whether a finding fails, and decides nothing by it."""
    return finding.status is Status.FAIL and not finding.fails


def result(finding: Finding, say: Say = english) -> str:
    """What a finding came to, as words; what fails and decides nothing is a warning."""
    return say("warning") if warns(finding) else status(finding.status, say)


def headline(report: Report, say: Say = english) -> str:
    """The verdict in one sentence, with what it speaks of and what it rests on."""
    if report.headline:
        return say(report.headline)
    verdict = report.verdict.verdict
    names = {
        "verdict": verdict.words,
        "baseline": report.baseline,
        "experiment": report.experiment,
        "scope": short_scope(report.scope, say),
    }
    deciding = [rung for rung in report.ladder if rung.level is not Level.COST]
    failed = next((finding for finding in report.failing if finding.level is not Level.COST), None)
    if failed:
        where = at(failed, say)
        first = say("first difference{place}", place=where) if where else say("a difference")
        level = rung_name(failed.level, say)
        what = say(
            "{first}: {message} ({level}, {check})",
            first=first,
            message=failed.message,
            level=level,
            check=failed.check,
        )
        return say("{verdict}: {experiment} differs from {baseline} ({scope}), {what}", **names, what=what)
    if verdict is Verdict.CURVES_AGREE:
        rung = next(rung for rung in deciding if rung.level is Level.TRAINING)
        sentence = say(
            "{verdict}: {experiment} trains as {baseline} ({scope}) within the margins {margins}, by {rung}). "
            "Curves alone can contradict parity and never show it: `parity check`, `parity sample` and a replay can.",
            **names,
            margins=margins_stated(report.scope, say),
            rung=_rung(rung, say),
        )
        if any(finding.check == "worst_case" for finding in report.findings):
            sentence += say(" It is subject to censoring: runs of the experiment were cut off.")
        return sentence
    if verdict is Verdict.PARITY:
        lower = [rung for rung in deciding if rung.level is not Level.TRAINING and rung.status is Status.PASS]
        training = next(rung for rung in deciding if rung.level is Level.TRAINING)
        curves = (
            say("the curves (L3) were not compared")
            if training.status is Status.NOT_COMPARED
            else say("the curves (L3), which could only contradict that: {status}", status=status(training.status, say))
        )
        return say(
            "{verdict}: {experiment} equals {baseline} ({scope}) by {basis}; {curves}.",
            **names,
            basis=say(" and ").join(_none_fails(rung, report, say) for rung in lower),
            curves=curves,
        )
    part_of_it = [rung for rung in deciding if rung.total] or deciding
    undecided = say("; ").join(
        say("{rung}): {status}", rung=_rung(rung, say), status=status(rung.status, say)) for rung in part_of_it
    )
    sentence = say("{verdict}: {experiment} against {baseline} ({scope}): {undecided}.", **names, undecided=undecided)
    if report.verdict.open_question:
        sentence += " " + say(report.verdict.open_question)
    return sentence


def short_scope(scope: Scope, say: Say = english) -> str:
    """What a verdict speaks of in a few words: engine, trainer, task, runs, steps and groups, as far as recorded."""
    return say(", ").join(
        [
            *filter(None, (_engine(scope), "" if scope.trainer == FIXED_WEIGHTS else say(scope.trainer))),
            *([say("task {task}", task=scope.task)] if scope.task else []),
            *_sizes(scope, say),
        ]
    )


def scope_sentence(report: Report, say: Say = english) -> str:
    """All that a verdict speaks of, and what of it is not recorded."""
    scope = report.scope
    named = (
        (say("engine"), _engine(scope)),
        (say("model"), scope.model),
        (say("trainer"), say(scope.trainer)),
        (say("task"), scope.task),
    )
    parts = [
        value if value == say(FIXED_WEIGHTS) else say("{name} {value}", name=name, value=value)
        for name, value in named
        if value
    ]
    parts += _sizes(scope, say)
    if missing := [name for name, value in named if not value]:
        parts.append(say("not recorded: {names}", names=say(", ").join(missing)))
    parts.append(say("margins: {margins}", margins=margins_stated(scope, say)))
    return say("Scope: {parts}.", parts=say("; ").join(parts))


def _engine(scope: Scope) -> str:
    """The engine with its version and number format."""
    dtype = f" ({scope.dtype})" if scope.dtype else ""
    return f"{scope.engine} {scope.engine_version}".strip() + dtype if scope.engine else ""


def _sizes(scope: Scope, say: Say) -> list[str]:
    sizes = ((scope.runs, "runs"), (scope.steps, "steps"), (scope.groups, "groups"))
    return [say(quantity(count, unit)) for count, unit in sizes if count]


def margins_stated(scope: Scope, say: Say = english) -> str:
    """The margins that findings were held to; those that nobody stated are named as defaults."""
    texts = [
        say("{metric} ±{margin} by default", metric=metric, margin=number(margin))
        if metric in scope.default_margins
        else f"{metric} ±{number(margin)}"
        for metric, margin in scope.margins.items()
    ]
    return say("; ").join(texts) or say("none, as nothing was held to one")


def not_shown(report: Report, say: Say = english) -> str:
    """What the verdict leaves open; empty where that is nothing."""
    phrases = say("; ").join(map(say, report.scope.not_shown))
    return say("Not shown: {phrases}.", phrases=phrases) if phrases else ""


def margin_time(report: Report, say: Say = english) -> str:
    """When the margins were stated."""
    if report.compared_design == "recorded":
        return say("margins, stated after these runs were made and before they were compared")
    return say("margins, recorded before the first step")


def beside(report: Report, say: Say = english) -> list[str]:
    """What stands beside every verdict: faults that were injected, its scope, and what it does not show."""
    return [line for line in (planted(report, say), scope_sentence(report, say), not_shown(report, say)) if line]


def _none_fails(rung: Rung, report: Report, say: Say) -> str:
    warnings = sum(finding.level is rung.level and warns(finding) for finding in report.findings)
    if warnings:
        return say("{rung}, none fails, {warnings} warn)", rung=_rung(rung, say), warnings=warnings)
    return say("{rung}, none fails)", rung=_rung(rung, say))


def planted(report: Report, say: Say = english) -> str:
    """That faults were injected on purpose, and which; empty without one."""
    parts = (plant.rpartition("@") for plant in report.plants)
    places = [
        say("{name} at step {step} of {experiment}", name=name, step=step, experiment=report.experiment)
        for name, _, step in parts
    ]
    return say("Faults injected on purpose: {places}.", places=say(", ").join(places)) if places else ""


def reasons(report: Report, say: Say = english) -> list[str]:
    """One line a rung: its status with the check and place that decide a failure, and what the change costs."""
    rungs = [_reason(rung, say) for rung in report.ladder if rung.level is not Level.COST]
    return [*rungs, cost_line(report, say)]


def _reason(rung: Rung, say: Say) -> str:
    name = rung_name(rung.level, say)
    if not rung.total:
        return say("{rung}: not part of this run", rung=name)
    if rung.status is Status.FAIL and rung.strongest:
        where = f"{rung.strongest.check}{at(rung.strongest, say)}"
        return say("{rung}: {status} ({where})", rung=name, status=status(rung.status, say), where=where)
    return say("{rung}: {status} ({where})", rung=name, status=status(rung.status, say), where=_counted(rung, say))


def rung_name(level: Level, say: Say = english) -> str:
    """A rung by its short name and its subject."""
    return f"{level.rung} {say(level.value)}"


def cost_line(report: Report, say: Say = english) -> str:
    """What the change costs, in a line."""
    measured = [row for row in report.cost if row.ratio is not None]
    name = rung_name(Level.COST, say)
    if not measured:
        return say("{rung}: {status}", rung=name, status=say(NOT_COMPARED))
    costs = [f"{say(row.name.partition(' a step')[0])} {ratio(row, say)}" for row in measured]
    return say("{rung}: {status}", rung=name, status=say(", ").join(costs))


def ratio(row: CostRow, say: Say = english) -> str:
    """Experiment over baseline with its interval, and whether that is worse or undecided."""
    if row.ratio is None:
        return say(NOT_COMPARED)
    interval = ""
    if row.interval:
        low, high = (f"{bound:.3g}" for bound in row.interval)
        interval = say(" (95 % {low} to {high})", low=low, high=high)
    verdict = {Status.FAIL: say(", worse"), Status.INCONCLUSIVE: say(", inconclusive")}.get(row.status, "")
    return f"{TIMES}{row.ratio:.3g}{interval}{verdict}"


def _rung(rung: Rung, say: Say) -> str:
    return say("{rung} ({counts}", rung=rung_name(rung.level, say), counts=_counted(rung, say))


def _counted(rung: Rung, say: Say) -> str:
    return say("{compared} of {findings} compared", compared=rung.compared, findings=quantity(rung.total, "findings"))


def at(finding: Finding, say: Say = english) -> str:
    """Where a finding points, as words to append; empty if it speaks of everything, or its message names the step."""
    known = finding.where.to_json()
    named = finding.where.rollout_id is not None and f"step {finding.where.rollout_id}" in finding.message
    return say(" at {where}", where=place(finding, say)) if set(known) - {"field"} and not named else ""


def place(finding: Finding, say: Say = english) -> str:
    """Where a finding points, in words; empty if it speaks of everything."""
    return say(finding.where.words)


def sentence(finding: Finding, say: Say = english) -> str:
    """A finding in full: its check, where it points, and its message."""
    message = finding.message.removeprefix(f"{finding.check}: ")
    return say("{check}{place}: {message}", check=finding.check, place=at(finding, say), message=message)


def basis(report: Report, say: Say = english) -> str:
    """Which runs the values of the first table come from."""
    if not report.compared_design:
        return say("No design has a run of each arm with metrics, so that the table has no values.")
    if report.compared_design == SAMPLED:
        return say("Values are means over all samples of an arm, at fixed weights; output count is their number.")
    of_arm = [say("{count} {arm}", count=len(names), arm=arm) for arm, names in report.compared_runs.items()]
    return say(
        "Values are means over runs ({design}: {runs}), one number a run: the mean over the later "
        "half of the steps that all these runs have; output count is the total over all of these steps.",
        design=report.compared_design,
        runs=say(" and ").join(of_arm),
    )


def row_cells(row: Row, say: Say = english) -> tuple[str, ...]:
    """The seven cells of a row under `COLUMNS`."""
    held = held_to_margin(row)
    return (
        say(row.name),
        _values(row, row.baseline, say),
        _values(row, row.experiment, say),
        _values(row, row.difference, say, signed=True),
        margin_of(held, say) if held else _exact(row, say),
        _interval(held, say) if held else "",
        say("; ").join(outcome(finding, say) for finding in row.findings) or say(NOT_COMPARED),
    )


def held_to_margin(row: Row) -> Finding | None:
    """The finding of the highest rung that holds a row to a margin."""
    held = [finding for finding in row.findings if isinstance(finding.evidence.get("margin"), (int, float))]
    return held[-1] if held else None


def margin_of(finding: Finding, say: Say = english) -> str:
    """The margin of a finding: of a logarithm it says so, as the difference is one too."""
    margin = f"±{number(finding.evidence['margin'])}"
    return say("{margin} of the log", margin=margin) if in_log(finding) else margin


def _exact(row: Row, say: Say) -> str:
    """What a row is held to without a margin."""
    return say("exact") if any(finding.level is Level.REPLAY for finding in row.findings) else say("none")


def _interval(finding: Finding, say: Say) -> str:
    """The interval of a finding's estimate, with its level."""
    level = interval_level(finding)
    if not (interval := finding.evidence.get(f"ci{level}")):
        return ""
    low, high = interval
    return say("{low} to {high} ({level} %)", low=number(low, True), high=number(high, True), level=level)


def interval_level(finding: Finding) -> int:
    """The level of the interval that decides a finding, in per cent: 90 for two one-sided tests at 5 %."""
    return 90 if "ci90" in finding.evidence and finding.status is not Status.FAIL else 95


def tested_cells(row: Row, say: Say = english) -> tuple[str, str]:
    """How a row was tested, under `TESTED_COLUMNS`."""
    return say(row.name), say("; ").join(how_tested(finding, say) for finding in row.findings) or say(NOT_COMPARED)


def _values(row: Row, values: Mapping[str, float], say: Say, signed: bool = False) -> str:
    if not values:
        return say(NOT_COMPARED)
    if row.metric == ADVANTAGE:
        # Advantages are centred within their group, so that their mean is 0 by construction and the rest is rounding.
        values = {name: 0.0 if abs(value) < ROUNDING else value for name, value in values.items()}
    if row.summary != "shares":
        return number(next(iter(values.values())), signed)
    unit = "pp" if signed else "%"
    return ", ".join(f"{name} {number(100 * share, signed)} {unit}" for name, share in values.items())


def outcome(finding: Finding, say: Say = english) -> str:
    """A finding in a few words: its rung, what it found, and where."""
    return f"{finding.level.rung} {result(finding, say)}{at(finding, say) if finding.status is Status.FAIL else ''}"


def short_outcome(finding: Finding, say: Say = english) -> str:
    """A finding in as few words as a narrow table takes: its rung, what it found, and the step of a failure."""
    step = finding.where.rollout_id
    if not finding.fails:
        return f"{finding.level.rung} {result(finding, say)}"
    place = "" if step is None else say(" at step {step}", step=step)
    return f"{finding.level.rung} {say('FAIL')}{place}"


def how_tested(finding: Finding, say: Say = english) -> str:
    """How a finding was made, from the numbers of its evidence: its rung, method, margin, interval and units."""
    evidence = finding.evidence
    named = say("equal bit for bit") if finding.level is Level.REPLAY else say(finding.check.replace("_", " "))
    method = say(evidence["method"]) if evidence.get("method") else named
    parts = [say(str(evidence["summary"])), method] if "summary" in evidence else [method]
    if isinstance(evidence.get("margin"), (int, float)):
        margin = evidence["margin"]
        factor = f"{TIMES}/÷ {number(factor_of(margin))}"
        scale = say("{factor}, which in the log is ", factor=factor) if in_log(finding) else ""
        parts.append(say("margin {scale}±{margin}", scale=scale, margin=number(margin)))
    level = interval_level(finding)
    if interval := evidence.get(f"ci{level}"):
        low, high = interval
        parts.append(f"{level} % CI [{number(low)}, {number(high)}]")
    if isinstance(units := evidence.get("units"), Sequence):
        parts.append(f"{' + '.join(map(str, units))} {say(str(evidence.get('unit', 'unit')) + 's')}")
    if isinstance(evidence.get("checked"), int):
        parts.append(say("{count} checked", count=number(evidence["checked"])))
    return f"{finding.level.rung} {say(', ').join(parts)}"


def margins(report: Report) -> dict[str, Finding]:
    """By metric, the first finding that holds it to a margin."""
    held: dict[str, Finding] = {}
    for finding in report.findings:
        margin = finding.evidence.get("margin")
        if finding.where.field and isinstance(margin, (int, float)) and math.isfinite(margin):
            held.setdefault(finding.where.field, finding)
    return held


def in_log(finding: Finding) -> bool:
    """Whether the finding's margin is one of the metric's log."""
    return str(finding.evidence.get("summary", "")).endswith("of the log")


def factor_of(margin: float) -> float:
    """The factor that a margin of the log is."""
    return math.exp(margin) if margin < _LARGEST_LOG else math.inf


def cost_cells(row: CostRow, say: Say = english) -> tuple[str, ...]:
    """The four cells of a cost: name, baseline, experiment, and experiment over baseline."""
    values = (say(number(value)) if value is None else number(value) for value in (row.baseline, row.experiment))
    return say(row.name), *values, ratio(row, say)


def outcome_cells(run: RunOutcome, say: Say = english) -> tuple[object, ...]:
    """The cells of how a run ended, under `OUTCOME_COLUMNS`."""
    memory = say("not recorded") if run.peak_memory_bytes is None else f"{run.peak_memory_bytes / 2**30:.2f} GiB"
    ended = f"{say(run.status)}: {run.message}" if run.message else say(run.status)
    happened = (run.retries, run.restarts, run.resumes)
    return run.run, run.design, run.steps, ended, *happened, duration(run.seconds, say), memory


def duration(seconds: float | None, say: Say = english) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds is None:
        return say("not recorded")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return say("{hours} h {minutes} min {seconds} s", hours=hours, minutes=minutes, seconds=rest)
    if minutes:
        return say("{minutes} min {seconds} s", minutes=minutes, seconds=rest)
    return say("{seconds} s", seconds=f"{seconds:.3g}")
