"""What `parity plan` predicts, against what samplings and runs of equal arms then take; a table for the docs.

    python benchmarks/plan_against_observed.py [--repetitions 60] [--write]

The history that is planned from is a draw of the model of `error_rates.py`, and so are the samplings. What is observed
is the number of groups by which four in five have shown parity, and the share that has with the runs that are planned.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from error_rates import CAP, N, draw, fixed, mean, mixed, runs, sample, written

from parity.evidence.planning import Setting, plan
from parity.evidence.spreads import MetricSpread, group_spreads
from parity.records.margins import SAMPLING_MEANS
from parity.records.samples import Rollout
from parity.stats import runs_needed

HISTORY = 2000
"""Groups that are planned from."""

Simulated = Callable[[np.random.Generator], object]


def history(rng: np.random.Generator) -> Rollout:
    """Groups of the baseline as a host would have recorded them."""
    values, _ = draw(rng, HISTORY)
    columns = {name: tables[0].ravel() for name, tables in values.items() if tables[0].shape[1] == N}
    rows = HISTORY * N
    ended = np.where(columns["truncated"] > 0, "length", np.where(columns["aborted"] > 0, "abort", "stop"))
    return Rollout.from_table(
        pa.table(
            {
                "rollout_id": np.zeros(rows, np.int64),
                "group_index": np.repeat(np.arange(HISTORY), N),
                "index": np.tile(np.arange(N), HISTORY),
                "reward": columns["reward"],
                "response_length": columns["response_length"].astype(np.int64),
                "max_new_tokens": np.full(rows, CAP),
                "logprobs": pa.ListArray.from_arrays(
                    np.arange(rows + 1, dtype=np.int32), pa.array(-columns["negative_log_likelihood"])
                ),
                "finish_reason": ended,
            }
        ),
        "history",
    )


def observed(scenario: Simulated, repetitions: int, seed: int) -> tuple[int, float]:
    """The groups by which four in five show parity, and the standard error of that number."""
    outcomes = [scenario(np.random.default_rng([seed, one])) for one in range(repetitions)]
    groups = [one["groups"] if one["verdict"] == "PARITY" else np.inf for one in outcomes]  # type: ignore[index]
    resampled = np.random.default_rng(seed).choice(groups, (400, repetitions))
    return int(np.quantile(groups, 0.8, method="higher")), float(
        np.quantile(resampled, 0.8, axis=1, method="higher").std()
    )


def share(scenario: Simulated, repetitions: int, seed: int) -> float:
    """The share that shows parity."""
    outcomes = [scenario(np.random.default_rng([seed, one])) for one in range(repetitions)]
    return float(np.mean([one["verdict"] == "PARITY" for one in outcomes]))  # type: ignore[index]


def main() -> None:
    """Plans, simulates and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="put the table into docs/error-rates.md")
    options = parser.parse_args()
    count, begin, rng = options.repetitions, time.process_time(), np.random.default_rng(0)
    spreads = group_spreads([history(rng)], "history")
    made = plan(SAMPLING_MEANS, spreads, Setting(groups_per_step=64), rng)
    rows: list[tuple[str, str, str]] = []

    def add(name: str, predicted: int, scenario: Simulated, repetitions: int = count) -> None:
        seen, error = observed(scenario, repetitions, len(rows))
        rows.append((name, f"{predicted:,} groups", f"{seen:,} ({error:.0f}), {predicted / seen - 1:+.0%}"))
        print(rows[-1], flush=True)

    def add_share(name: str, predicted: str, scenario: Simulated, repetitions: int) -> None:
        seen = share(scenario, repetitions, len(rows))
        rows.append((name, predicted, f"PARITY {seen:.2f} ({np.sqrt(seen * (1 - seen) / repetitions):.2f})"))
        print(rows[-1], flush=True)

    for metric in made.metrics:
        name = metric.spread.metric
        if name != "aborted":
            add(f"`sample`, {name} alone", metric.watched_groups or 0, mean(name, 0.0), 5 * count)
    whole = next(design for design in made.designs if design.name == "sample")
    add("`sample`, all metrics", (whole.groups or 0) // 2, sample(4096))
    alone = whole.fixed_groups or 0
    add_share(f"`sample --fixed {alone}`, all metrics", "PARITY 0.80", fixed(alone), max(count // 2, 20))
    inside = 0.4 * 0.4 / 0.8 / 1.8  # E[p (1 - p)] of the mixed run's prompts
    spread = MetricSpread("reward", 0.5, np.sqrt(2 * inside / N), np.sqrt(0.25 / 1.8 + inside / N))
    mixed_plan = plan({"reward": 0.05}, {"reward": spread}, Setting(groups_per_step=640), rng)
    probe = next(design for design in mixed_plan.designs if design.name == "probe")
    pairs = 64 * round(probe.steps or 0)
    add("probe of 64 prompts a step, reward ±0.05", pairs, mixed("probe", 20, 0.0, 0.05), 5 * count)
    for margin in (2.0, 1.5):
        needed = runs_needed(1.0, margin) or 0
        add_share(
            f"runs, margin {margin:g} x spread: {needed} an arm",
            "PARITY 0.80 or more",
            runs(needed, 0.0, margin=margin),
            1000,
        )
    table = "\n".join(
        [
            "| design | predicted | observed (standard error) |",
            "|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )
    print(table)
    print(f"{time.process_time() - begin:.0f} s of processor time")
    if options.write:
        written("plan", table)


if __name__ == "__main__":
    main()
