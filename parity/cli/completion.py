"""`parity completion`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints the script that completes commands, options and their values in a shell.

    \b
    Examples:
      parity completion bash > ~/.local/share/bash-completion/completions/parity
      parity completion zsh > "${fpath[1]}/_parity"
      parity completion fish > ~/.config/fish/completions/parity.fish
    """  # noqa: D301 - click reads the \b
    click.echo(SHELLS[shell](context.find_root().command, {}, "parity", "_PARITY_COMPLETE").source())
