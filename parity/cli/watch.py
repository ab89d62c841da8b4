"""`parity watch`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType
from rich.live import Live

from parity.cli.parsing import Command
from parity.cli.shared import EXIT_HELP, Delivered, command_line, conclude, deliver_all
from parity.errors import UsageError
from parity.records.margins import IN_RUN, RUN, margin_option_help, parse_margins

if TYPE_CHECKING:
    from parity.commands.watch import Watch

EXAMPLES = """\b
Examples:
  parity watch parity-out/20260101-120000
  parity watch recordings/ --reward-range -1 1 --max-new-tokens 8192
  parity watch recordings/ --margin reward=0.02 --once
  parity watch recordings/ --quiet || kill "$TRAINER"
"""


@click.command(cls=Command, epilog=EXAMPLES + "\n" + EXIT_HELP)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--reward-range", type=float, nargs=2, default=(0.0, 1.0), show_default=True, help="What a reward can be."
)
@click.option("--max-new-tokens", type=click.IntRange(1), help="Cap of a response, where samples do not say it.")
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="METRIC=VALUE",
    help=margin_option_help({name: RUN[name] for name in IN_RUN}),
)
@click.option("--baseline", metavar="ARM", help="Default: per-sample, or else the first by the alphabet.")
@click.option("--once", is_flag=True, help="Judge what is there and do not wait for more.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def watch(
    directory: Path,
    reward_range: tuple[float, float],
    max_new_tokens: int | None,
    margins: tuple[str, ...],
    baseline: str | None,
    once: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Follows runs that draw the arm of each group.

    It stops as soon as the evidence suffices either way. DIRECTORY is an experiment of `parity run` (with --design
    probe or switchback) or what the patch records inside a host (assignment probe or switchback). Shown are how the
    arms differ, the smallest margin that the data prove, e-values, and breaches of the contract. All hold at every
    look: it ends with DIFFERENT once a difference beyond its margin has an e-value of 20 or the contract is broken, and
    with PARITY once every metric is shown to be inside its margin. Ctrl-C judges what has come so far. Started again,
    it comes to the same evidence from the same files. It may be started before what it follows. At its end it writes
    the report that `parity run` writes, to DIRECTORY/report.
    """
    from parity.commands import watch as watching
    from parity.report.watch import line, print_result, screen
    from parity.stats import GroupBounds, margins_in_run

    if not -math.inf < reward_range[0] < reward_range[1] < math.inf:
        raise UsageError(f"--reward-range {reward_range[0]:g} {reward_range[1]:g}: the lowest, then the highest reward")
    if not once and watching.is_to_come(directory):
        click.echo(f"{directory}: nothing is there yet, waiting for it", err=True)
        while watching.is_to_come(directory):
            time.sleep(watching.POLL_SECONDS)
    follower = watching.follow(directory)
    ours = isinstance(follower, watching.ExperimentFollower)
    if ours and margins:
        raise UsageError(f"{directory}: margins are fixed once an experiment starts, in experiment.json")
    asked = watching.asked_of(directory) if ours else None
    if asked and baseline:
        raise UsageError(f"{directory}: the baseline is fixed once an experiment starts, in experiment.json")
    stated = margins_in_run(asked.margins if asked else parse_margins(margins, IN_RUN))
    arms = asked.arms if asked else ()
    state = watching.Watch(GroupBounds(reward_range, max_new_tokens), stated, arms, baseline or "")
    console = Console(stderr=as_json, highlight=False)
    with suppress(KeyboardInterrupt), _shown(console, quiet, line, screen) as show:
        for seen in watching.watch(follower, state, once=once):
            state = seen
            show(seen)
    if ours:
        conclude(directory, as_json, quiet)
    from parity.commands.watch_report import reports_of

    delivered = [
        Delivered(report, partial(print_result, report, state.against(report.experiment)), evidence)
        for report, evidence in reports_of(directory, state, command_line())
    ]
    sys.exit(deliver_all(delivered, directory / "report", as_json=as_json, quiet=quiet))


@contextmanager
def _shown(
    console: Console, quiet: bool, line: Callable[[Watch], str], screen: Callable[[Watch], RenderableType]
) -> Iterator[Callable[[Watch], None]]:
    """How the evidence is shown as it comes: a table that stays in place on a terminal, else a line a step."""
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with Live(console=console, transient=True) as live:
            yield lambda seen: live.update(screen(seen))
    else:
        yield lambda seen: click.echo(line(seen), file=console.file)
