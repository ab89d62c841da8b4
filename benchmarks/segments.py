"""Segments of prompts: how often a difference is said to be there that is not, and how many groups find one that is.

    python benchmarks/segments.py [--repetitions 400]

Arms draw 8 samples of each prompt: solved with a chance from Beta(1, 1) of the prompt, and of Poisson length. Where a
change hurts, the experiment solves 0.25 fewer of these prompts. Margins are 0 for false alarms and the defaults else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from parity.findings import Status
from parity.records.samples import Rollout, Sample
from parity.stats import segment_findings

SIZE = 8
NO_MARGIN = dict.fromkeys(("reward", "response_length", "negative_log_likelihood", "truncated"), 1e-9)
HARMS: dict[str, Callable[[float, int], bool]] = {
    "nothing": lambda chance, length: False,
    "hard prompts (chance below 1/3)": lambda chance, length: chance < 1 / 3,
    "long answers (the longest third)": lambda chance, length: length > 137,
}


def arms(rng: np.random.Generator, groups: int, harm: Callable[[float, int], bool]) -> tuple[Rollout, Rollout]:
    """Both arms' samples of the same prompts."""
    sides: tuple[list[Sample], list[Sample]] = ([], [])
    for group in range(groups):
        chance, length = float(rng.uniform()), int(rng.integers(10, 200))
        ids = rng.integers(3, 90, int(rng.integers(4, 60))).tolist()
        for side, samples in enumerate(sides):
            solved = max(chance - 0.25, 0.0) if side and harm(chance, length) else chance
            rewards, lengths = rng.random(SIZE) < solved, rng.poisson(length, SIZE) + 1
            fields: dict[str, Any] = {"rollout_id": 0, "prompt_ids": ids, "extra": {"data_source": f"d{group % 3}"}}
            samples += [
                Sample(group, slot, reward=float(rewards[slot]), response_length=int(lengths[slot]), **fields)
                for slot in range(SIZE)
            ]
    return Rollout.from_samples(sides[0]), Rollout.from_samples(sides[1])


def share(
    seed: int, repetitions: int, groups: int, harm: Callable[[float, int], bool], margins: dict[str, float]
) -> float:
    """In how many repetitions a segment differs."""
    found = 0
    for repetition in range(repetitions):
        both = arms(np.random.default_rng([seed, groups, repetition]), groups, harm)
        found += any(finding.status is Status.FAIL for finding in segment_findings(*both, margins))
    return found / repetitions


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=400)
    repetitions = parser.parse_args().repetitions
    print("| the experiment hurts | groups | a segment differs | repetitions |\n|---|---|---|---|")
    for seed, (name, harm) in enumerate(HARMS.items()):
        nothing = name == "nothing"
        for groups in (64, 256) if nothing else (128, 256, 384, 512):
            times = repetitions if nothing else repetitions // 8
            found = share(seed, times, groups, harm, NO_MARGIN if nothing else {})
            print(f"| {name} | {groups} | {found:.1%} | {times} |", flush=True)


if __name__ == "__main__":
    main()
