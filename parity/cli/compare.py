"""`parity compare`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from parity.cli.parsing import Command, check_sources
from parity.cli.shared import (
    EXIT_HELP,
    command_line,
    counting,
    deliver,
    language_option,
    new_directory,
    parse_pairs,
    tracker_options,
)
from parity.records.margins import RUN, WHOLE_RUNS, by_curve, margin_option_help, parse_margins
from parity.report.trackers import Targets
from parity.report.words import Language

COMPARE_EXAMPLES = """\b
Examples:
  parity compare --baseline logs/stock-*.log --experiment logs/native-*.log
  parity compare --baseline tb/base1 tb/base2 --experiment tb/native1 tb/native2 --margin reward=0.03 \\
      --margin response_length=0.05
  parity compare --baseline stock.log --experiment native.log --history old/*.log --ended native.log=oom
  parity compare --baseline wandb:me/grpo/a1b2 --experiment offline-session.zip --names names.toml
  parity compare --baseline parity-out/mine --experiment parity-out/mine --json
"""


@click.command(cls=Command, epilog=COMPARE_EXAMPLES + "\n" + EXIT_HELP)
@click.option(
    "--baseline", multiple=True, required=True, type=click.Path(), metavar="SRC…", help="Runs of the baseline."
)
@click.option(
    "--experiment", multiple=True, required=True, type=click.Path(), metavar="SRC…", help="Runs of the experiment."
)
@click.option(
    "--history",
    multiple=True,
    type=click.Path(),
    metavar="SRC…",
    help="Earlier runs of the baseline: their spread gives the margins.",
)
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="METRIC=VALUE",
    help=margin_option_help({name: RUN[name] for name in WHOLE_RUNS})
    + " Any other curve's name may be given; its margin is absolute.",
)
@click.option("--ended", multiple=True, metavar="RUN=HOW", help="How a run ended: completed, oom, 502, killed, …")
@click.option(
    "--names",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON or TOML: a table from your metrics' names to slime's.",
)
@click.option("--min-steps", type=click.IntRange(4), default=30, show_default=True, help="Fewest common steps.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: parity-out/<time>.")
@language_option
@tracker_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def compare(
    baseline: tuple[str, ...],
    experiment: tuple[str, ...],
    history: tuple[str, ...],
    margins: tuple[str, ...],
    ended: tuple[str, ...],
    names: Path | None,
    min_steps: int,
    out: Path | None,
    language: Language,
    as_json: bool,
    quiet: bool,
    targets: Targets,
) -> None:
    """Compares training runs that any trainer made.

    Do the curves of two arms agree, and is one faster? SRC is a run, or several: a directory of this command,
    TensorBoard, W&B or ClearML, a log of slime, Miles, Relax or verl, verl's file logger, Miles' events,
    trainer_state.json, CSV, JSON lines, wandb:ENTITY/PROJECT/ID or clearml:ID. It is recognised by its content. Each
    run gives one number a metric; steps are never samples. One run an arm decides nothing, whatever its length, unless
    --history shows how much runs differ.
    """
    stated = by_curve(parse_margins(margins, WHOLE_RUNS, others=True))
    endings = parse_pairs("--ended", ended)
    sides = (("baseline", baseline), ("experiment", experiment), ("history", history))
    for side, sources in sides:
        check_sources(f"--{side}", sources)
    from parity.commands.compare import Question, margins_of
    from parity.commands.compare import compare as compare_runs
    from parity.records.provenance import versions
    from parity.report.comparison import print_comparison
    from parity.sources.curves.names import Names, load_names
    from parity.sources.registry import read_runs

    question = Question(margins_of(stated, bool(history)), min_steps, endings, tuple(stated))
    known = load_names(names) if names else Names()
    runs: dict[str, list[Any]] = {side: [] for side, _ in sides}
    total = sum(len(sources) for _, sources in sides)
    with counting(quiet) as watcher:
        for side, sources in sides:
            for source in sources:
                runs[side] += read_runs(source, known, "experiment" if side == "experiment" else "baseline")
                watcher(sum(map(len, runs.values())), total, source)
    facts = {"commands": [command_line()], "versions": versions()}
    report = compare_runs(runs["baseline"], runs["experiment"], runs["history"], question, facts)
    code = deliver(
        report,
        (out or new_directory()) / "report",
        partial(print_comparison, report, language=language),
        as_json=as_json,
        quiet=quiet,
        language=language,
        targets=targets,
    )
    sys.exit(code)
