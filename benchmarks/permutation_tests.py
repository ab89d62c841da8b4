"""Permutation tests against scipy's doing the same resamples, and the time of whole comparisons.

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
import pyarrow as pa
from scipy import stats

from parity.metrics import Curve, align, curves_of_run
from parity.records.margins import SAMPLING
from parity.records.samples import Rollout
from parity.stats import (
    GroupValues,
    curve_band,
    equality_kernel,
    independence_tests,
    product_kernel,
    sampling_findings,
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


def rollouts(groups: int, rng: np.random.Generator) -> list[Rollout]:
    """Two arms of `groups` groups, with rewards, lengths, likelihoods and some responses that are alike."""
    rows = groups * SAMPLES
    lengths = np.repeat(rng.integers(1, 40, groups), SAMPLES)
    arms = []
    for _ in range(2):
        own = np.maximum(lengths + rng.integers(-5, 6, rows), 1)
        offsets = np.append(0, np.cumsum(own)).astype(np.int32)
        columns = {
            "rollout_id": np.zeros(rows, np.int64),
            "group_index": np.repeat(np.arange(groups), SAMPLES),
            "index": np.tile(np.arange(SAMPLES), groups),
            "output_ids": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 9, offsets[-1]))),
            "logprobs": pa.ListArray.from_arrays(offsets, pa.array(-rng.exponential(1, offsets[-1]))),
            "finish_reason": np.where(rng.random(rows) < 0.1, "length", "stop"),
            "reward": rng.integers(0, 2, rows).astype(np.float64),
        }
        arms.append(Rollout.from_table(pa.table(columns), "benchmark"))
    return arms


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
    arms = rollouts(options.groups, rng)
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
        spent = seconds(partial(sampling_findings, *arms, SAMPLING, rng, options.permutations))
        measured.setdefault("all of sampling_findings, s", []).append(spent)
        measured.setdefault("5 + 5 runs, 200 steps, 20 metrics, 9,999-split bands, s", []).append(seconds(comparison))
    print(f"{options.groups} groups of 2 x {SAMPLES}, {options.permutations} permutations, {options.repeats} repeats")
    for name, spent_each in measured.items():
        print(f"{name}: {np.median(spent_each):.3g}")
    print(f"peak memory, GiB: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}")


if __name__ == "__main__":
    main()
