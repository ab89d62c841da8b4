"""Recorded metrics: whether they are those of the samples, at regular steps, each once, and the same in both arms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from parity.evidence.contract.outcomes import SHOWN, Case, Outcome
from parity.findings import Message, Where, quantity
from parity.metrics import Curve, Floats, RunCurves

TIMED = "perf/"
"""Prefix of the metrics that depend on a clock, which samples do not hold."""

METRIC_TOLERANCE = 1e-6
"""Relative difference that recording a metric in 32 bits may make."""

COUNTED = ("rollout/zero_std/", "rollout/missing/", "rollout_patch/")
"""Prefixes of metrics that are logged only at steps at which what they count happened."""

PER_REQUEST = ("rollout/avg_cached_tokens_per_sample", "rollout/prefix_cache_hit_rate")
"""Metrics of what some engines count for a whole request, so that one way of asking can have them alone."""

_SPARSE = Message("logged only at some steps")
_ONE_WAY = Message("logged only at some steps, or in one way of asking")

TRAIN_ROLLOUT_METRIC = "train/train_rollout_logprob_abs_diff"
LARGEST_TRAIN_ROLLOUT_GAP = 0.1
"""Nats a token, on average over a step: rounding of 16-bit engines stays below a fifth of it, a temperature that one
side forgot is above it."""


def metrics_recomputed(measured: Mapping[int, Mapping[str, float]], records: Iterable[Mapping[str, Any]]) -> Outcome:
    """The metrics recorded for a step are those of the samples of that step."""
    checked, skipped, wrong = 0, 0, list[Case]()
    for record in records:
        step = record.get("step")
        if not isinstance(step, int) or step not in measured:
            skipped += 1
            continue
        again = measured[step]
        for name in sorted(record.keys() & again.keys()):
            if name.startswith(TIMED):
                continue
            checked += 1
            found, wanted = record[name], again[name]
            if not isinstance(found, (int, float)) or not math.isclose(
                found, wanted, rel_tol=METRIC_TOLERANCE, abs_tol=METRIC_TOLERANCE
            ):
                message = Message(
                    "step {step}: {name} is recorded as {found!r}, its samples give {wanted:.6g}",
                    step=step,
                    name=name,
                    found=found,
                    wanted=wanted,
                )
                wrong.append(Case(Where(None, step, None, None, name), wanted, found, message))
    return Outcome(checked, len(wrong), tuple(wrong[:SHOWN]), skipped, Message("no samples of that step"))


def regular_steps(curves: Sequence[RunCurves]) -> Outcome:
    """A metric is logged at regular steps from its first to its last: no step that its run logs otherwise lacks it.

    A gap is a hole where nothing of the run is logged in between, or where the metric has no other gap: a metric with
    several gaps that others fill is logged when there is something to log.
    """
    cases = []
    sparse = 0
    for run in curves:
        every = _steps_of([run])
        logged = np.array(sorted(set().union(*every.values())), dtype=np.int64)
        for curve in run.values():
            gaps = _gaps(curve)
            holes = [gap for gap in gaps if not ((logged > gap[0]) & (logged < gap[1])).any()]
            if len(gaps) == 1 and not curve.metric.startswith(COUNTED):
                holes = gaps
            if holes:
                step, after = holes[0]
                stride = int(np.diff(curve.steps).min())
                template = "{metric} of {run}: step {step} is followed by {after}, not {wanted}"
                values = {"step": step, "after": after, "wanted": step + stride}
                message = Message(template, metric=curve.metric, run=curve.run, **values)
                cases.append(Case(_where(curve, step), step + stride, after, message))
            else:
                sparse += bool(gaps)
    checked = sum(map(len, curves)) - sparse
    return Outcome(checked, len(cases), tuple(cases[:SHOWN]), sparse, _SPARSE)


def _gaps(curve: Curve) -> list[tuple[int, int]]:
    """The neighbouring steps of a curve that are further apart than its closest ones."""
    steps = curve.steps.tolist()
    stride = min((after - step for step, after in pairwise(steps)), default=0)
    return [(step, after) for step, after in pairwise(steps) if after - step != stride]


def steps_once(curves: Sequence[RunCurves]) -> Outcome:
    """No step of a metric is logged twice; of one that is, the last counts."""
    return _outcome(
        curves,
        (
            Case(
                _where(curve, curve.rewound[0]),
                "each step once",
                len(curve.rewound),
                Message(
                    "{metric} of {run}: {steps} logged more than once, the first {first}",
                    metric=curve.metric,
                    run=curve.run,
                    steps=quantity(len(curve.rewound), "steps"),
                    first=curve.rewound[0],
                ),
            )
            for curve in _all(curves)
            if curve.rewound
        ),
    )


def finite_values(curves: Sequence[RunCurves]) -> Outcome:
    """Every logged value is a finite number."""
    return _outcome(
        curves,
        (
            Case(
                _where(curve, int(curve.steps[place])),
                "finite",
                repr(float(curve.values[place])),
                Message(
                    "{metric} of {run} is {value} at step {step}",
                    metric=curve.metric,
                    run=curve.run,
                    value=float(curve.values[place]),
                    step=int(curve.steps[place]),
                ),
            )
            for curve in _all(curves)
            for place in np.flatnonzero(~np.isfinite(curve.values))[:1].tolist()
        ),
    )


def train_rollout_gap(curves: Sequence[RunCurves]) -> Outcome:
    """Trainer and engine give the tokens of a step the same log-probs, up to 0.1 nats a token on average."""
    recorded = [run[TRAIN_ROLLOUT_METRIC] for run in curves if TRAIN_ROLLOUT_METRIC in run]
    cases = tuple(
        Case(
            _where(curve, int(curve.steps[place])),
            f"at most {LARGEST_TRAIN_ROLLOUT_GAP}",
            float(curve.values[place]),
            Message(
                "log-probs of {run} differ by {gap:.4g} nats a token between trainer and engine at step {step}",
                run=curve.run,
                gap=float(curve.values[place]),
                step=int(curve.steps[place]),
            ),
        )
        for curve in recorded
        for place in np.flatnonzero(curve.values > LARGEST_TRAIN_ROLLOUT_GAP)[:1].tolist()
    )
    lacking = len(curves) - len(recorded)
    missing = Message("no {metric} recorded", metric=TRAIN_ROLLOUT_METRIC)
    return Outcome(len(recorded), len(cases), cases[:SHOWN], lacking, missing)


GAP_METRICS: Mapping[str, float] = {
    TRAIN_ROLLOUT_METRIC: 0.01,
    "log_ppl_abs_diff": 0.01,
    "rollout_probs_diff_mean": 0.005,
    "token_mult_prob_error": 0.01,
    "rollout_corr/kl": 0.001,
    "k3_kl": 0.001,
    "train_rollout_kl": 0.001,
    "mismatch_kl/mean": 0.001,
}
"""Endings of the metrics by which hosts log the gap of trainer and engine (of slime and Miles, verl and ms-swift,
NeMo-RL and prime-rl), and the rise of each that is worth a word: nats, probability, factor, or nats of KL."""

CLIMB = 3.0
"""Times the median of its first quarter that a gap's last quarter has when it climbs."""

FEWEST_STEPS = 12
"""Steps that show whether a gap climbs."""

MOST_BLOCKS = 64
"""Blocks of steps whose medians are compared with each other."""

RISING = 0.5
"""Kendall's tau of the medians of blocks from which on a gap climbs, and does not merely jump once."""


def climbing_gap(curves: Sequence[RunCurves]) -> Outcome:
    """The gap of trainer and engine does not climb, as it does where new weights do not reach the engine."""
    recorded = [(curve, limit) for curve in _all(curves) if (limit := _rise_of(curve.metric)) is not None]
    long = [(curve, limit) for curve, limit in recorded if np.isfinite(curve.values).sum() >= FEWEST_STEPS]
    cases = []
    for curve, limit in long:
        first, last, tau = _trend(curve.values[np.isfinite(curve.values)])
        if last - first > limit and last > CLIMB * first and tau > RISING:
            message = Message(
                "{metric} of {run} climbs from {first:.4g} to {last:.4g}: the engine may not have the new weights",
                metric=curve.metric,
                run=curve.run,
                first=first,
                last=last,
            )
            cases.append(Case(_where(curve, int(curve.steps[-1])), f"at most {CLIMB * first:.4g}", last, message))
    with_gap = {id(run) for run in curves if any(_rise_of(metric) is not None for metric in run)}
    lacking = len(curves) - len(with_gap) + len(recorded) - len(long)
    missing = Message("no gap of trainer and engine recorded, or over too few steps")
    return Outcome(len(long), len(cases), tuple(cases[:SHOWN]), lacking, missing)


def _rise_of(metric: str) -> float | None:
    return next((limit for name, limit in GAP_METRICS.items() if metric.endswith(name)), None)


def _trend(values: Floats) -> tuple[float, float, float]:
    """Medians of the first and last quarter, and Kendall's tau of the medians of blocks; values (steps,) are finite."""
    quarter = len(values) // 4
    medians = np.array([np.median(block) for block in np.array_split(values, min(len(values), MOST_BLOCKS))])
    signs = np.sign(medians[None, :] - medians[:, None])  # (blocks, blocks): of a later block minus an earlier one
    above = np.triu_indices(len(medians), k=1)
    return float(np.median(values[:quarter])), float(np.median(values[-quarter:])), float(signs[above].mean())


def arms_same_steps(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> Outcome:
    """Both arms log the same metrics at the same steps, apart from metrics that are logged when something happens."""
    arms = [_steps_of(runs) for runs in (baseline, experiment)]
    irregular = {curve.metric for curve in _all([*baseline, *experiment]) if len(_gaps(curve)) > 1}
    one_way = {name for name in PER_REQUEST if sum(name in arm for arm in arms) == 1}
    names = sorted(arms[0].keys() | arms[1].keys())
    compared = [name for name in names if name not in irregular | one_way and not name.startswith(COUNTED)]
    cases = []
    for name in compared:
        left, right = (arm.get(name, set()) for arm in arms)
        if left != right:
            lone = sorted(left ^ right)
            message = Message(
                "{metric}: {steps} in the baseline, {other} in the experiment, {lone} in one alone",
                metric=name,
                steps=quantity(len(left), "steps"),
                other=len(right),
                lone=len(lone),
            )
            cases.append(Case(Where(None, lone[0], None, None, name), len(left), len(right), message))
    left_out = len(names) - len(compared)
    return Outcome(len(compared), len(cases), tuple(cases[:SHOWN]), left_out, _ONE_WAY if one_way else _SPARSE)


def _steps_of(runs: Sequence[RunCurves]) -> dict[str, set[int]]:
    steps: dict[str, set[int]] = {}
    for curve in _all(runs):
        steps.setdefault(curve.metric, set()).update(curve.steps.tolist())
    return steps


def _all(curves: Sequence[RunCurves]) -> Iterator[Curve]:
    return (curve for run in curves for curve in run.values())


def _where(curve: Curve, step: int) -> Where:
    return Where(curve.run, step, None, None, curve.metric)


def _outcome(curves: Sequence[RunCurves], cases: Iterable[Case]) -> Outcome:
    found = tuple(cases)
    return Outcome(sum(map(len, curves)), len(found), found[:SHOWN])
