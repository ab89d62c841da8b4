"""Completion in a shell: by click's own protocol, and in a real bash."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

from parity.cli import cli

COMMANDS = {"run", "plan", "sample", "watch", "compare", "report", "check", "serve", "selftest", "completion"}


def completed(*words):
    """What is offered for the last word, with its kind."""
    environment = {
        "_PARITY_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(cli, prog_name="parity", env=environment)
    return set(result.output.split())


def plain(*names):
    return {f"plain,{name}" for name in names}


def test_commands_are_offered():
    assert completed("parity", "") >= plain(*COMMANDS)
    assert completed("parity", "sel") == plain("selftest")


def test_options_and_their_values_are_offered():
    assert completed("parity", "run", "--des") == plain("--design")
    assert completed("parity", "run", "--experiment", "n") == plain("native")
    assert completed("parity", "run", "--task", "digit-") == plain("digit-sum", "digit-sum-4")
    assert completed("parity", "check", "--advantage", "grpo_") == plain("grpo_no_std")
    assert completed("parity", "run", "--experiment", "x") == set()


@pytest.mark.parametrize(
    ("words", "kind"),
    [(("check", ""), "file"), (("compare", "--baseline", ""), "file"), (("watch", ""), "dir"), (("report", ""), "dir")],
)
def test_paths_are_left_to_the_shell(words, kind):
    assert {line.partition(",")[0] for line in completed("parity", *words)} == {kind}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_names_the_command_and_asks_it_by_that_shells_protocol(shell):
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert f"_PARITY_COMPLETE={shell}_complete" in result.output


def test_another_shell_is_refused():
    result = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert (result.exit_code, "'bash', 'zsh', 'fish'" in result.output) == (2, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash_completes(tmp_path):
    command = tmp_path / "parity"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m parity "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    script = """
    source <(parity completion bash)
    complete -p parity
    COMP_WORDS=(parity sam) COMP_CWORD=1
    _parity_completion parity
    echo "offered: ${COMPREPLY[*]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "-F _parity_completion parity" in done.stdout
    assert "offered: sample" in done.stdout
    assert done.stderr == ""
