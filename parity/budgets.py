"""How much of what others wrote is taken in: bytes and elements, so that a small file or answer takes no large memory.

Decoded JSON takes up to 30 times its bytes, and a compressed file a thousand times its own, so that bytes alone bound
nothing. The budgets leave room for groups of 16 responses of 64k tokens with log-probs, and keep each reader below 1 GB
whatever it is given.
"""

from __future__ import annotations

import os
from typing import Any

import orjson

from parity.errors import InputError, UsageError

VARIABLE = "PARITY_BUDGET"
"""The variable of the environment by which all budgets are multiplied."""
_MEBI = 1 << 20


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


def address_space() -> int:
    """Bytes of memory that a reader of hostile formats may take in a process of its own, beside its packages."""
    return _scaled(4 << 30)


def exceeded(what: str, limit: int, unit: str) -> str:
    """That a budget was exceeded, and what raises it."""
    return f"{what} exceeds the budget of {limit:,} {unit}; {VARIABLE}=4 allows four times as much"


def check_elements(content: bytes, place: str) -> None:
    """Holds a JSON text to the budget of values, before it is decoded.

    Raises:
        InputError: It may hold more.
    """
    if len(content) > (limit := elements()) and (
        content.count(b",") + content.count(b"[") + 4 * content.count(b"{") > limit
    ):
        raise InputError(exceeded(place, limit, "values"))


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
