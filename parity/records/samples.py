"""Samples and rollouts: what came out of the engine, as rows while they are made and as columns once they are checked.

A `Sample` is one response; a `Rollout` holds many as Arrow columns, so that checks run over arrays and never token by
token in Python. The columns are those of ``*.samples.jsonl`` and of the Parquet files of an experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from parity.errors import InputError
from parity.findings import quantity

SCHEMA = pa.schema(
    [
        pa.field("rollout_id", pa.int64()),
        pa.field("group_index", pa.int64(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("prompt_ids", pa.list_(pa.int32())),
        pa.field("output_ids", pa.list_(pa.int32())),
        pa.field("logprobs", pa.list_(pa.float64())),
        pa.field("text", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("advantage", pa.float64()),
        pa.field("loss_mask", pa.list_(pa.int8())),
        pa.field("response_length", pa.int64()),
        pa.field("max_new_tokens", pa.int64()),
        pa.field("weight_versions", pa.list_(pa.string())),
        pa.field("sampling_seed", pa.int64()),
        pa.field("temperature", pa.float64()),
        pa.field("top_p", pa.float64()),
        pa.field("top_k", pa.int64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("media_sha256", pa.list_(pa.string())),
        pa.field("arm", pa.string()),
        pa.field("engine_id", pa.string()),
        pa.field("extra", pa.string()),
    ]
)
"""The columns of samples; `extra` is a JSON object as text, so that any source's own fields fit one schema."""

ASSIGNED = b"assigned"
"""Key of a table's metadata: the columns, with commas between them, that a reader made up for want of recorded ones."""

TRAINER_LOGPROBS = "trainer_logprobs"
"""Field of `extra`: the trainer's log-prob of each response token, a list as long as `logprobs`."""

FINISH_REASONS = ("stop", "length", "abort")
STATUSES = ("pending", "completed", "truncated", "aborted", "failed")
STATUS_OF_FINISH_REASON = {"stop": "completed", "length": "truncated", "abort": "aborted"}


@dataclass(slots=True)
class Sample:
    """One response, filled in as it becomes known; `None` means not known, which is not the same as empty.

    `group_index` is the prompt group inside the rollout and `index` the slot inside the group, both from 0.
    `prompt_ids`, `output_ids`, `logprobs` (natural log, of the tokens sampled) and `loss_mask` (1 for trained tokens)
    are per token; the last three have one entry per response token. `reward` and `advantage` are per response.
    """

    group_index: int
    index: int
    rollout_id: int | None = None
    prompt_ids: list[int] | None = None
    output_ids: list[int] | None = None
    logprobs: list[float] | None = None
    text: str | None = None
    finish_reason: str | None = None
    status: str | None = None
    reward: float | None = None
    advantage: float | None = None
    loss_mask: list[int] | None = None
    response_length: int | None = None
    max_new_tokens: int | None = None
    weight_versions: list[str] | None = None
    sampling_seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    media_sha256: list[str] | None = None
    arm: str | None = None
    engine_id: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The known fields by name, as one line of ``*.samples.jsonl`` holds them."""
        row = {name: getattr(self, name) for name in SAMPLE_FIELDS}
        return {name: value for name, value in row.items() if value is not None and value != {}}


SAMPLE_FIELDS = tuple(item.name for item in fields(Sample))


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column of lists: row i is `values[offsets[i]:offsets[i + 1]]`, and empty with `valid[i]` False where null.

    Shapes: `values` (total entries,), `offsets` (rows + 1,), `valid` (rows,).
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Entries of each row, (rows,)."""
        return np.diff(self.offsets)

    @property
    def rows_of_values(self) -> npt.NDArray[np.int64]:
        """The row that each entry of `values` belongs to, (total entries,)."""
        return np.repeat(np.arange(len(self.valid)), self.lengths)

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


@dataclass(frozen=True, slots=True)
class Rollout:
    """Samples as Arrow columns under `SCHEMA`: one training step's, or any number of steps' one after the other."""

    table: pa.Table

    @classmethod
    def from_samples(cls, samples: Iterable[Sample]) -> Rollout:
        """Columns from rows, in the order given."""
        rows = list(samples)
        columns: dict[str, Sequence[Any]] = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
        columns["extra"] = [orjson.dumps(extra).decode() if extra else None for extra in columns["extra"]]
        return cls(pa.table(columns, schema=SCHEMA))

    @classmethod
    def from_table(cls, table: pa.Table, source: str) -> Rollout:
        """Columns of a table that somebody wrote: unknown columns are refused, missing optional ones are null.

        Raises:
            InputError: `group_index` or `index` is missing or null, a column is unknown, or one cannot be cast to its
            type.
        """
        unknown = sorted(set(table.column_names) - set(SCHEMA.names))
        if unknown:
            raise InputError(f"{source}: unknown columns {unknown}; samples have {SCHEMA.names}")
        arrays = []
        for column in SCHEMA:
            if column.name not in table.column_names:
                if not column.nullable:
                    raise InputError(f"{source}: required column {column.name!r} is missing")
                arrays.append(pa.nulls(len(table), column.type))
                continue
            values = table.column(column.name)
            if not column.nullable and values.null_count:
                nulls, rows = quantity(values.null_count, "nulls"), quantity(len(table), "rows")
                raise InputError(f"{source}: column {column.name!r} has {nulls} in {rows}")
            try:
                arrays.append(values.cast(column.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InputError(
                    f"{source}: column {column.name!r} is {values.type}, not {column.type}: {error}"
                ) from error
        return cls(pa.table(arrays, schema=SCHEMA))

    @classmethod
    def read_parquet(cls, path: Path) -> Rollout:
        """Reads one Parquet file of samples.

        Raises:
            InputError: The file is missing, is no Parquet file, or its columns are not those of samples.
        """
        try:
            with pq.ParquetFile(path) as file:  # half the time of `read_table` where files are small
                table = file.read()
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
        return cls.from_table(table, str(path))

    @classmethod
    def concatenate(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """The samples of several rollouts, one after the other."""
        return cls(pa.concat_tables([rollout.table for rollout in rollouts]) if rollouts else SCHEMA.empty_table())

    def __len__(self) -> int:
        return len(self.table)

    def samples(self) -> Iterator[Sample]:
        """The rows again, for code that needs single samples."""
        for row in self.table.to_pylist():
            extra = row.pop("extra")
            yield Sample(**row, extra=orjson.loads(extra) if extra else {})

    def has(self, name: str) -> bool:
        """Whether any sample has a value in this column."""
        return bool(self.table.column(name).null_count < len(self))

    def numbers(self, name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """A numeric column as float64 (rows,), NaN where null, and the mask of what is not null (rows,)."""
        column = self.table.column(name)
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        return values, column.is_valid().to_numpy(zero_copy_only=False).astype(np.bool_)

    def integers(self, name: str, null: int = -1) -> npt.NDArray[np.int64]:
        """An integer column (rows,), with `null` in place of nulls."""
        return np.asarray(self.table.column(name).fill_null(null).to_numpy(zero_copy_only=False), dtype=np.int64)

    def strings(self, name: str) -> npt.NDArray[np.object_]:
        """A text column as objects (rows,), `None` where null."""
        return np.asarray(self.table.column(name).to_pylist(), dtype=object)

    def ragged(self, name: str) -> Ragged:
        """A list column as flat values and offsets."""
        column = self.table.column(name).combine_chunks()
        array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = array.flatten().to_numpy(zero_copy_only=False)
        return Ragged(values, offsets, array.is_valid().to_numpy(zero_copy_only=False).astype(np.bool_))

    def extra(self, row: int) -> Mapping[str, Any]:
        """The source's own fields of one sample."""
        text = self.table.column("extra")[row].as_py()
        return dict(orjson.loads(text)) if text else {}
