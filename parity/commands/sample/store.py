"""Samples and exchanges of both arms on disk.

    <out>/sampling.json                               the configuration
    <out>/runs/<arm>-seed<k>/groups.exchanges.jsonl   one line a request
                             groups.samples.jsonl     one line a sample
    <out>/report/                                     report.md, report.json, junit.xml

Both are written block by block. An incomplete block is dropped when the directory is reopened, and sampled again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from parity.errors import UsageError
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import Rollout, Sample
from parity.records.sampling import BLOCK, SamplingConfig
from parity.records.store import SAMPLING_FILE, append, read_json, write_atomically
from parity.sources.dumps.sample_lines import read_sample_lines

FILE = SAMPLING_FILE


@dataclass(frozen=True, slots=True)
class SamplingStore:
    """The files of one sampling."""

    path: Path
    config: SamplingConfig

    def create(self, facts: Mapping[str, Any]) -> None:
        """Starts the directory.

        Raises:
            UsageError: It holds a sampling already.
        """
        if (self.path / FILE).exists():
            raise UsageError(f"{self.path} already holds samples: continue with --resume, or choose another --out")
        for arm in self.config.arms:
            self._file(arm, "samples").parent.mkdir(parents=True, exist_ok=True)
        self._write(facts)

    def reopen(self, facts: Mapping[str, Any]) -> None:
        """Goes on with the directory: drops what is no whole block, in both arms."""
        self.amend(facts)
        finished = min(self._whole_groups(arm) for arm in self.config.arms)
        kept = finished if finished == self.config.limit else finished // BLOCK * BLOCK
        for arm in self.config.arms:
            for kind in ("exchanges", "samples"):
                path = self._file(arm, kind)
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [line for line, group in _lines(path) if group < kept]
                write_atomically(path, b"".join(lines))

    def facts(self) -> dict[str, Any]:
        """What is recorded of this sampling, its configuration as `config`.

        Raises:
            InputError: It cannot be read.
        """
        return read_json(self.path / FILE)

    def amend(self, facts: Mapping[str, Any]) -> None:
        """Adds to what is recorded."""
        self._write({**self.facts(), **facts})

    def _write(self, facts: Mapping[str, Any]) -> None:
        content = {"format": 1, **facts, "config": self.config.to_json()}
        write_atomically(self.path / FILE, json.dumps(content, indent=1).encode())

    def _whole_groups(self, arm: str) -> int:
        """How many groups, from the first on, have all their samples."""
        counts: dict[int, int] = {}
        for _, group in _lines(self._file(arm, "samples")):
            counts[group] = counts.get(group, 0) + 1
        return next(group for group in range(len(counts) + 1) if counts.get(group) != self.config.group_size)

    def append(self, arm: str, samples: Sequence[Sample], exchanges: Iterable[Exchange]) -> None:
        """Appends one arm's part of a block, exchanges first."""
        sent = b"".join(orjson.dumps(exchange.to_json()) + b"\n" for exchange in exchanges)
        append(self._file(arm, "exchanges"), sent)
        append(self._file(arm, "samples"), "".join(json.dumps(sample.to_json()) + "\n" for sample in samples).encode())

    def rollout(self, arm: str) -> Rollout:
        """All samples of an arm.

        Raises:
            InputError: A line is damaged.
        """
        path = self._file(arm, "samples")
        return Rollout.concatenate(list(read_sample_lines(path, None)) if path.exists() else [])

    def exchanges(self, arm: str) -> Iterator[Exchange]:
        """All exchanges of an arm.

        Raises:
            InputError: A line is damaged.
        """
        path = self._file(arm, "exchanges")
        return read_exchanges(path) if path.exists() else iter(())

    def _file(self, arm: str, kind: str) -> Path:
        return self.path / "runs" / f"{arm}-seed{self.config.seed}" / f"groups.{kind}.jsonl"


def read_config(path: Path) -> SamplingConfig:
    """The configuration of the sampling in a directory.

    Raises:
        UsageError: There is none.
        InputError: It cannot be read.
    """
    if not (path / FILE).exists():
        raise UsageError(f"{path} has no sampling to resume: {FILE} is missing")
    return SamplingConfig.from_json(read_json(path / FILE).get("config") or {})


def _lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines with their group; a last line without its newline was cut off while being written."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line, int(orjson.loads(line)["group_index"])
