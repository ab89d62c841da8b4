"""What recordings hold besides curves: steps done twice, unequal lengths, copies, zeros that were NaN, lone metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from parity.findings import Finding, Level, Message, Severity, Status, Where, listed, quantity
from parity.metrics import SAME, Curve, RunCurves

FEWEST_STEPS = 10
LARGEST_ZERO_SHARE = 0.2
NAMED = 6
"""Runs or metrics that a message names; the evidence holds them all."""


def recording_findings(
    baseline: Sequence[RunCurves], experiment: Sequence[RunCurves], history: Sequence[RunCurves] = ()
) -> list[Finding]:
    """What is odd about the recordings of both arms; warnings, except that copies leave the comparison open.

    Args:
        baseline: Curves by metric of each run of the baseline.
        experiment: The same of the experiment.
        history: The same of earlier runs of the baseline, which are only held to be no copies.
    """
    runs = [*baseline, *experiment]
    return [
        *_rewound(runs),
        *_lengths(baseline, experiment),
        *_one_sided(baseline, experiment),
        *_copies([*runs, *history]),
        *_zeros(runs),
    ]


def _finding(check: str, status: Status, message: Message, where: Where | None = None, **evidence: object) -> Finding:
    return Finding(
        check, Level.TRAINING, status, message, where or Where(), severity=Severity.WARNING, evidence=evidence
    )


def _first_of(names: Sequence[str]) -> Message:
    first = listed(names[:NAMED])
    return Message("{first} and {more} more", first=first, more=len(names) - NAMED) if len(names) > NAMED else first


def _rewound(runs: Sequence[RunCurves]) -> list[Finding]:
    found = []
    for run in runs:
        steps = sorted({step for curve in run.values() for step in curve.rewound})
        if not steps:
            continue
        name, first = _name(run), min(int(curve.steps[0]) for curve in run.values())
        message = Message(
            "{run} logged {steps} more than once, from {first} to {last}: {what}",
            run=name,
            steps=quantity(len(steps), "steps"),
            first=steps[0],
            last=steps[-1],
            what=Message("it started over from its first step and is another run; only the last attempt counts")
            if steps[0] <= first
            else Message("it was resumed; the last attempt counts, and the abandoned steps are dropped, not averaged"),
        )
        found.append(_finding("steps_rewound", Status.FAIL, message, Where(run=name, rollout_id=steps[0]), steps=steps))
    message = Message("none of {runs} logged a step more than once", runs=quantity(len(runs), "runs"))
    return found or [_finding("steps_rewound", Status.PASS, message, checked=len(runs))]


def _lengths(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> list[Finding]:
    """The table of how many runs of each arm have how many steps, where that differs."""
    last = [[max(int(curve.steps[-1]) for curve in run.values()) for run in runs] for runs in (baseline, experiment)]
    ends = sorted({*last[0], *last[1]})
    if len(ends) == 1:
        message = Message("every run goes to step {step}", step=ends[0])
        return [_finding("run_lengths", Status.PASS, message, checked=sum(map(len, last)))]
    rows = {end: [sum(step >= end for step in steps) for steps in last] for end in ends}
    counts = (
        Message("to step {step}: {baseline} + {experiment}", step=end, baseline=n0, experiment=n1)
        for end, (n0, n1) in list(rows.items())[:NAMED]
    )
    message = Message(
        "runs are of unequal length ({counts} runs); the steps that all runs have are compared",
        counts=listed(counts, "; "),
    )
    return [_finding("run_lengths", Status.FAIL, message, ranges={str(end): counts for end, counts in rows.items()})]


def _one_sided(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> list[Finding]:
    every = sorted({metric for run in (*baseline, *experiment) for metric in run})
    counts = {metric: [sum(metric in run for run in runs) for runs in (baseline, experiment)] for metric in every}
    whole = [len(baseline), len(experiment)]
    partial = {metric: count for metric, count in counts.items() if count != whole}
    if not partial:
        message = Message("every run records the same {metrics}", metrics=quantity(len(every), "metrics"))
        return [_finding("metrics_recorded", Status.PASS, message, checked=len(every))]
    described = [
        Message(
            "{metric} ({n0} of {baseline} and {n1} of {experiment})",
            metric=metric,
            n0=n0,
            n1=n1,
            baseline=whole[0],
            experiment=whole[1],
        )
        for metric, (n0, n1) in partial.items()
    ]
    message = Message(
        "{partial} of {metrics} not recorded in every run: {names}",
        partial=len(partial),
        metrics=quantity(len(every), "metrics"),
        names=_first_of(described),
    )
    return [_finding("metrics_recorded", Status.NOT_COMPARED, message, recorded=partial)]


def _copies(runs: Sequence[RunCurves]) -> list[Finding]:
    """Recordings of one run: a copy, a part of it, or a seed used twice, is no further evidence."""
    copies = [(_name(first), _name(second)) for first, second in combinations(runs, 2) if _one_run(first, second)]
    if not copies:
        message = Message("{runs}, all different", runs=quantity(len(runs), "runs"))
        return [_finding("runs_distinct", Status.PASS, message, checked=len(runs))]
    pairs = [Message("{first} and {second}", first=first, second=second) for first, second in copies]
    message = Message(
        "equal in every value that both recorded, so they are one run and not several: {pairs}", pairs=_first_of(pairs)
    )
    return [_finding("runs_distinct", Status.INCONCLUSIVE, message, copies=[list(pair) for pair in copies])]


def _one_run(first: RunCurves, second: RunCurves) -> bool:
    """Whether two recordings agree, but for rounding, in all values of both, and in some that vary."""
    varied = False
    for name in sorted(first.keys() & second.keys()):
        if name.startswith("perf/"):
            continue
        _, *places = np.intersect1d(first[name].steps, second[name].steps, assume_unique=True, return_indices=True)
        one, other = (run[name].values[at] for run, at in zip((first, second), places, strict=True))
        if not np.allclose(one, other, rtol=SAME, atol=0, equal_nan=True):
            return False
        varied = varied or len(np.unique(one)) > 1
    return varied


def _zeros(runs: Sequence[RunCurves]) -> list[Finding]:
    found = [(curve, steps) for run in runs for curve in run.values() if len(steps := curve.steps[odd_zeros(curve)])]
    if not found:
        message = Message("no exact zero stands alone among other values")
        return [_finding("odd_zeros", Status.PASS, message, checked=sum(map(len, runs)))]
    described = [
        Message(
            "{metric} of {run} at {steps} (first {first})",
            metric=curve.metric,
            run=curve.run,
            steps=quantity(len(steps), "steps"),
            first=int(steps[0]),
        )
        for curve, steps in found
    ]
    message = Message(
        "exact zeros far from the values around them, as a tracker writes for NaN: {curves}",
        curves=_first_of(described),
    )
    at = Where(found[0][0].run, int(found[0][1][0]), field=found[0][0].metric)
    return [_finding("odd_zeros", Status.FAIL, message, at, curves=described)]


def odd_zeros(curve: Curve) -> npt.NDArray[np.bool_]:
    """Which values are exact zeros far from those around them, (T,).

    Few (at most a fifth), and where the values around them lie more than five typical steps away from zero.
    """
    zero = curve.values == 0
    known = ~zero & np.isfinite(curve.values)
    if not 0 < zero.sum() <= LARGEST_ZERO_SHARE * len(zero) or known.sum() < FEWEST_STEPS:
        return np.zeros(len(zero), dtype=np.bool_)
    values, places = curve.values[known], np.flatnonzero(known)
    change = float(np.median(np.abs(np.diff(values))))
    around = np.abs(np.interp(np.arange(len(zero)), places, values))
    return np.asarray(zero & (around > 5 * change))


def without_odd_zeros(run: RunCurves) -> Mapping[str, Curve]:
    """The same run with NaN where its tracker wrote 0 for it."""
    return {
        name: Curve(curve.run, name, curve.steps, np.where(odd_zeros(curve), np.nan, curve.values), curve.rewound)
        for name, curve in run.items()
    }


def _name(run: RunCurves) -> str:
    return next(iter(run.values())).run
