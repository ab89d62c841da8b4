"""The result of sampling at fixed weights, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.findings import Finding, Judgement, Level, Status, Verdict, quantity
from parity.records.sampling import SamplingConfig
from parity.report import text
from parity.report.checks import by_check, state
from parity.report.colours import STATUS_COLOURS
from parity.report.document import Report
from parity.report.scope import Scope
from parity.report.terminal import print_findings, print_verdict
from parity.report.words import english


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """What sampling both arms came to.

    Attributes:
        config: What was asked for.
        findings: Of the contract and of sampling.
        judgement: The verdict and the sentences that it rests on.
        counts: Samples, groups and exchanges of both arms together; groups are pairs.
        stopped: Why no further group was sampled.
    """

    config: SamplingConfig
    findings: tuple[Finding, ...]
    judgement: Judgement
    counts: Mapping[str, int]
    stopped: str


def print_sampling(result: SamplingResult, report: Report, console: Console) -> None:
    """Prints the metrics, what else was tested, what the contract says, and the verdict with its scope."""
    table = Table(
        Column("metric", width=10),
        *(Column(name, min_width=len(name)) for name in ("baseline", "experiment", "difference")),
        Column("equal within", width=8),
        *("margin", Column("finding", no_wrap=True)),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for finding in marginal(result):
        table.add_row(*map(Text, cells(finding)), style=STATUS_COLOURS[finding.status])
    console.print(table)
    passing = [finding for finding in others(result) if finding.status is Status.PASS]
    for status in (Status.FAIL, Status.INCONCLUSIVE, Status.NOT_COMPARED):
        alike = [finding for finding in others(result) if finding.status is status]
        print_findings(alike, f"more {text.status(status)}", console, english)
    for check, own in by_check(passing).items():
        names = ", ".join(str(one.where.field).replace("_", " ") for one in own)
        console.print(Text(f"  pass: {check.removeprefix('sampling_')} ({names})", style="dim"))
    for line in contract_lines(result):
        console.print(Text(f"  {line}", style="red" if "FAIL" in line else "dim"))
    print_verdict(report, console, english)


def headline(result: SamplingResult, scope: Scope) -> str:
    """The verdict in one sentence, with what it speaks of, how many groups it took and why it ended there."""
    config, groups = result.config, result.counts["groups"]
    arms = f"{config.experiment} against {config.baseline} at fixed weights ({text.short_scope(scope)})"
    size = f"{config.group_size} samples a group in each arm"
    sentence = f"{result.judgement.verdict.value}: {arms}, {size}; {result.stopped}."
    undecided = [one for one in marginal(result) if one.status is Status.INCONCLUSIVE]
    needed = [int(one.evidence["groups_needed"]) for one in undecided if one.evidence.get("groups_needed")]
    if result.judgement.verdict is not Verdict.INCONCLUSIVE or not needed:
        return sentence
    more = max(max(needed) - groups, groups // 10)
    how = "--resume with a larger --max-groups goes on"
    if config.fixed is not None:
        again = "recordings of more groups are" if config.engine == "recorded" else "a larger --fixed is"
        how = f"{again} a new experiment, for another --out"
    return f"{sentence} About {quantity(more, 'more groups')} would show parity if the arms are equal; {how}."


def marginal(result: SamplingResult) -> list[Finding]:
    """The findings on means."""
    return [finding for finding in result.findings if finding.check == "sampling_marginal"]


def others(result: SamplingResult) -> list[Finding]:
    """The other findings on sampling, failures first."""
    found = [one for one in result.findings if one.level is Level.SAMPLING and one.check != "sampling_marginal"]
    return sorted(found, key=lambda finding: finding.status is not Status.FAIL)


def contract_lines(result: SamplingResult) -> list[str]:
    """The contract in a few lines: how many checks pass, each that does not, what was not compared."""
    checks = by_check([finding for finding in result.findings if finding.level is Level.CONTRACT])
    states = {name: state(own) for name, own in checks.items()}
    lines = [f"L0 contract: {sum(one == 'pass' for one in states.values())} of {quantity(len(states), 'checks')} pass"]
    for name, own in checks.items():
        if states[name] not in ("pass", "not compared"):
            cases = [one for one in own if one.status in (Status.FAIL, Status.INCONCLUSIVE)]
            lines += [f"{states[name]}: {name}{text.at(one)}: {one.message}" for one in cases[:3]]
    missing = [name for name, one in states.items() if one == "not compared"]
    return [*lines, f"not compared: {', '.join(missing)}"] if missing else lines


def cells(finding: Finding) -> tuple[str, ...]:
    """The cells of a finding on a mean, in the order of the table."""
    evidence: Mapping[str, Any] = finding.evidence
    name = str(finding.where.field)
    if "estimate" not in evidence:
        return (name, *[text.NOT_COMPARED] * 5, text.status(finding.status))
    within = evidence["smallest_margin"]
    return (
        name.replace("_", " "),
        text.number(evidence["baseline"]),
        text.number(evidence["experiment"]),
        text.number(evidence["estimate"], True),
        "" if within is None else f"±{text.number(within)}",
        "" if evidence["margin"] is None else f"±{text.number(evidence['margin'])}",
        text.status(finding.status),
    )
