"""`parity plan`."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from parity.cli.parsing import Command, check_sources
from parity.cli.shared import counting, parse_numbers, print_json
from parity.records.margins import SAMPLING, parse_margins

PLAN_EXAMPLES = """\b
Examples:
  parity plan --margin reward=0.02
  parity plan --margin reward=0.02 --sigma reward=0.185 --sigma-run reward=0.035
  parity plan --margin reward=0.04 --reward-range -1 1
  parity plan --margin reward=0.02 --margin response_length=0.02 --history parity-out/mine
  parity plan --margin reward=0.02 --history dumps/*.pt --seconds-per-step 180 --gpus 16 --groups-per-step 64
"""


@click.command(cls=Command, epilog=PLAN_EXAMPLES)
@click.option(
    "--margin",
    "margins",
    multiple=True,
    required=True,
    metavar="METRIC=VALUE",
    help="The largest difference that does not matter, as for `parity sample`: absolute, but a share of the mean for "
    "response_length and negative_log_likelihood.",
)
@click.option(
    "--history",
    multiple=True,
    type=click.Path(),
    metavar="SRC…",
    help="What the baseline did before: samples give the spread of groups, curves of several runs that of runs.",
)
@click.option(
    "--sigma", "sigmas", multiple=True, metavar="METRIC=VALUE", help="Standard deviation of a group's difference."
)
@click.option(
    "--sigma-run", "run_sigmas", multiple=True, metavar="METRIC=VALUE", help="Standard deviation between runs."
)
@click.option("--mean", "means", multiple=True, metavar="METRIC=VALUE", help="A metric's mean, for a relative margin.")
@click.option(
    "--reward-range", type=float, nargs=2, default=(0.0, 1.0), show_default=True, help="What a reward can be."
)
@click.option("--group-size", type=int, default=8, show_default=True, help="Samples a prompt.")
@click.option("--groups-per-step", type=int, default=16, show_default=True, help="Prompts a training step.")
@click.option("--steps", type=int, default=100, show_default=True, help="Training steps of a run.")
@click.option(
    "--seconds-per-step",
    type=float,
    help="Of a training step; by default what curves of the history say. With --gpus, costs are in GPU-hours too.",
)
@click.option("--gpus", type=int, help="Of the whole job.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the simulations.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the cheapest design.")
def plan(
    margins: tuple[str, ...], history: tuple[str, ...], seed: int, as_json: bool, quiet: bool, **asked: Any
) -> None:
    """Says how many groups, steps and seeds a margin needs.

    Also what that costs, and the cheapest design that gets there. Power is simulated from how much the metrics vary:
    stated, or measured in what you have.
    """
    check_sources("--history", history)
    chosen = parse_margins(margins, SAMPLING)
    stated = {
        field: parse_numbers(option, asked.pop(name))
        for field, option, name in (
            ("group", "--sigma", "sigmas"),
            ("run", "--sigma-run", "run_sigmas"),
            ("mean", "--mean", "means"),
        )
    }
    from parity.commands.plan import plan_designs
    from parity.evidence.planning import Setting
    from parity.report.plan import cheapest, print_plan

    with counting(quiet) as watcher:
        made = plan_designs(chosen, stated, history, Setting(**asked), seed, watcher)
    console = Console(stderr=as_json, highlight=False)
    if as_json:
        print_json(made.to_json())
    elif quiet:
        console.print(cheapest(made), markup=False)
    else:
        print_plan(made, console)
