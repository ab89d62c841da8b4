"""`parity report`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.cli.parsing import Command
from parity.cli.shared import EXIT_HELP, conclude, language_option, tracker_options
from parity.errors import UsageError
from parity.findings import quantity
from parity.report.trackers import Targets
from parity.report.words import Language

if TYPE_CHECKING:
    from parity.report.diff import Change

CHANGES_SHOWN = 40
EXAMPLES = """\b
Examples:
  parity report parity-out/20260101-120000
  parity report parity-out/20260101-120000 --lang zh
  parity report parity-out/20260101-120000 --clearml --tensorboard tensorboard_log
  parity report --diff parity-out/yesterday parity-out/today
"""


@click.command(
    cls=Command, epilog=EXAMPLES + "\n" + EXIT_HELP + " With --diff: 0 same conclusions, 1 others, 2 wrong input."
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False)
@language_option
@click.option(
    "--diff",
    "compared",
    type=(click.Path(path_type=Path, exists=True), click.Path(path_type=Path, exists=True)),
    metavar="A B",
    help="Show what changed between two reports of the same experiment: report.json, or a directory that has one.",
)
@tracker_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def report(
    directory: Path | None,
    language: Language,
    compared: tuple[Path, Path] | None,
    as_json: bool,
    quiet: bool,
    targets: Targets,
) -> None:
    """Judges an experiment on disk again and writes its report.

    The report is report.html (curves, samples of both arms, findings; opens without network), report.md, report.json,
    junit.xml and PNGs. In GitHub Actions it is also the step's summary, and what fails becomes annotations.
    """
    if (directory is None) == (compared is None):
        raise UsageError("parity report takes the directory of an experiment, or --diff with two reports")
    if compared and targets:
        raise UsageError("--diff publishes nothing: --clearml, --tensorboard and --wandb take an experiment")
    if directory:
        from parity.records.store import read_experiment

        read_experiment(directory)  # what is none is refused before anything is loaded
        conclude(directory, as_json, quiet, language, targets)
    elif compared:
        _show_changes(compared, Console(stderr=as_json, highlight=False), as_json, quiet)


def _show_changes(compared: tuple[Path, Path], console: Console, as_json: bool, quiet: bool) -> None:
    from parity.report.diff import DECIDING, diff, read_report, render

    changes = diff(*map(read_report, compared))
    deciding = sum(change.kind in DECIDING for change in changes)
    if as_json:
        sys.stdout.buffer.write(render(changes))
    else:
        if not quiet:
            _print_changes(changes, console)
        conclusions = "other conclusions" if deciding else "the same conclusions"
        other = quantity(len(changes) - deciding, "other changes")
        console.print(f"{conclusions}: {quantity(deciding, 'changes')} of verdict or findings, {other}")
    sys.exit(1 if deciding else 0)


def _print_changes(changes: Sequence[Change], console: Console) -> None:
    table = Table("what", "name", "before", "after", box=box.SIMPLE_HEAD, pad_edge=False)
    for change in changes[:CHANGES_SHOWN]:
        values = ("absent" if value is None else str(value) for value in (change.before, change.after))
        table.add_row(*(Text(cell) for cell in (change.kind, change.name, *values)))
    if changes:
        console.print(table)
    if (more := len(changes) - CHANGES_SHOWN) > 0:
        console.print(f"{more} more in --json", style="dim")
