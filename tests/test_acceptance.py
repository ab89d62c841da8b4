from __future__ import annotations

from parity.acceptance import merge
from parity.findings import Finding, Level, Status, Where


def finding(status: Status, run: str, checked: int, **place: int) -> Finding:
    evidence = {"checked": checked, "failed": int(status is Status.FAIL), "not_compared": 0}
    return Finding("output_count", Level.CONTRACT, status, "a message", Where(run, **place), evidence=evidence)


def test_what_passes_in_every_run_is_one_finding_with_the_counts_added() -> None:
    (merged,) = merge([finding(Status.PASS, "a", 3), finding(Status.PASS, "b", 4)])
    assert (merged.status, merged.evidence["checked"], merged.evidence["runs"]) == (Status.PASS, 7, 2)
    assert merged.message.startswith("7 checked in 2 runs: ")


def test_a_check_that_fails_in_one_run_does_not_pass_for_the_others() -> None:
    failed = finding(Status.FAIL, "b", 4, rollout_id=2, group_index=1)
    assert merge([finding(Status.PASS, "a", 3), failed]) == [failed]


def test_what_one_run_could_not_compare_stays_visible_beside_a_pass() -> None:
    merged = merge([finding(Status.PASS, "a", 3), finding(Status.NOT_COMPARED, "b", 0)])
    assert [item.status for item in merged] == [Status.PASS, Status.NOT_COMPARED]


def test_nothing_merges_to_nothing() -> None:
    assert merge([]) == []
