"""How far a command is: a bar that stays in place on a terminal, else a line each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from parity.errors import shown


@dataclass(frozen=True, slots=True)
class Step:
    """How far a command is: parts done, of how many if that is known, in few words, in a line, and seconds left."""

    done: int
    total: int | None
    words: str
    line: str = ""
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What shows progress: `step` after each part, `note` for what is being done besides."""

    step: Callable[[Step], None]
    note: Callable[[str], None]


@contextmanager
def progress(console: Console, quiet: bool, start: str, *, keep: bool = False) -> Iterator[Shown]:
    """Shows how far a command is, from the first moment on.

    Args:
        console: Where a terminal's bar and lines of steps go; lines of notes go to standard error.
        quiet: Shows nothing.
        start: What is done before the first note.
        keep: Leaves the bar where it is at the end.
    """
    if quiet:
        yield Shown(lambda _: None, lambda _: None)
    elif console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _Bar(),
            _Amount(),
            TimeElapsedColumn(),
            _Left(),
        )
        with Progress(*columns, console=console, transient=not keep) as bar:
            task = bar.add_task(start, total=None, left=None)

            def note(text: str) -> None:
                bar.console.print(shown(text), style="dim", markup=False)
                bar.update(task, description=shown(text))

            def step(now: Step) -> None:
                bar.update(task, completed=now.done, total=now.total, description=now.words, left=now.seconds_left)

            yield Shown(step, note)
    else:
        yield Shown(
            lambda now: click.echo(now.line, file=console.file) if now.line else None,
            lambda text: click.echo(shown(text), err=True),
        )


class _Bar(BarColumn):
    """A bar once it is known of how many; nothing before."""

    def render(self, task: Task) -> Text:  # type: ignore[override]
        return super().render(task) if task.total else Text("")  # type: ignore[return-value]


class _Amount(ProgressColumn):
    """So many of so many, once that is known."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed)}/{int(task.total)}" if task.total else "")


class _Left(ProgressColumn):
    """The time left, by the pace of this run alone."""

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        if left is None or task.finished:
            return Text("")
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02} left")
