"""What recordings hold besides curves: steps done twice, unequal lengths, copies, zeros that were NaN, lone metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from parity.findings import Finding, Level, Severity, Status, Where, quantity
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


def _finding(check: str, status: Status, message: str, where: Where | None = None, **evidence: object) -> Finding:
    return Finding(
        check, Level.TRAINING, status, message, where or Where(), severity=Severity.WARNING, evidence=evidence
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _rewound(runs: Sequence[RunCurves]) -> list[Finding]:
    found = []
    for run in runs:
        steps = sorted({step for curve in run.values() for step in curve.rewound})
        if not steps:
            continue
        name, first = _name(run), min(int(curve.steps[0]) for curve in run.values())
        if steps[0] <= first:
            told = "it started over from its first step, which makes it another run; only the last attempt counts"
        else:
            told = "it was resumed; the last attempt counts, and what it abandoned is dropped, never averaged"
        again = quantity(len(steps), "steps")
        message = f"{name} went through {again} more than once, from {steps[0]} to {steps[-1]}: {told}"
        found.append(_finding("steps_rewound", Status.FAIL, message, Where(run=name, rollout_id=steps[0]), steps=steps))
    message = f"none of {quantity(len(runs), 'runs')} went back"
    return found or [_finding("steps_rewound", Status.PASS, message, checked=len(runs))]


def _lengths(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> list[Finding]:
    """The table of how many runs of each arm have how many steps, where that differs."""
    last = [[max(int(curve.steps[-1]) for curve in run.values()) for run in runs] for runs in (baseline, experiment)]
    ends = sorted({*last[0], *last[1]})
    if len(ends) == 1:
        return [_finding("run_lengths", Status.PASS, f"every run goes to step {ends[0]}", checked=sum(map(len, last)))]
    rows = {end: [sum(step >= end for step in steps) for steps in last] for end in ends}
    described = "; ".join(f"to step {end}: {n0} + {n1}" for end, (n0, n1) in list(rows.items())[:NAMED])
    message = f"runs are of unequal length ({described} runs); compared is the range that all have"
    return [_finding("run_lengths", Status.FAIL, message, ranges={str(end): counts for end, counts in rows.items()})]


def _one_sided(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> list[Finding]:
    every = sorted({metric for run in (*baseline, *experiment) for metric in run})
    counts = {metric: [sum(metric in run for run in runs) for runs in (baseline, experiment)] for metric in every}
    whole = [len(baseline), len(experiment)]
    partial = {metric: count for metric, count in counts.items() if count != whole}
    if not partial:
        message = f"every run records the same {quantity(len(every), 'metrics')}"
        return [_finding("metrics_recorded", Status.PASS, message, checked=len(every))]
    described = [f"{metric} ({n0} of {whole[0]} and {n1} of {whole[1]})" for metric, (n0, n1) in partial.items()]
    message = f"{len(partial)} of {quantity(len(every), 'metrics')} not recorded in every run: {_listed(described)}"
    return [_finding("metrics_recorded", Status.NOT_COMPARED, message, recorded=partial)]


def _copies(runs: Sequence[RunCurves]) -> list[Finding]:
    """Recordings of one run: a copy, a part of it, or a seed used twice, is no further evidence."""
    copies = [(_name(first), _name(second)) for first, second in combinations(runs, 2) if _one_run(first, second)]
    if not copies:
        return [_finding("runs_distinct", Status.PASS, f"{len(runs)} runs, all different", checked=len(runs))]
    described = _listed([f"{first} and {second}" for first, second in copies])
    message = f"the same in every value that both recorded, so that they are one run and not several: {described}"
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
        checked = sum(map(len, runs))
        return [_finding("odd_zeros", Status.PASS, "no exact zero stands alone among other values", checked=checked)]
    described = [
        f"{curve.metric} of {curve.run} at {quantity(len(steps), 'steps')} (first {steps[0]})" for curve, steps in found
    ]
    message = f"exact zeros far from the values around them, as a tracker makes of NaN: {_listed(described)}"
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
