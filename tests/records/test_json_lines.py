"""JSON lines: plain and compressed alike, NaN kept, and damage named by file and line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.records import json_lines
from parity.records.json_lines import read_lines

ROWS: list[dict[str, Any]] = [{"row": number, "text": "é" * number} for number in range(500)]
CONTENT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
COMPRESSED = {
    "plain": CONTENT,
    "gzip": gzip.compress(CONTENT),
    "gzip in two members": gzip.compress(CONTENT[:999]) + gzip.compress(CONTENT[999:]),
    "zstd": pa.compress(CONTENT, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("kind", sorted(COMPRESSED))
def test_lines_are_read_alike_however_they_are_compressed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(COMPRESSED[kind])
    places, rows = zip(*read_lines(path), strict=True)
    assert list(rows) == ROWS
    assert places[-1] == f"{path}:500"


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_compressed_stream_that_breaks_off_is_an_error_after_its_last_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(COMPRESSED[kind][:-50])
    with pytest.raises(InputError, match=rf"{path}: "):
        list(read_lines(path))


def test_nan_and_infinity_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text('{"values": [NaN, Infinity, -Infinity, 1]}\n')
    [(_, row)] = read_lines(path)
    assert math.isnan(row["values"][0])
    assert row["values"][1:] == [math.inf, -math.inf, 1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"a": 1', "not JSON.*the line breaks off"),
        (b'{"a": }\n', "not JSON"),
        (b"\n", "not JSON"),
        (b"[1, 2]\n", "a JSON object is expected, not list"),
        (b'{"a": "\xff"}\n', "not UTF-8: byte 0xff"),
        (b'{"a": ' + b"[" * 100_000 + b"\n", "nested too deeply|not JSON"),
        (b'{"a": ' + b"1" * 5_000 + b"}\n", "not JSON"),
        (b'{"a": {"b": 1, "c": [], "b": 1}}\n', "field 'b' stands twice in one object"),
        (b'{"a": NaN, "a": 1}\n', "field 'a' stands twice in one object"),
        ('{"a": 1}'.encode("utf-16"), "not JSON|not UTF-8"),
        (b"\x00" * 100 + b"\n", "not JSON|not UTF-8"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(line: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line)
    rows = read_lines(path)
    assert next(rows)[1] == {"a": 1}
    with pytest.raises(InputError, match=rf"rows\.jsonl:2: ({said})"):
        next(rows)


def test_a_line_without_end_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "LONGEST_LINE", 1 << 16)
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.write(b'{"a": "')
        file.truncate(2 << 30)
    asked: list[int] = []
    plain = json_lines.open_plain

    class Watched:
        def __init__(self, file: Any) -> None:
            self.readline = lambda size: (asked.append(size), file.readline(size))[1]
            self.close = file.close

    monkeypatch.setattr(json_lines, "open_plain", lambda path: Watched(plain(path)))
    with pytest.raises(InputError, match=r"rows\.jsonl:1: .* 65536 bytes"):
        list(read_lines(path))
    assert asked == [(1 << 16) + 1]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none: "):
        list(read_lines(tmp_path / "none"))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_bad_input(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        assert all(isinstance(row, dict) for _, row in read_lines(path))
    except InputError as error:
        assert str(path) in str(error)
