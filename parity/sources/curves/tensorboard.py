"""TensorBoard's event files. Needs the package tensorboard (the extra `compare`)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity.errors import InputError, UsageError, install_hint
from parity.metrics import Point
from parity.records.budgets import check_regular
from parity.sources.curves.recorded_runs import RecordedCurves, sentences

EVENT_FILE = "*tfevents*"


def event_directories(directory: Path) -> list[Path]:
    """The directories at or under one that hold event files; each is a run."""
    return sorted({path.parent for path in directory.rglob(EVENT_FILE) if path.is_file()})


def read_event_files(paths: list[Path], part: str = "") -> RecordedCurves:
    """The run in the event files of its processes and restarts, merged in the order of time.

    Args:
        paths: The files.
        part: The run's name inside its source.

    Raises:
        InputError: A file is damaged at its start, so that no event of it can be read.
        UsageError: The package tensorboard is not installed.
    """
    left_out: dict[str, str] = {}
    events: list[tuple[float, Point]] = []
    for path in paths:
        events += _events(path, left_out)
    events.sort(key=lambda event: event[0])
    return RecordedCurves(part, "TensorBoard", [point for _, point in events], skipped=sentences(left_out))


def _events(path: Path, left_out: dict[str, str]) -> Iterator[tuple[float, Point]]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        message = f"{path}: event files are read by the package tensorboard: {install_hint('compare')}"
        raise UsageError(message) from error
    read = 0
    check_regular(path)
    records, whole = _records(path)
    try:
        for event in LegacyEventFileLoader(str(path)).Load():
            read += 1
            for value in event.summary.value:
                scalar = _scalar(value, tensor_util)
                if scalar is None:
                    left_out.setdefault(value.tag, "not a scalar")
                else:
                    yield event.wall_time, Point(value.tag.partition("/")[0], event.step, {value.tag: scalar})
    except Exception as error:  # the loader raises what its backend does, of many classes
        if read == 0:
            raise InputError(f"{path}: cannot be read as TensorBoard events: {error}") from error
        left_out[path.name] = f"damaged after event {read} ({error}): what follows is lost"
        return
    # The loader ends in silence where a checksum is wrong, and where a record breaks off.
    if read < records:
        left_out[path.name] = f"damaged in record {read + 1} of {records}: what follows is lost"
    elif not whole:
        left_out[path.name] = f"cut off after record {records}: what follows is lost"


def _records(path: Path) -> tuple[int, bool]:
    """How many records a file has, and whether the last one is whole, by their lengths.

    A record is its length (8 bytes), a checksum of that (4), its data, and a checksum of the data (4): TensorFlow's
    TFRecord.
    """
    size, number, at = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while at + 16 <= size:
            file.seek(at)
            after = at + 16 + int(struct.unpack("<Q", file.read(8))[0])
            if after > size:
                break
            at, number = after, number + 1
    return number, at == size


def _scalar(value: Any, tensor_util: Any) -> float | None:
    """The value of a summary: plain, or a tensor without dimensions as newer writers have it."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if value.WhichOneof("value") == "tensor" and not value.tensor.tensor_shape.dim:
        array = tensor_util.make_ndarray(value.tensor)
        return float(array) if array.dtype.kind in "fiu" else None
    return None
