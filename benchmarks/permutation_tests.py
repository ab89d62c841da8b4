"""Permutation tests against scipy's doing the same resamples, and the time of a whole comparison.

    python benchmarks/permutation_tests.py [--groups 4096] [--permutations 1999] [--repeats 3]

Ratios are of processor time within a repeat; medians are printed, with the peak memory of the process. scipy's test
gets as many resamples of the same data as it manages in about a second, and its time is scaled to the number asked for.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import stats

from parity.metrics import Curve, align, curves_of_run
from parity.stats import (
    GroupValues,
    curve_band,
    equality_kernel,
    independence_tests,
    product_kernel,
    shape_tests,
    training_findings,
)

SAMPLES = 8


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call, in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def scipy_shape(baseline: np.ndarray, experiment: np.ndarray, permutations: int) -> float:
    """Estimated seconds of scipy's permutation test of the Kolmogorov-Smirnov distance with as many resamples."""

    def distance(first: np.ndarray, second: np.ndarray) -> float:
        return float(stats.ks_2samp(first, second, method="asymp").statistic)

    few = 20
    data = (baseline.ravel(), experiment.ravel())
    return seconds(lambda: stats.permutation_test(data, distance, n_resamples=few)) / few * permutations


def comparison(runs: int = 5, steps: int = 200, metrics: int = 20, permutations: int = 9999) -> None:
    """`runs` + `runs` runs of `steps` steps and `metrics` metrics: findings, and a band of each metric."""
    rng = np.random.default_rng(0)
    names = [f"metric/{number}" for number in range(metrics)]
    arms = []
    for arm in ("baseline", "experiment"):
        tables = rng.normal(size=(runs, steps, metrics))
        arms.append(
            [
                curves_of_run(
                    f"{arm}-seed{run}",
                    ({"step": step, **dict(zip(names, row.tolist(), strict=True))} for step, row in enumerate(table)),
                )
                for run, table in enumerate(tables)
            ]
        )
    training_findings(arms[0], arms[1], dict.fromkeys(names, 0.1))
    for name in names:
        curves: list[Curve] = [run[name] for arm in arms for run in arm]
        curve_band(align(curves), runs, rng, permutations=permutations)


def main() -> None:
    """Prints the median of each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=4096)
    parser.add_argument("--permutations", type=int, default=1999)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    values = rng.normal(size=(options.groups, 2 * SAMPLES))
    names = tuple(range(options.groups))
    baseline, experiment = (GroupValues("length", names, arm) for arm in (values[:, :SAMPLES], values[:, SAMPLES:]))
    kernels = {
        "product": product_kernel(values),
        "equality": equality_kernel(rng.integers(0, 1000, values.shape)),
    }
    measured: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        ours = seconds(partial(shape_tests, baseline, experiment, rng, options.permutations))
        theirs = scipy_shape(baseline.values, experiment.values, options.permutations)
        measured.setdefault("four shape distances, s", []).append(ours)
        measured.setdefault("scipy's permutation test of one distance / ours of four", []).append(theirs / ours)
        for name, kernel in kernels.items():
            spent = seconds(partial(independence_tests, kernel, rng, options.permutations))
            measured.setdefault(f"{name} kernel, s", []).append(spent)
        measured.setdefault("5 + 5 runs, 200 steps, 20 metrics, 9,999-split bands, s", []).append(seconds(comparison))
    print(f"{options.groups} groups of 2 x {SAMPLES}, {options.permutations} permutations, {options.repeats} repeats")
    for name, spent_each in measured.items():
        print(f"{name}: {np.median(spent_each):.3g}")
    print(f"peak memory, GiB: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}")


if __name__ == "__main__":
    main()
