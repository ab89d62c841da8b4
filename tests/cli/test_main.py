"""What the command says as it starts: at once what it is about to do, and what an installation lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.errors import UsageError

WITHOUT = """
import sys

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.errors import UsageError
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


@pytest.mark.parametrize(("command", "what"), [("run", "experiment"), ("sample", "samples and exchanges")])
def test_a_command_says_where_it_writes_before_it_loads_torch_and_how_to_install_that(tmp_path, command, what):
    result = parity_without("torch", command, "--out", str(tmp_path / "mine"))
    first, second = result.stderr.splitlines()
    assert first == f"{what}: {tmp_path / 'mine'}"
    assert second == "parity: this needs torch: pip install '.[train]' in a checkout of rollout-parity"
    assert result.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_every_installation_has_is_no_matter_of_an_extra(tmp_path):
    result = parity_without("aiohttp", "run", "--out", str(tmp_path / "mine"))
    assert "[train]" not in result.stderr
    assert "defect of parity" in result.stderr
    assert result.returncode == 2


def test_each_command_is_listed_with_a_whole_sentence():
    listed = CliRunner().invoke(cli, ["--help"]).output.partition("Commands:")[2]
    assert all(f"  {name} " in listed for name in cli.commands)
    assert "..." not in listed


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run", "--plant", "gremlins@1"), "a run takes no such fault, but copied-siblings, exchanged-outputs, "),
        (("plan", "--margin", "speed=1"), "--margin speed: no such metric; there are aborted, constant_reward, "),
        (("sample", "--margin", "speed=1"), "--margin speed: no such metric; there are aborted, constant_reward, "),
    ],
)
def test_what_there_is_to_choose_from_is_listed_in_words(command, said):
    with pytest.raises(UsageError) as raised:
        cli.main(command, standalone_mode=False)
    assert said in str(raised.value)
