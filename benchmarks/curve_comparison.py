"""A comparison of recorded runs, and its band against scipy's permutation test doing the same resamples.

    python benchmarks/curve_comparison.py [--steps 200] [--metrics 20] [--repeats 3]

Ratios are of processor time within a repeat; medians are printed, with the peak memory of the process. scipy's test
gets a hundredth of the resamples of the same curves, and its time is scaled to their number. rliable's bootstrap is no
peer any more: its last release calls arch in a way that arch refuses. Reading is measured on a log as slime prints it.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy import stats

from parity.metrics import Curve, align
from parity.sources.registry import read_runs
from parity.stats import curve_band, secondary_findings, training_findings

PERMUTATIONS = 9999


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call, in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def arms_of(runs: int, steps: int, metrics: int) -> list[list[dict[str, Curve]]]:
    """Two arms of runs of random walks, by metric."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, runs, metrics, steps)).cumsum(axis=-1)
    return [
        [
            {
                f"metric/{k}": Curve(f"{arm}{run}", f"metric/{k}", np.arange(steps), values[arm, run, k])
                for k in range(metrics)
            }
            for run in range(runs)
        ]
        for arm in range(2)
    ]


def everything(arms: list[list[dict[str, Curve]]]) -> None:
    """All deciding metrics with their bands, and the flags of all of them."""
    names = list(arms[0][0])
    training_findings(arms[0], arms[1], dict.fromkeys(names, 0.1))
    secondary_findings(arms[0], arms[1], names)


def scipy_band(values: np.ndarray, runs: int) -> float:
    """Estimated seconds of scipy's permutation test of the same statistic at each step, over all splits drawn."""

    def studentised(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(stats.ttest_ind(first, second, axis=axis).statistic)

    few = 100
    data = (values[runs:], values[:runs])
    test = partial(stats.permutation_test, data, studentised, n_resamples=few, axis=0, vectorized=True)
    return seconds(test) / few * PERMUTATIONS


def log_of(steps: int, metrics: int, path: Path) -> int:
    """Writes a log with one line of metrics in ten, and returns its size in bytes."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for step in range(steps):
            row = {f"train/metric_{k}": float(value) for k, value in enumerate(rng.normal(size=metrics))}
            file.write(f"(Actor pid=1) [2026-01-01 00:00:00] model.py:1 - step {step}: {row}\n")
            file.writelines(f"(Actor pid=1) [2026-01-01 00:00:00] engine.py:1 - batch {k} decoded\n" for k in range(9))
    return path.stat().st_size


def main() -> None:
    """Prints the median of each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--metrics", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    five, eight = (arms_of(runs, options.steps, options.metrics) for runs in (5, 8))
    aligned = align([run["metric/0"] for arm in eight for run in arm])
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "run.log"
        size = log_of(2_000, options.metrics, log)
        for _ in range(options.repeats):
            measured.setdefault("5 + 5 runs, all 252 splits, s", []).append(seconds(partial(everything, five)))
            measured.setdefault("8 + 8 runs, 9,999 splits, s", []).append(seconds(partial(everything, eight)))
            band = seconds(
                lambda: curve_band(aligned, 8, np.random.default_rng(0), smooth=1, permutations=PERMUTATIONS)
            )
            measured.setdefault("one band of 9,999 splits, s", []).append(band)
            ratio = scipy_band(aligned.values, 8) / band
            measured.setdefault("scipy's permutation test / one band", []).append(ratio)
            spent = seconds(partial(read_runs, str(log)))
            measured.setdefault("reading a log, MB/s", []).append(size / 1e6 / spent)
    print(f"{options.steps} steps, {options.metrics} metrics, {options.repeats} repeats")
    for name, spent_each in measured.items():
        print(f"{name}: {np.median(spent_each):.3g}")
    print(f"peak memory, GiB: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}")


if __name__ == "__main__":
    main()
