"""Prompts from a file: JSON lines or Parquet, as hosts train on them, texts and token ids as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from parity.errors import InputError
from parity.records.json_lines import read_lines
from parity.sources.dumps.rows import DAMAGED_TABLE

KEYS = ("prompt", "input_ids", "text")
"""Where a prompt is looked for if no key is given."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text as it is sent, or token ids; and the other fields of its row, for the reward."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_prompts(path: Path, key: str | None = None) -> list[Prompt]:
    """All prompts of a file, in its order.

    Args:
        path: JSON lines (plain, gzip or zstd) or Parquet.
        key: The field that holds the prompt; by default the first of `KEYS` that a row has.

    Raises:
        InputError: The file cannot be read, is empty, or a row has no prompt that can be sent as it is.
    """
    prompts = [_prompt(row, key, place) for place, row in _rows(path)]
    if not prompts:
        raise InputError(f"{path}: no prompt in it")
    return prompts


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open("rb") as file:
            is_table = file.read(4) == b"PAR1"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if not is_table:
        yield from read_lines(path)
        return
    try:
        with pq.ParquetFile(path) as table:
            number = 0
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
    except DAMAGED_TABLE as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def _prompt(row: Mapping[str, Any], key: str | None, place: str) -> Prompt:
    name = key if key is not None else next((candidate for candidate in KEYS if candidate in row), None)
    if name is None or name not in row:
        raise InputError(
            f"{place}: no prompt under {key or ' or '.join(KEYS)}; --prompt-key names one of {sorted(row)}"
        )
    value = row[name]
    fields = {other: content for other, content in row.items() if other != name}
    if isinstance(value, str) and value:
        return Prompt(text=value, fields=fields)
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return Prompt(ids=tuple(value), fields=fields)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        raise InputError(
            f"{place}: {name!r} is a list of messages: apply the model's chat template first, and give the text or ids"
        )
    raise InputError(f"{place}: {name!r} is {str(value)[:60]!r}, neither a text nor a list of token ids")
