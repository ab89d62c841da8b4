"""Weights & Biases: offline runs (``run-*.wandb``) and runs of its API. Needs the package wandb.

An offline run is a log of LevelDB's format: after the file's header, blocks of 32 KiB hold records cut into pieces,
each with a checksum, a length and a kind. Each record is a message of `wandb_internal.proto`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.errors import InputError, UsageError, install_hint
from parity.metrics import Point
from parity.sources.curves.recorded_runs import COMPLETED, RecordedCurves, points_of, sentences

FORMAT = "W&B"
MAGIC = b":W&B\xe1\xbe"
OFFLINE_FILE = "*.wandb"

_HEADER = 7
_BLOCK = 1 << 15
_FULL, _FIRST, _LAST = 1, 2, 4
_PRIVATE = ("_timestamp", "_runtime", "_wandb")
_INSTALL = f"is read by the package wandb: {install_hint('compare')}"


def offline_files(directory: Path) -> list[Path]:
    """The offline runs at or under a directory, one file each."""
    return sorted(path for path in directory.rglob(OFFLINE_FILE) if path.is_file())


def read_offline(path: Path, part: str = "") -> RecordedCurves:
    """The run in an offline file; what a crash cut off at its end is lost, and said so.

    Raises:
        InputError: The file is no offline run.
        UsageError: The package wandb is not installed.
    """
    try:
        from google.protobuf.message import DecodeError
        from wandb.proto import wandb_internal_pb2 as protocol
    except ImportError as error:
        raise UsageError(f"{path}: an offline run {_INSTALL}") from error
    left_out: dict[str, str] = {}
    points: list[Point] = []
    ending = None
    for content in _records(path, left_out):
        record = protocol.Record()
        try:
            record.ParseFromString(content)
        except DecodeError:
            left_out[path.name] = "records that are no message of W&B"
            continue
        if record.HasField("history"):
            row = {item.key or ".".join(item.nested_key): _value(item) for item in record.history.item}
            points += _points({"_step": record.history.step.num, **row}, left_out)
        elif record.HasField("exit"):
            ending = COMPLETED if record.exit.exit_code == 0 else "error"
    return RecordedCurves(part, FORMAT, points, skipped=sentences(left_out), ending=ending)


def read_api(run_path: str) -> list[RecordedCurves]:
    """The run of W&B's server at ``entity/project/run_id``, every step of it.

    Raises:
        UsageError: The package wandb is not installed or not logged in, or there is no such run.
    """
    try:
        from wandb import Api
        from wandb.errors import CommError
        from wandb.errors import UsageError as Refused
    except ImportError as error:
        raise UsageError(f"wandb:{run_path}: a run of the server {_INSTALL}") from error
    left_out: dict[str, str] = {}
    try:
        run = Api().run(run_path)
        points = [point for row in run.scan_history() for point in _points(row, left_out)]
    except (CommError, Refused, ValueError) as error:
        raise UsageError(f"wandb:{run_path}: {error}") from error
    ending = {"finished": COMPLETED, "crashed": "killed", "killed": "killed", "failed": "error"}.get(run.state)
    return [RecordedCurves("", FORMAT, points, skipped=sentences(left_out), ending=ending)]


def _points(row: Mapping[str, Any], left_out: dict[str, str]) -> Iterable[Point]:
    # The API gives null where a step has no value of a metric, and the text NaN where its value is NaN.
    return points_of(
        {name: value for name, value in row.items() if not name.startswith(_PRIVATE) and value is not None}, left_out
    )


def _value(item: Any) -> Any:
    """A value of a history record: typed as newer versions write it, or as JSON text."""
    kind = item.WhichOneof("value") if "value" in item.DESCRIPTOR.oneofs_by_name else None
    if kind not in (None, "json"):
        return getattr(item, kind)
    try:
        return json.loads(item.value_json or getattr(item, "json", ""))
    except ValueError:
        return item.value_json


def _records(path: Path, left_out: dict[str, str]) -> Iterator[bytes]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if not content.startswith(MAGIC):
        raise InputError(f"{path}: not an offline run of W&B: it begins with {content[:6]!r}")
    parts: list[bytes] = []
    offset = _HEADER
    while offset + _HEADER <= len(content):
        if _BLOCK - offset % _BLOCK < _HEADER:  # the rest of a block is too short for a piece, and left empty
            offset += _BLOCK - offset % _BLOCK
            continue
        checksum, length, kind = struct.unpack_from("<IHB", content, offset)
        piece = content[offset + _HEADER : offset + _HEADER + length]
        if kind == 0 and length == 0:
            offset += _BLOCK - offset % _BLOCK
            continue
        if len(piece) < length or zlib.crc32(bytes([kind]) + piece) != checksum:
            left_out[path.name] = f"damaged or cut off at byte {offset}: what follows is lost"
            return
        offset += _HEADER + length
        parts = [piece] if kind in (_FULL, _FIRST) else [*parts, piece]
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
