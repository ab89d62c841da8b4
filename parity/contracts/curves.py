"""Recorded metrics: whether they are those of the samples, at regular steps, each once, and the same in both arms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity.contracts.outcomes import SHOWN, Case, Outcome
from parity.findings import Where
from parity.metrics import Curve, RunCurves, rollout_metrics
from parity.samples import Rollout

TIMED = "perf/"
"""Prefix of the metrics that depend on a clock, which samples do not hold."""

METRIC_TOLERANCE = 1e-6
"""Relative difference that recording a metric in 32 bits may make."""

TRAIN_ROLLOUT_METRIC = "train/train_rollout_logprob_abs_diff"
LARGEST_TRAIN_ROLLOUT_GAP = 0.1
"""Nats a token, on average over a step: rounding of 16-bit engines stays below a fifth of it, a temperature that one
side forgot is above it."""


def metrics_recomputed(rollouts: Mapping[int, Rollout], records: Iterable[Mapping[str, Any]]) -> Outcome:
    """The metrics recorded for a step are those of the samples of that step."""
    checked, skipped, wrong = 0, 0, list[Case]()
    for record in records:
        step = record.get("step")
        if not isinstance(step, int) or step not in rollouts:
            skipped += 1
            continue
        again = rollout_metrics(rollouts[step], 1.0)
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
    """A metric is logged at regular steps, from its first to its last without a gap."""

    def cases() -> Iterator[Case]:
        for curve in _all(curves):
            widths = np.diff(curve.steps)
            if not len(widths) or (widths == widths.min()).all():
                continue
            place = int(np.argmax(widths != widths.min()))
            step, after = (int(curve.steps[k]) for k in (place, place + 1))
            message = (
                f"{curve.metric} of {curve.run}: step {step} is followed by {after}, {widths.min()} steps expected"
            )
            yield Case(_where(curve, step), step + int(widths.min()), after, message)

    return _outcome(curves, cases())


def steps_once(curves: Sequence[RunCurves]) -> Outcome:
    """No step of a metric is logged twice; of one that is, the last counts."""
    return _outcome(
        curves,
        (
            Case(
                _where(curve, curve.rewound[0]),
                "each step once",
                len(curve.rewound),
                f"{curve.metric} of {curve.run}: {len(curve.rewound)} steps are logged more than once, the first is "
                f"{curve.rewound[0]}",
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
    """Both arms log the same metrics at the same steps."""
    arms = [_steps_of(runs) for runs in (baseline, experiment)]
    names = sorted(arms[0].keys() | arms[1].keys())
    cases = []
    for name in names:
        left, right = (arm.get(name, set()) for arm in arms)
        if left != right:
            lone = sorted(left ^ right)
            message = f"{name}: {len(left)} steps in the baseline, {len(right)} in the experiment, {len(lone)} in one"
            cases.append(Case(Where(None, lone[0], None, None, name), len(left), len(right), message))
    return Outcome(len(names), len(cases), tuple(cases[:SHOWN]))


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
