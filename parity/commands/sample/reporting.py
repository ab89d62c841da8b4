"""What a sampling came to as the report that every comparison has, with the samples of both arms block by block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from parity.commands.sample.store import SamplingStore
from parity.metrics import rollout_metrics
from parity.records.exchanges import Exchange
from parity.records.margins import SAMPLING
from parity.records.provenance import versions
from parity.records.samples import Rollout
from parity.records.sampling import BLOCK
from parity.report import html
from parity.report.document import Report, build_report
from parity.report.html import PageEvidence, PairOfRuns, SampleRows
from parity.report.runs import RunRecord
from parity.report.sampling import SamplingResult, headline

DESIGN = "sampled"


def report_of(result: SamplingResult, directory: Path, command: str) -> tuple[Report, PageEvidence]:
    """The report of a sampling on disk, and the samples that its page shows; a step is a block of prompts.

    Raises:
        InputError: A file cannot be read.
    """
    config, store = result.config, SamplingStore(directory, result.config)
    rollouts = [store.rollout(arm) for arm in config.arms]
    exchanges = [list(store.exchanges(arm)) for arm in config.arms]
    facts = {
        "baseline": config.baseline,
        "experiment": config.experiment,
        "engine": config.engine,
        "model": config.model_path or "",
        "task": config.prompts or config.task,
        "counts": result.counts,
        "margins": config.margins,
        "default_margins": [name for name, margin in config.margins.items() if SAMPLING.get(name) == margin],
        "commands": [command],
        "versions": versions(),
        "config": config.to_json(),
    }
    runs = [
        RunRecord(arm, arm, config.seed, DESIGN, [{"step": 0, **_measured(rollout)}], {"status": "completed"}, [])
        for arm, rollout in zip(config.arms, rollouts, strict=True)
        if len(rollout)
    ]
    report = build_report(facts, runs, result.findings, result.judgement, headline(result))
    blocks = -(-result.counts["groups"] // BLOCK)
    pair = PairOfRuns(
        DESIGN,
        config.seed,
        config.arms,
        blocks,
        partial(_samples, config.arms, rollouts),
        partial(_requests, exchanges),
    )
    return report, PageEvidence(str(directory), {}, (pair,), html.pack(report, (pair,)), ())


def _measured(rollout: Rollout) -> dict[str, float]:
    """What all samples of an arm measure, but for times."""
    measured = rollout_metrics(rollout, 1.0)
    return {name: value for name, value in measured.items() if not name.startswith("perf/")}


def _samples(arms: Sequence[str], rollouts: Sequence[Rollout], side: int, block: int) -> Iterable[SampleRows]:
    rows = np.flatnonzero(rollouts[side].integers("group_index") // BLOCK == block)
    if len(rows):
        part = Rollout(rollouts[side].table.take(pa.array(rows, pa.int64())))
        yield SampleRows(f"{arms[side]}: groups.samples.jsonl", rows.tolist(), part)


def _requests(exchanges: Sequence[Sequence[Exchange]], side: int, block: int) -> Iterable[Exchange]:
    return (exchange for exchange in exchanges[side] if (exchange.group_index or 0) // BLOCK == block)
