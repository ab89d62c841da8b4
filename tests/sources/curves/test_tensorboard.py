"""A file of TensorBoard that is cut or damaged anywhere says so, by the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.errors import InputError
from parity.sources.registry import read_runs

STEPS = 6


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A record of the version, and one for each of `STEPS` steps."""
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    writer = writers.EventFileWriter(str(tmp_path))
    for step in range(STEPS):
        value = summary_pb2.Summary.Value(tag="train/loss", simple_value=step / 8)
        writer.add_event(event_pb2.Event(wall_time=1.0 + step, step=step, summary=summary_pb2.Summary(value=[value])))
    writer.close()
    (file,) = tmp_path.glob("*tfevents*")
    return Path(file)


def skipped(file: Path) -> list[str]:
    (run,) = read_runs(str(file))
    return [sentence for sentence in run.skipped if "what follows is lost" in sentence]


def test_a_whole_file_says_nothing(events: Path) -> None:
    assert skipped(events) == []
    (run,) = read_runs(str(events))
    assert len(run.curves["train/loss"].steps) == STEPS


@pytest.mark.parametrize("lost", [1, 3, 17, 30])
def test_a_cut_is_named_by_the_last_whole_record(lost: int, events: Path) -> None:
    events.write_bytes(events.read_bytes()[:-lost])
    (said,) = skipped(events)
    assert "cut off after record 6" in said


@pytest.mark.parametrize("back", [2, 10, 25])
def test_a_flipped_byte_is_named_by_its_record(back: int, events: Path) -> None:
    content = bytearray(events.read_bytes())
    content[-back] ^= 1
    events.write_bytes(content)
    (said,) = skipped(events)
    assert "record 7" in said or "after record 6" in said


def test_damage_in_the_first_record_is_no_file_without_metrics(events: Path) -> None:
    content = bytearray(events.read_bytes())
    content[14] ^= 1
    events.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged in record 1 of 7|cannot be read"):
        read_runs(str(events))
