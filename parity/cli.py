"""The commands; no logic."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from parity.errors import ParityError, UsageError
from parity.experiment import DESIGNS, ExperimentConfig
from parity.findings import Verdict
from parity.training.config import TrainingConfig
from rollout_patch import ARMS

EXIT_CODES = {Verdict.PARITY: 0, Verdict.DIFFERENT: 1, Verdict.INCONCLUSIVE: 3}
EXIT_ERROR = 2
TRAINING = TrainingConfig()
EXIT_INTERRUPTED = 130

RUN_EXAMPLES = """\b
Examples:
  parity run --baseline --experiment native
  parity run --baseline batched --experiment native --seeds 5 --steps 60
  parity run --baseline --experiment native --engine sglang --steps 30
  parity run --baseline --experiment native --plant exchanged-outputs@7
  parity run --out parity-out/mine --resume
"""

CHECK_EXAMPLES = """\b
Examples:
  parity check dumps/rollout_data --group-size 8 --temperature 1
  parity check run.samples.jsonl.gz run.exchanges.jsonl.gz --max-new-tokens 4096 --stop-token-ids 151645
  parity check relax-results/train --group-size 8 --reward my_task:reward --junit parity.xml
  parity check parity-out/20260101-120000
  parity check http://127.0.0.1:30000
"""
CHECK_EXIT_HELP = "Exit code: 0 passed, 1 failed, 2 wrong input (or a file could not be read whole), 3 inconclusive."

EXIT_HELP = "Exit code: 0 parity, 1 different, 2 wrong input or command, 3 inconclusive."


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_HELP)
@click.version_option(package_name="rollout-parity", prog_name="parity")
def cli() -> None:
    """Proves that a change to how an RL trainer requests its rollouts leaves training the same, or shows where not."""


@cli.command(epilog=RUN_EXAMPLES + "\n" + EXIT_HELP)
@click.option(
    "--baseline",
    is_flag=False,
    flag_value="per-sample",
    default="per-sample",
    type=click.Choice(ARMS),
    show_default=True,
    help="The arm compared with; alone it means per-sample.",
)
@click.option("--experiment", type=click.Choice(ARMS), default="native", show_default=True, help="The arm in question.")
@click.option("--engine", default="embedded", show_default=True, help="embedded, sglang, or the URL of a deployment.")
@click.option(
    "--control", is_flag=True, help="Allow weight updates on a deployment at a URL; it must see this file system."
)
@click.option("--task", default="arithmetic", show_default=True, help="The task that the policy is trained on.")
@click.option(
    "--design",
    "designs",
    type=click.Choice(DESIGNS),
    multiple=True,
    help="How pairs are made; may be given several times. Default: twin then paired where the engine can seed, else "
    "replay and paired.",
)
@click.option("--seeds", type=int, default=3, show_default=True, help="Paired seeds, each one run an arm.")
@click.option("--steps", type=int, default=40, show_default=True, help="Training steps of each paired run.")
@click.option("--twin-steps", type=int, default=20, show_default=True, help="Training steps of each twin run.")
@click.option("--lr", type=float, default=TRAINING.learning_rate, show_default=True, help="Learning rate.")
@click.option("--groups", type=int, default=TRAINING.groups_per_step, show_default=True, help="Prompt groups a step.")
@click.option("--group-size", type=int, default=TRAINING.group_size, show_default=True, help="Samples a group.")
@click.option(
    "--plant",
    "plants",
    multiple=True,
    metavar="NAME@STEP",
    help="Plant a fault, such as exchanged-outputs, in the experiment's arm at a step, counted from 0.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: parity-out/<time>.")
@click.option("--resume", is_flag=True, help="Go on with the experiment in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
@click.pass_context
def run(context: click.Context, /, out: Path | None, resume: bool, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Trains both arms for real, in pairs, and gives the verdict with its report.

    The arms: per-sample sends one request a sample, batched one request with a list of n copies of the prompt, native
    one request with sampling_params.n.

    A twin pair samples with the same seeds in both arms, so that they must be equal bit for bit; a replay serves one
    recording to both, on engines that cannot do that; free pairs then show whether the curves contradict it. Killed
    at any point, it goes on with --resume.
    """
    if resume and out is None:
        raise UsageError("--resume needs --out: the directory of the experiment to go on with")
    directory = out or Path("parity-out") / datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    config = _run_config(context, asked, directory if resume else None)
    config.validate()
    from parity.runner import Watcher, run_experiment  # imports torch, so only once it is needed

    console = Console(stderr=as_json, highlight=False)
    with _interruptible(directory), _watching(console, quiet) as (step, note):
        run_experiment(
            config,
            directory,
            command=shlex.join(["parity", *sys.argv[1:]]),
            watcher=Watcher(step, note),
            cache=cache_directory(),
            resume=resume,
        )
    _conclude(directory, console, as_json, quiet)


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def report(directory: Path, as_json: bool, quiet: bool) -> None:
    """Checks an experiment on disk again and writes its report again.

    \b
    Example:
      parity report parity-out/20260101-120000
    """  # noqa: D301 - \b is click's mark for a paragraph that keeps its lines
    _conclude(directory, Console(stderr=as_json, highlight=False), as_json, quiet)


@cli.command(epilog=CHECK_EXAMPLES + "\n" + CHECK_EXIT_HELP)
@click.argument("sources", nargs=-1, required=True, metavar="PATH… | URL")
@click.option("--group-size", type=click.IntRange(1), help="Samples of each group.")
@click.option("--max-new-tokens", type=click.IntRange(0), help="Cap of a response in tokens.")
@click.option("--stop-token-ids", type=int, multiple=True, help="A token that ends a response; may be given again.")
@click.option("--temperature", type=float, help="Sampling temperature, which dumps of hosts do not keep.")
@click.option("--reward", metavar="MODULE:FUNCTION", help="The reward of one parity.samples.Sample, computed again.")
@click.option(
    "--advantage", type=click.Choice(["grpo", "grpo_no_std", "rloo"]), help="The trainer's formula, computed again."
)
@click.option("--destructive", is_flag=True, help="With a URL: also send what is known to end some servers.")
@click.option("--control", is_flag=True, help="With a URL: also update weights, abort and pause, which others notice.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the result as JUnit XML too.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def check(sources: tuple[str, ...], as_json: bool, junit: Path | None, quiet: bool, **asked: Any) -> None:
    """Holds dumps, recordings, directories of either, or a live engine to the contract.

    What is at a path is recognised by its content: dumps of slime, Miles and Relax, Relax's and verl's JSON lines,
    Miles' dashboard columns, experiments, samples and exchanges as JSON lines (plain, gzip or zstd) and Parquet.
    """
    from parity.checking import check_sources
    from parity.reports.checks import headline, print_checks
    from parity.reports.junit import render_findings

    console = Console(stderr=as_json, highlight=False)
    with _counting(quiet) as watcher:
        result = check_sources(sources, watcher=watcher, **asked)
    if junit:
        _write(junit, render_findings(f"parity check: {result.verdict.value}", result.findings))
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
    elif quiet:
        console.print(headline(result), markup=False)
    else:
        print_checks(result, console)
    sys.exit(result.exit_code)


@cli.command()
@click.option("--model-path", type=click.Path(path_type=Path, file_okay=False, exists=True), help="A checkpoint.")
@click.option("--task", default="arithmetic", show_default=True, help="Without --model-path: this task's policy.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=30000, show_default=True)
def serve(model_path: Path | None, task: str, host: str, port: int) -> None:
    """Runs the embedded engine alone, speaking SGLang's protocol.

    \b
    Examples:
      parity serve
      parity serve --model-path my-qwen2 --port 30001
    """  # noqa: D301 - as above
    if model_path is None:
        from parity.training.tasks import get_task
        from parity.training.warm_start import warm_start

        model_path = warm_start(get_task(task), cache_directory())
    arguments = ["--model-path", str(model_path), "--host", host, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-m", "parity.engine.embedded", *arguments])


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
def selftest(as_json: bool) -> None:
    """Plants every fault and shows which check catches it, beside controls that must pass.

    Exit code: 0 if each is caught by the check named for it and by no other, and nothing sound is; else 1.
    """
    from parity.selftest import run_selftest, table

    console = Console(stderr=as_json, highlight=False)
    with console.status("planting faults") as status:
        result = run_selftest(lambda done, total: status.update(f"planting faults: {done} of {total}"))
    click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2).decode() if as_json else table(result))
    sys.exit(0 if result.passed else 1)


def cache_directory() -> Path:
    """Where warm-started policies are kept: ``$PARITY_CACHE``, else the user's cache directory."""
    if chosen := os.environ.get("PARITY_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout-parity"


def _run_config(context: click.Context, asked: dict[str, Any], resumed: Path | None) -> ExperimentConfig:
    """The configuration asked for: the defaults, or those on disk when resuming, with the options given."""
    from parity.store import read_experiment

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, (list, tuple)) else value
        for name, value in asked.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    training = {"lr": "learning_rate", "groups": "groups_per_step", "group_size": "group_size"}
    changes: dict[str, Any] = {field: given.pop(option) for option, field in training.items() if option in given}
    if resumed is None:
        config = ExperimentConfig(**{"baseline": asked["baseline"], "experiment": asked["experiment"], **given})
    else:
        config = replace(ExperimentConfig.from_json(read_experiment(resumed)["config"]), **given)
    return replace(config, training=replace(config.training, **changes))


@contextmanager
def _interruptible(directory: Path) -> Iterator[None]:
    """Ends on Ctrl-C with the command that goes on from here."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted; go on with: parity run --out {shlex.quote(str(directory))} --resume", err=True)
        sys.exit(EXIT_INTERRUPTED)


@contextmanager
def _watching(console: Console, quiet: bool) -> Iterator[tuple[Callable[[Any], None], Callable[[str], None]]]:
    """How progress is shown: a bar with rate and time left on a terminal, else one plain line a step."""
    if quiet:
        yield lambda _: None, lambda _: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("left"))
        with Progress(*columns, *times, console=console) as progress:
            task = progress.add_task("starting", total=None)
            yield (
                lambda step: progress.update(
                    task, completed=step.done, total=step.total, description=_short_line(step)
                ),
                lambda text: progress.console.print(text, style="dim", markup=False),
            )
    else:
        yield lambda step: click.echo(_plain_line(step), file=console.file), lambda text: click.echo(text, err=True)


@contextmanager
def _counting(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Shows on a terminal how many parts of how many are done, and what was read, while something runs."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)
        yield lambda done, total, text: progress.update(task, completed=done, total=total, description=text)


def _short_line(step: Any) -> str:
    return f"{step.run} step {step.step} reward {step.metrics['rollout/raw_reward']:.2f}"


def _write(path: Path, content: bytes) -> None:
    """Writes a file that was asked for."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def _step_line(step: Any) -> str:
    metrics = step.metrics
    shown = {"reward": "rollout/raw_reward", "length": "rollout/response_len/mean", "grad norm": "train/grad_norm"}
    values = " ".join(f"{name} {metrics.get(key, float('nan')):.3f}" for name, key in shown.items())
    return f"{step.pair.design} {step.run} step {step.step} {values}"


def _plain_line(step: Any) -> str:
    position = f"{step.done}/{step.total}, {step.rate:.1f} steps/s, {step.seconds_left:.0f} s left"
    return f"{_step_line(step)} {step.seconds:.2f} s [{position}]"


def _conclude(directory: Path, console: Console, as_json: bool, quiet: bool) -> None:
    """Judges an experiment on disk, writes its report, shows it, and exits with the verdict's code."""
    from parity.acceptance import assess
    from parity.reports.terminal import print_report
    from parity.reports.write import write_report

    result = assess(directory)
    files = write_report(result, directory / "report")
    if as_json:
        sys.stdout.buffer.write((directory / "report" / "report.json").read_bytes())
    elif quiet:
        console.print(result.verdict.verdict.value)
    else:
        print_report(result, console)
        console.print(f"report: {files[-1]}", style="dim")
    sys.exit(EXIT_CODES[result.verdict.verdict])


def main() -> None:
    """The command `parity`: errors are one line on standard error and exit code 2."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_ERROR)
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except (ParityError, OSError) as error:
        click.echo(f"parity: {error}", err=True)
        sys.exit(EXIT_ERROR)
    except Exception:  # Python would exit with 1, which means different here
        traceback.print_exc()
        sys.exit(EXIT_ERROR)
