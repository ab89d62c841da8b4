"""What a sampling came to as the report that every comparison has, with the samples of both arms block by block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from parity.commands.sample.store import SamplingStore
from parity.metrics import sample_metrics
from parity.records.exchanges import Exchange
from parity.records.margins import SAMPLING
from parity.records.samples import Rollout
from parity.records.sampling import BLOCK
from parity.report import html
from parity.report.document import Report, build_report
from parity.report.html import PageEvidence, PairOfRuns, SampleRows
from parity.report.runs import RunRecord
from parity.report.sampling import SamplingResult, headline
from parity.report.scope import FIXED_WEIGHTS, SAMPLED


def report_of(result: SamplingResult, directory: Path) -> tuple[Report, PageEvidence]:
    """The report of a sampling on disk, and the samples that its page shows; a step is a block of prompts.

    Raises:
        InputError: A file cannot be read.
    """
    config, store = result.config, SamplingStore(directory, result.config)
    rollouts = [store.rollout(arm) for arm in config.arms]
    exchanges = [list(store.exchanges(arm)) for arm in config.arms]
    recorded = store.facts()
    facts = {
        **recorded,
        "baseline": config.baseline,
        "experiment": config.experiment,
        "engine": recorded.get("engines") or recorded["config"]["engine"],
        "trainer": FIXED_WEIGHTS,
        "task": config.prompts or config.task,
        "seeds": [config.seed],
        "counts": result.counts,
        "margins": config.margins,
        "default_margins": [name for name, margin in SAMPLING.items() if config.margins.get(name, margin) == margin],
        "commands": [recorded["command"]] if recorded.get("command") else [],
    }
    runs = [
        RunRecord(arm, arm, config.seed, SAMPLED, [{"step": 0, **sample_metrics(rollout)}], {"status": "completed"}, [])
        for arm, rollout in zip(config.arms, rollouts, strict=True)
        if len(rollout)
    ]
    report = build_report(facts, runs, result.findings, result.judgement)
    report = replace(report, headline=headline(result, report.scope))
    blocks = -(-result.counts["groups"] // BLOCK)
    pair = PairOfRuns(
        SAMPLED,
        config.seed,
        config.arms,
        blocks,
        partial(_samples, config.arms, rollouts),
        partial(_requests, exchanges),
    )
    return report, PageEvidence(str(directory), {}, (pair,), html.pack(report, (pair,)), ())


def _samples(arms: Sequence[str], rollouts: Sequence[Rollout], side: int, block: int) -> Iterable[SampleRows]:
    rows = np.flatnonzero(rollouts[side].integers("group_index") // BLOCK == block)
    if len(rows):
        part = Rollout(rollouts[side].table.take(pa.array(rows, pa.int64())))
        yield SampleRows(f"{arms[side]}: groups.samples.jsonl", rows.tolist(), part)


def _requests(exchanges: Sequence[Sequence[Exchange]], side: int, block: int) -> Iterable[Exchange]:
    return (exchange for exchange in exchanges[side] if (exchange.group_index or 0) // BLOCK == block)
