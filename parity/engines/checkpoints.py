"""Checkpoints as files: what a safetensors file holds, and the output head of one that ties it to its embedding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from parity.errors import EngineError, InputError

HEAD_FILE = "lm_head.safetensors"
"""What a checkpoint has its output head in, where it is not in the file of the other weights."""
MAX_HEADER_BYTES = 100 << 20
"""Of a safetensors file, by its format."""


def safetensors_header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begin.

    Raises:
        InputError: It is none.
    """
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > MAX_HEADER_BYTES:
            raise InputError(f"{file} is no safetensors file: its header would have {size} bytes")
        header = json.loads(stream.read(size))
    if not isinstance(header, dict):
        raise InputError(f"{file} is no safetensors file: its header is a {type(header).__name__}")
    return header, 8 + size


def ties_head(checkpoint: Path) -> bool:
    """Whether the output head of a checkpoint is its embedding.

    Raises:
        EngineError: Its configuration cannot be read.
    """
    try:
        return json.loads((checkpoint / "config.json").read_bytes()).get("tie_word_embeddings") is True
    except (OSError, ValueError, AttributeError) as error:
        raise EngineError(f"{checkpoint}: no config.json of a checkpoint: {error!r}") from error


def with_head(checkpoint: Path, copy: Path) -> Path:
    """Makes `copy`, which links to the files of a checkpoint and has its embedding once more, as the output head.

    Raises:
        EngineError: It is not one `model.safetensors` with an embedding.
    """
    weights = checkpoint / "model.safetensors"
    try:
        header, start = safetensors_header(weights)
        name = next(name for name in header if name.endswith("embed_tokens.weight"))
        first, end = header[name]["data_offsets"]
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(parents=True)
        for file in checkpoint.iterdir():
            (copy / file.name).symlink_to(file.resolve())
        described = json.dumps({"lm_head.weight": {**header[name], "data_offsets": [0, end - first]}}).encode()
        with weights.open("rb") as stream, (copy / HEAD_FILE).open("wb") as head:
            stream.seek(start + first)
            head.write(len(described).to_bytes(8, "little") + described + stream.read(end - first))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, InputError) as error:
        raise EngineError(f"{weights}: no embedding to give as the output head: {error!r}") from error
    return copy
