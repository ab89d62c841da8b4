"""The formats that are read, and which one a file has: by its content, never by its name alone."""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from parity.errors import InputError, NotRecognised
from parity.metrics import Curve
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout
from parity.sources.dumps import dumps, miles, relax, sample_lines, verl
from parity.sources.dumps.rows import DAMAGED_TABLE
from parity.sources.json_lines import compression_of, read_lines

SampleReader = Callable[[Path, int | None], Iterator[Rollout]]


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name, and how what it holds is read; `None` for what it does not hold."""

    name: str
    samples: SampleReader | None = None
    exchanges: Callable[[Path], Iterator[Exchange]] | None = None
    curves: Callable[[Path], Mapping[str, Curve]] | None = None


DUMP = Format("dump of slime, Miles or Relax", samples=dumps.read_dump)

TABLES: tuple[tuple[Callable[[list[str]], bool], Format], ...] = (
    (sample_lines.is_sample_table, Format("samples (Parquet)", samples=sample_lines.read_sample_table)),
    (miles.is_dashboard, Format("Miles dashboard columns", samples=miles.read_dashboard)),
)

LINES: tuple[tuple[Callable[[dict[str, Any]], bool], Format], ...] = (
    (sample_lines.is_exchange, Format("exchanges (JSON lines)", exchanges=sample_lines.read_exchange_lines)),
    (sample_lines.is_sample, Format("samples (JSON lines)", samples=sample_lines.read_sample_lines)),
    (relax.is_relax_result, Format("Relax rollout results", samples=relax.read_relax_result)),
    (verl.is_verl_rollout, Format("verl rollout data", samples=verl.read_verl_rollout)),
    (miles.is_event, Format("Miles events", curves=miles.read_metric_events)),
    (sample_lines.is_metrics, Format("metrics of a run", curves=sample_lines.read_metrics)),
)

FORMATS: tuple[Format, ...] = (DUMP, *(one for _, one in TABLES), *(one for _, one in LINES))


@dataclass(frozen=True, slots=True)
class Source:
    """A file and what can be read of it; each call reads the file from its start.

    Attributes:
        path: The file.
        format: The format's name.
        samples: Its samples in parts, or `None` if its format has none.
        exchanges: Its exchanges, likewise.
        curves: Its curves by metric, likewise.
    """

    path: Path
    format: str
    samples: Callable[[], Iterator[Rollout]] | None = None
    exchanges: Callable[[], Iterator[Exchange]] | None = None
    curves: Callable[[], Mapping[str, Curve]] | None = None


def open_source(path: Path, group_size: int | None = None) -> Source:
    """Recognises a file; nothing but its beginning is read (of Parquet, the schema).

    Args:
        path: A file.
        group_size: Samples of each group, for formats that do not say which samples are one.

    Raises:
        NotRecognised: The file is in none of `FORMATS`.
        InputError: It cannot be opened, or is damaged where its format would show.
    """
    found = _format_of(path)
    return Source(
        path,
        found.name,
        partial(found.samples, path, group_size) if found.samples else None,
        partial(found.exchanges, path) if found.exchanges else None,
        partial(found.curves, path) if found.curves else None,
    )


def _format_of(path: Path) -> Format:
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a file that can be read more than once")
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if head == b"PAR1":
        return _of_table(path)
    if head.startswith(b"\x80") or (head == b"PK\x03\x04" and _may_be_of_torch(path)):
        return DUMP
    if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{" or compression_of(head):
        return _of_lines(path)
    raise NotRecognised(f"{path}: not recognised")


def _may_be_of_torch(path: Path) -> bool:
    """Whether a zip archive holds a pickle where `torch.save` puts it; PyTorch says what a damaged one is."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError):
        return True


def _of_table(path: Path) -> Format:
    try:
        columns = pq.read_schema(path).names
    except DAMAGED_TABLE as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise InputError(f"{path}: columns {twice} are there more than once")
    if found := next((one for recognises, one in TABLES if recognises(columns)), None):
        return found
    raise NotRecognised(f"{path}: not recognised: Parquet with columns {columns[:12]}")


def _of_lines(path: Path) -> Format:
    try:
        _, row = next(read_lines(path))
    except InputError as error:
        if ".jsonl" in path.suffixes:
            raise
        raise NotRecognised(f"{path}: not recognised: no JSON lines") from error
    except StopIteration as error:
        raise NotRecognised(f"{path}: not recognised: empty") from error
    if found := next((one for recognises, one in LINES if recognises(row)), None):
        return found
    raise NotRecognised(f"{path}: not recognised: JSON lines with fields {sorted(row)[:12]}")
