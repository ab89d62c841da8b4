"""What the command says as it starts: at once what it is about to do, and what an installation lacks."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from parity.cli import main
main()
"""


def parity_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in an installation that lacks a package."""
    code = WITHOUT.format(package=package)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_a_run_says_where_it_writes_before_it_loads_torch_and_how_to_install_that(tmp_path):
    result = parity_without("torch", "run", "--out", str(tmp_path / "mine"))
    first, second = result.stderr.splitlines()
    assert first == f"experiment: {tmp_path / 'mine'}"
    assert second == "parity: this needs torch: pip install 'rollout-parity[train]'"
    assert result.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_every_installation_has_is_no_matter_of_an_extra(tmp_path):
    result = parity_without("aiohttp", "run", "--out", str(tmp_path / "mine"))
    assert "rollout-parity[train]" not in result.stderr
    assert "Traceback" in result.stderr
    assert result.returncode == 2
