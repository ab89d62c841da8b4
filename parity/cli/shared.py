"""What several commands share: exit codes, progress, files that were asked for."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parity.cli.ending import describe_error, exit_of_signal
from parity.errors import EngineError, InputError, ParityError, UsageError
from parity.findings import Verdict
from parity.records.experiment import ARMS
from parity.report.trackers import Targets, check_installed, publish
from parity.report.words import LANGUAGES, Language, Say, speaker
from parity.shown import shown

if TYPE_CHECKING:
    from parity.report.document import Report  # imports scipy, which takes seconds

EXIT_CODES = {
    Verdict.PARITY: 0,
    Verdict.CURVES_AGREE: 0,
    Verdict.PASS: 0,
    Verdict.DIFFERENT: 1,
    Verdict.FAIL: 1,
    Verdict.INCONCLUSIVE: 3,
}
EXIT_HELP = "Exit code: 0 parity, 1 different, 2 wrong input or command, 3 inconclusive."
NO_TARGETS = Targets()
SEVERAL = ("--baseline", "--counts", "--experiment", "--history", "--mode", "--router")


def cache_directory() -> Path:
    """Where warm-started policies are kept: ``$PARITY_CACHE``, else the user's cache directory."""
    if chosen := os.environ.get("PARITY_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout-parity"


@contextmanager
def counting(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Shows on a terminal how many parts of how many are done, and what was read, while something runs."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)
        yield lambda done, total, text: progress.update(task, completed=done, total=total, description=text)


def write_file(path: Path, content: bytes) -> None:
    """Writes a file that was asked for."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def tracker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that publish to trackers; the command gets them as `targets`, their packages installed."""

    @click.option(
        "--clearml",
        is_flag=True,
        help="Publish runs and verdict to ClearML: to the server of your clearml.conf, without one as zips to import.",
    )
    @click.option(
        "--tensorboard",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write runs and verdict as TensorBoard events under a directory.",
    )
    @click.option("--wandb", is_flag=True, help="Write runs and verdict as offline runs of W&B.")
    @wraps(command)
    def bundled(*arguments: Any, clearml: bool, tensorboard: Path | None, wandb: bool, **options: Any) -> None:
        targets = Targets(clearml, tensorboard, wandb)
        check_installed(targets)
        command(*arguments, targets=targets, **options)

    return bundled


def language_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the option that says in which language a report is written and its summary printed."""
    return click.option(
        "--lang",
        "language",
        type=click.Choice(LANGUAGES),
        default="en",
        show_default=True,
        help="Language of report.md, report.html and what is printed; report.json and junit.xml stay English.",
    )(command)


def publish_to(targets: Targets, report: Report, directory: Path) -> None:
    """Publishes a report whose files are in a directory; what went where is said on standard error."""
    for line in publish(report, directory, targets):
        click.echo(line, err=True)


def conclude(
    directory: Path,
    console: Console,
    as_json: bool,
    quiet: bool,
    language: Language = "en",
    targets: Targets = NO_TARGETS,
) -> None:
    """Judges an experiment on disk, writes its report, shows it, and exits with the verdict's code."""
    from parity.commands.run import assess
    from parity.report.terminal import print_report
    from parity.report.write import write_report

    result = assess(directory)
    files = write_report(result, directory / "report", directory, language)
    tell_github(result, language)
    if as_json:
        sys.stdout.buffer.write((directory / "report" / "report.json").read_bytes())
    elif quiet:
        console.print(result.verdict.verdict.value)
    else:
        print_report(result, console, language)
        console.print(written(files, speaker(language)), style="dim", markup=False)
    publish_to(targets, result, directory / "report")
    sys.exit(EXIT_CODES[result.verdict.verdict])


def written(files: Sequence[Path], say: Say) -> str:
    """Which files a command wrote."""
    names = [path.name for path in files if path.suffix != ".png"]
    pictures = len(files) - len(names)
    more = [say("{count} pictures", count=pictures)] if pictures else []
    return say("written to {directory}: {names}", directory=files[0].parent, names=say(", ").join([*names, *more]))


def tell_github(report: Report, language: Language = "en") -> None:
    """In GitHub Actions: annotations, and the report as the step's summary; the verdict stands without either."""
    from parity.report import github

    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github.workflow_commands(report):
            click.echo(line, err=True)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            github.add_summary(report, Path(path), language)
        except OSError as error:
            reason = error.strerror or error
            click.echo(f"parity: warning: {path}: the step's summary cannot be written: {reason}", err=True)


def arm_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name the two arms."""
    experiment = click.option(
        "--experiment", type=click.Choice(ARMS), default="native", show_default=True, help="The arm in question."
    )
    baseline = click.option(
        "--baseline",
        is_flag=False,
        flag_value="per-sample",
        default="per-sample",
        type=click.Choice(ARMS),
        show_default=True,
        help="The arm compared with; alone it means per-sample.",
    )
    return baseline(experiment(command))


class SeveralValues(click.Command):
    """A command whose options of `SEVERAL` take all values that follow, as a shell's pattern gives them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeats such an option before each of its values."""
        ctx.meta[_LAST_OPTION] = next((one for one in reversed(args) if one.startswith("-") and one != "-"), "")
        return super().parse_args(ctx, list(_repeated(args)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offers another value of such an option, where its values are being given."""
        last = ctx.meta.get(_LAST_OPTION, "")
        option = next((one for one in self.params if last in SEVERAL and last in one.opts), None)
        if option and not incomplete.startswith("-"):
            return option.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


_LAST_OPTION = f"{__name__}.last_option"


def _repeated(args: Iterable[str]) -> Iterable[str]:
    option = ""
    for argument in args:
        if argument.startswith("-") and argument != "-":
            option = argument if argument in SEVERAL else ""
            if not option:
                yield argument
        elif option:
            yield from (option, argument)
        else:
            yield argument


def fleet_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that start several engines behind a router."""
    router = click.option(
        "--router",
        default="",
        metavar="POLICY",
        help="Put the sglang-router before the engines started here, by a policy: random, round_robin, cache_aware, "
        "power_of_two or manual. Default: round_robin for several workers, no router for one.",
    )
    workers = click.option("--workers", type=int, default=1, show_default=True, help="Engines to start.")
    return workers(router(command))


def given_options(context: click.Context, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options that stand on the command line, without those that have their defaults."""
    source = click.core.ParameterSource.COMMANDLINE
    return {name: value for name, value in asked.items() if context.get_parameter_source(name) is source}


def new_directory(prefix: str = "") -> Path:
    """Where results go if nobody says: named by the time, in UTC."""
    return Path("parity-out") / datetime.now(timezone.utc).strftime(f"{prefix}%Y%m%d-%H%M%S")


@contextmanager
def interruptible(command: str, directory: Path) -> Iterator[None]:
    """Ends on a signal, and on whatever fails, with the command that goes on from what is on disk."""
    again = f"go on with: parity {command} --out {shlex.quote(str(directory))} --resume"
    try:
        yield
    except KeyboardInterrupt:
        done = directory.exists()
        click.echo(f"\ninterrupted; {shown(again)}" if done else "\ninterrupted before anything was done", err=True)
        sys.exit(exit_of_signal())
    except (UsageError, InputError, ModuleNotFoundError):
        raise
    except EngineError as error:
        raise EngineError(*error.args, f"what was done is kept; once the engine is well, {again}") from error
    except Exception as error:
        raise ParityError(describe_error(error), f"what was done is kept; {again}") from error


def command_line() -> str:
    """The command line as a record keeps it: without secrets, and on one line."""
    return shown(shlex.join(["parity", *sys.argv[1:]]))


def parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Reads the values of a ``NAME=VALUE`` option that may be given again.

    Raises:
        UsageError: A text is not of that form.
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} {text}: expected NAME=VALUE")
        pairs[name] = value
    return pairs


def parse_numbers(option: str, texts: Iterable[str]) -> dict[str, float]:
    """Reads the values of a ``METRIC=NUMBER`` option that may be given again.

    Raises:
        UsageError: A text is not of that form.
    """
    numbers = {}
    for name, value in parse_pairs(option, texts).items():
        try:
            numbers[name] = float(value)
        except ValueError as error:
            raise UsageError(f"{option} {name}={value}: not a number; expected METRIC=NUMBER") from error
    return numbers
