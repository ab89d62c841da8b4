"""What several commands share: exit codes, progress, files that were asked for."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
from rich.console import Console

from parity.cli.ending import describe_error, exit_of_signal
from parity.cli.progress import Step, progress
from parity.errors import EngineError, InputError, ParityError, UsageError, shown
from parity.findings import Verdict, quantity
from parity.report.trackers import Targets, check_installed, publish
from parity.report.words import LANGUAGES, Language, Say, speaker

if TYPE_CHECKING:
    from parity.report.document import Report  # imports scipy, which takes seconds
    from parity.report.html import PageEvidence

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


def cache_directory() -> Path:
    """Where warm-started policies are kept: ``$PARITY_CACHE``, else the user's cache directory."""
    if chosen := os.environ.get("PARITY_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout-parity"


@contextmanager
def counting(quiet: bool, what: str = "reading") -> Iterator[Callable[[int, int, str], None]]:
    """Shows on a terminal how many parts of how many are done, and what was read, while something runs."""
    console = Console(stderr=True, highlight=False)
    with progress(console, quiet or not console.is_terminal, what) as shows:
        yield lambda done, total, text: shows.step(Step(done, total, text))


def announce(text: str, quiet: bool) -> None:
    """Says on standard error where results go, before anything is loaded."""
    if not quiet:
        click.secho(shown(text), dim=True, err=True)


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


@dataclass(frozen=True, slots=True)
class Delivered:
    """A report, how it is printed for a person, and the samples that its page shows."""

    report: Report
    show: Callable[[Console], None]
    evidence: PageEvidence | None = None


def deliver(
    report: Report,
    folder: Path,
    show: Callable[[Console], None],
    *,
    as_json: bool,
    quiet: bool,
    evidence: PageEvidence | None = None,
    language: Language = "en",
    targets: Targets = NO_TARGETS,
) -> int:
    """As `deliver_all`, of one report."""
    one = Delivered(report, show, evidence)
    return deliver_all([one], folder, as_json=as_json, quiet=quiet, language=language, targets=targets)


def deliver_all(
    delivered: Sequence[Delivered],
    folder: Path,
    *,
    as_json: bool,
    quiet: bool,
    language: Language = "en",
    targets: Targets = NO_TARGETS,
) -> int:
    """Writes reports, tells GitHub, shows and publishes them; the exit code of the verdict over all.

    Args:
        delivered: What a command came to, for each arm that is compared with the baseline.
        folder: Where the files go; of several reports, each has a folder of its arm's name there.
        as_json: Prints report.json instead, on standard output.
        quiet: Prints the verdict alone.
        language: Of the page, the Markdown and what is printed.
        targets: The trackers that it is published to; what went where is said on standard error.
    """
    from parity.report.several import headline_of_several, verdict_of_several, write_several
    from parity.report.write import write_report

    console = Console(stderr=as_json, highlight=False)
    reports = [one.report for one in delivered]
    several = len(reports) > 1
    folders = [folder / report.experiment if several else folder for report in reports]
    with counting(quiet, "writing the report"):
        files = write_several(reports, folder, language) if several else []
        for one, of_arm in zip(delivered, folders, strict=True):
            files += write_report(one.report, of_arm, one.evidence, language)
    for report in reports:
        tell_github(report, language)
    verdict = verdict_of_several(reports)
    if as_json:
        sys.stdout.buffer.write((folder / "report.json").read_bytes())
    elif quiet:
        console.print(verdict.value)
    else:
        for one in delivered:
            one.show(console)
        if several:
            console.print(headline_of_several(reports, speaker(language)), style="bold", markup=False)
        console.print(written(files, speaker(language)), style="dim", markup=False)
    for report, of_arm in zip(reports, folders, strict=True):
        for line in publish(report, of_arm, targets):
            click.echo(line, err=True)
    return EXIT_CODES[verdict]


def conclude(
    directory: Path, as_json: bool, quiet: bool, language: Language = "en", targets: Targets = NO_TARGETS
) -> None:
    """Judges an experiment on disk, writes its report, shows it, and exits with the verdict's code."""
    with counting(quiet, "checking every sample"):
        from parity.commands.run import assess  # imports scipy for seconds
        from parity.report.html import gather
        from parity.report.terminal import print_report

        delivered = [
            Delivered(report, partial(print_report, report, language=language), gather(report, directory))
            for report in assess(directory)
        ]
    sys.exit(
        deliver_all(delivered, directory / "report", as_json=as_json, quiet=quiet, language=language, targets=targets)
    )


def written(files: Sequence[Path], say: Say) -> str:
    """Which files a command wrote."""
    directory = files[0].parent
    names = [path.relative_to(directory).as_posix() for path in files if path.suffix != ".png"]
    pictures = len(files) - len(names)
    more = [say(quantity(pictures, "pictures"))] if pictures else []
    return say("written to {directory}: {names}", directory=directory, names=say(", ").join([*names, *more]))


def in_github() -> bool:
    """Whether GitHub Actions is there to be told something."""
    return os.environ.get("GITHUB_ACTIONS") == "true" or bool(os.environ.get("GITHUB_STEP_SUMMARY"))


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


def given_options(context: click.Context, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options that stand on the command line, without those that have their defaults."""
    source = click.core.ParameterSource.COMMANDLINE
    return {name: value for name, value in asked.items() if context.get_parameter_source(name) is source}


def new_directory(prefix: str = "") -> Path:
    """Where results go if nobody says: named by the time, in UTC."""
    return Path("parity-out") / datetime.now(timezone.utc).strftime(f"{prefix}%Y%m%d-%H%M%S")


@contextmanager
def interruptible(command: str, directory: Path) -> Iterator[None]:
    """Ends on a signal, and on whatever fails, with the command that goes on from what is on disk.

    Where nothing was done yet, it says so, and leaves no directory but one that holds an engine's logs.
    """
    again = f"go on with: parity {command} --out {shlex.quote(str(directory))} --resume"
    missing = _missing(directory)
    try:
        yield
    except KeyboardInterrupt:
        kept = _kept(directory, missing)
        click.echo(f"\ninterrupted; {shown(again)}" if kept else "\ninterrupted before anything was done", err=True)
        sys.exit(exit_of_signal())
    except (UsageError, InputError, ModuleNotFoundError):
        _kept(directory, missing)
        raise
    except EngineError as error:
        if not _kept(directory, missing):
            raise
        raise EngineError(*error.args, f"what was done is kept; once the engine is well, {again}") from error
    except Exception as error:
        if not _kept(directory, missing):
            raise
        raise ParityError(describe_error(error), f"what was done is kept; {again}") from error


@contextmanager
def new_results(directory: Path) -> Iterator[None]:
    """Makes a directory for results; whatever ends without one leaves none behind."""
    missing = _missing(directory)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        _remove_empty(missing)


def _missing(directory: Path) -> list[Path]:
    """A directory and those above it that are not there yet, the deepest first."""
    return [path for path in (directory, *directory.parents) if not path.exists()]


def _remove_empty(directories: Iterable[Path]) -> None:
    for path in directories:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


_NO_RESULTS = (".lock", "experiment.json", "sampling.json")
"""Files that a command writes before it has a result."""


def _kept(directory: Path, missing: Sequence[Path]) -> bool:
    """Whether a directory holds results, or was there before; one that this command made for nothing is removed."""
    if directory not in missing or any(path.stat().st_size for path in directory.glob("runs/**/*") if path.is_file()):
        return directory.exists()
    for name in _NO_RESULTS:
        (directory / name).unlink(missing_ok=True)
    _remove_empty([*sorted(directory.rglob("*"), reverse=True), *missing])
    return False


def print_json(content: Any) -> None:
    """Prints a result as JSON on standard output."""
    sys.stdout.buffer.write(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


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
