"""A failure that comes by the thousand is a line a minute, with a count of what was left out."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_patch import logs


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_seldom", {})


def test_lines_of_a_kind_are_counted_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]

    def at(seconds: float, key: Any) -> None:
        now[0] = seconds
        logs.log_seldom(f"failed at {seconds:g}", key, clock=lambda: now[0])

    for tenth in range(1200):
        at(tenth / 10, "one")
    at(119.9, "another")
    at(180.0, "one")
    assert [record.getMessage() for record in caplog.records] == [
        "failed at 0",
        "failed at 60; 599 like it were not logged since the last line",
        "failed at 119.9",
        "failed at 180; 599 like it were not logged since the last line",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
