"""The package's own files: samples as Parquet and JSON lines, exchanges, and the metrics of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from parity.errors import InputError
from parity.records.json_lines import in_batches, read_lines
from parity.records.samples import SCHEMA, Rollout
from parity.sources.dumps.rows import DAMAGED_TABLE, TRUTH_VALUES, rollout_of

_ROWS_AT_A_TIME = 2_048


def is_sample_table(columns: list[str]) -> bool:
    """Whether a Parquet file holds samples."""
    return {"group_index", "index"} <= set(columns)


def read_sample_table(path: Path, group_size: int | None) -> Iterator[Rollout]:
    """The samples of a Parquet file, some thousand at a time, so that memory is that of one row group at most.

    Raises:
        InputError: The file is damaged, or its columns are not those of samples.
    """
    try:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                for batch in file.iter_batches(_ROWS_AT_A_TIME, row_groups=[number]):
                    table = pa.Table.from_batches([batch])
                    table.validate(full=True)
                    place = f"{path}, row group {number}"
                    _check_truth_values(table, place)
                    _check_extra(table, place)
                    yield Rollout.from_table(table, place)
    except MemoryError:
        raise
    except DAMAGED_TABLE as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def _check_truth_values(table: pa.Table, place: str) -> None:
    """Holds columns of true and false to `TRUTH_VALUES`; Arrow would take any for numbers."""
    for column in table.schema:
        kind = column.type.value_type if pa.types.is_list(column.type) else column.type
        if pa.types.is_boolean(kind) and column.name not in TRUTH_VALUES:
            raise InputError(f"{place}: column {column.name!r} is {column.type}")


def _check_extra(table: pa.Table, place: str) -> None:
    """Holds `extra` to JSON objects as text, if it is text."""
    if "extra" not in table.column_names or not pa.types.is_string(table.schema.field("extra").type):
        return
    for row, text in enumerate(table.column("extra").to_pylist()):
        try:
            sound = text is None or isinstance(orjson.loads(text), dict)
        except orjson.JSONDecodeError:
            sound = False
        if not sound:
            raise InputError(f"{place}, row {row}: field 'extra' is no JSON object: {text[:60]!r}")


def is_sample(row: dict[str, Any]) -> bool:
    """Whether a line is a sample."""
    return {"group_index", "index"} <= row.keys()


def read_sample_lines(path: Path, group_size: int | None) -> Iterator[Rollout]:
    """The samples of a ``*.samples.jsonl``, some thousand at a time.

    Raises:
        InputError: A line is damaged, has an unknown field, or a field of the wrong type.
    """
    return map(samples_of_lines, in_batches(read_lines(path), _ROWS_AT_A_TIME))


def samples_of_lines(lines: Sequence[tuple[str, dict[str, Any]]]) -> Rollout:
    """Samples of lines of a ``*.samples.jsonl``, each with its place.

    Raises:
        InputError: A line has an unknown field, or a field of the wrong type.
    """
    for place, row in lines:
        if unknown := sorted(row.keys() - set(SCHEMA.names)):
            raise InputError(f"{place}: unknown fields {unknown}; what is no field of a sample belongs into extra")
        if not isinstance(row.get("extra") or {}, dict):
            raise InputError(f"{place}: field 'extra' is {type(row['extra']).__name__}, not an object")
    return rollout_of([row for _, row in lines], [place for place, _ in lines].__getitem__)


def is_exchange(row: dict[str, Any]) -> bool:
    """Whether a line is an exchange."""
    return {"request", "status", "response"} <= row.keys()
