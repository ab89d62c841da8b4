"""`parity sample --from A --from B`: two recordings of rollouts at fixed weights, compared as if sampled here (L1)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity.commands.check import check_paths, samples_at
from parity.commands.sample.store import SamplingStore
from parity.contract_checks import Rules, check_arms
from parity.errors import InputError
from parity.findings import Finding, Message, judge
from parity.records.provenance import commit, versions
from parity.records.samples import Rollout
from parity.records.sampling import SamplingConfig
from parity.records.store import exclusive
from parity.report.sampling import SamplingResult
from parity.stats import match_prompts, sampling_findings, segment_findings


def sample_recordings(
    paths: tuple[Path, Path],
    out: Path,
    *,
    command: str,
    margins: Mapping[str, float],
    reward_range: tuple[float, float] = (0.0, 1.0),
    group_size: int | None = None,
    seed: int = 0,
) -> SamplingResult:
    """Compares two recordings group by group, after matching their prompts; nothing is asked of an engine.

    Args:
        paths: The baseline's samples and the experiment's: a file or folder that `parity check` reads.
        out: Where the matched samples and the report go.
        command: The command line, for the record.
        margins: The largest difference that does not matter, by metric.
        reward_range: The least and the largest reward there can be.
        group_size: Samples of each group, for formats that do not say which samples are one.
        seed: Of the tests, and of which samples of too large groups are taken.

    Raises:
        InputError: A recording cannot be read, no prompt is in both, or a reward is out of its range.
        UsageError: `out` holds something else.
    """
    arms = names_of_arms(paths)
    rollouts = samples_at(paths[0], group_size), samples_at(paths[1], group_size)
    for path, rollout in zip(paths, rollouts, strict=True):
        _check_rewards(path, rollout, reward_range)
    contract = [
        finding.in_run(arm)
        for arm, path in zip(arms, paths, strict=True)
        for finding in check_paths([path], Rules(group_size=group_size)).findings
    ]
    matched = match_prompts(rollouts, arms, np.random.default_rng([seed, 2]))
    groups = len(matched.rollouts[0]) // matched.size
    cap = _common(matched.rollouts, "max_new_tokens")
    config = SamplingConfig(
        *arms,
        engine="recorded",
        prompts=f"{paths[0]}, {paths[1]}",
        reward_range=reward_range,
        group_size=matched.size,
        max_new_tokens=None if cap is None else int(cap),
        margins=margins,
        fixed=groups,
        seed=seed,
    )
    with exclusive(out):
        store = SamplingStore(out, config)
        made = {"created_at": time.time(), "commit": commit(Path(__file__).parent), "versions": versions()}
        store.create({"command": command, **made})
        for arm, rollout in zip(arms, matched.rollouts, strict=True):
            store.append(arm, list(rollout.samples()), ())
    findings: list[Finding] = [
        *contract,
        *(finding.in_run(arms[1]) for finding in check_arms(*matched.rollouts)),
        *matched.findings,
        *sampling_findings(
            *matched.rollouts, margins, np.random.default_rng([seed, 1]), reward_range, config.max_new_tokens
        ),
        *segment_findings(*matched.rollouts, margins),
    ]
    counts = {"samples": sum(map(len, matched.rollouts)), "groups": groups, "exchanges": 0}
    stopped = Message("all {done} groups with the same prompts are compared", done=groups)
    return SamplingResult(config, tuple(findings), judge(findings), counts, stopped)


def names_of_arms(paths: tuple[Path, Path]) -> tuple[str, str]:
    """What two recordings are called: by the first parts of their paths, from the end, that differ."""
    for parts in zip(*(reversed(path.absolute().parts) for path in paths), strict=False):
        first, second = (re.sub(r"[^A-Za-z0-9._-]", "-", part) for part in parts)
        if first != second:
            return first, second
    return "baseline", "experiment"


def _check_rewards(path: Path, rollout: Rollout, reward_range: tuple[float, float]) -> None:
    rewards, known = rollout.numbers("reward")
    low, high = reward_range
    outside = known & ~((rewards >= low) & (rewards <= high))
    if outside.any():
        raise InputError(
            f"{path}: {int(outside.sum())} of {int(known.sum())} rewards are outside {low:g} to {high:g}, the first is "
            f"{rewards[outside][0]:g}; give the range of rewards with --reward-range"
        )


def _common(rollouts: tuple[Rollout, Rollout], name: str) -> float | None:
    """The value that all samples of both have in a column; None where one lacks it or they differ."""
    columns: list[Any] = [rollout.numbers(name) for rollout in rollouts]
    values = np.concatenate([column for column, _ in columns])
    return float(values[0]) if all(known.all() for _, known in columns) and np.ptp(values) == 0 else None
