"""How much of what others wrote is taken in: bytes and elements, so that a small file or answer takes no large memory.

Decoded JSON takes up to 30 times its bytes, and a compressed file a thousand times its own, so that bytes alone bound
nothing. The budgets leave room for groups of 16 responses of 64k tokens with log-probs, and keep each reader below 1 GB
whatever it is given.
"""

from __future__ import annotations

import os
import resource
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson

from parity.errors import InputError, OverBudget, UsageError

VARIABLE = "PARITY_BUDGET"
"""The variable of the environment by which all budgets are multiplied."""
_MEBI = 1 << 20
T = TypeVar("T")


def _scaled(budget: int) -> int:
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
        return int(budget * factor)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{VARIABLE} is {text!r}: expected a number by which budgets are multiplied") from error


def answer_bytes() -> int:
    """Bytes of one answer of an engine, decompressed."""
    return _scaled(256 * _MEBI)


def answers_in_flight() -> int:
    """Bytes of all answers that a client is receiving."""
    return _scaled(512 * _MEBI)


def elements() -> int:
    """Values of one JSON text, an object counting as four, which take up to 100 bytes each once decoded."""
    return _scaled(8_000_000)


def unpacked_bytes() -> int:
    """Bytes of what is read as a whole: a document, or a part of an archive after it is unpacked."""
    return _scaled(512 * _MEBI)


def memory_beside(size: int) -> int:
    """Bytes of memory that reading a file of so many bytes may take, beside a stack for each thread of Arrow's."""
    return _scaled((512 << 20) + 4 * size) + (os.cpu_count() or 1) * (16 << 20)


def check_regular(path: Path) -> None:
    """Refuses what is no file, such as a pipe or a device, which may hold a reader up or never end.

    Raises:
        InputError: It is neither a regular file, nor a link to one, nor missing.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # whoever opens it says why it cannot be read
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path}: not a regular file, but a pipe, a socket or a device")


@contextmanager
def limited_memory(path: Path) -> Iterator[None]:
    """Keeps the memory that this process takes while it reads within `memory_beside` the size of what it reads.

    The limit is the kernel's on private data (``RLIMIT_DATA``), so that native code is held to it too.

    Raises:
        OverBudget: More was needed.
    """
    files = [path] if path.is_file() else path.rglob("*")
    allowed = memory_beside(sum(file.stat().st_size for file in files if file.is_file()))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _private_data() + allowed
    known = [other for other in (soft, hard) if other != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([limit, *known]), hard))
    try:
        yield
    except MemoryError as error:
        raise OverBudget(f"{path}: {exceeded('reading it', allowed, 'bytes of memory')}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def within_memory(path: Path, parts: Iterator[T]) -> Iterator[T]:
    """The parts of a file, each read by `limited_memory`; what is done with them between is not counted.

    Raises:
        OverBudget: A part needed more.
    """
    while True:
        with limited_memory(path):
            try:
                part = next(parts)
            except StopIteration:
                return
        yield part


def _private_data() -> int:
    """Bytes of private data that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize()


def check_unpacked(path: Path) -> None:
    """Holds what an archive unpacks to, to the budget of bytes or four times its own.

    Raises:
        InputError: It unpacks to more, or is damaged.
    """
    limit = max(unpacked_bytes(), 4 * path.stat().st_size)
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as a zip: {error}") from error
    if total > limit:
        raise OverBudget(f"{path}: {exceeded(f'what it unpacks to ({total:,} bytes)', limit, 'bytes')}")


def exceeded(what: str, limit: int, unit: str) -> str:
    """That a budget was exceeded, and what raises it."""
    return f"{what}: over the budget of {limit:,} {unit}; {VARIABLE}=4 allows four times as much"


def check_elements(content: bytes, place: str) -> None:
    """Holds a JSON text to the budget of values, before it is decoded.

    Raises:
        OverBudget: It may hold more.
    """
    if len(content) > (limit := elements()) and (
        content.count(b",") + content.count(b"[") + 4 * content.count(b"{") > limit
    ):
        raise OverBudget(exceeded(place, limit, "values"))


def decode_json(content: bytes, place: str) -> Any:
    """Strict JSON, held to the budget of values first.

    Raises:
        InputError: It is none, or exceeds the budget.
    """
    check_elements(content, place)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON: {error}") from error
