"""What findings say, in the report's language."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.findings import Finding, Message
from parity.report.document import Report
from parity.report.words import Language, catalogue


def in_language(report: Report, language: Language) -> Report:
    """The report with the messages of its findings, notes, marks and provenance in a language.

    What is no message stays as it is: what an engine, a trainer or a person wrote.
    """
    if language == "en":
        return report
    template_of = catalogue(language)

    def translated(text: Any) -> Any:
        return text.translated(template_of) if isinstance(text, Message) else text

    def finding_in(finding: Finding) -> Finding:
        return findings.setdefault(id(finding), replace(finding, message=translated(finding.message)))

    # By identity, so that rows and rungs have the findings of the report and not equal ones.
    findings: dict[int, Finding] = {}
    source = report.provenance
    return replace(
        report,
        findings=tuple(map(finding_in, report.findings)),
        rows=tuple(
            replace(row, findings=tuple(map(finding_in, row.findings)), notes=tuple(map(translated, row.notes)))
            for row in report.rows
        ),
        ladder=tuple(replace(rung, strongest=rung.strongest and finding_in(rung.strongest)) for rung in report.ladder),
        marks=tuple(replace(mark, message=translated(mark.message)) for mark in report.marks),
        provenance=replace(
            source,
            commit=translated(source.commit),
            task=translated(source.task),
            engine=translated(source.engine),
            determinism=translated(source.determinism),
        ),
    )
