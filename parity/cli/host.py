"""`parity host check`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from parity.cli.parsing import Command
from parity.errors import UsageError

HOST_EXAMPLES = """\b
Examples:
  parity host check slime --args '--n-samples-per-prompt 8 --sglang-config engines.yaml'
  parity host check relax --checkout /path/to/Relax --args '--use-rollout-routing-replay'
  parity host check slime --args '--custom-config-path my.yaml --n-samples-per-prompt 8'
  parity host check miles --router http://127.0.0.1:30000 --set ROLLOUT_PATCH_ARM=batched
"""
HOST_EXIT_HELP = (
    "Exit code: 0 groups go as asked for, 1 none can or the host is unknown, 2 wrong input, 3 something could not be "
    "looked at."
)


@click.group()
def host() -> None:
    """Looks at the trainer that the patch is plugged into."""


@host.command("check", cls=Command, epilog=HOST_EXAMPLES + "\n" + HOST_EXIT_HELP)
@click.argument("name", type=click.Choice(["slime", "miles", "relax"]))
@click.option("--args", "line", default="", help="The trainer's command line, or what of it is about rollouts.")
@click.option(
    "--set", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of the rollout's environment."
)
@click.option("--checkout", type=click.Path(path_type=Path, exists=True, file_okay=False), help="The trainer's code.")
@click.option("--router", help="The address of a running router, whose engines are asked how they run.")
def check(name: str, line: str, variables: tuple[str, ...], checkout: Path | None, router: str | None) -> None:
    """Says which groups would go which way under these flags, and why, before anything is started."""
    from rollout_patch.hosts.preflight import preflight

    environment = dict(os.environ)
    for variable in variables:
        key, equals, value = variable.partition("=")
        if not equals:
            raise UsageError(f"--set is {variable!r}; it is NAME=VALUE")
        environment[key] = value
    try:
        result = preflight(name, shlex.split(line), environment, checkout, router, _read_yaml)
    except ValueError as error:
        raise UsageError(str(error)) from error
    click.echo("\n".join(result.lines()))
    sys.exit(result.exit_code)


def _read_yaml(path: Path) -> dict[str, Any]:
    """The entries of a host's YAML file.

    Raises:
        UsageError: It cannot be read, or PyYAML is not installed.
    """
    import msgspec

    try:
        return msgspec.yaml.decode(path.read_bytes(), type=dict[str, Any] | None) or {}
    except (OSError, ImportError, msgspec.DecodeError) as error:
        raise UsageError(f"--custom-config-path {path} cannot be read: {error}") from error
