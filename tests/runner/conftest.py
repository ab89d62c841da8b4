"""A small experiment on the embedded engine, run as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_experiment import TWIN, Parity


@pytest.fixture(scope="session")
def finished_twin(parity: Parity, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A twin experiment that nothing disturbed, and what it printed."""
    out = tmp_path_factory.mktemp("twin") / "out"
    process = parity("run", *TWIN, "--out", out)
    printed, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    return out, printed
