"""Checkpoints like the one that an engine serves, made from the bytes of its safetensors files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from parity.conformance.probe import NotCompared, Probe
from parity.engines.checkpoints import safetensors_header
from parity.errors import InputError

ENCODER = re.compile(r"(model\.)?visual\.")
"""How the names of a vision encoder's tensors begin, as of Qwen2.5-VL."""
LAYERS = re.compile(r"(?!(model\.)?visual\.)(.*\.)?layers\.")
"""How the names of a language model's layers begin."""


async def served_checkpoint(probe: Probe) -> tuple[Path, str | None]:
    """The checkpoint that the engine serves, and its weight version.

    Raises:
        NotCompared: It is on another machine.
    """
    info = await probe.client.model_info()
    path = Path(str(info.get("model_path")))
    if not (path / "config.json").is_file():
        raise NotCompared("the engine's checkpoint {path} is not on this machine's file system", path=path)
    return path, info.get("weight_version")


def with_turned_matrix(path: Path, other: Path) -> None:
    """Copies a checkpoint of one file, rows and columns of one tensor swapped in its header, which keeps its length.

    Raises:
        NotCompared: The checkpoint has several files, or no matrix that is not square.
    """
    shutil.copytree(path, other)
    file = other / "model.safetensors"
    if not file.is_file():
        raise NotCompared("the checkpoint is not one file: {file} is missing", file=file.name)
    header, start = _header(file)
    shapes = [entry["shape"] for entry in header.values() if "shape" in entry]
    shape = next((shape for shape in shapes if len(shape) == 2 and shape[0] != shape[1]), None)
    if shape is None:
        raise NotCompared("the checkpoint has no matrix that is not square")
    shape.reverse()
    turned = json.dumps(header, separators=(",", ":")).encode().ljust(start - 8)
    content = file.read_bytes()
    file.write_bytes(len(turned).to_bytes(8, "little") + turned + content[start:])


def with_reversed_rows(path: Path, other: Path, names: re.Pattern[str], most_files: int | None = None) -> None:
    """Copies a checkpoint with the rows of some matrices in reverse order, and links the files that do not change.

    Every value is one that the engine can load, whatever its type, and all other tensors stay the same.

    Args:
        path: The checkpoint.
        other: The copy, a directory that does not exist.
        names: How the names of these matrices begin.
        most_files: Files to change at most, where a part of the matrices will do.

    Raises:
        NotCompared: No file holds such a matrix.
    """
    other.mkdir()
    changed = 0
    for file in sorted(path.iterdir()):
        is_left = most_files is not None and changed >= most_files
        matrices = [] if is_left or file.suffix != ".safetensors" else _matrices(file, names)
        if not matrices:
            (other / file.name).symlink_to(file.resolve())
            continue
        shutil.copyfile(file, other / file.name)
        for begin, shape in matrices:
            rows = np.memmap(other / file.name, np.uint8, "r+", begin, shape)
            rows[:] = rows[::-1].copy()
        changed += 1
    if not changed:
        raise NotCompared("{path} has no matrix whose name begins with {names}", path=path, names=names.pattern)


def _matrices(file: Path, names: re.Pattern[str]) -> list[tuple[int, tuple[int, int]]]:
    """Of each matrix of such a name: where it begins in the file, its rows, and the bytes of a row."""
    header, start = _header(file)
    return [
        (start + entry["data_offsets"][0], (rows, (entry["data_offsets"][1] - entry["data_offsets"][0]) // rows))
        for name, entry in header.items()
        if names.match(name) and len(entry["shape"]) > 1 and (rows := entry["shape"][0]) > 1
    ]


def _header(file: Path) -> tuple[dict[str, Any], int]:
    try:
        return safetensors_header(file)
    except InputError as error:
        raise NotCompared("{error}", error=error) from error
