"""A benchmark as a file: `bench.json`, which a later one is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson

from parity.errors import InputError
from parity.records.bench import BenchConfig, BenchResult, Load, Measurement, Workload, parse_mode

FORMAT = 1
MAX_BYTES = 256 << 20


def to_json(result: BenchResult) -> dict[str, Any]:
    """What was measured, without what follows from it."""
    return {
        "format": FORMAT,
        "config": result.config.to_json(),
        "engine": result.engine,
        "cache_emptied": result.cache_emptied,
        "rollouts": [asdict(one) for one in result.rollouts],
    }


def read_bench(path: Path) -> BenchResult:
    """A benchmark out of its file.

    Raises:
        InputError: The file is none, or a value in it is not of its kind; the message names the place.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(f"{path}: {size} bytes, more than {MAX_BYTES}")
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: no benchmark of format {FORMAT}")
    config = _config(_field(content, "config", dict, f"{path}"), f"{path}, config")
    rows = _field(content, "rollouts", list, f"{path}")
    rollouts = tuple(_measurement(row, f"{path}, rollout {number}") for number, row in enumerate(rows))
    if not rollouts:
        raise InputError(f"{path}: no rollouts")
    engine = _field(content, "engine", dict, f"{path}")
    return BenchResult(config, engine, _field(content, "cache_emptied", bool, f"{path}"), rollouts)


def _config(row: dict[str, Any], place: str) -> BenchConfig:
    asked = _field(row, "workload", dict, place)
    names = {one.name: float if one.name == "shared_prefix" else int for one in fields(Workload)}
    workload = Workload(**{name: _field(asked, name, kind, f"{place}, workload") for name, kind in names.items()})
    numbers = {name: _field(row, name, int, place) for name in ("repeats", "warm_up", "seed", "workers")}
    return BenchConfig(
        workload,
        tuple(parse_mode(str(name)) for name in _field(row, "modes", list, place)),
        engine=_field(row, "engine", str, place),
        routers=tuple(map(str, _field(row, "routers", list, place))),
        **numbers,
    )


_KINDS: Mapping[str, type] = {
    "mode": str,
    "repeat": int,
    "seconds": float,
    "requests": int,
    "samples": int,
    "output_tokens": int,
    "at_cap": int,
    "failed_groups": int,
    "client_cpu": float,
}
_OPTIONAL: Mapping[str, type] = {
    "prompt_tokens": int,
    "cached_tokens": int,
    "failure": str,
    "engine_cpu": float,
    "policy": str,
}


def _measurement(row: Any, place: str) -> Measurement:
    if not isinstance(row, dict):
        raise InputError(f"{place}: expected an object")
    known: dict[str, Any] = {name: _field(row, name, kind, place) for name, kind in _KINDS.items()}
    known |= {
        name: None if row.get(name) is None else _field(row, name, kind, place) for name, kind in _OPTIONAL.items()
    }
    if not known["seconds"]:
        raise InputError(f"{place}, seconds: 0, and no rollout takes no time")
    maps: dict[str, Callable[[Any, str], Any]] = {
        "request_seconds": lambda value, where: _checked(value, float, where),
        "group_seconds": lambda value, where: _checked(value, float, where),
        "engines": _load,
    }
    for name, read in maps.items():
        held = _field(row, name, dict, place)
        known[name] = {key: read(value, f"{place}, {name}.{key}") for key, value in held.items()}
    return Measurement(**known)


def _load(value: Any, place: str) -> Load:
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected an object")
    names = ("requests", "decode_tokens")
    return Load(*(None if value.get(name) is None else _field(value, name, float, place) for name in names))


def _field(row: dict[str, Any], name: str, kind: type, place: str) -> Any:
    if name not in row:
        raise InputError(f"{place}: {name} is missing")
    return _checked(row[name], kind, f"{place}, {name}")


def _checked(value: Any, kind: type, place: str) -> Any:
    """A value of a kind; a whole number may stand for any number, and no number is negative or not finite."""
    sound = type(value) is kind or (kind is float and type(value) is int)
    if not sound or (kind in (int, float) and not (0 <= value < math.inf)):
        raise InputError(f"{place}: expected {kind.__name__}, 0 or more where it is a number, not {str(value)[:80]!r}")
    return value
