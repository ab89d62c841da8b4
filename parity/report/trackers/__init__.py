"""Runs and verdict in the trackers that a team looks at: ClearML, TensorBoard and W&B.

A tracker is one function: it is given a report and the directory of its files, publishes them, and yields a line on
each thing that it published, or could not. The evidence lies on disk before, so that a tracker can lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from parity.errors import UsageError, install_hint

if TYPE_CHECKING:
    from parity.report.document import Report  # imports scipy, which takes seconds

    Tracker = Callable[[Report, Path], Iterator[str]]

_EXTRAS = {"clearml": "clearml", "tensorboard": "compare", "wandb": "compare"}


@dataclass(frozen=True, slots=True)
class Targets:
    """Where runs and verdict go: to ClearML, into a directory of TensorBoard, and to an offline run of W&B."""

    clearml: bool = False
    tensorboard: Path | None = None
    wandb: bool = False

    def __bool__(self) -> bool:
        return self.clearml or self.wandb or self.tensorboard is not None


def check_installed(targets: Targets) -> None:
    """Asks for the packages of the trackers before hours of work rather than after.

    Raises:
        UsageError: One is not installed.
    """
    for package, extra in _EXTRAS.items():
        if getattr(targets, package) and find_spec(package) is None:
            raise UsageError(f"--{package} needs the package {package}: {install_hint(extra)}")


def publish(report: Report, directory: Path, targets: Targets) -> Iterator[str]:
    """Publishes a report to each target, and yields a line on each thing published or not.

    Args:
        report: The report.
        directory: Where its files were written.
        targets: The trackers asked for.
    """
    for tracker in _trackers(targets):
        yield from tracker(report, directory)


def _trackers(targets: Targets) -> Iterator[Tracker]:
    if targets.clearml:
        from parity.report.trackers import clearml

        yield clearml.publish
    if targets.tensorboard:
        from parity.report.trackers import tensorboard

        yield partial(tensorboard.publish, to=targets.tensorboard)
    if targets.wandb:
        from parity.report.trackers import wandb

        yield wandb.publish
