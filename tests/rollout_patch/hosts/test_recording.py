"""A recording holds each rollout once, and whatever fails in writing it takes nothing from the rollout."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from rollout_patch.hosts import recording
from rollout_patch.hosts.recording import Recording, set_aside


def write(folder: Path, rollout_id: int, start: str, groups: int = 2) -> None:
    """What one rollout records."""
    one = Recording(folder, rollout_id)
    for trained, group in itertools.product((True, False), range(groups)):
        record = one.lines("samples", trained, {"rollout_id": rollout_id, "group_index": group})
        record({"start": start, "text": '"rollout_id":99, \\"rollout_id\\":99'})
    one.close()


def rows(path: Path) -> list[tuple[int, str]]:
    return [(row["rollout_id"], row["start"]) for row in map(json.loads, path.read_text().splitlines())]


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Forgets what this process has recorded."""
    return lambda: monkeypatch.setattr(recording, "_last", {})


def test_lines_are_whole_in_order_and_there_once_it_is_closed(tmp_path: Path) -> None:
    one = Recording(tmp_path, 0)
    record = one.lines("exchanges", True, {"rollout_id": 0})
    row = {"number": 0, "nested": [0]}
    for number in range(50):
        row["number"], row["nested"][0] = number, number  # type: ignore[index]
        record(row)
    one.close()
    lines = [json.loads(line) for line in (tmp_path / "rollout.exchanges.jsonl").read_text().splitlines()]
    assert lines == [{"number": number, "nested": [number], "rollout_id": 0} for number in range(50)]


def test_a_slow_disk_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    append = recording.append_line
    monkeypatch.setattr(recording, "append_line", lambda path, line: (goes_on.wait(30), append(path, line)))
    one = Recording(tmp_path, 0)
    one.lines("samples", True, {})({"a": 1})
    assert not (tmp_path / "rollout.samples.jsonl").exists()
    goes_on.set()
    one.close()
    assert (tmp_path / "rollout.samples.jsonl").read_text() == '{"a":1}\n'


def test_lines_that_cannot_be_written_are_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Recording(tmp_path, 0)
    (tmp_path / "rollout.samples.jsonl").mkdir()
    for _ in range(3):
        one.lines("samples", True, {})({"a": 1})
    one.lines("groups", True, {})({"a": 1})
    one.close()
    assert one.lost == 3
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert (tmp_path / "rollout.groups.jsonl").read_text() == '{"a":1}\n'


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Recording(tmp_path / "file", 0)


def test_a_rollout_that_is_made_again_is_recorded_once(tmp_path: Path, new_process: Any) -> None:
    for rollout_id in (10, 11, 12):
        write(tmp_path, rollout_id, "first")
    for path in (tmp_path, tmp_path / "compared"):
        with (path / "rollout.samples.jsonl").open("a") as lines:
            lines.write('{"rollout_id":12,"sta')

    new_process()
    for rollout_id in (12, 13):
        write(tmp_path, rollout_id, "second")
    for folder in (tmp_path, tmp_path / "compared"):
        assert rows(folder / "rollout.samples.jsonl") == [
            *[(10, "first")] * 2,
            *[(11, "first")] * 2,
            *[(12, "second")] * 2,
            *[(13, "second")] * 2,
        ]
        aside = (folder / ".superseded-1.rollout.samples.jsonl").read_text()
        assert aside.count('"start":"first"') == 2
        assert aside.endswith('{"rollout_id":12,"sta')


def test_another_run_in_the_same_folder_loses_nothing_of_the_first(tmp_path: Path, new_process: Any) -> None:
    for start in ("first", "second", "third"):
        new_process()
        for rollout_id in (0, 1):
            write(tmp_path, rollout_id, start)
    assert {start for _, start in rows(tmp_path / "rollout.samples.jsonl")} == {"third"}
    for number, start in ((1, "first"), (2, "second")):
        assert {row[1] for row in rows(tmp_path / f".superseded-{number}.rollout.samples.jsonl")} == {start}


def test_a_run_that_goes_on_where_it_ended_keeps_all(tmp_path: Path, new_process: Any) -> None:
    write(tmp_path, 0, "first")
    new_process()
    write(tmp_path, 1, "second")
    assert [row[0] for row in rows(tmp_path / "rollout.samples.jsonl")] == [0, 0, 1, 1]
    assert list(tmp_path.glob(".superseded*")) == []


def test_what_is_not_there_needs_no_setting_aside(tmp_path: Path) -> None:
    set_aside(tmp_path / "rollout.samples.jsonl", 0)
    assert list(tmp_path.iterdir()) == []
