"""Columns of samples as arrays: sums, counts and hashes of ragged rows, without a loop over tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parity.records.samples import Ragged, Rollout

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]

NULL = np.iinfo(np.int64).min
"""Stands for a null in integer facts; no integer of a sample takes it."""

PREFIX = 32
"""Tokens of the prefix that is compared between siblings."""


def row_sums(ragged: Ragged, values: npt.NDArray[Any], dtype: type[np.generic] = np.int64) -> npt.NDArray[Any]:
    """Sum of per-entry `values` over each row, (rows,); 0 for an empty row."""
    sums = np.zeros(len(ragged.valid), dtype=dtype)
    filled = np.flatnonzero(ragged.lengths)
    if len(filled):
        sums[filled] = np.add.reduceat(values, ragged.offsets[filled], dtype=dtype)
    return sums


def row_counts(ragged: Ragged, marked: Bools) -> Ints:
    """Marked entries of each row, (rows,); cheap when few are."""
    return np.bincount(
        np.searchsorted(ragged.offsets, np.flatnonzero(marked), side="right") - 1, minlength=len(ragged.valid)
    )


def row_lengths(ragged: Ragged) -> Ints:
    """The length of each row, `NULL` where null, (rows,)."""
    return np.where(ragged.valid, ragged.lengths, NULL)


def row_ends(ragged: Ragged) -> Ints:
    """The place of each row's last entry among all entries, -1 where it has none, (rows,)."""
    return np.where(ragged.lengths > 0, ragged.offsets[1:] - 1, -1)


def entries_at(ragged: Ragged, places: Ints) -> Ints:
    """The entry of each row at a place among all entries, `NULL` at -1, (rows,)."""
    entries = np.full(len(ragged.valid), NULL, dtype=np.int64)
    entries[places >= 0] = ragged.values[places[places >= 0]]
    return entries


def row_hashes(ragged: Ragged) -> Ints:
    """A hash of each row's entries and their number, (rows,)."""
    data = np.ascontiguousarray(ragged.values).view(np.uint8).data
    ends = (ragged.offsets * ragged.values.itemsize).tolist()
    checksums = np.fromiter((crc32(data[a:b]) for a, b in pairwise(ends)), np.int64, len(ragged.valid))
    return checksums | ragged.lengths << 32


def row_prefixes(ragged: Ragged) -> Ragged:
    """The first `PREFIX` entries of each row that has as many, copied; other rows are empty."""
    long = ragged.lengths >= PREFIX
    places = (ragged.offsets[:-1][long][:, None] + np.arange(PREFIX)).ravel()
    return Ragged(ragged.values[places], np.append(0, np.cumsum(long * PREFIX)), long)


def integer_lists(rollout: Rollout, name: str) -> Ragged:
    """An integer list column, with -1 (no token id, no mask value) in place of null entries."""
    ragged = rollout.ragged(name)
    if ragged.values.dtype.kind != "f":
        return ragged
    return Ragged(np.nan_to_num(ragged.values, nan=-1).astype(np.int32), ragged.offsets, ragged.valid)


def text_lists(rollout: Rollout, name: str) -> Objects:
    """A column of text lists as tuples, `None` where null, (rows,)."""
    rows = np.empty(len(rollout), dtype=object)
    column = rollout.table.column(name)
    if column.null_count < len(rollout):
        rows[:] = [None if row is None else tuple(row) for row in column.to_pylist()]
    return rows


def texts(rollout: Rollout, name: str) -> Objects:
    """A text column as shared objects, (rows,)."""
    column = rollout.table.column(name).combine_chunks().dictionary_encode()
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    words = np.asarray([*array.dictionary.to_pylist(), None], dtype=object)
    codes: Objects = words[array.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]
    return codes


def integers(rollout: Rollout, name: str) -> Ints:
    """An integer column, `NULL` where null, (rows,)."""
    return rollout.integers(name, NULL)
