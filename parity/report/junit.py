"""The findings as JUnit XML: one suite a rung, one case a check."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from parity.errors import without_secrets
from parity.findings import Finding, Level, Status
from parity.report.words import shortened

if TYPE_CHECKING:
    from parity.report.document import Report  # imports scipy, which takes seconds

LONGEST = 10_000
"""Characters of a text; a longer one ends in an ellipsis, and report.json has it whole."""

_NOT_XML = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> bytes:
    """The report as JUnit XML; its scope stands among the properties of the first suite."""
    from parity.report import text  # imports scipy, which takes seconds

    scope = {name: value for name, value in asdict(report.scope).items() if value}
    return render_findings(text.headline(report), report.findings, scope)


def render_findings(title: str, findings: Sequence[Finding], properties: Mapping[str, object] | None = None) -> bytes:
    """Findings as JUnit XML.

    A check fails when one of its findings does. It is skipped, with the reason, when it is inconclusive or nothing was
    compared, so that neither reads as passed. A warning passes and is written to the case's output.
    """
    root = ElementTree.Element("testsuites", name=_xml(title))
    for level in Level:
        checks: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.level is level:
                checks.setdefault(finding.check, []).append(finding)
        suite = ElementTree.SubElement(root, "testsuite", name=f"{level.rung} {level.value}")
        if properties and level is Level.CONTRACT:
            known = ElementTree.SubElement(suite, "properties")
            for name, value in properties.items():
                ElementTree.SubElement(known, "property", name=f"scope.{name}", value=_xml(_property(value)))
        for check, of_check in checks.items():
            _add_case(suite, level, check, of_check)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_case(suite: ElementTree.Element, level: Level, check: str, findings: Sequence[Finding]) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"parity.{level.value}", name=_xml(check))
    failing = [finding for finding in findings if finding.fails]
    statuses = {finding.status for finding in findings}
    if failing:
        failure = ElementTree.SubElement(case, "failure", type="finding", message=_xml(failing[0].message))
        failure.text = "\n".join(_line(finding) for finding in failing)
    elif Status.INCONCLUSIVE in statuses or statuses == {Status.NOT_COMPARED}:
        wanted = Status.INCONCLUSIVE if Status.INCONCLUSIVE in statuses else Status.NOT_COMPARED
        first = next(finding for finding in findings if finding.status is wanted)
        reason = f"{wanted.value.replace('_', ' ')}: {first.message}"
        ElementTree.SubElement(case, "skipped", message=_xml(reason))
    output = ElementTree.SubElement(case, "system-out")
    output.text = "\n".join(_line(finding) for finding in findings if not finding.fails)


def _property(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} ±{margin:g}" for name, margin in value.items())
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _line(finding: Finding) -> str:
    where = f" at {finding.where}" if finding.where.to_json() else ""
    values = "" if finding.expected is None else f" (expected {finding.expected}, observed {finding.observed})"
    return _xml(f"{finding.status.value}{where}: {finding.message}{values}")


def _count(element: ElementTree.Element) -> None:
    for name, path in (("tests", ".//testcase"), ("failures", ".//failure"), ("skipped", ".//skipped")):
        element.set(name, str(len(element.findall(path))))
    element.set("errors", "0")


def _xml(value: str) -> str:
    """Text without secrets; what XML 1.0 cannot hold (section 2.2) and what steers a screen is shown as U+FFFD."""
    return _NOT_XML.sub("\ufffd", shortened(without_secrets(value), LONGEST))
