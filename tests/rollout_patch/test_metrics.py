"""Counts add up to the groups there were."""

from __future__ import annotations

from rollout_patch import GroupReport, group_metrics


def report(
    used: str, *reasons: str, requests: int = 1, retries: int = 0, aborted: bool = False, notes: tuple[str, ...] = ()
) -> GroupReport:
    return GroupReport("native", used, reasons, requests, retries, (), (), aborted, notes)


def test_groups_are_counted_by_arm_reason_and_note() -> None:
    metrics = group_metrics(
        [
            report("native"),
            report("native", retries=1, requests=2, notes=("abort_missed",)),
            report("batched", "resumed"),
            report("per-sample", "resumed", "prompt_lists_refused", requests=8),
            report("native", requests=0, aborted=True),
        ]
    )
    assert metrics == {
        "rollout_patch/groups": 5.0,
        "rollout_patch/native_groups": 3.0,
        "rollout_patch/batched_groups": 1.0,
        "rollout_patch/per_sample_groups": 1.0,
        "rollout_patch/requests": 12.0,
        "rollout_patch/retries": 1.0,
        "rollout_patch/aborted_groups": 1.0,
        "rollout_patch/abort_missed": 1.0,
        "rollout_patch/fallback/resumed": 2.0,
        "rollout_patch/fallback/prompt_lists_refused": 1.0,
    }


def test_no_groups_are_counted_as_none() -> None:
    assert set(group_metrics([]).values()) == {0.0}
