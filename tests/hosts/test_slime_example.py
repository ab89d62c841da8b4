"""The test file that the documentation offers to slime, run on slime's own code as slime's CI would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CHECKOUT = "SLIME_CHECKOUT"
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "workflows" / "test_slime_rollout.py"


@pytest.fixture
def example(host_importer: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """Runs the file with options, after an edit; gives its last line."""
    host_importer(CHECKOUT, "slime.utils.types", ("httpx", "ray", "pylatexenc"))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ[CHECKOUT], os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "parity.pytest_plugin", "-p", "no:cacheprovider", "-q"]

    def run(*options: str, old: str = "", new: str = "") -> str:
        text = EXAMPLE.read_text()
        assert old in text
        (tmp_path / EXAMPLE.name).write_text(text.replace(old, new, 1) if old else text)
        done = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.stdout

    return run


def test_the_patch_makes_of_slimes_answers_what_slime_made_and_a_fault_is_caught(example: Callable[..., str]) -> None:
    options = ("--parity-baseline", "base")
    assert "1 skipped" in example(*options, "--parity-record")
    imported = "from slime.rollout.sglang_rollout import"
    assert "1 passed" in example(*options, old=imported, new="from rollout_patch.hosts.slime import")
    checked = "    parity_baseline(output.samples)"
    fault = "    output.samples[0][1].rollout_log_probs = output.samples[0][0].rollout_log_probs[:]\n"
    output = example(*options, old=checked, new=fault + checked)
    assert "1 failed" in output
    assert "twin_logprobs: " in output
