"""Miles' own files: the dashboard's columns of tokens, and lines of its event logs.

`save_dashboard_columns` of `miles/ray/rollout/debug_data.py`; `MetricEvent` of
`miles/utils/audit_utils/event_logger/models.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parity.errors import InputError, UsageError
from parity.records.samples import SCHEMA, Rollout
from parity.sources.dumps.rows import DAMAGED_TABLE

_STEP_IN_NAME = re.compile(r"rollout_(\d+)")


def is_dashboard(columns: list[str]) -> bool:
    """Whether a Parquet file holds the dashboard's columns."""
    return {"sample_index", "response_length", "tokens", "loss_mask", "rollout_log_probs"} <= set(columns)


def read_dashboard(path: Path, group_size: int | None) -> Iterator[Rollout]:
    """The tokens, masks and log-probs of one rollout; the step is the number in the file's name.

    The columns name no group: with `group_size` n, sample i is slot i mod n of group i div n, as Miles numbers them.

    Raises:
        InputError: A column is of the wrong type, or a sample has no number or fewer tokens than its response is long.
        UsageError: The group size is not given.
    """
    if group_size is None:
        raise UsageError(f"{path}: its samples do not say which group they are of; give --group-size N")
    try:
        table = pq.read_table(path)
        table.validate(full=True)
        number, length = (table.column(name).cast(pa.int64()) for name in ("sample_index", "response_length"))
        tokens = table.column("tokens").combine_chunks().cast(pa.list_(pa.int32()))
    except MemoryError:
        raise
    except DAMAGED_TABLE as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    if number.null_count or length.null_count or tokens.null_count:
        raise InputError(f"{path}: samples without number, response length or tokens")
    start = pc.subtract(pc.list_value_length(tokens), length.combine_chunks()).to_pylist()
    if short := [row for row, begin in enumerate(start) if begin < 0]:
        raise InputError(f"{path}: row {short[0]}: the response is {-start[short[0]]} tokens longer than all tokens")
    step = _STEP_IN_NAME.fullmatch(path.stem)
    both = list(zip(tokens.to_pylist(), start, strict=True))
    columns = {
        "rollout_id": pa.array([int(step[1]) if step else None] * len(table), pa.int64()),
        "group_index": pc.floor(pc.divide(number, group_size)),
        "index": pc.subtract(number, pc.multiply(pc.divide(number, group_size), group_size)),
        "prompt_ids": pa.array([ids[:begin] for ids, begin in both], SCHEMA.field("prompt_ids").type),
        "output_ids": pa.array([ids[begin:] for ids, begin in both], SCHEMA.field("output_ids").type),
        "logprobs": table.column("rollout_log_probs"),
        "loss_mask": table.column("loss_mask"),
        "response_length": length,
    }
    yield Rollout.from_table(pa.table(columns), str(path))


def is_event(row: dict[str, Any]) -> bool:
    """Whether a line is one of an event log."""
    return {"timestamp", "source", "type"} <= row.keys()
