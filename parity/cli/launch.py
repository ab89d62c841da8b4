"""`parity launch`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table

from parity.cli.ending import exit_of_signal
from parity.cli.parsing import Command
from parity.cli.shared import EXIT_CODES, EXIT_HELP, deliver
from parity.errors import UsageError
from parity.findings import Verdict, quantity
from parity.records.metric_names import REWARD

if TYPE_CHECKING:
    from parity.launch import Launched, LaunchFile, RunPlan

TEMPLATES = ("slime", "miles", "relax", "verl", "trl")

LAUNCH_EXAMPLES = """\b
Examples:
  parity launch --init slime > experiment.toml
  parity launch experiment.toml --dry-run
  parity launch experiment.toml --out parity-out/mine
  parity launch experiment.toml --out parity-out/mine --status
  parity launch experiment.toml --out parity-out/mine --stop
"""


@click.command(cls=Command, epilog=LAUNCH_EXAMPLES + "\n" + EXIT_HELP)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: parity-out/<name of the file>.")
@click.option("--dry-run", is_flag=True, help="Print every command, variable and place, and start nothing.")
@click.option("--status", is_flag=True, help="Print how the runs stand, judge what there is, and start nothing.")
@click.option("--stop", "stopping", is_flag=True, help="End all jobs of this launch.")
@click.option("--init", type=click.Choice(TEMPLATES), help="Print a file to begin with, for a trainer.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def launch(
    file: Path | None,
    out: Path | None,
    dry_run: bool,
    status: bool,
    stopping: bool,
    init: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Runs your own trainer, every arm and seed, and judges it.

    FILE names the arms, the seeds, the command, where its curves and dumps will be, the margins, and when a run is
    started again. Jobs run on this machine or on a Ray cluster. Ctrl-C leaves them running; the same command goes on
    with them.
    """
    if init:
        from importlib import resources

        click.echo((resources.files("parity.launch") / "templates" / f"{init}.toml").read_text("utf-8"), nl=False)
        return
    if file is None:
        raise UsageError("give a file; --init slime prints one to begin with")
    from parity.launch import launched_runs, open_backend, plan_runs, read_launch_file, stop

    asked = read_launch_file(file)
    directory = out or Path("parity-out") / file.stem
    console = Console(stderr=as_json, highlight=False)
    if dry_run:
        _print_plan(asked, plan_runs(asked, directory), console)
        return
    if stopping:
        ended = stop(asked, directory, open_backend(asked.place))
        click.echo(f"stopped: {', '.join(run.plan.name for run in ended) or 'nothing was running'}", err=True)
        return
    runs = launched_runs(asked, directory) if status else _driven(asked, directory, file, console, quiet)
    _conclude(asked, directory, runs, console, as_json, quiet)


def _print_plan(launch: LaunchFile, plans: Sequence[RunPlan], console: Console) -> None:
    """Every run in the order of its start, and what will be compared."""
    place = launch.place
    where = "this machine" if place.kind == "local" else f"Ray at {place.address or 'RAY_ADDRESS'}"
    for plan in plans:
        console.print(plan.name, style="bold")
        for name, value in plan.environment.items():
            console.print(f"  {name}={shlex.quote(value)}", markup=False, soft_wrap=True)
        console.print(f"  {plan.command.strip()}", markup=False, soft_wrap=True)
        console.print(f"  curves: {plan.curves}", style="dim", markup=False, soft_wrap=True)
        for samples in plan.samples:
            console.print(f"  samples: {samples}", style="dim", markup=False, soft_wrap=True)
    baseline, *others = launch.arms
    margins = ", ".join(f"{name} ±{margin:g}" for name, margin in launch.margins.items()) or "the defaults"
    console.print(
        f"{quantity(len(plans), 'runs')} on {where}, {place.at_once} at once, in this order. Restart: from "
        f"{launch.restart.policy}, at most {quantity(launch.restart.attempts, 'attempts')}, after "
        f"{launch.restart.hang_minutes:g} minutes without a step. "
        f"Compared with {baseline}: {', '.join(others)}. Margins: {margins}.",
        markup=False,
    )


def _driven(launch: LaunchFile, directory: Path, file: Path, console: Console, quiet: bool) -> list[Launched]:
    """Drives the runs to their end; Ctrl-C leaves the jobs and says how to go on."""
    from parity.commands.launch import AlarmExit, DrawnEvidence, decided, raise_alarms
    from parity.launch import Watcher, drive, open_backend

    def note(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    backend = open_backend(launch.place)
    enough = partial(decided, DrawnEvidence(launch)) if launch.mixed else lambda runs: ""
    try:
        with _shown(launch, console, quiet) as table:

            def look(runs: Sequence[Launched]) -> None:
                table(runs)
                raise_alarms(launch, runs, note)

            return drive(launch, directory, backend, Watcher(look, note), enough=enough)
    except (KeyboardInterrupt, AlarmExit) as error:
        again = shlex.join(["parity", "launch", str(file), "--out", str(directory)])
        click.echo(f"\nthe jobs go on; follow them with: {again}\nend them with: {again} --stop", err=True)
        if isinstance(error, AlarmExit):
            click.echo(f"ended by the alarm {error}", err=True)
            sys.exit(EXIT_CODES[Verdict.INCONCLUSIVE])
        sys.exit(exit_of_signal())


@contextmanager
def _shown(launch: LaunchFile, console: Console, quiet: bool) -> Iterator[Callable[[Sequence[Launched]], None]]:
    """A table that stays in place on a terminal, else a line for each run that moved."""
    if quiet:
        yield lambda runs: None
    elif console.is_terminal:
        with Live(console=console) as live:
            yield lambda runs: live.update(status_table(launch, runs))
    else:
        last: dict[str, tuple[str, int | None]] = {}

        def lines(runs: Sequence[Launched]) -> None:
            for run in runs:
                if last.get(run.plan.name) != (run.status, run.step) and run.status != "waiting":
                    last[run.plan.name] = (run.status, run.step)
                    click.echo(f"{run.plan.name}: {run.status}, {_step(run)}", err=True)

        yield lines


def _step(run: Launched) -> str:
    return "no step yet" if run.step is None else f"step {run.step}"


def status_table(launch: LaunchFile, runs: Sequence[Launched]) -> Table:
    """A row a run: its state, its last step and reward, its speed, the time left, and what happened to it."""
    columns = ("run", "state", "step", "reward", "steps/h", "hours left", "attempt")
    whole = (Column(name, no_wrap=True) for name in columns)
    table = Table(*whole, "what happened", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    styles = {"completed": "green", "failed": "red", "stopped": "yellow", "waiting": "dim"}
    for run in runs:
        reward = run.curves[REWARD].values[-1] if REWARD in run.curves else None
        speed, left = run.steps_per_hour, launch.steps - 1 - (-1 if run.step is None else run.step)
        shows_left = speed and launch.steps and run.status == "running"
        cells = (
            run.plan.name,
            run.status,
            "" if run.step is None else str(run.step),
            "" if reward is None else f"{reward:.3g}",
            f"{speed:,.0f}" if speed and speed >= 10 else f"{speed:.2g}" if speed else "",
            f"{left / speed:.2g}" if shows_left and speed else "",
            str(run.attempt or ""),
            run.message,
        )
        table.add_row(*cells, style=styles.get(run.status, ""))
    return table


def _conclude(
    launch: LaunchFile, directory: Path, runs: Sequence[Launched], console: Console, as_json: bool, quiet: bool
) -> None:
    """Judges what there is, writes a report for each arm, and exits with the worst verdict's code."""
    from parity.commands.launch import judge_launch
    from parity.report.comparison import print_comparison

    if not quiet:
        console.print(status_table(launch, runs))
    codes = []
    baseline, *others = launch.arms
    for arm in others:
        report = judge_launch(launch, runs, arm)
        folder = directory / "report" if len(others) == 1 else directory / "report" / arm
        if quiet and not as_json:
            console.print(f"{arm} against {baseline}: ", end="")
        show = partial(print_comparison, report)
        codes.append(deliver(report, folder, show, as_json=as_json, quiet=quiet))
    sys.exit(1 if 1 in codes else max(codes))
