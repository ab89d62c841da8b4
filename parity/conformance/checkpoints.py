"""Checkpoints like the one that an engine serves, made from the bytes of its safetensors files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from parity.conformance.probe import NotCompared, Probe

ENCODER = ("visual.", "model.visual.")
"""How the names of a vision encoder's tensors begin, as of Qwen2.5-VL."""
MAX_HEADER_BYTES = 100 << 20
"""Of a safetensors file, by its format."""


async def served_checkpoint(probe: Probe) -> tuple[Path, str | None]:
    """The checkpoint that the engine serves, and its weight version.

    Raises:
        NotCompared: It is on another machine.
    """
    info = await probe.client.model_info()
    path = Path(str(info.get("model_path")))
    if not (path / "config.json").is_file():
        raise NotCompared(f"the engine's checkpoint {path} is not on this machine's file system")
    return path, info.get("weight_version")


def with_turned_matrix(path: Path, other: Path) -> None:
    """Copies a checkpoint of one file, rows and columns of one tensor swapped in its header, which keeps its length.

    Raises:
        NotCompared: The checkpoint has several files, or no matrix that is not square.
    """
    shutil.copytree(path, other)
    file = other / "model.safetensors"
    if not file.is_file():
        raise NotCompared(f"the checkpoint is not one file: {file.name} is missing")
    header, start = _header(file)
    shapes = [entry["shape"] for entry in header.values() if "shape" in entry]
    shape = next((shape for shape in shapes if len(shape) == 2 and shape[0] != shape[1]), None)
    if shape is None:
        raise NotCompared("the checkpoint holds no matrix that is not square")
    shape.reverse()
    turned = json.dumps(header, separators=(",", ":")).encode().ljust(start - 8)
    content = file.read_bytes()
    file.write_bytes(len(turned).to_bytes(8, "little") + turned + content[start:])


def with_other_encoder(path: Path, other: Path) -> None:
    """Copies a checkpoint, the rows of each of its vision encoder's matrices in reverse order.

    So every value is one that the engine can take, whatever its type, and its text model stays. Files without a tensor
    of the encoder are links to those of the checkpoint.

    Raises:
        NotCompared: No file holds a matrix of an encoder.
    """
    other.mkdir()
    changed = 0
    for file in path.iterdir():
        matrices = _encoder_matrices(file) if file.suffix == ".safetensors" else []
        if not matrices:
            (other / file.name).symlink_to(file.resolve())
            continue
        shutil.copyfile(file, other / file.name)
        for begin, shape in matrices:
            rows = np.memmap(other / file.name, np.uint8, "r+", begin, shape)
            rows[:] = rows[::-1].copy()
        changed += len(matrices)
    if not changed:
        raise NotCompared(f"no second encoder can be made: {path} holds no matrix under {' or '.join(ENCODER)}")


def _encoder_matrices(file: Path) -> list[tuple[int, tuple[int, int]]]:
    """Of each matrix of the encoder: where it begins in the file, its rows, and the bytes of a row."""
    header, start = _header(file)
    return [
        (start + entry["data_offsets"][0], (rows, (entry["data_offsets"][1] - entry["data_offsets"][0]) // rows))
        for name, entry in header.items()
        if name.startswith(ENCODER) and len(entry["shape"]) > 1 and (rows := entry["shape"][0]) > 1
    ]


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begin."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > MAX_HEADER_BYTES:
            raise NotCompared(f"{file} is no safetensors file: its header would have {size} bytes")
        header: dict[str, Any] = json.loads(stream.read(size))
    return header, 8 + size
