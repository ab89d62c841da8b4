"""What is measured: the metrics of one rollout, curves of a run, and runs brought to common steps. No inference here.

Names are slime's (`slime/utils/metric_utils.py`, `slime/ray/rollout.py` and `log_rollout_data` of its training
backends), so that curves of any trainer that reports under them lie side by side. Where slime has no name, these are
added in its manner: `rollout/samples`, `rollout/groups`, `rollout/group_reward_std`, `rollout/finish_reason/<reason>`,
`rollout/rollout_log_probs_len/mean` and `rollout/missing/<column>`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.errors import InputError
from parity.findings import Message, quantity
from parity.records.samples import FINISH_REASONS, Rollout

Floats = npt.NDArray[np.float64]


def rollout_metrics(rollout: Rollout, seconds: float, engines: int | None = None) -> dict[str, float]:
    """The metrics of one rollout by name; a metric whose column no sample has is absent, never zero.

    A column that only some samples have is averaged over those, and `rollout/missing/<column>` counts the others.
    Response lengths count trained tokens (the sum of the loss mask where there is one), as slime's effective length.
    `rollout/rollout_log_probs` is the mean over samples of each sample's mean over trained tokens, in nats.
    `rollout/group_reward_std` is the mean over groups of the standard deviation with n - 1, over groups of two or more.
    `perf/tokens_per_gpu_per_sec` counts each engine as one GPU.

    Args:
        rollout: The samples of one training step.
        seconds: Wall time from the first request to the last answer.
        engines: How many engines there were, those that were sent nothing included; by default those in `engine_id`.

    Raises:
        InputError: The rollout has no samples, or `seconds` is not positive.
    """
    if len(rollout) == 0:
        raise InputError("a rollout without samples has no metrics")
    if not seconds > 0:
        raise InputError(f"a rollout of {quantity(len(rollout), 'samples')} cannot take {seconds} seconds")
    groups = _group_of_sample(rollout)
    metrics = {
        "rollout/samples": float(len(rollout)),
        "rollout/groups": float(groups.max() + 1),
        "perf/rollout_time": float(seconds),
    }
    metrics |= _length_metrics(rollout, seconds, engines or len(set(rollout.strings("engine_id"))))
    metrics |= _reward_metrics(rollout, groups)
    metrics |= _finish_metrics(rollout)
    metrics |= _log_prob_metrics(rollout)
    metrics |= _cache_metrics(rollout)
    return metrics


def sample_metrics(rollout: Rollout) -> dict[str, float]:
    """The metrics of a rollout's samples alone, where nobody knows the time that they took.

    Raises:
        InputError: The rollout has no samples.
    """
    return {name: value for name, value in rollout_metrics(rollout, 1.0).items() if not name.startswith("perf/")}


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly engines were loaded: population coefficient of variation, and the largest over the mean."""

    cv: float
    max_over_mean: float


def spread(values: Sequence[float | None]) -> Spread | None:
    """The spread over engines; `None` where one is not known, with fewer than two engines or without any load."""
    if len(values) < 2 or None in values or not sum(filter(None, values)) > 0:
        return None
    array = np.asarray(values, dtype=np.float64)
    return Spread(float(array.std() / array.mean()), float(array.max() / array.mean()))


def balance_metrics(rollout: Rollout, requests: Iterable[str | None], engines: Sequence[str]) -> dict[str, float]:
    """How evenly a rollout fell on its engines: of requests and of response tokens, the spread over engines.

    `perf/engine_requests/cv` and `perf/engine_requests/max_over_mean` are those of `spread` over the requests whose
    engine is known, and are absent where `spread` has none; `perf/engine_requests/unknown` counts the other requests,
    where there are some. `perf/engine_tokens/...` are the same of response tokens.

    Args:
        rollout: The samples of one training step, each with its `engine_id`.
        requests: The engine of each request, as far as it is known.
        engines: The names of all engines, those that were sent nothing included.
    """
    names = np.asarray(engines, dtype=object)[:, None]  # (engines, 1), against which requests and samples broadcast
    engine_of_request = np.asarray(list(requests), dtype=object)  # (requests,)
    lengths = rollout.ragged("output_ids").lengths  # (samples,)
    tokens = np.where(names == rollout.strings("engine_id"), lengths, 0).sum(axis=1)  # (engines,)
    metrics = {}
    for kind, loads, total in (
        ("requests", (names == engine_of_request).sum(axis=1), len(engine_of_request)),
        ("tokens", tokens, int(lengths.sum())),
    ):
        if unknown := total - int(loads.sum()):
            metrics[f"perf/engine_{kind}/unknown"] = float(unknown)
        if uneven := spread(loads.tolist()):
            metrics[f"perf/engine_{kind}/cv"] = uneven.cv
            metrics[f"perf/engine_{kind}/max_over_mean"] = uneven.max_over_mean
    return metrics


def _group_of_sample(rollout: Rollout) -> npt.NDArray[np.int64]:
    """The number of each sample's group, (rows,), from 0 up without gaps; a group is a (rollout_id, group_index)."""
    keys = np.stack([rollout.integers("rollout_id"), rollout.integers("group_index")], axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def _known(rollout: Rollout, name: str) -> tuple[Floats, npt.NDArray[np.bool_], dict[str, float]]:
    """A numeric column, which rows have it, and the count of the rows that lack it where only some do."""
    values, known = rollout.numbers(name)
    return values, known, _missing(name, known)


def _missing(name: str, known: npt.NDArray[np.bool_]) -> dict[str, float]:
    count = int(np.sum(~known))
    return {f"rollout/missing/{name}": float(count)} if 0 < count < len(known) else {}


def _length_metrics(rollout: Rollout, seconds: float, engines: int) -> dict[str, float]:
    lengths, known, metrics = _known(rollout, "response_length")
    if not known.any():
        ids = rollout.ragged("output_ids")
        lengths, known = ids.lengths.astype(np.float64), ids.valid
        metrics = _missing("output_ids", known)
    mask = rollout.ragged("loss_mask")
    trained = np.bincount(mask.rows_of_values, weights=mask.values, minlength=len(rollout))  # tokens a sample, (rows,)
    lengths = np.where(mask.valid, trained, lengths)[known | mask.valid]
    if lengths.size == 0:
        return metrics
    return metrics | {
        "rollout/response_len/mean": float(lengths.mean()),
        "rollout/response_len/median": float(np.median(lengths)),
        "rollout/response_len/max": float(lengths.max()),
        "rollout/response_len/min": float(lengths.min()),
        "perf/tokens_per_gpu_per_sec": float(lengths.sum() / seconds / engines),
        "perf/longest_sample_tokens_per_sec": float(lengths.max() / seconds),
    }


def _reward_metrics(rollout: Rollout, groups: npt.NDArray[np.int64]) -> dict[str, float]:
    advantages, known, metrics = _known(rollout, "advantage")
    if known.any():
        metrics["rollout/advantages"] = float(advantages[known].mean())
    rewards, known, missing = _known(rollout, "reward")
    metrics |= missing
    if not known.any():
        return metrics
    metrics["rollout/raw_reward"] = float(rewards[known].mean())
    # Groups are numbered again without those that have no reward; sizes, means and variances are (groups,).
    rewards, groups = rewards[known], np.unique(groups[known], return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(groups)
    means = np.bincount(groups, weights=rewards) / sizes
    variances = np.bincount(groups, weights=(rewards - means[groups]) ** 2) / np.maximum(sizes - 1, 1)
    if (sizes > 1).any():
        metrics["rollout/group_reward_std"] = float(np.sqrt(variances[sizes > 1]).mean())
    # Sorted by group, then by reward: a group's first and last entries are its lowest and highest reward.
    order = np.lexsort((rewards, groups))
    ends = np.cumsum(sizes)
    lowest, highest = rewards[order][ends - sizes], rewards[order][ends - 1]
    for value, count in zip(*np.unique(np.round(lowest[lowest == highest], 1), return_counts=True), strict=True):
        metrics[f"rollout/zero_std/count_{value}"] = float(count)
    return metrics


def _finish_metrics(rollout: Rollout) -> dict[str, float]:
    statuses, status_known = _texts(rollout, "status")
    reasons, reason_known = _texts(rollout, "finish_reason")
    metrics = _missing("status", status_known) | _missing("finish_reason", reason_known)
    if status_known.any():
        metrics["rollout/truncated_ratio"] = float(np.mean(statuses[status_known] == "truncated"))
    elif reason_known.any():
        metrics["rollout/truncated_ratio"] = float(np.mean(reasons[reason_known] == "length"))
    if reason_known.any():
        for reason in sorted({*FINISH_REASONS, *reasons[reason_known]}):
            metrics[f"rollout/finish_reason/{reason}"] = float(np.mean(reasons[reason_known] == reason))
    return metrics


def _texts(rollout: Rollout, name: str) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.bool_]]:
    values = rollout.strings(name)
    return values, np.array([value is not None for value in values], dtype=np.bool_)


def _log_prob_metrics(rollout: Rollout) -> dict[str, float]:
    log_probs, mask = rollout.ragged("logprobs"), rollout.ragged("loss_mask")
    if not log_probs.valid.any():
        return {}
    metrics = _missing("logprobs", log_probs.valid)
    metrics["rollout/rollout_log_probs_len/mean"] = float(log_probs.lengths[log_probs.valid].mean())
    masked = mask.valid & log_probs.valid
    unequal = masked & (mask.lengths != log_probs.lengths)
    if unequal.any():
        return metrics | {"rollout/missing/aligned_loss_mask": float(unequal.sum())}
    # One weight a log-prob, (values,): that of the mask where the sample has one, else 1. Masks and log-probs of these
    # samples have equal lengths, so that both selections have the same order.
    weights = np.ones(len(log_probs.values))
    weights[masked[log_probs.rows_of_values]] = mask.values[masked[mask.rows_of_values]]
    rows = log_probs.rows_of_values
    tokens = np.bincount(rows, weights=weights, minlength=len(rollout))  # trained tokens a sample, (rows,)
    trained = np.where(weights > 0, log_probs.values, 0.0)  # not a product: 0 times an infinite log-prob is NaN
    sums = np.bincount(rows, weights=trained, minlength=len(rollout))
    if (tokens > 0).any():
        metrics["rollout/rollout_log_probs"] = float(np.mean(sums[tokens > 0] / tokens[tokens > 0]))
    return metrics


def _cache_metrics(rollout: Rollout) -> dict[str, float]:
    cached, known, metrics = _known(rollout, "cached_tokens")
    prompt, prompt_known = rollout.numbers("prompt_tokens")
    both = known & prompt_known
    if known.any():
        metrics["rollout/avg_cached_tokens_per_sample"] = float(cached[known].mean())
    if both.any() and prompt[both].sum() > 0:
        metrics["rollout/prefix_cache_hit_rate"] = float(cached[both].sum() / prompt[both].sum())
    return metrics


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run over its training steps.

    Attributes:
        run: The run's name (``native-seed0``).
        metric: The metric's name.
        steps: Training steps, (T,), strictly increasing.
        values: The metric at each step, (T,); NaN where the source held NaN or null.
        rewound: Steps that the source held more than once, because the run was resumed or a line doubled; the last one
            counts.
    """

    run: str
    metric: str
    steps: npt.NDArray[np.int64]
    values: Floats
    rewound: tuple[int, ...] = ()


RunCurves = Mapping[str, Curve]
"""The curves of one run by the metric's name."""


def curves_of_run(run: str, records: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """The curves of a run from its lines of ``metrics.jsonl``, in the order they were written.

    There is one record a step. A step that is not larger than the one before it means that the run went back:
    everything kept from that step on belongs to an abandoned branch and is dropped, never averaged with what replaced
    it. A null value is NaN, since JSON has no NaN.

    Raises:
        InputError: A record has no integer `step`, or a metric is neither a number nor null.
    """
    points: dict[str, dict[int, float]] = {}
    rewound: dict[str, set[int]] = {}
    last = None
    for number, record in enumerate(records, start=1):
        step = record.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise InputError(f"run {run}, metrics record {number}: field 'step' is {step!r}, not an integer")
        if last is not None and step <= last:
            for metric, kept in points.items():
                abandoned = [earlier for earlier in kept if earlier >= step]
                rewound[metric].update(abandoned)
                points[metric] = {earlier: value for earlier, value in kept.items() if earlier < step}
        last = step
        for metric, value in record.items():
            if metric == "step":
                continue
            if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
                raise InputError(f"run {run}, step {step}: metric {metric!r} is {value!r}, not a number")
            points.setdefault(metric, {})[step] = float("nan") if value is None else float(value)
            rewound.setdefault(metric, set())
    return {
        metric: Curve(
            run=run,
            metric=metric,
            steps=np.fromiter(kept, np.int64, len(kept)),
            values=np.fromiter(kept.values(), np.float64, len(kept)),
            rewound=tuple(sorted(rewound[metric])),
        )
        for metric, kept in points.items()
        if kept
    }


@dataclass(frozen=True, slots=True)
class Point:
    """Values that a tracker or a log recorded together.

    Attributes:
        stream: What counts its steps for itself: trainers number rollouts, training steps and evaluations apart.
        step: The step in that stream.
        values: Values by metric.
    """

    stream: str
    step: int
    values: Mapping[str, float]


SAME = 1e-4
"""Relative difference up to which two records of a metric at one step are one value written twice: several processes
reduce and print it, each with its own rounding."""


def curves_of_points(run: str, points: Iterable[Point]) -> dict[str, Curve]:
    """The curves of a run from points of several writers, in the order they were written.

    Records of one step add up, and a value written twice counts once. Another value at an earlier step of a metric
    means that the run went back: what its stream kept from that step on belongs to an abandoned branch and is dropped,
    never averaged with what replaced it. Another value at a metric's last step replaces it.
    """
    kept: dict[str, dict[int, float]] = {}
    last: dict[str, int] = {}
    rewound: dict[str, set[int]] = {}
    metrics_of: dict[str, set[str]] = {}
    for point in points:
        metrics = metrics_of.setdefault(point.stream, set())
        step = point.step
        new = {name: value for name, value in point.values.items() if not _same(kept.get(name, {}).get(step), value)}
        if any(step < last.get(name, step) and step in kept[name] for name in new):
            for name in metrics:
                abandoned = {earlier for earlier in kept[name] if earlier >= step}
                rewound[name] |= abandoned
                kept[name] = {earlier: value for earlier, value in kept[name].items() if earlier < step}
                last[name] = step if abandoned else last[name]
            new = dict(point.values)
        for name, value in new.items():
            metrics.add(name)
            of_metric = kept.setdefault(name, {})
            if step in of_metric:
                rewound[name].add(step)
            rewound.setdefault(name, set())
            of_metric[step] = value
            last[name] = max(step, last.get(name, step))
    return {
        name: Curve(
            run=run,
            metric=name,
            steps=np.array(sorted(of_metric), np.int64),
            values=np.array([of_metric[step] for step in sorted(of_metric)], np.float64),
            rewound=tuple(sorted(rewound[name])),
        )
        for name, of_metric in kept.items()
        if of_metric
    }


def _same(kept: float | None, value: float) -> bool:
    if kept is None:
        return False
    return math.isclose(kept, value, rel_tol=SAME) or (math.isnan(kept) and math.isnan(value))


@dataclass(frozen=True, slots=True)
class AlignedRuns:
    """Runs of one metric at the steps that all of them have.

    Attributes:
        metric: The metric's name.
        runs: Names of the runs, R of them.
        steps: Steps that every run has inside the common range, (T,).
        values: The metric, (R, T).
        common_range: The latest first step and the earliest last step, or None when the runs do not overlap.
        missing: By run, the steps inside the common range that some other run has and this one lacks.
        outside: By run, how many of its steps lie outside the common range and are not used.
        rewound: By run, the steps inside the common range that its source held more than once.
        not_finite: By run, the aligned steps at which the metric is NaN or infinite.
    """

    metric: str
    runs: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    values: Floats
    common_range: tuple[int, int] | None
    missing: Mapping[str, tuple[int, ...]]
    outside: Mapping[str, int]
    rewound: Mapping[str, tuple[int, ...]]
    not_finite: Mapping[str, tuple[int, ...]]

    @property
    def missing_share(self) -> float:
        """The share of the steps of the common range that are lost because some run lacks them."""
        lost = len({step for steps in self.missing.values() for step in steps})
        return lost / (lost + len(self.steps)) if lost else 0.0

    def select(self, runs: Sequence[str]) -> Floats:
        """The rows of the runs named, (len(runs), T)."""
        return self.values[[self.runs.index(run) for run in runs]]

    def notes(self) -> tuple[Message, ...]:
        """One sentence for each way in which a run's steps are not those of the others; empty where there is none."""
        lacking, rewound, not_finite = (
            [{"run": run, "steps": quantity(len(steps), "steps"), "first": steps[0]} for run, steps in by_run.items()]
            for by_run in (self.missing, self.rewound, self.not_finite)
        )
        return (
            *(Message("{run} lacks {steps} of the common range (first {first})", **values) for values in lacking),
            *(
                Message("{run} has {steps} outside the common range, not used", run=run, steps=quantity(count, "steps"))
                for run, count in self.outside.items()
            ),
            *(
                Message("{run} logged {steps} more than once (first {first}); the last counts", **values)
                for values in rewound
            ),
            *(Message("{run} is NaN or infinite at {steps} (first {first})", **values) for values in not_finite),
        )


def align(curves: Sequence[Curve]) -> AlignedRuns:
    """Brings runs of one metric to the steps that all of them have; nothing is interpolated.

    Raises:
        InputError: There are no curves, they are of several metrics, or two are of the same run.
    """
    metrics, runs = sorted({curve.metric for curve in curves}), [curve.run for curve in curves]
    if len(metrics) != 1:
        raise InputError(f"curves of exactly one metric can be aligned, not {metrics}")
    if len(set(runs)) != len(runs):
        raise InputError(f"metric {metrics[0]}: the same run is given more than once among {runs}")
    first, last = max(int(curve.steps[0]) for curve in curves), min(int(curve.steps[-1]) for curve in curves)
    inside = [(curve.steps >= first) & (curve.steps <= last) for curve in curves]
    kept = [set(curve.steps[mask].tolist()) for curve, mask in zip(curves, inside, strict=True)]
    every, shared = set.union(*kept), np.array(sorted(set.intersection(*kept)), dtype=np.int64)
    values = np.stack([curve.values[np.isin(curve.steps, shared)] for curve in curves])
    finite = np.isfinite(values)
    return AlignedRuns(
        metric=metrics[0],
        runs=tuple(runs),
        steps=shared,
        values=values,
        common_range=(first, last) if first <= last else None,
        missing=_not_empty(runs, (tuple(sorted(every - steps)) for steps in kept)),
        outside=_not_empty(runs, (int(np.sum(~mask)) for mask in inside)),
        rewound=_not_empty(runs, (tuple(s for s in curve.rewound if first <= s <= last) for curve in curves)),
        not_finite=_not_empty(runs, (tuple(shared[~row].tolist()) for row in finite)),
    )


def _not_empty(runs: Sequence[str], found: Iterable[Any]) -> dict[str, Any]:
    return {run: item for run, item in zip(runs, found, strict=True) if item}


def late_mean(aligned: AlignedRuns) -> Floats:
    """The mean over the later half of the aligned steps, one number a run, (R,), in the metric's unit."""
    return np.asarray(_late(aligned).mean(axis=1))


def area_under_curve(aligned: AlignedRuns) -> Floats:
    """The trapezoid area over the aligned steps divided by their span, one number a run, (R,), in the metric's unit."""
    if len(aligned.steps) == 1:
        return aligned.values[:, 0]
    widths = np.diff(aligned.steps)
    area = ((aligned.values[:, 1:] + aligned.values[:, :-1]) / 2 * widths).sum(axis=1)
    return np.asarray(area / (aligned.steps[-1] - aligned.steps[0]))


def late_median_log(aligned: AlignedRuns) -> Floats:
    """The median over the later half of the aligned steps of the natural log, one number a run, (R,).

    For metrics with heavy tails that are not negative, such as the gradient norm. Steps of 0, whose groups all have one
    reward, have no gradient and are left out. A run is minus infinity where all are 0, and NaN where a value is
    negative.
    """
    late = _late(aligned)
    medians = [float(np.median(np.log(row[row > 0]))) if (row > 0).any() else -np.inf for row in late]
    return np.where((late < 0).any(axis=1) | np.isnan(late).any(axis=1), np.nan, medians)


def late_median(aligned: AlignedRuns) -> Floats:
    """The median over the later half of the aligned steps, one number a run, (R,), in the metric's unit."""
    return np.asarray(np.median(_late(aligned), axis=1))


def _late(aligned: AlignedRuns) -> Floats:
    return aligned.values[:, len(aligned.steps) // 2 :]
