"""How much metrics vary: between samples of a prompt, between prompts and between runs, stated or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.evidence.sampling.arms import sample_values
from parity.evidence.training.equivalence import summary_of
from parity.metrics import RunCurves, align
from parity.records.margins import METRICS, SAMPLING, WHOLE_RUNS
from parity.records.samples import Rollout

RUN_METRICS: Mapping[str, str] = {name: METRICS[name].curve or name for name in WHOLE_RUNS}
"""The curve of each metric that is compared between whole runs."""


@dataclass(frozen=True, slots=True)
class MetricSpread:
    """How much one metric varies, in its own unit; None for what is not known.

    Attributes:
        metric: Its name, as in `parity.records.margins`.
        mean: Over all samples.
        group: Standard deviation of the difference of two arms' means over the same prompt.
        prompt: Standard deviation of a group's mean, prompts included.
        run: Standard deviation between runs of one arm, of the mean over the later half.
        cap: The largest value there can be, where samples say so.
        source: Where the numbers are from.
    """

    metric: str
    mean: float | None = None
    group: float | None = None
    prompt: float | None = None
    run: float | None = None
    cap: float | None = None
    source: str = "stated"


def group_spreads(rollouts: Sequence[Rollout], source: str) -> dict[str, MetricSpread]:
    """How much each metric of samples varies inside and between prompt groups, from groups of two or more.

    The arms' means over one prompt differ with variance 2 / n times the variance inside a group, n samples each.
    """
    found = {}
    for metric in SAMPLING:
        groups = [group for rollout in rollouts for group in _groups(rollout, metric) if len(group) > 1]
        if metric == "constant_reward" or len(groups) < 2:
            continue
        size = float(np.mean([len(group) for group in groups]))
        inside = float(np.mean([group.var(ddof=1) for group in groups]))
        means = np.array([group.mean() for group in groups])
        spread = float(np.sqrt(2 * inside / size)), float(means.std(ddof=1))
        cap = _cap(rollouts) if metric == "response_length" else None
        found[metric] = MetricSpread(metric, float(means.mean()), *spread, None, cap, f"{source}, {len(groups)} groups")
    return found


def _cap(rollouts: Sequence[Rollout]) -> float | None:
    """The most tokens that a response could have, where every sample says so."""
    caps = [rollout.numbers("max_new_tokens") for rollout in rollouts]
    if not all(known.all() for _, known in caps):
        return None
    return float(max(values.max() for values, _ in caps if len(values)))


def _groups(rollout: Rollout, metric: str) -> list[Any]:
    """The values of each group of a rollout; nothing where a sample lacks the metric."""
    values = sample_values(rollout, metric)
    if values is None or not len(values):
        return []
    keys = np.stack([rollout.integers("rollout_id"), rollout.integers("group_index")], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    return np.split(values[order], np.cumsum(np.bincount(group.ravel()))[:-1])


def run_spreads(runs: Sequence[RunCurves], source: str) -> dict[str, MetricSpread]:
    """How much the number that stands for a run varies between runs of one arm, by metric."""
    found = {}
    for metric, name in RUN_METRICS.items():
        curves = [run[name] for run in runs if name in run]
        if len(curves) < 2:
            continue
        aligned = align(curves)
        values = summary_of(aligned)[1](aligned) if len(aligned.steps) else np.zeros(0)
        if len(values) and np.isfinite(values).all():
            said = f"{source}, {len(curves)} runs"
            spread = float(values.std(ddof=1))
            found[metric] = MetricSpread(metric, float(values.mean()), run=spread, source=said)
    return found


def merged(first: Mapping[str, MetricSpread], second: Mapping[str, MetricSpread]) -> dict[str, MetricSpread]:
    """What either knows of each metric; where both do, the first."""
    result = {}
    for metric in [*first, *(name for name in second if name not in first)]:
        ours, theirs = first.get(metric, MetricSpread(metric)), second.get(metric, MetricSpread(metric))
        known = {
            name: getattr(ours, name) if getattr(ours, name) is not None else getattr(theirs, name)
            for name in ("mean", "group", "prompt", "run", "cap")
        }
        sources = dict.fromkeys(one[metric].source for one in (first, second) if metric in one)
        result[metric] = MetricSpread(metric, **known, source="; ".join(sources))
    return result
