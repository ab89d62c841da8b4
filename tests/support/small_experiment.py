"""A small experiment: its options, and what its runs left on disk."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parity.cli import main
from parity.records.store import RunStore, run_store

STEPS = 4
SMALL = ("--groups", "4", "--group-size", "4")
TWIN = ("--baseline", "--experiment", "native", "--design", "twin", "--twin-steps", str(STEPS), *SMALL)

Parity = Callable[..., "subprocess.Popen[str]"]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    returncode: int
    printed: str
    errors: str


Here = Callable[..., Ended]


def command(*arguments: object, cache: Path) -> Ended:
    """Runs the command in this process, where torch is loaded already: a small run spends most of its time on that."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setenv("PARITY_CACHE", str(cache))
        patch.setenv("COLUMNS", "160")
        patch.setattr(sys, "argv", ["parity", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    printed, told = (stream.buffer.getvalue().decode() for stream in (out, errors))
    return Ended(code, printed, told)


def stores(out: Path) -> list[RunStore]:
    return [run_store(out, name) for name in ("per-sample-seed0", "native-seed0")]


def curves(store: RunStore) -> list[dict[str, Any]]:
    """A run's metrics without what time and the cache decide."""
    unequal = ("perf/", "rollout_patch/", "rollout/prefix_cache", "rollout/avg_cached")
    return [{name: value for name, value in row.items() if not name.startswith(unequal)} for row in store.metrics()]
