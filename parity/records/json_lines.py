"""JSON lines, plain or compressed by gzip or zstd, read one bounded line at a time."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
import pyarrow as pa

from parity.errors import CutOff, InputError
from parity.records.budgets import check_elements, check_regular

LONGEST_LINE = 1 << 28
"""Bytes of the longest line that is read: some 7 million tokens with their log-probs."""

COMPRESSION_OF_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def compression_of(head: bytes) -> str | None:
    """The compression that a file's first bytes name."""
    return next((name for magic, name in COMPRESSION_OF_MAGIC.items() if head.startswith(magic)), None)


def open_plain(path: Path) -> BinaryIO:
    """The file's bytes, decompressed.

    Raises:
        InputError: It is a pipe or a device.
    """
    check_regular(path)
    with path.open("rb") as file:
        compression = compression_of(file.read(4))
    if compression is None:
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), compression)))


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place and the object that it holds; a last line without its newline is read if it is whole.

    Raises:
        InputError: The file cannot be read, a line is longer than `LONGEST_LINE`, not UTF-8, no JSON or no object, or
        the compressed stream breaks off.
    """
    number = 0
    try:
        with closing(open_plain(path)) as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                yield f"{path}:{number}", _object(line, f"{path}:{number}")
    except OSError as error:
        after = f" after line {number}" if number else ""
        raise InputError(f"{path}: cannot be read{after}: {error.strerror or error}") from error


def read_appended(path: Path, offset: int) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """The whole lines that a plain file has from an offset on, each with its place, and the offset after them.

    A last line without its newline is still being written, and is left for later.

    Raises:
        InputError: The file is shorter than the offset, cannot be read, or a line is too long, not UTF-8, no JSON or no
        object.
    """
    lines = []
    check_regular(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            if size < offset:
                raise InputError(f"{path}: has {size} bytes where {offset} were read before: it was written anew")
            file.seek(offset)
            while (line := file.readline(LONGEST_LINE + 1)).endswith(b"\n") or len(line) > LONGEST_LINE:
                place = f"{path}, byte {offset}"
                lines.append((place, _object(line, place)))
                offset += len(line)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return lines, offset


def _object(line: bytes, place: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise InputError(f"{place}: the line is longer than {LONGEST_LINE} bytes")
    check_elements(line, place)
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        row = _with_nan(line, place)
    refuse_repeated_names(line, place)
    if not isinstance(row, dict):
        raise InputError(f"{place}: a JSON object is expected, not {type(row).__name__}")
    return row


def _with_nan(line: bytes, place: str) -> Any:
    """JSON with NaN and infinities, which Python's writer emits and the standard lacks."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from error
    except ValueError as error:
        if not line.endswith(b"\n"):
            raise CutOff(f"{place}: not JSON: {error}; the line breaks off") from error
        raise InputError(f"{place}: not JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{place}: nested too deeply") from error


def in_batches(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The rows, `size` at a time; what came before an error comes before it here too."""
    batch: list[Any] = []
    try:
        for row in rows:
            batch.append(row)
            if len(batch) == size:
                yield batch
                batch = []
    except InputError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


_NO_BRACES, _NO_ESCAPES = (bytes(set(range(256)) - set(kept)) for kept in (b"{}", b"\\\0\1"))


def repeated_name(content: bytes) -> str | None:
    """The first name that stands twice in one object of valid JSON, of whose values parsers keep one without a word.

    None where no object has one.
    """
    # What is escaped becomes a byte that no JSON holds, so that quotes part what is in strings from what is outside.
    parts = content.replace(b"\\\\", b"\0").replace(b'\\"', b"\1").split(b'"')
    outside, inside = parts[::2], parts[1::2]
    places = [place for place, after in enumerate(outside[1:]) if after.lstrip().startswith(b":")]
    names = [_unescaped(inside[place]) for place in places]
    if len(set(names)) == len(names):
        return None
    objects: list[set[bytes]] = []
    for name, start, end in zip(names, [0, *(place + 1 for place in places)], places, strict=False):
        for brace in b"".join(outside[start : end + 1]).translate(None, _NO_BRACES):
            if brace == ord("{"):
                objects.append(set())
            else:
                objects.pop()
        if name in objects[-1]:
            return name.decode(errors="replace")
        objects[-1].add(name)
    return None


def _unescaped(text: bytes) -> bytes:
    """A name of JSON without its escapes, of which some are those of `repeated_name`."""
    if not text.translate(None, _NO_ESCAPES):
        return text
    plain: str = json.loads(b'"%b"' % text.replace(b"\1", b'\\"').replace(b"\0", b"\\\\"))
    return plain.encode(errors="surrogatepass")


def refuse_repeated_names(line: bytes, place: str) -> None:
    """Holds a line of valid JSON to objects that say each thing once.

    Raises:
        InputError: A name stands twice in an object; which of its values holds, nobody can tell.
    """
    if (name := repeated_name(line)) is not None:
        raise InputError(f"{place}: field {name!r} stands twice in one object")
