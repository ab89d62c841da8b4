"""The report as a comment on a pull request: at most 60 lines, without pictures, with a place for a link."""

from __future__ import annotations

from parity.findings import Level
from parity.report import text
from parity.report.document import Report, Row
from parity.report.markdown import bullets, escape, fenced, table
from parity.report.sentences import in_language
from parity.report.words import Language, Say, shortened, speaker

MARKER = "<!-- rollout-parity -->"
"""The first line, by which a workflow finds its earlier comment to update it."""
LINK = "REPORT_URL"
"""What a workflow replaces by the address of the whole report."""
PARAGRAPH = 1_500
"""Characters of a paragraph."""
_FAILING = 5
_COMMANDS = 4
_COMMAND = 400


def render(report: Report, language: Language = "en") -> str:
    """The report as Markdown of at most 60 lines, each table as wide as a comment."""
    say = speaker(language)
    report = in_language(report, language)
    compared = bool(report.experiment)
    blocks = [
        MARKER,
        say("## Rollout parity: {verdict}", verdict=report.verdict.verdict.words),
        f"**{escape(text.headline(report, say), PARAGRAPH)}**",
        *(escape(line, PARAGRAPH) for line in text.beside(report, say)),
        *_failed(report, say),
        *(
            [table([say(column) for column in text.COLUMNS], [_cells(row, say) for row in report.rows])]
            if compared
            else []
        ),
        *([escape(text.cost_line(report, say), PARAGRAPH)] if compared else []),
        escape(_not_compared(report, say), PARAGRAPH),
        *_reproduce(report, say),
        say("[The whole report]({link}): curves, samples, every finding and where its rows are.", link=LINK),
    ]
    return "\n\n".join(blocks) + "\n"


def _cells(row: Row, say: Say) -> tuple[str, ...]:
    """A row's cells; where each finding points stands in the list of those that fail."""
    *values, _ = text.row_cells(row, say)
    found = say("; ").join(text.short_outcome(finding, say) for finding in row.findings)
    return *values, found or say(text.NOT_COMPARED)


def _failed(report: Report, say: Say) -> list[str]:
    """The first failing findings, causes first."""
    lines = [f"{finding.level.rung} {text.sentence(finding, say)}" for finding in report.failing]
    return [bullets(lines, say, _FAILING)] if lines else []


def _not_compared(report: Report, say: Say) -> str:
    checks = dict.fromkeys(finding.check for finding in report.not_compared if finding.level is not Level.COST)
    if not checks:
        return say("Every finding compared something.")
    return say("Not compared: {checks}.", checks=say(", ").join(checks))


def _reproduce(report: Report, say: Say) -> list[str]:
    commands = [shortened(" ".join(command.split()), _COMMAND) for command in report.provenance.commands[:_COMMANDS]]
    return [fenced("\n".join(commands), "sh")] if commands else []
