"""Counts for the host's metrics: which way the groups of a rollout went, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rollout_patch.group import GroupReport
from rollout_patch.requests import ARMS


def group_metrics(reports: Iterable[GroupReport]) -> dict[str, float]:
    """The counts of a rollout by metric name.

    `rollout_patch/groups`, `rollout_patch/<arm>_groups`, `rollout_patch/requests`, `rollout_patch/retries` and
    `rollout_patch/aborted_groups` are always there, `rollout_patch/fallback/<reason>` and `rollout_patch/<note>` where
    any group has it. A group that fell back for several reasons counts under each.
    """
    return {f"rollout_patch/{name}": float(count) for name, count in group_counts(reports).items()}


def group_counts(reports: Iterable[GroupReport]) -> Counter[str]:
    """The same counts as they are added up from group to group, without the prefix."""
    counts: Counter[str] = Counter(
        dict.fromkeys(["groups", *map(_groups_of, ARMS), "requests", "retries", "aborted_groups"], 0)
    )
    for report in reports:
        counts.update(["groups", _groups_of(report.arm_used), *report.notes])
        counts.update(f"fallback/{reason}" for reason in report.reasons)
        counts.update({"requests": report.requests, "retries": report.retries, "aborted_groups": int(report.aborted)})
    return counts


def _groups_of(arm: str) -> str:
    return f"{arm.replace('-', '_')}_groups"
