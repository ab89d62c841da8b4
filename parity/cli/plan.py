"""`parity plan`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from parity.cli.shared import SeveralValues, counting, parse_numbers
from parity.errors import NotRecognised, UsageError
from parity.records.margins import SAMPLING, parse_margins

PLAN_EXAMPLES = """\b
Examples:
  parity plan --margin reward=0.02
  parity plan --margin reward=0.02 --sigma reward=0.185 --sigma-run reward=0.035
  parity plan --margin reward=0.04 --reward-range -1 1
  parity plan --margin reward=0.02 --margin response_length=0.02 --history parity-out/mine
  parity plan --margin reward=0.02 --history dumps/*.pt --seconds-per-step 180 --gpus 16 --groups-per-step 64
"""


@click.command(cls=SeveralValues, epilog=PLAN_EXAMPLES)
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
@click.option("--seconds-per-step", type=float, help="Of a training step; with --gpus, costs are in GPU-hours too.")
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
    import numpy as np
    import orjson

    from parity.evidence import planning
    from parity.report.plan import cheapest, print_plan

    stated: dict[str, planning.MetricSpread] = {}
    fields = (("group", "--sigma", "sigmas"), ("run", "--sigma-run", "run_sigmas"), ("mean", "--mean", "means"))
    for field, option, name in fields:
        for metric, value in parse_numbers(option, asked.pop(name)).items():
            known: dict[str, Any] = {field: value}
            stated = planning.merged(stated, {metric: planning.MetricSpread(metric, **known)})
    setting = planning.Setting(**asked)
    spreads = planning.merged(stated, _measured(history, setting.group_size, quiet)) if history else stated
    made = planning.plan(parse_margins(margins, SAMPLING), spreads, setting, np.random.default_rng(seed))
    console = Console(stderr=as_json, highlight=False)
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
    elif quiet:
        console.print(cheapest(made), markup=False)
    else:
        print_plan(made, console)


def _measured(history: tuple[str, ...], group_size: int, quiet: bool) -> Mapping[str, Any]:
    """The spreads in what the user has: samples where there are some, curves where there are some."""
    from parity.sources.curves import read_runs
    from parity.sources.dumps import find_sources
    from parity.stats import group_spreads, merged, run_spreads

    rollouts, runs = [], []
    with counting(quiet) as watcher:
        for number, source in enumerate(history):
            watcher(number, len(history), source)
            kinds = 0
            if Path(source).exists():
                try:
                    found = find_sources([Path(source)], group_size).sources
                except NotRecognised:
                    found = ()
                parts = [part for one in found if one.samples for part in one.samples()]
                rollouts += parts
                kinds += bool(parts)
            try:
                runs += [run.curves for run in read_runs(source)]
                kinds += 1
            except NotRecognised:
                pass
            if not kinds:
                raise UsageError(f"--history {source}: neither samples nor curves are in it")
    where = ", ".join(history[:2]) + (" and more" if len(history) > 2 else "")
    return merged(group_spreads(rollouts, where), run_spreads(runs, where))
