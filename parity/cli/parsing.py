"""How command lines are read: every option once, several values after one option, names with a suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from parity.errors import UsageError, did_you_mean

SEVERAL = ("--baseline", "--counts", "--experiment", "--history", "--mode", "--require", "--router")
_LAST_OPTION = f"{__name__}.last_option"


class Command(click.Command):
    """A command that refuses an option given twice; its options of `SEVERAL` take all values that follow.

    A shell's pattern gives several values after one option.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeats an option of several values before each of them."""
        ctx.meta[_LAST_OPTION] = next((arg for arg in reversed(args) if arg.startswith("-") and arg != "-"), "")
        several = {name for option in self.params if _takes_several(option) for name in option.opts}
        repeated = list(_repeated(args, several & set(SEVERAL)))
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(repeated))
            for option in set(order):
                if isinstance(option, click.Option) and not option.multiple and order.count(option) > 1:
                    raise UsageError(f"{option.opts[-1]} is given {order.count(option)} times; give it once")
        return super().parse_args(ctx, repeated)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offers another value of such an option, where its values are being given."""
        last = ctx.meta.get(_LAST_OPTION, "")
        option = next((param for param in self.params if last in SEVERAL and last in param.opts), None)
        if option and _takes_several(option) and not incomplete.startswith("-"):
            return option.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


def _takes_several(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and option.multiple


def _repeated(args: Iterable[str], several: set[str]) -> Iterable[str]:
    option = ""
    for argument in args:
        if argument.startswith("-") and argument != "-":
            option = argument if argument in several else ""
            if not option:
                yield argument
        elif option:
            yield from (option, argument)
        else:
            yield argument


class Named(click.Choice[str]):
    """One of some names; another is refused with the nearest of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, or an error with a suggestion."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            nearest = did_you_mean(str(value), map(str, self.choices))
            raise click.BadParameter(f"{error.message.rstrip('.')}{nearest}", ctx, param) from error


def check_sources(option: str, sources: Sequence[str]) -> None:
    """Refuses paths that do not exist, before anything is loaded; what a tracker holds is not looked for.

    Raises:
        UsageError: One does not exist.
    """
    for source in sources:
        of_several = ":" in source and Path(source.rpartition(":")[0]).exists()  # one run of a file, PATH:RUN
        if not source.startswith(("wandb:", "clearml:")) and not of_several and not Path(source).exists():
            beside = (str(path) for path in Path(source).parent.glob("*")) if Path(source).parent.is_dir() else ()
            raise UsageError(f"{option} {source}: no such file or directory{did_you_mean(source, beside)}")
