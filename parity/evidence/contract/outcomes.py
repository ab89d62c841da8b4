"""How checks count: outcomes of one check, and the findings that they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from parity.findings import Finding, Level, Message, Severity, Status, Where, quantity, term

SHOWN = 5
"""Failing cases that become a finding each; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check's stable name, the rule it holds data to in one sentence, and how bad a breach is."""

    name: str
    rule: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Case:
    """One breach of a rule: where, what the rule demands, what is there, and a sentence for a person."""

    where: Where
    expected: Any
    observed: Any
    message: Message


NOTHING = Message("nothing is missing")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check counted.

    Attributes:
        checked: Units (samples, groups, requests) that the rule could be applied to.
        failed: How many of them break it.
        cases: The first few of those.
        skipped: Units that the rule concerns but whose data is missing.
        missing: What is missing, for a person.
        evidence: More numbers, JSON-compatible.
        inferred: What the rule was read from the data itself, and how many units agree; `None` where it was given.
    """

    checked: int
    failed: int = 0
    cases: tuple[Case, ...] = ()
    skipped: int = 0
    missing: Message = NOTHING
    evidence: Mapping[str, Any] = field(default_factory=dict)
    inferred: Message | None = None


def findings_of(check: Check, outcome: Outcome, unit: str, level: Level = Level.CONTRACT) -> list[Finding]:
    """The findings of one check: the first failing cases or one pass, and one for what could not be compared.

    Every finding of the check carries the same counts in its evidence. A check that nothing could be compared for never
    passes.
    """
    evidence = {
        "checked": outcome.checked,
        "failed": outcome.failed,
        "not_compared": outcome.skipped,
        "unit": unit,
        **outcome.evidence,
    }
    if outcome.inferred is not None:
        evidence["inferred"] = str(outcome.inferred)

    def finding(status: Status, message: Message) -> Finding:
        return Finding(check.name, level, status, message, severity=check.severity, evidence=evidence)

    counts = {"failed": outcome.failed, "checked": quantity(outcome.checked, unit)}
    findings = []
    for case in outcome.cases:
        message = Message(
            "{breach} ({failed:,} of {checked} fail)", breach=_with_inference(case.message, outcome), **counts
        )
        place = {"where": case.where, "expected": case.expected, "observed": case.observed}
        findings.append(replace(finding(Status.FAIL, message), **place))
    if outcome.checked and not outcome.failed:
        passed = Message("{checked}: {rule}", checked=counts["checked"], rule=term(check.rule))
        findings.append(finding(Status.PASS, _with_inference(passed, outcome)))
    if outcome.skipped:
        units = quantity(outcome.checked + outcome.skipped, unit)
        values = {"skipped": outcome.skipped, "units": units, "missing": outcome.missing}
        findings.append(
            finding(Status.NOT_COMPARED, Message("{skipped:,} of {units} not compared: {missing}", **values))
        )
    elif not outcome.checked:
        findings.append(
            finding(
                Status.NOT_COMPARED,
                Message(
                    "not compared: {missing}",
                    missing=Message("not applicable, no {unit} of this kind", unit=term(unit)),
                ),
            )
        )
    return findings


def _with_inference(message: Message, outcome: Outcome) -> Message:
    if outcome.inferred is None:
        return message
    return Message("{message}; inferred: {inferred}", message=message, inferred=outcome.inferred)


class Skip(Enum):
    """Why a rule was not applied to a unit: its data is missing, or the rule is not about it."""

    MISSING = "missing"
    UNCONCERNED = "unconcerned"


class Tally:
    """Counts of many checks while a stream goes by; bounded in memory by the checks, not by the stream."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._cases: dict[str, list[Case]] = {}

    def add(self, name: str, cases: Iterable[Case] | Skip) -> None:
        """Counts one unit by its breaches; none of them means that the rule holds."""
        if isinstance(cases, Skip):
            self._skipped[name] = self._skipped.get(name, 0) + (cases is Skip.MISSING)
            return
        found = list(cases)
        self._checked[name] = self._checked.get(name, 0) + 1
        self._failed[name] = self._failed.get(name, 0) + bool(found)
        shown = self._cases.setdefault(name, [])
        shown.extend(found[: SHOWN - len(shown)])

    def outcome(self, name: str, missing: Message) -> Outcome:
        """What was counted for one check."""
        return Outcome(
            self._checked.get(name, 0),
            self._failed.get(name, 0),
            tuple(self._cases.get(name, ())),
            self._skipped.get(name, 0),
            missing,
        )
