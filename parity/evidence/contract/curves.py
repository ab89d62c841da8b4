"""Recorded metrics: whether they are those of the samples, at regular steps, each once, and the same in both arms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from parity.evidence.contract.outcomes import SHOWN, Case, Outcome
from parity.findings import Where, quantity
from parity.metrics import Curve, RunCurves

TIMED = "perf/"
"""Prefix of the metrics that depend on a clock, which samples do not hold."""

METRIC_TOLERANCE = 1e-6
"""Relative difference that recording a metric in 32 bits may make."""

COUNTED = ("rollout/zero_std/", "rollout/missing/", "rollout_patch/")
"""Prefixes of metrics that are logged only at steps at which what they count happened."""

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
                message = f"step {step}: {name} is recorded as {found!r}, its samples give {wanted:.6g}"
                wrong.append(Case(Where(None, step, None, None, name), wanted, found, message))
    return Outcome(checked, len(wrong), tuple(wrong[:SHOWN]), skipped, "no samples of that step")


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
                message = f"{curve.metric} of {curve.run}: step {step} is followed by {after}, not {step + stride}"
                cases.append(Case(_where(curve, step), step + stride, after, message))
            else:
                sparse += bool(gaps)
    checked = sum(map(len, curves)) - sparse
    return Outcome(checked, len(cases), tuple(cases[:SHOWN]), sparse, "logged only at some steps")


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
                f"{curve.metric} of {curve.run}: {quantity(len(curve.rewound), 'steps')} logged more than once, "
                f"the first {curve.rewound[0]}",
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
                f"{curve.metric} of {curve.run} is {curve.values[place]} at step {curve.steps[place]}",
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
            f"log-probs of {curve.run} differ by {curve.values[place]:.4g} nats a token between trainer and engine "
            f"at step {curve.steps[place]}",
        )
        for curve in recorded
        for place in np.flatnonzero(curve.values > LARGEST_TRAIN_ROLLOUT_GAP)[:1].tolist()
    )
    lacking = len(curves) - len(recorded)
    return Outcome(len(recorded), len(cases), cases[:SHOWN], lacking, f"no {TRAIN_ROLLOUT_METRIC} recorded")


def arms_same_steps(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> Outcome:
    """Both arms log the same metrics at the same steps, apart from metrics that are logged when something happens."""
    arms = [_steps_of(runs) for runs in (baseline, experiment)]
    irregular = {curve.metric for curve in _all([*baseline, *experiment]) if len(_gaps(curve)) > 1}
    names = sorted(arms[0].keys() | arms[1].keys())
    compared = [name for name in names if name not in irregular and not name.startswith(COUNTED)]
    cases = []
    for name in compared:
        left, right = (arm.get(name, set()) for arm in arms)
        if left != right:
            lone = sorted(left ^ right)
            message = (
                f"{name}: {quantity(len(left), 'steps')} in the baseline, {len(right)} in the experiment, "
                f"{len(lone)} in one"
            )
            cases.append(Case(Where(None, lone[0], None, None, name), len(left), len(right), message))
    left_out = len(names) - len(compared)
    return Outcome(len(compared), len(cases), tuple(cases[:SHOWN]), left_out, "logged only at some steps")


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
