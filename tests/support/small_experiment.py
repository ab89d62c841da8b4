"""A small experiment: its options, and what its runs left on disk."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parity.records.store import RunStore, run_store

STEPS = 4
SMALL = ("--groups", "4", "--group-size", "4")
TWIN = ("--baseline", "--experiment", "native", "--design", "twin", "--twin-steps", str(STEPS), *SMALL)

Parity = Callable[..., "subprocess.Popen[str]"]


def stores(out: Path) -> list[RunStore]:
    return [run_store(out, name) for name in ("per-sample-seed0", "native-seed0")]


def curves(store: RunStore) -> list[dict[str, Any]]:
    """A run's metrics without what time and the cache decide."""
    unequal = ("perf/", "rollout_patch/", "rollout/prefix_cache", "rollout/avg_cached")
    return [{name: value for name, value in row.items() if not name.startswith(unequal)} for row in store.metrics()]
