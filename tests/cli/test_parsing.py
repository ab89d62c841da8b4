"""What is wrong with a command line is found before anything is loaded, with what was probably meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.errors import UsageError, did_you_mean

HEAVY = ("scipy", "torch", "matplotlib", "pandas", "statsmodels")
"""Packages that take seconds to load."""


def complaint(*arguments: str) -> str:
    """What a command says of its command line."""
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, UsageError) else result.output


MISTAKES = [
    (("run", "--experiment", "natve"), "did you mean native?"),
    (("run", "--design", "twn"), "did you mean twin?"),
    (("run", "--task", "arithmetik"), "did you mean arithmetic?"),
    (("run", "--engine", "sglan"), "did you mean sglang?"),
    (("run", "--margin", "rewrd=0.03"), "did you mean reward?"),
    (("run", "--baseline", "batched", "--baseline", "native"), "--baseline is given 2 times"),
    (("run", "--baseline", "native", "--experiment", "native"), "two different"),
    (("sample", "--reward", "nowhere:function"), "no such function"),
    (("sample", "--prompts", "nowhere.jsonl"), "does not exist"),
    (("sample", "--reward-range", "1", "0"), "the lowest reward, then the highest"),
    (("compare", "--baseline", "nowhere.log", "--experiment", "nowhere.log"), "no such file"),
    (("plan", "--margin", "reward=0"), "positive"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=lambda value: " ".join(value) if value else "")
def test_a_mistake_is_named_with_what_was_meant(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in complaint(*arguments)
    assert list(tmp_path.iterdir()) == [], "a command that failed leaves nothing"


def test_no_mistake_waits_for_what_takes_seconds_to_load(tmp_path: Path) -> None:
    code = f"""
import sys
from click.testing import CliRunner
from parity.cli import cli
for arguments, _ in {MISTAKES!r}:
    assert CliRunner().invoke(cli, list(arguments)).exit_code
print(*(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == []


def test_options_of_several_values_may_be_repeated_and_others_not() -> None:
    assert "--steps is given 2 times" in complaint("run", "--steps", "3", "--steps", "3")
    assert "is given" not in complaint("compare", "--baseline", "a", "--baseline", "b", "--experiment", "c")


@pytest.mark.parametrize(
    ("name", "suggestion"), [("native", "; did you mean native?"), ("nativ", "; did you mean native?"), ("zzz", "")]
)
def test_a_suggestion_is_near_or_none(name: str, suggestion: str) -> None:
    assert did_you_mean(name, ["native", "batched"]) == suggestion
