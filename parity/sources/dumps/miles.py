"""Miles' own files: the dashboard's columns of tokens, and the metrics among its events.

`save_dashboard_columns` of `miles/ray/rollout/debug_data.py`; `MetricEvent` of
`miles/utils/audit_utils/event_logger/models.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parity.errors import InputError, UsageError
from parity.metrics import Curve, curves_of_run
from parity.records.samples import SCHEMA, Rollout
from parity.sources.dumps.rows import DAMAGED_TABLE
from parity.sources.json_lines import read_lines

_STEP_KEYS = ("train/step", "rollout/step", "eval/step")
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


def read_metric_events(path: Path) -> Mapping[str, Curve]:
    """The curves of the metrics among the events of one process, by name; other events are passed over.

    What is logged at one step in several events is one record, unless a metric comes again: then the run went back.
    Values that are no numbers are left out.

    Raises:
        InputError: A line is damaged, or a metric event has no metrics or no step.
    """
    records: dict[str, list[dict[str, Any]]] = {key: [] for key in _STEP_KEYS}
    for place, row in read_lines(path):
        if row.get("type") != "metric":
            continue
        metrics = row.get("metrics")
        if not isinstance(metrics, dict):
            raise InputError(f"{place}: field 'metrics' is {type(metrics).__name__}, not an object")
        key = next((key for key in _STEP_KEYS if key in metrics), None)
        if key is None:
            raise InputError(f"{place}: none of {', '.join(_STEP_KEYS)} says the step of these metrics")
        numbers = {name: value for name, value in metrics.items() if name not in _STEP_KEYS and _is_number(value)}
        last = records[key][-1] if records[key] else {}
        if last.get("step") == metrics[key] and not last.keys() & numbers.keys():
            last.update(numbers)
        else:
            records[key].append({"step": metrics[key], **numbers})
    curves: dict[str, Curve] = {}
    for own in records.values():
        curves |= curves_of_run(path.stem, own)
    return curves


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
