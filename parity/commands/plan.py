"""`parity plan`: from margins, and from what is known of how much metrics vary, to what each design takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.errors import NotRecognised, UsageError
from parity.evidence.planning import Plan, Setting, plan
from parity.evidence.spreads import MetricSpread, group_spreads, merged, run_spreads
from parity.findings import Progress
from parity.sources.curves.names import STEP_TIME
from parity.sources.directories import find_sources
from parity.sources.registry import read_runs


def plan_designs(
    margins: Mapping[str, float],
    stated: Mapping[str, Mapping[str, float]],
    history: Sequence[str],
    setting: Setting,
    seed: int,
    watcher: Progress,
) -> Plan:
    """What each design takes to show some margins.

    Args:
        margins: The largest difference that does not matter, by metric.
        stated: Standard deviations of groups (`group`) and between runs (`run`), and means (`mean`), by metric.
        history: Sources of samples and curves that the others are measured in.
        setting: What is planned with.
        seed: Of the simulations.
        watcher: Told of every source: its number, how many there are, its name.

    Raises:
        UsageError: A source has neither samples nor curves, or a number is out of its range.
        InputError: A source cannot be read.
    """
    spreads: Mapping[str, MetricSpread] = {}
    for field, values in stated.items():
        for metric, value in values.items():
            known: dict[str, Any] = {field: value}
            spreads = merged(spreads, {metric: MetricSpread(metric, **known)})
    if history:
        known_spreads, seconds = measured(history, setting.group_size, watcher)
        spreads = merged(spreads, known_spreads)
        if setting.seconds_per_step is None:
            setting = replace(setting, seconds_per_step=seconds)
    return plan(margins, spreads, setting, np.random.default_rng(seed))


def measured(
    history: Sequence[str], group_size: int, watcher: Progress
) -> tuple[Mapping[str, MetricSpread], float | None]:
    """The spreads in what there is, samples and curves, and the median seconds of a step where curves have them."""
    rollouts, runs = [], []
    for number, source in enumerate(history):
        watcher(number, len(history), source)
        try:
            sources = find_sources([Path(source)], group_size).sources if Path(source).exists() else ()
        except NotRecognised:
            sources = ()
        parts = [part for found in sources if found.samples for part in found.samples()]
        try:
            curves = [run.curves for run in read_runs(source)]
        except NotRecognised:
            curves = []
        if not parts and not curves:
            raise UsageError(f"--history {source}: neither samples nor curves are in it")
        rollouts += parts
        runs += curves
    names = ", ".join(history[:2]) + (" and more" if len(history) > 2 else "")
    times = [run[STEP_TIME].values for run in runs if STEP_TIME in run]
    finite = np.concatenate([values[np.isfinite(values) & (values > 0)] for values in times]) if times else np.empty(0)
    seconds = float(np.median(finite)) if finite.size else None
    return merged(group_spreads(rollouts, names), run_spreads(runs, names)), seconds
