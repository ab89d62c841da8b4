"""Completion in a shell: by click's own protocol, and in a real bash."""

from __future__ import annotations

import os
import pty
import select
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


def test_each_of_several_values_is_completed():
    assert {line.partition(",")[0] for line in completed("parity", "compare", "--baseline", "a.log", "")} == {"file"}
    assert completed("parity", "compare", "--baseline", "a.log", "--exp") == plain("--experiment")
    assert completed("parity", "compare", "--lang", "zh", "n") == set()


@pytest.fixture
def shell_environment(tmp_path):
    """Variables with which a shell finds the command, and no file of the user's."""
    command = tmp_path / "parity"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m parity "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    own = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "TERM": "dumb"}
    return {**os.environ, **own, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}


LINES = [
    ("parity sam", {"sample"}),
    ("parity run --experiment ", {"batched", "native", "per-sample"}),
    ("parity run --des", {"--design"}),
    ("parity compare --baseline one.log tw", {"two.log"}),
    ("parity watch run", {"runs/"}),
]
"""What is typed before Tab, and what must be offered or completed."""


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_a_real_fish_completes(line, offered, shell_environment, tmp_path):
    (tmp_path / "two.log").touch()
    (tmp_path / "runs").mkdir()
    script = f"parity completion fish | source; complete --do-complete '{line}'"
    command = ["fish", "--no-config", "-c", script]
    done = subprocess.run(command, env=shell_environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {row.partition("\t")[0] for row in done.stdout.splitlines()} == offered
    assert done.stderr == ""


READY = "ready for"
SETUP = f"""PS1='{READY[:3]}''{READY[3:]} '; autoload -U compinit; compinit -u -D; source <(parity completion zsh)\n"""
"""The prompt in two pieces, so that what is typed here is not taken for it."""


def read_until(terminal, wanted):
    """What a terminal shows until it has shown all that is wanted, or nothing more for a minute."""
    shown = ""
    while not all(one in shown for one in wanted):
        if not select.select([terminal], [], [], 60)[0]:
            break
        shown += os.read(terminal, 65_536).decode(errors="replace")
    return shown


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_a_real_zsh_completes(shell_environment, tmp_path):
    (tmp_path / "two.log").touch()
    (tmp_path / "runs").mkdir()
    terminal, side = pty.openpty()
    command = ["zsh", "-f", "-i"]
    with subprocess.Popen(command, env=shell_environment, cwd=tmp_path, stdin=side, stdout=side, stderr=side) as shell:
        os.close(side)
        os.write(terminal, SETUP.encode())
        read_until(terminal, [READY])
        for line, offered in LINES:
            os.write(terminal, f"{line}\t\t".encode())
            shown = read_until(terminal, offered)
            assert all(one in shown for one in offered), shown
            os.write(terminal, b"\x15\n")  # forgets the line
            read_until(terminal, [READY])
        shell.kill()
    os.close(terminal)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash_completes(shell_environment):
    script = """
    source <(parity completion bash)
    complete -p parity
    COMP_WORDS=(parity sam) COMP_CWORD=1
    _parity_completion parity
    echo "offered: ${COMPREPLY[*]}"
    """
    done = subprocess.run(["bash", "-c", script], env=shell_environment, capture_output=True, text=True, check=True)
    assert "-F _parity_completion parity" in done.stdout
    assert "offered: sample" in done.stdout
    assert done.stderr == ""
