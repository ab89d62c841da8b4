"""Tasks: prompts that are a function of seed and step, a verifiable reward, and demonstrations for the warm start."""

from __future__ import annotations

from collections.abc import Callable

from parity.errors import UsageError
from parity.trainer.tasks.arithmetic import Arithmetic
from parity.trainer.tasks.digits import DigitSum
from parity.trainer.tasks.task import Task, View

__all__ = ["TASKS", "Arithmetic", "DigitSum", "Task", "View", "get_task"]

TASKS: dict[str, Callable[[], Task]] = {
    "arithmetic": Arithmetic,
    "digits": lambda: DigitSum("digits", 1),
    "digit-sum": lambda: DigitSum("digit-sum", 2),
    "digit-sum-4": lambda: DigitSum("digit-sum-4", 4, largest=4, slip=0.15),
}
"""Every task by the name that `--task` takes; a new one is added here."""


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        UsageError: There is none; the message lists those there are.
    """
    if name not in TASKS:
        raise UsageError(f"no task {name!r}; there are {', '.join(sorted(TASKS))}")
    return TASKS[name]()
