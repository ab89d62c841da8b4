"""The result of a check on a terminal: what fails first, with its first cases, and what was not compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.findings import Finding, Message, Status, Verdict, listed, quantity
from parity.report.colours import COLOURS
from parity.report.words import one_line
from parity.sources.directories import Omission


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found.

    Attributes:
        findings: Those of every data set; `where.run` names the data set if there are several.
        counts: How many samples, groups and exchanges were read, from how many files.
        sources: The files read, and their formats.
        omissions: The files that were not read whole, and why.
    """

    findings: tuple[Finding, ...]
    counts: dict[str, int]
    sources: tuple[tuple[Path, str], ...]
    omissions: tuple[Omission, ...]

    @property
    def damaged(self) -> bool:
        """Whether a file of a known format could not be read whole."""
        return any(omission.damaged for omission in self.omissions)

    @property
    def verdict(self) -> Verdict:
        """FAIL if a rule is broken, PASS if some were checked and everything could be read, else INCONCLUSIVE."""
        if any(finding.fails for finding in self.findings):
            return Verdict.FAIL
        compared = any(finding.status is Status.PASS for finding in self.findings)
        undecided = any(finding.status is Status.INCONCLUSIVE for finding in self.findings)
        return Verdict.PASS if compared and not undecided and not self.damaged else Verdict.INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 2 a file could not be read whole, 3 inconclusive."""
        if self.verdict is Verdict.INCONCLUSIVE:
            return 2 if self.damaged else 3
        return int(self.verdict is Verdict.FAIL)

    def to_json(self) -> dict[str, Any]:
        """The result in the format of `--json`."""
        return {
            "verdict": self.verdict.value,
            "counts": self.counts,
            "findings": [finding.to_json() for finding in self.findings],
            "sources": [{"path": str(path), "format": name} for path, name in self.sources],
            "omissions": [
                {"path": str(one.path), "reason": one.reason, "damaged": one.damaged} for one in self.omissions
            ],
        }


CASES_SHOWN = 3
FILES_SHOWN = 3
NAMES_SHOWN = 8
_COLOUR_OF_STATE = {"FAIL": "bold red", "warning": "yellow", "inconclusive": "yellow"}


def print_checks(result: CheckResult, console: Console) -> None:
    """Prints what passes and what was not compared in a few words, what fails with its cases, and the verdict last."""
    checks = by_check(result.findings)
    passing = [name for name, own in checks.items() if state(own) == "pass"]
    if passing:
        console.print(Text(f"{quantity(len(passing), 'checks')} passing: {', '.join(passing)}", style="dim"))
    for reason, names in _not_compared(checks).items():
        console.print(Text(f"not compared, {reason}: {', '.join(names)}", style="dim"))
    _print_omissions(result, console)
    broken = {name: own for name, own in checks.items() if state(own) in _COLOUR_OF_STATE}
    if broken:
        table = Table("check", "result", "checked", "failed", "first cases", box=box.SIMPLE)
        for name, own in broken.items():
            counts = (f"{_total(own, count):,}" for count in ("checked", "failed"))
            table.add_row(name, state(own), *counts, Text(_cases(own)), style=_COLOUR_OF_STATE[state(own)])
        console.print(table)
    console.print(Text(headline(result), style=f"bold {COLOURS[result.verdict]}"))


def _cases(findings: Sequence[Finding]) -> str:
    """The first cases of a check, a line each."""
    broken = [finding for finding in findings if finding.status in (Status.FAIL, Status.INCONCLUSIVE)]
    lines = [
        one_line(": ".join(filter(None, (str(finding.where), finding.message.rpartition(" (")[0] or finding.message))))
        for finding in broken
    ]
    more = [f"and {len(lines) - CASES_SHOWN} more in --json"] if len(lines) > CASES_SHOWN else []
    return "\n".join([*lines[:CASES_SHOWN], *more])


def _not_compared(checks: Mapping[str, Sequence[Finding]]) -> dict[str, list[str]]:
    """The checks of which nothing could be compared, by the reason."""
    names: dict[str, list[str]] = {}
    for name, own in checks.items():
        if state(own) == "not compared":
            names.setdefault(own[0].message.rpartition(": ")[2], []).append(name)
    return names


def _print_omissions(result: CheckResult, console: Console) -> None:
    """A line for each damaged file, and one for each reason why others were left out."""
    others: dict[str, list[str]] = {}
    for one in result.omissions:
        if one.damaged:
            console.print(Text(f"not read: {one.path}: {one_line(one.reason)}", style="red"))
        else:
            others.setdefault(one.reason, []).append(str(one.path))
    for reason, paths in others.items():
        more = f" and {len(paths) - FILES_SHOWN} more" if len(paths) > FILES_SHOWN else ""
        console.print(Text(f"left out, {reason}: {', '.join(paths[:FILES_SHOWN])}{more}", style="dim"))


def headline(result: CheckResult) -> Message:
    """The verdict in one sentence: on how many checks it rests, of what, and what was not checked."""
    checks = by_check(result.findings)
    states = {name: state(findings) for name, findings in checks.items()}
    failed = [name for name, result_of in states.items() if result_of == "FAIL"]
    missing = [name for name, result_of in states.items() if result_of == "not compared"]
    counts = listed(quantity(count, name) for name, count in result.counts.items() if count)
    damaged = sum(omission.damaged for omission in result.omissions)
    parts = [Message("not checked: {names}", names=_names(missing))] if missing else []
    parts += [Message("{files} could not be read whole", files=quantity(damaged, "files"))] if damaged else []
    return Message(
        "{verdict}: {failed} of {checks} fail ({names}): {parts}."
        if failed
        else "{verdict} on {compared} of {checks}: {parts}.",
        verdict=result.verdict.words,
        failed=len(failed),
        names=_names(failed),
        compared=len(checks) - len(missing),
        checks=quantity(len(checks), "checks"),
        parts=listed([counts, *parts], "; "),
    )


def _names(names: Sequence[str]) -> Message:
    """The first names, and how many more there are."""
    more = [f"{len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else []
    return listed([*names[:NAMES_SHOWN], *more])


def by_check(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings by the name of their check, in the order first met."""
    checks: dict[str, list[Finding]] = {}
    for finding in findings:
        checks.setdefault(finding.check, []).append(finding)
    return checks


def state(findings: Sequence[Finding]) -> str:
    """What the findings of one check come to."""
    statuses = {finding.status for finding in findings}
    if any(finding.fails for finding in findings):
        return "FAIL"
    if Status.FAIL in statuses:
        return "warning"
    for status in (Status.INCONCLUSIVE, Status.PASS):
        if status in statuses:
            return str(status.value)
    return "not compared"


def _total(findings: Sequence[Finding], name: str) -> int:
    """A count summed over data sets; each finding of one check and data set carries the same counts."""
    counts: Mapping[str | None, int] = {finding.where.run: int(finding.evidence.get(name, 0)) for finding in findings}
    return sum(counts.values())
