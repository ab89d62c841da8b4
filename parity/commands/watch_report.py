"""What a host's recording came to as the report that every comparison has, with the samples of both arms by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from parity.commands.check import check_sources
from parity.commands.check_page import DUMP, Held, metrics_of
from parity.commands.watch import EXCHANGES, SAMPLES, Watch, folders_of, of_last, unread_findings
from parity.findings import Finding, Level, Message, Status, judge, quantity
from parity.records.exchanges import Exchange
from parity.records.json_lines import read_appended
from parity.records.provenance import versions
from parity.records.samples import Rollout
from parity.report import html
from parity.report.checks import CheckResult
from parity.report.document import Report, build_report
from parity.report.html import PageEvidence, PairOfRuns, SampleRows
from parity.report.runs import RunRecord
from parity.sources.dumps.sample_lines import samples_of_lines
from parity.stats import margins_in_run, rows_of_drawn_arm


def reports_of(directory: Path, seen: Watch, command: str) -> list[tuple[Report, PageEvidence]]:
    """The reports of a recording, one for each arm that is compared with the baseline, and one where there is none.

    Each has the whole contract, checked again from the files, and the evidence of `seen`.

    Raises:
        InputError: A file cannot be read.
    """
    checked = check_sources([str(directory)])
    held, sent = _read(directory)
    if not seen.findings:
        return [_report(directory, seen, [], command, checked, held, sent)]
    return [
        _report(directory, seen.against(arm), of_arm, command, checked, held, sent)
        for arm, of_arm in seen.findings.items()
    ]


def _report(
    directory: Path,
    seen: Watch,
    of_arm: Sequence[Finding],
    command: str,
    checked: CheckResult,
    held: Held,
    sent: dict[int, list[Exchange]],
) -> tuple[Report, PageEvidence]:
    name = directory.absolute().name
    findings = [_in_run(of_last(seen.step, finding), name) for finding in checked.findings] + unread_findings(checked)
    findings += of_arm
    headline = ""
    if not seen.trajectories:
        message = Message(
            "no group's arm was drawn between two arms in {steps}: assign groups by probe or switchback",
            steps=quantity(seen.steps, "steps"),
        )
        findings.append(Finding("trajectory_evidence", Level.SAMPLING, Status.NOT_COMPARED, message))
        reason = next((finding.message for finding in findings if finding.fails), message)
        headline = Message("{verdict}: {reason}", verdict=judge(findings).verdict.words, reason=reason)
    design = next((trajectory.policy for trajectory in seen.trajectories.values()), DUMP)
    arms = seen.arms[:2] or (name, "")
    facts = {
        "baseline": arms[0],
        "experiment": arms[1],
        "counts": checked.counts,
        "margins": seen.margins,
        "default_margins": [metric for metric, margin in seen.margins.items() if margins_in_run({})[metric] == margin],
        "commands": [command],
        "versions": versions(),
    }
    sides = [held] if not seen.arms else [_of_arm(held, arm) for arm in arms]
    by_arm = {} if not seen.arms else dict(zip(arms, map(metrics_of, sides), strict=True))
    run = RunRecord(name, design if by_arm else arms[0], 0, design, metrics_of(held), {}, [], by_arm)
    report = replace(build_report(facts, [run] if held else [], findings, judge(findings)), headline=headline)
    pair = PairOfRuns(
        design,
        0,
        (name,),
        max(held, default=-1) + 1,
        lambda side, step: sides[side].get(step, ()) if side < len(sides) else (),
        lambda side, step: () if side else sent.get(step, ()),
        sides=len(sides),
    )
    return report, PageEvidence(str(directory), {}, (pair,), html.pack(report, (pair,)), ())


def _read(directory: Path) -> tuple[Held, dict[int, list[Exchange]]]:
    """The samples and requests of each step, without a last line that is still being written."""
    held: Held = {}
    sent: dict[int, list[Exchange]] = {}
    for folder in folders_of(directory):
        if (path := folder / SAMPLES).exists():
            steps: dict[int, list[int]] = {}
            lines = read_appended(path, 0)[0]
            for number, (_, row) in enumerate(lines):
                steps.setdefault(row["rollout_id"], []).append(number)
            for step, rows in steps.items():
                part = SampleRows(str(path), rows, samples_of_lines([lines[row] for row in rows]))
                held.setdefault(step, []).append(part)
        if (path := folder / EXCHANGES).exists():
            for place, row in read_appended(path, 0)[0]:
                exchange = Exchange.from_json({**row, "response": None}, place)
                sent.setdefault(row["rollout_id"], []).append(exchange)
    return held, sent


def _of_arm(held: Held, arm: str) -> Held:
    """The samples that were drawn to an arm, of those trained on and of those that are only compared."""
    of_arm: Held = {}
    for step, parts in held.items():
        for part in parts:
            if len(rows := rows_of_drawn_arm(part.rollout, arm)):
                drawn = Rollout(part.rollout.table.take(pa.array(rows)))
                of_arm.setdefault(step, []).append(SampleRows(part.file, [part.rows[row] for row in rows], drawn))
    return of_arm


def _in_run(finding: Finding, name: str) -> Finding:
    """The finding at its place in the run; a recorder keeps what is only compared in a folder of its own."""
    of_all = finding.where.run in (None, name)
    return finding.in_run(name if of_all else f"{name}/{finding.where.run}")
