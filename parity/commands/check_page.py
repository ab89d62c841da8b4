"""`parity check --html`: the samples of any dump as a page, step by step, two data sets side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from parity.commands.check import datasets_of, names_of
from parity.findings import Judgement
from parity.metrics import sample_metrics
from parity.records.provenance import versions
from parity.records.samples import Rollout
from parity.report import html
from parity.report.checks import CheckResult, headline
from parity.report.document import Report, build_report
from parity.report.html import PageEvidence, PairOfRuns, SampleRows
from parity.report.runs import RunRecord
from parity.sources.directories import find_sources
from parity.sources.registry import Source

DUMP = "dump"
HELD_BYTES = 500_000_000
"""Of samples in memory while a page is made; steps with a finding are held whatever the others take."""
MOST_STEPS = 100_000

Held = dict[int, list[SampleRows]]
"""Samples by step."""


def report_of(result: CheckResult, command: str, runs: Sequence[RunRecord] = (), names: Sequence[str] = ()) -> Report:
    """The report of a check, of one side, or of two where there are two data sets with samples."""
    findings = result.findings if len(names) != 1 else [finding.in_run(names[0]) for finding in result.findings]
    facts = {
        "baseline": names[0] if names else "samples",
        "experiment": names[1] if len(names) == 2 else "",
        "counts": result.counts,
        "commands": [command],
        "versions": versions(),
    }
    return build_report(facts, runs, findings, Judgement(result.verdict, ()), headline(result))


def page_of(sources: Sequence[str], group_size: int | None, result: CheckResult, command: str) -> bytes:
    """A page with the samples of some paths and what their check found.

    Raises:
        InputError: A file cannot be read.
    """
    found = find_sources([Path(source) for source in sources], group_size).sources
    readable = {path for path, _ in result.sources} - {omission.path for omission in result.omissions}
    datasets = datasets_of([source for source in found if source.samples and source.path in readable])
    names = names_of([directory for directory, _ in datasets])
    failing = {finding.where.rollout_id for finding in result.findings if finding.fails}
    held = [_hold(of_set, failing, HELD_BYTES // max(1, len(datasets))) for _, of_set in datasets]
    runs = [
        RunRecord(name, name, number, DUMP, metrics_of(steps), {}, [])
        for number, (name, steps) in enumerate(zip(names, held, strict=True))
    ]
    report = report_of(result, command, runs, names)
    pairs = _pairs(names, held)
    evidence = PageEvidence(", ".join(sources), {}, pairs, html.pack(report, pairs), ())
    return html.render(report, evidence)


def _hold(sources: Sequence[Source], failing: set[int | None], most: int) -> Held:
    """Samples by step; from `most` bytes on, only of steps with a finding."""
    held: Held = {}
    size = 0
    for source in sources:
        assert source.samples is not None
        rows = 0
        for rollout in source.samples():
            steps = np.maximum(rollout.integers("rollout_id"), 0)
            for step in np.unique(steps[steps < MOST_STEPS]).tolist():
                at = np.flatnonzero(steps == step)
                if size < most or step in failing:
                    part = Rollout(rollout.table.take(pa.array(at, pa.int64())))
                    size += part.table.nbytes
                    held.setdefault(step, []).append(SampleRows(str(source.path), (rows + at).tolist(), part))
            rows += len(rollout)
    return held


def metrics_of(held: Held) -> list[dict[str, float]]:
    """What the samples of each step measure; a dump has no times."""
    lines = []
    for step, parts in sorted(held.items()):
        measured = sample_metrics(Rollout.concatenate([part.rollout for part in parts]))
        lines.append({"step": step, **measured})
    return lines


def _pairs(names: Sequence[str], held: Sequence[Held]) -> tuple[PairOfRuns, ...]:
    steps = [max(of_set, default=-1) + 1 for of_set in held]
    if len(names) == 2:
        return (PairOfRuns(DUMP, 0, tuple(names), max(steps), partial(_side, held)),)
    return tuple(
        PairOfRuns(DUMP, number, (name,), steps[number], partial(_side, [of_set]), sides=1)
        for number, (name, of_set) in enumerate(zip(names, held, strict=True))
    )


def _side(held: Sequence[Held], side: int, step: int) -> Sequence[SampleRows]:
    return held[side].get(step, ()) if side < len(held) else ()
