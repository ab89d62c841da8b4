"""The commands; no logic. Exit codes 0, 1 and 3 are verdicts; whatever goes wrong ends with 2 or a signal's code."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

import click

from parity.cli.bench import bench
from parity.cli.check import check
from parity.cli.compare import compare
from parity.cli.completion import completion
from parity.cli.ending import EXIT_BROKEN_PIPE, EXIT_ERROR, describe_error, end_as_by_ctrl_c, exit_of_signal
from parity.cli.host import host
from parity.cli.launch import launch
from parity.cli.plan import plan
from parity.cli.report import report
from parity.cli.run import run
from parity.cli.sample import sample
from parity.cli.selftest import selftest
from parity.cli.serve import serve
from parity.cli.shared import EXIT_HELP
from parity.cli.watch import watch
from parity.errors import ParityError, UsageError, shown


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_HELP)
@click.version_option(package_name="rollout-parity", prog_name="parity")
def cli() -> None:
    """Proves that a change to how an RL trainer requests its rollouts leaves training the same, or shows where not."""


for command in (run, launch, plan, sample, bench, watch, compare, report, check, serve, selftest, host, completion):
    cli.add_command(command)


def main() -> None:
    """The command `parity`: errors are one sentence on standard error."""
    # Before torch is loaded: its threads would spin while they wait, on cores that engines and other work could use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal's encoding lacks ends nothing
            stream.reconfigure(errors="backslashreplace")
    end_as_by_ctrl_c()
    code = _exit_code()
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        code = _failed(error)
    if code == EXIT_BROKEN_PIPE:
        # Python flushes once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _exit_code() -> Any:
    """Runs the command that was given; its exit code."""
    try:
        _check_names(sys.argv[1:])
        cli.main(prog_name="parity", standalone_mode=False)  # also as `python -m parity`
    except click.ClickException as error:
        error.message = shown(error.message)  # type: ignore[misc]
        error.show()
        return EXIT_ERROR
    except (click.Abort, KeyboardInterrupt):
        click.echo("parity: interrupted", err=True)
        return exit_of_signal()
    except SystemExit as ended:
        # click and rich end with 1 where nobody reads what they print.
        unread = ended.code == 1 and isinstance(ended.__context__, OSError)
        return _failed(ended.__context__) if unread and ended.__context__ else ended.code
    except Exception as error:
        return _failed(error)
    return 0


def _failed(error: BaseException) -> int:
    """Says what went wrong; the exit code for it."""
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return EXIT_BROKEN_PIPE
    message = str(error) if isinstance(error, ParityError) else shown(describe_error(error))
    click.echo(f"parity: {message}", err=True)
    return EXIT_ERROR


def _check_names(arguments: list[str]) -> None:
    """Refuses an option that is the name of a file here, as a shell's pattern gives it.

    Raises:
        UsageError: One is.
    """
    for argument in arguments:
        if argument == "--":
            return
        if len(argument) > 1 and argument.startswith("-") and os.path.lexists(argument):
            raise UsageError(f"{argument} is an option and the name of a file here; write ./* for files")
