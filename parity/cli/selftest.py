"""`parity selftest`."""

from __future__ import annotations

import sys

import click
import orjson

from parity.cli.parsing import Command
from parity.cli.shared import counting

EXAMPLES = """\b
Examples:
  parity selftest
  parity selftest --quiet
  parity selftest --json > selftest.json
"""
EXIT_CODES = (
    "Exit code: 0 if each fault is caught by the check named for it and by no other, and nothing sound is; else 1."
)


@click.command(cls=Command, epilog=EXAMPLES + "\n" + EXIT_CODES)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict, and what went wrong.")
def selftest(as_json: bool, quiet: bool) -> None:
    """Plants every fault and shows which check catches it.

    Beside them are controls that look like faults and must pass.
    """
    from parity.commands.selftest import run_selftest, summary, table

    with counting(quiet) as watcher:
        result = run_selftest(watcher)
    if as_json:
        click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(summary(result) if quiet else table(result))
    sys.exit(0 if result.passed else 1)
