"""PyTorch files of any host: what is in one is known only once it is loaded, so that it is loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from parity.errors import NotRecognised
from parity.records.samples import Rollout
from parity.sources.dumps.pickles import load_pickle, require_torch
from parity.sources.dumps.rollout_dumps import is_rollout_dump, rollout_of_dump
from parity.sources.dumps.train_dumps import is_train_dump, rollout_of_train_dump


def read_dump(path: Path, group_size: int | None) -> Iterator[Rollout]:
    """The samples of a rollout dump or a train dump.

    Raises:
        InputError: The file is damaged, is refused for what it would run, or a sample is not what its host writes.
        NotRecognised: It is a PyTorch file, but neither dump.
        UsageError: The group size is needed and not given, or PyTorch is not installed.
    """
    require_torch(path)  # before memory is limited by the file's size
    return _read(path, group_size)


def _read(path: Path, group_size: int | None) -> Iterator[Rollout]:
    content = load_pickle(path)
    if is_train_dump(content):
        yield rollout_of_train_dump(content, path, group_size)
    elif is_rollout_dump(content):
        yield rollout_of_dump(content, path, group_size)
    else:
        raise NotRecognised(f"{path}: not recognised: PyTorch file of a {_described(content)}")


def _described(content: object) -> str:
    return f"mapping with {sorted(map(str, content))[:12]}" if isinstance(content, dict) else type(content).__name__
