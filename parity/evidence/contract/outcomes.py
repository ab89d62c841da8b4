"""How checks count: outcomes of one check, and the findings that they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from parity.findings import Finding, Level, Severity, Status, Where, quantity

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
    message: str


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
    """

    checked: int
    failed: int = 0
    cases: tuple[Case, ...] = ()
    skipped: int = 0
    missing: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


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
    findings = [
        Finding(
            check.name,
            level,
            Status.FAIL,
            f"{case.message} ({outcome.failed:,} of {quantity(outcome.checked, unit)} fail)",
            case.where,
            case.expected,
            case.observed,
            check.severity,
            evidence,
        )
        for case in outcome.cases
    ]
    if outcome.checked and not outcome.failed:
        message = f"{quantity(outcome.checked, unit)}: {check.rule}"
        findings.append(Finding(check.name, level, Status.PASS, message, severity=check.severity, evidence=evidence))
    if outcome.skipped or not outcome.checked:
        of_all = f"{outcome.skipped:,} of {quantity(outcome.checked + outcome.skipped, unit)}"
        unconcerned = f"not compared: there are no {unit} that the rule concerns"
        message = f"{of_all} not compared: {outcome.missing}" if outcome.skipped else unconcerned
        findings.append(
            Finding(check.name, level, Status.NOT_COMPARED, message, severity=check.severity, evidence=evidence)
        )
    return findings


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

    def outcome(self, name: str, missing: str) -> Outcome:
        """What was counted for one check."""
        return Outcome(
            self._checked.get(name, 0),
            self._failed.get(name, 0),
            tuple(self._cases.get(name, ())),
            self._skipped.get(name, 0),
            missing,
        )
