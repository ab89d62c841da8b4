"""What is logged of many groups: once, or seldom and with a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from rollout_patch.eligibility import CONDITIONS

_log = logging.getLogger("rollout_patch")

SECONDS_BETWEEN_LINES = 60.0
"""How long lines of one kind are only counted after one was logged."""


def log_way(asked: str, used: str, reasons: Iterable[str]) -> None:
    """Logs that groups go a way, and each reason why not the one asked for; the counts go to the host's metrics."""
    if asked == used:
        log_once(logging.INFO, f"group sampling active: groups go {used}")
    for reason in reasons:
        log_once(
            logging.WARNING, f"groups that may not go {asked} ({reason}): {CONDITIONS[reason].sentence}; said once"
        )


def log_never(asked: str, reasons: Iterable[str]) -> None:
    """Warns, once a process, that flags rule out every group's going the way asked for."""
    sentences = "; ".join(f"{reason}: {CONDITIONS[reason].sentence}" for reason in reasons)
    log_once(logging.WARNING, f"no group can go {asked} with these flags: {sentences}")


_said: set[Any] = set()


def log_once(level: int, line: str, key: Any = None) -> None:
    """Logs a line, once a process for each key; without a key, for each line."""
    if (key or line) not in _said:
        _said.add(key or line)
        _log.log(level, line)


_seldom: dict[Any, tuple[float, int]] = {}


def log_seldom(line: str, key: Any, clock: Callable[[], float] = time.monotonic) -> None:
    """Warns of what may come thousands of times: a line a minute for each key, with how many were left out."""
    now = clock()
    at, left_out = _seldom.get(key, (-SECONDS_BETWEEN_LINES, 0))
    if now - at < SECONDS_BETWEEN_LINES:
        _seldom[key] = (at, left_out + 1)
        return
    _seldom[key] = (now, 0)
    more = f"; {left_out} like it were not logged since the last line" if left_out else ""
    _log.warning("%s%s", line, more)
