"""The result of sampling at fixed weights, on a terminal and as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.findings import Finding, Judgement, Level, Status, Verdict, quantity
from parity.records.sampling import SamplingConfig
from parity.records.store import write_atomically
from parity.report import text
from parity.report.checks import by_check, state
from parity.report.colours import COLOURS, STATUS_COLOURS
from parity.report.junit import render_findings
from parity.report.markdown import escape


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

    def to_json(self) -> dict[str, Any]:
        """The result in the format of `--json`."""
        return {
            "verdict": self.judgement.verdict.value,
            "counts": dict(self.counts),
            "stopped": self.stopped,
            "reasons": list(self.judgement.reasons),
            "findings": [finding.to_json() for finding in self.findings],
            "config": self.config.to_json(),
        }


COLUMNS = ("metric", "baseline", "experiment", "difference", "equal within", "margin", "finding")


def print_sampling(result: SamplingResult, console: Console) -> None:
    """Prints the metrics, what else was tested, what the contract says, and the verdict."""
    *columns, last = COLUMNS
    table = Table(*columns, Column(last, no_wrap=True), box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for finding in marginal(result):
        table.add_row(*map(Text, cells(finding)), style=STATUS_COLOURS[finding.status])
    console.print(table)
    passing = [finding for finding in others(result) if finding.status is Status.PASS]
    for finding in others(result):
        if finding.status is not Status.PASS:
            line = f"  {text.status(finding.status)}: {finding.check.removeprefix('sampling_')} {finding.message}"
            console.print(Text(line, style=STATUS_COLOURS[finding.status]))
    for check, own in by_check(passing).items():
        names = ", ".join(str(one.where.field).replace("_", " ") for one in own)
        console.print(Text(f"  pass: {check.removeprefix('sampling_')} ({names})", style="dim"))
    for line in contract_lines(result):
        console.print(Text(f"  {line}", style="red" if "FAIL" in line else "dim"))
    console.print(Text(headline(result), style=f"bold {COLOURS[result.judgement.verdict]}"))


def write_sampling(result: SamplingResult, directory: Path) -> Path:
    """Writes report.json, junit.xml and report.md; returns the path of the last."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "report.json", orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2))
    junit = render_findings(f"parity sample: {result.judgement.verdict.value}", result.findings)
    write_atomically(directory / "junit.xml", junit)
    write_atomically(directory / "report.md", render(result).encode())
    return directory / "report.md"


def render(result: SamplingResult) -> str:
    """The result as Markdown; what another program wrote is escaped."""
    found = [(one.check, text.status(one.status), one.message) for one in others(result)]
    blocks = [
        f"# Sampling at fixed weights: {result.judgement.verdict.value}",
        f"**{escape(headline(result))}**",
        "## Means by prompt group",
        _table(COLUMNS, [cells(finding) for finding in marginal(result)]),
        "## Independence, slots, shape and log-probs",
        _table(("check", "finding", "what was found"), found),
        "## Contract",
        "\n".join(f"- {escape(line)}" for line in contract_lines(result)),
        "## What was asked",
        _table(("setting", "value"), [(name, _setting(value)) for name, value in result.config.to_json().items()]),
    ]
    return "\n\n".join(blocks) + "\n"


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_setting(one)}" for name, one in value.items())
    return "not given" if value in (None, "") else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def headline(result: SamplingResult) -> str:
    """The verdict in one sentence, with how many groups it took and why it ended there."""
    config, groups = result.config, result.counts["groups"]
    size = f"{quantity(groups, 'groups')} of {config.group_size} in each arm"
    said = f"{config.experiment} against {config.baseline} at fixed weights, {size}"
    sentence = f"{result.judgement.verdict.value}: {said}; {result.stopped}."
    undecided = [one for one in marginal(result) if one.status is Status.INCONCLUSIVE]
    needed = [int(one.evidence["groups_needed"]) for one in undecided if one.evidence.get("groups_needed")]
    if result.judgement.verdict is not Verdict.INCONCLUSIVE or not needed:
        return sentence
    more = max(max(needed) - groups, groups // 10)
    how = "--resume with a larger --max-groups goes on" if config.fixed is None else "a larger --fixed is a new design"
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
    """The cells of a finding on a mean, under `COLUMNS`."""
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
