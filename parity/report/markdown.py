"""The acceptance report as Markdown for a pull request (GitHub-flavoured, under 64 KB)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import orjson

from parity.errors import without_secrets
from parity.findings import Finding, Level, Status, quantity
from parity.report import text
from parity.report.data import plain
from parity.report.document import Report
from parity.report.plots import Picture
from parity.report.runs import Mark
from parity.report.sentences import in_language
from parity.report.words import CONTROL, Language, Say, one_line, speaker

LIMIT = 64_000
"""Bytes; GitHub cuts a comment off at 65,536 characters."""

_CELL = 400
_PARAGRAPH = 2_000
_FAILING = 10
_LISTED = 20
_LONG = 6_000
_MARKUP = re.compile(r"([\\`*{}\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_AUTOLINK = re.compile(r"@|#|:(?=//)|\bwww", re.IGNORECASE)
_BREAK = "&#8203;"


def render(report: Report, pictures: Sequence[Picture] | None, language: Language = "en") -> str:
    """The report as Markdown; the pictures are linked by file name, and left out with a word on it where `None`.

    Everything that another program or a model wrote is escaped. Long lists are cut, and say how many entries they lack;
    report.json holds them all.
    """
    say = speaker(language)
    report = in_language(report, language)
    notes = dict.fromkeys(note for row in report.rows for note in row.notes)
    blocks = [
        say("# Rollout parity: {verdict}", verdict=report.verdict.verdict.words),
        f"**{escape(text.headline(report, say), _PARAGRAPH)}**",
        *(escape(line, _PARAGRAPH) for line in text.beside(report, say)),
        bullets(text.reasons(report, say), say),
        *_failed(report, say),
        say("## The eight metrics"),
        table([say(column) for column in text.COLUMNS], [text.row_cells(row, say) for row in report.rows]),
        escape(say(" ").join((text.basis(report, say), *notes)), _PARAGRAPH),
        say("## Performance"),
        *_performance(report, say),
        say("## Details"),
        *(_details(summary, "\n\n".join(content)) for summary, content in _folded(report, pictures, say)),
    ]
    body = "\n\n".join(_fit(blocks, say)) + "\n"
    return body + _all_findings(report.findings, LIMIT - len(body.encode()), say)


def _folded(report: Report, pictures: Sequence[Picture] | None, say: Say) -> list[tuple[str, list[str]]]:
    """What opens on a click: a summary and blocks each."""
    tested = table(
        [say(column) for column in text.TESTED_COLUMNS], [text.tested_cells(row, say) for row in report.rows]
    )
    return [
        (say("How each metric was tested"), [tested]),
        (say("The ladder of evidence"), [_ladder(report, say)]),
        (say("Curves"), _curves(pictures, say)),
        (say("How costs were measured"), _costs(report, say)),
        (say("What was not compared"), [_not_compared(report, say)]),
        (say("How each run ended"), _outcomes(report, say)),
        (say("How to reproduce"), _reproduce(report, say)),
    ]


def _curves(pictures: Sequence[Picture] | None, say: Say) -> list[str]:
    if pictures is None:
        return [say("Drawn in the report's own files, not here.")]
    drawn = [f"![{escape(picture.title)}]({picture.file_name})\n\n{escape(picture.caption)}" for picture in pictures]
    return drawn or [say("Not drawn: no run has metrics.")]


def _fit(blocks: Sequence[str], say: Say) -> list[str]:
    """The blocks, the longest replaced by a sentence one after the other until all are within the limit."""
    fitting = list(blocks)
    while sum(len(block.encode()) + 2 for block in fitting) > LIMIT:
        longest = max(range(len(fitting)), key=lambda place: len(fitting[place].encode()))
        fitting[longest] = say("Left out for its length; report.json has it.")
    return fitting


def escape(value: object, longest: int = _CELL) -> str:
    """Text as one line of Markdown that reads as written: no markup, HTML, mention, reference, link or formula."""
    line = one_line(value, longest)
    line = _MARKUP.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return _AUTOLINK.sub(lambda match: match[0] + _BREAK, line)


def fenced(content: str, language: str = "") -> str:
    """Text as a code block whose fence no run of backticks in the text can close."""
    content = "\n".join(CONTROL.sub(" ", line) for line in without_secrets(content).split("\n"))
    content = content if len(content) <= _LONG else f"{content[:_LONG]}\n… (whole in report.json)"
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", content)), default=0))
    return f"{fence}{language}\n{content}\n{fence}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose cells are escaped; its head is not."""
    lines = [columns, ["---"] * len(columns), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bullets(items: Sequence[str], say: Say, most: int = _LISTED) -> str:
    """The first items as a list, and how many are left out where some are."""
    left = len(items) - most
    return "\n".join(f"- {item}" for item in [*map(escape, items[:most]), *_left_out(left, say)])


def _left_out(number: int, say: Say) -> list[str]:
    return [say("{number} more in report.json", number=number)] if number > 0 else []


def _ladder(report: Report, say: Say) -> str:
    rows = [
        (
            text.rung_name(rung.level, say),
            say(text.QUESTIONS[rung.level]),
            text.status(rung.status, say),
            say("{compared} of {total}", compared=rung.compared, total=rung.total),
            text.sentence(rung.strongest, say) if rung.strongest else say("no finding"),
        )
        for rung in report.ladder
    ]
    columns = (say("level"), say("question"), say("status"), say("findings compared"), say("strongest finding"))
    return table(columns, rows)


def _failed(report: Report, say: Say) -> list[str]:
    """The first failing findings, causes first; nothing where none fails."""
    items = [f"{finding.level.rung} {text.sentence(finding, say)}" for finding in report.failing]
    return [say("## What failed"), bullets(items, say, _FAILING)] if items else []


def _performance(report: Report, say: Say) -> list[str]:
    columns = ("", report.baseline, report.experiment, f"{report.experiment} / {report.baseline}")
    return [table([escape(column) for column in columns], [text.cost_cells(row, say) for row in report.cost])]


def _costs(report: Report, say: Say) -> list[str]:
    note = say(
        "Values are means a step of every pair that an engine answered, the twin's too; times and speeds leave out the "
        "first steps of each run as warm-up, and their ratio is the mean over interleaved steps of the log ratio."
    )
    if report.compared_design == "recorded":
        note = say(
            "Values are one number a run, the geometric mean over the steps that all runs have without the first ones, "
            "averaged over runs; ratio and interval are between runs, which were not interleaved."
        )
    lines = [
        f"{text.result(finding, say)}{say(', ')}{text.sentence(finding, say)}"
        for finding in report.findings
        if finding.level is Level.COST
    ]
    return [note, bullets(lines, say) or say("No cost was tested.")]


def _not_compared(report: Report, say: Say) -> str:
    items = [say("the row {row}: no values", row=say(row.name)) for row in report.rows if not row.baseline]
    items += [say("the row {row}: no finding tests it", row=say(row.name)) for row in report.rows if not row.findings]
    items += [
        f"{text.rung_name(rung.level, say)}{say(': ')}{say('no finding')}" for rung in report.ladder if not rung.total
    ]
    items += [f"{finding.level.rung} {text.sentence(finding, say)}" for finding in report.not_compared]
    return bullets(items, say, 2 * _LISTED) or say("Every finding compared something.")


def _outcomes(report: Report, say: Say) -> list[str]:
    rows = [text.outcome_cells(run, say) for run in report.outcomes]
    more = _left_out(len(rows) - _LISTED, say)
    marks = [
        say("{run}, step {step}: {event}", run=mark.run, step=mark.step, event=_event(mark, say))
        for mark in report.marks
    ]
    ended = table([say(column) for column in text.OUTCOME_COLUMNS], rows[:_LISTED]) if rows else say("No run.")
    return [ended, *more, *([bullets(marks, say)] if marks else [])]


def _event(mark: Mark, say: Say) -> str:
    kind = say(mark.kind.replace("_", " "))
    return f"{kind}{say(': ')}{mark.message}" if mark.message else kind


def _reproduce(report: Report, say: Say) -> list[str]:
    source = report.provenance
    margins = "; ".join(f"{name} ±{margin:g}" for name, margin in source.margins.items())
    rows = [
        (say("commit"), source.commit),
        (say("config hash"), source.config_hash),
        (say("task"), source.task),
        (say("engine"), source.engine),
        (say("seeds of the engine"), source.determinism),
        (say("designs"), ", ".join(dict.fromkeys(run.design for run in report.outcomes)) or say("no run")),
        (say("seeds"), ", ".join(map(str, source.seeds)) or say("not recorded")),
        (say("steps"), say("not recorded") if source.steps is None else source.steps),
        (say("wall time, first to last event"), text.duration(source.seconds, say)),
        (text.margin_time(report, say), margins or say("not recorded")),
        *((say("counted"), say(quantity(count, name))) for name, count in report.counts.items()),
        *((say("version"), f"{name} {version}") for name, version in source.versions.items()),
    ]
    config = orjson.dumps(plain(source.config), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
    return [
        fenced("\n".join(source.commands) or say("# command not recorded"), "sh"),
        table((say("what"), say("value")), rows),
        _details(say("Configuration"), fenced(config, "json")),
    ]


def _details(summary: str, content: str) -> str:
    """A block that opens on a click; `summary` is HTML."""
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n\n</details>"


def _all_findings(findings: Sequence[Finding], room: int, say: Say) -> str:
    """Every finding in a table, the failing first, as many as there is room for in bytes."""
    order = (Status.FAIL, Status.INCONCLUSIVE, Status.NOT_COMPARED, Status.PASS)
    ranked = sorted(findings, key=lambda finding: (order.index(finding.status), not finding.fails))
    columns = (
        say("level"),
        say("check"),
        say("status"),
        say("where"),
        say("expected"),
        say("observed"),
        say("message"),
    )
    rows: list[tuple[object, ...]] = []
    room -= 1_000
    for finding in ranked:
        known = (text.result(finding, say), text.place(finding, say))
        values = (_value(finding.expected), _value(finding.observed))
        cells = (finding.level.rung, finding.check, *known, *values, finding.message)
        room -= sum(len(escape(cell).encode()) + 3 for cell in cells) + 2
        if room < 0:
            break
        rows.append(cells)
    every = quantity(len(ranked), "findings")
    summary = say("all of {findings}", findings=every)
    if len(rows) < len(ranked):
        summary = say("{shown} of {findings}; all in report.json", shown=len(rows), findings=every)
    return f"\n{_details(summary, table(columns, rows))}\n" if rows else ""


def _value(value: object) -> str:
    if isinstance(value, float):
        return text.number(value)
    return "" if value is None else str(value)
