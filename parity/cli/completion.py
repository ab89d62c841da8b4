"""`parity completion`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from parity.cli.parsing import Command

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints the script by which a shell completes commands.

    It completes options and their values too.

    \b
    Examples:
      source <(parity completion bash)  # in ~/.bashrc
      source <(parity completion zsh)  # in ~/.zshrc, after compinit
      parity completion fish | source  # in ~/.config/fish/config.fish
    """  # noqa: D301 - click reads the \b
    click.echo(SHELLS[shell](context.find_root().command, {}, "parity", "_PARITY_COMPLETE").source())
