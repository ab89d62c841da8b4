"""A benchmark as a file: `bench.json`, which a later one is compared with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from parity.errors import InputError
from parity.records.bench import BenchConfig, BenchResult, Workload, parse_mode

FORMAT = 1
MAX_BYTES = 256 << 20


def to_json(result: BenchResult) -> dict[str, Any]:
    """What was measured, without what follows from it."""
    return {
        "format": FORMAT,
        "config": result.config.to_json(),
        "engine": result.engine,
        "cache_emptied": result.cache_emptied,
        "rollouts": [asdict(rollout) for rollout in result.rollouts],
    }


def read_bench(path: Path) -> BenchResult:
    """A benchmark out of its file.

    Raises:
        InputError: The file is none, or a value in it is not of its kind; the message names the place.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(f"{path}: {size} bytes, more than {MAX_BYTES}")
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: no benchmark of format {FORMAT}")
    config = content.get("config")
    if isinstance(config, dict):
        for kind, row in ((BenchConfig, config), (Workload, config.get("workload"))):
            if isinstance(row, dict) and (missing := [name for name in kind.__slots__ if name not in row]):
                raise InputError(f"{path}: config lacks {', '.join(missing)}")
        if isinstance(modes := config["modes"], list):
            config["modes"] = [asdict(parse_mode(str(name))) for name in modes]
    try:
        result = msgspec.convert(content, BenchResult)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error
    if not result.rollouts:
        raise InputError(f"{path}: no rollouts")
    return result
