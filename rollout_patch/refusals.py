"""What an engine refused of earlier groups: not asked again for a while, and then asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

REFUSED_IN_A_ROW = 2
"""How many groups in a row an engine must refuse in an arm before others are spared it; one may be an accident."""

ASKED_AGAIN_AFTER = 600.0
"""Seconds after which a group is sent in a refused arm once more."""


@dataclass(slots=True)
class Refusals:
    """The arms that an engine refused, each by the name of its condition and whether the group had media.

    Attributes:
        clock: Seconds that only grow.
    """

    clock: Callable[[], float] = time.monotonic
    _counts: dict[tuple[str, bool], int] = field(default_factory=dict)
    _until: dict[tuple[str, bool], float] = field(default_factory=dict)

    def names(self, media: bool) -> tuple[str, ...]:
        """The conditions that hold now, for groups with or without media."""
        now = self.clock()
        return tuple(
            sorted(name for (name, of_media), until in self._until.items() if of_media == media and now < until)
        )

    def add(self, name: str, media: bool) -> None:
        """A group was refused in an arm, and taken in another."""
        at = (name, media)
        self._counts[at] = self._counts.get(at, 0) + 1
        if self._counts[at] >= REFUSED_IN_A_ROW:
            self._until[at] = self.clock() + ASKED_AGAIN_AFTER

    def forget(self, name: str, media: bool) -> None:
        """A group was taken in the arm."""
        self._counts.pop((name, media), None)
        self._until.pop((name, media), None)
