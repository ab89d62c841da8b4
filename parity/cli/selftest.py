"""`parity selftest`."""

from __future__ import annotations

import sys

import click
import orjson
from rich.console import Console


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
def selftest(as_json: bool) -> None:
    """Plants every fault and shows which check catches it, beside controls that must pass.

    Exit code: 0 if each is caught by the check named for it and by no other, and nothing sound is; else 1.
    """
    from parity.selftest import run_selftest, table

    console = Console(stderr=as_json, highlight=False)
    with console.status("planting faults") as status:
        result = run_selftest(lambda done, total: status.update(f"planting faults: {done} of {total}"))
    click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2).decode() if as_json else table(result))
    sys.exit(0 if result.passed else 1)
