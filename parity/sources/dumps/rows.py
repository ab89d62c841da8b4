"""Rows that others wrote, as columns: each value is held to its column's type, a wrong one named by its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from parity.errors import InputError, UsageError
from parity.records.samples import ASSIGNED, SCHEMA, STATUS_OF_FINISH_REASON, Rollout

Row = Mapping[str, Any]
Place = Callable[[int], str]
"""From a row's number to the words that name it in an error."""

FINISH_REASON_OF_STATUS = {status: reason for reason, status in STATUS_OF_FINISH_REASON.items()}
"""How a finished sample ended, where its source keeps the status alone."""

DAMAGED_TABLE = (OSError, ValueError, KeyError, pa.ArrowException)
"""What reading a damaged Parquet file raises; its own texts, such as column names, may be no UTF-8."""

_WRONG_TYPE = (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError)
"""What values of the wrong type raise; tensors without data, and values nested too deeply, a `RuntimeError`."""

_NUMBERS_IN_TEXT = ("weight_versions",)

TRUTH_VALUES = ("reward", "loss_mask")
"""Columns that hosts fill with true and false too, a verifier's answer and a mask, which count as 1 and 0."""


def rollout_of(rows: Sequence[Row], place: Place, assigned: Collection[str] = ()) -> Rollout:
    """Columns from rows by column name; what a row lacks is null, and `extra` is a mapping.

    Args:
        rows: Values by column.
        place: Names a row in an error.
        assigned: What the reader made up, `index` or `order`, which no rule may then hold the source to.

    Raises:
        InputError: A value is not of its column's type, or a required one is missing.
    """
    columns = [_column(column, [row.get(column.name) for row in rows], place) for column in SCHEMA]
    schema = SCHEMA.with_metadata({ASSIGNED: ",".join(sorted(assigned))} if assigned else None)
    return Rollout(pa.table(columns, schema=schema))


def _column(column: pa.Field, values: list[Any], place: Place) -> pa.Array:
    if not column.nullable and None in values:
        raise InputError(f"{place(values.index(None))}: field {column.name!r} is missing")
    try:
        return _converted(column, values)
    except _WRONG_TYPE:
        return pa.concat_arrays([_alone(column, value, place(number)) for number, value in enumerate(values)])


def _alone(column: pa.Field, value: Any, place: str) -> pa.Array:
    try:
        return _converted(column, [value])
    except _WRONG_TYPE as error:
        shown = _shown(value)
        raise InputError(f"{place}: field {column.name!r} is no {_words(column.type)}: {shown!r} ({error})") from error


def _shown(value: Any) -> str:
    try:
        return str(value)[:60]
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply"


def _converted(column: pa.Field, values: list[Any]) -> pa.Array:
    """Values as an array of the column's type.

    A fraction in an integer column is refused, never cut, and so is true or false outside `TRUTH_VALUES`.
    """
    if column.name == "extra":
        return pa.array([_extra_text(value) for value in values], pa.string())
    array = pa.array(values)
    found, wanted = _leaf(array.type), _leaf(column.type)
    if pa.types.is_null(found):
        return array.cast(column.type)
    is_text = pa.types.is_string(found)
    in_text = column.name in _NUMBERS_IN_TEXT and pa.types.is_integer(found)
    is_number = pa.types.is_integer(found) or pa.types.is_floating(found)
    is_number |= pa.types.is_boolean(found) and column.name in TRUTH_VALUES
    if not ((is_text or in_text) if pa.types.is_string(wanted) else is_number):
        raise TypeError(f"it holds {found}")
    return array.cast(column.type)


def _leaf(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def _words(kind: pa.DataType) -> str:
    return f"list of {kind.value_type}" if pa.types.is_list(kind) else str(kind)


def _extra_text(extra: Mapping[str, Any] | None) -> str | None:
    option = orjson.OPT_NON_STR_KEYS
    return orjson.dumps(extra, default=_described, option=option).decode() if extra else None


def _described(value: Any) -> Any:
    """What stands for a value that JSON does not have: arrays and bytes by their shape and size."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return value.item() if value.shape == () else {"dtype": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    raise TypeError(f"it holds a {type(value).__name__}")


def plain(value: Any) -> Any:
    """A tensor or array as lists and numbers; anything else, and a tensor that has none, as it is."""
    try:
        return value.tolist() if hasattr(value, "tolist") else value
    except (TypeError, RuntimeError):
        return value


def whole(row: Row, name: str, place: str) -> int:
    """A required integer field.

    Raises:
        InputError: It is missing or no integer.
    """
    value = plain(row.get(name))
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{place}: field {name!r} is {value!r}, not an integer")
    return value


def groups_and_slots(
    groups: Sequence[Any], indices: Sequence[Any], group_size: int | None, source: str, place: Place
) -> list[tuple[int, int]]:
    """The group and the slot of each row.

    Sources number samples through, over all groups: a slot is the rank of a sample's number among those of its group,
    so that a number given twice stays a slot taken twice. Without numbers it is the place in the group, in order. Where
    no row names its group, groups of `group_size` stand one after the other, as slime's trainer takes them.

    Raises:
        InputError: Some rows name their group or number and some do not, or one is no integer.
        UsageError: No row names its group, and the group size is not given.
    """
    if not groups:
        return []
    if all(group is None for group in groups):
        if group_size is None:
            raise UsageError(
                f"{source}: its samples do not say which group they are of; with --group-size N they are taken N by N"
            )
        return [divmod(number, group_size) for number in range(len(groups))]
    _integers("group_index", groups, place)
    members: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    numbered = any(index is not None for index in indices)
    if numbered:
        _integers("index", indices, place)
    slots = [0] * len(groups)
    for rows in members.values():
        keys = [indices[row] for row in rows] if numbered else range(len(rows))
        for row, rank in zip(rows, np.unique(keys, return_inverse=True)[1].tolist(), strict=True):
            slots[row] = rank
    return list(zip(groups, slots, strict=True))


def _integers(name: str, values: Sequence[Any], place: Place) -> None:
    for number, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
            raise InputError(f"{place(number)}: field {name!r} is {value!r}, not an integer")


def step_in_name(stem: str, rollout_id: int, source: str) -> None:
    """Holds a file that is named after its step to that.

    Raises:
        InputError: The name is a number, and the content is of another step.
    """
    if stem.isascii() and stem.isdigit() and int(stem) != rollout_id:
        raise InputError(f"{source}: the file is named after step {stem}, but holds rollout {rollout_id}")


def split_tokens(tokens: Any, response_length: int, place: str) -> tuple[list[Any] | None, list[Any]]:
    """Prompt and response of a sample that keeps both in one list.

    A response longer than the list is not cut to fit: the whole list is taken for the response, and the prompt is not
    known, so that the check of lengths sees it. An empty list says nothing about the prompt.

    Raises:
        InputError: The tokens are no list.
    """
    tokens = plain(tokens)
    if not isinstance(tokens, list):
        raise InputError(f"{place}: field 'tokens' is {type(tokens).__name__}, not a list")
    start = len(tokens) - max(response_length, 0)
    return (tokens[:start] if start > 0 else None), tokens[max(start, 0) :]
