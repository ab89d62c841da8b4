"""A small experiment on the embedded engine, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_experiment import TWIN, Parity

from parity.training.tasks import get_task
from parity.training.warm_start import warm_start


@pytest.fixture(scope="session")
def policy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("policies")
    warm_start(get_task("arithmetic"), cache)
    return cache


@pytest.fixture(scope="session")
def parity(policy_cache: Path) -> Parity:
    """Starts the command with its output in pipes."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "parity", *map(str, arguments)],
            env={**os.environ, "PARITY_CACHE": str(policy_cache), "COLUMNS": "160"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def finished_twin(parity: Parity, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A twin experiment that nothing disturbed, and what it printed."""
    out = tmp_path_factory.mktemp("twin") / "out"
    process = parity("run", *TWIN, "--out", out)
    printed, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out, printed
