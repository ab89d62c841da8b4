"""How often a comparison of several arms with one baseline says something wrong of any of them.

Group means of rewards that are watched (n = 8, rate .4, looks every 32 groups up to 512, margin .1), and three runs an
arm. Arms are equal to the baseline, where DIFFERENT is wrong, or exactly at the margin, where PARITY is.

    python benchmarks/several_arms.py
"""

from __future__ import annotations

import argparse

import numpy as np

from parity.evidence.sampling.means import mean_finding
from parity.findings import Finding, Status
from parity.metrics import RunCurves, curves_of_run
from parity.stats import Mean, over_arms, training_findings

GROUPS, BLOCK, RATE, MARGIN, RUNS, STEPS = 512, 32, 0.4, 0.1, 3, 30
REWARD = "rollout/raw_reward"


def watched(arms: int, shift: float, rng: np.random.Generator) -> dict[str, list[Finding]]:
    """The findings of arms whose groups are watched."""
    baseline = rng.binomial(8, RATE, GROUPS) / 8
    found = {}
    for arm in range(arms):
        mean, largest = Mean(MARGIN), 0.0
        experiment = rng.binomial(8, RATE + shift, GROUPS) / 8
        for start in range(0, GROUPS, BLOCK):
            block = slice(start, start + BLOCK)
            mean = mean.update(baseline[block], experiment[block])
            largest = max(largest, float(mean.difference.log_e))
        found[str(arm)] = [mean_finding("reward", "reward", mean, largest, 1)]
    return found


def of_runs(arms: int, shift: float, rng: np.random.Generator) -> dict[str, list[Finding]]:
    """The findings of arms that are trained: one number a run."""

    def runs(name: str, level: float) -> list[RunCurves]:
        levels = rng.normal(level, 0.03, RUNS)
        return [
            curves_of_run(f"{name}-{seed}", [{"step": step, REWARD: value} for step in range(STEPS)])
            for seed, value in enumerate(levels)
        ]

    margin = MARGIN if shift else 1e-6  # a margin so small makes every difference one that matters
    baseline = runs("baseline", RATE)
    return {
        str(arm): training_findings(baseline, runs(str(arm), RATE + shift), {REWARD: margin}) for arm in range(arms)
    }


def main() -> None:
    """Prints a table: evidence, arms, truth, and the share that is wrong without and with the correction."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    repetitions = parser.parse_args().repetitions
    print("| evidence | arms | truth | wrong uncorrected | wrong | standard error |\n|---|---|---|---|---|---|")
    for name, evidence in (("watched groups", watched), ("runs", of_runs)):
        for arms in (1, 2, 5):
            for truth, shift, wrong in (("equal", 0.0, Status.FAIL), ("at the margin", MARGIN, Status.PASS)):
                rng = np.random.default_rng(23)
                shares = np.zeros(2)
                for _ in range(repetitions):
                    found = evidence(arms, shift, rng)
                    for row, findings in enumerate((found, over_arms(found))):
                        shares[row] += any(one.status is wrong for of_arm in findings.values() for one in of_arm)
                before, after = shares / repetitions
                error = np.sqrt(after * (1 - after) / repetitions)
                print(f"| {name} | {arms} | {truth} | {before:.3f} | {after:.3f} | {error:.3f} |", flush=True)


if __name__ == "__main__":
    main()
