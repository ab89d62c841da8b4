"""What tests take and give: values by run or by group, never by step, and results that say what they rest on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parity.errors import InputError

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]

ALPHA = 0.05
"""The level of every test, and of each of the two one-sided tests of equivalence."""


@dataclass(frozen=True, slots=True)
class RunValues:
    """One number a run, (R,): the unit of every statement about training curves.

    Steps of a run depend on each other and on the run's seed, so they are no samples; each value needs the name of its
    run.

    Raises:
        InputError: There are not as many names as values, a name repeats, or a value is NaN or infinite.
    """

    metric: str
    runs: tuple[str, ...]
    values: Floats

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.runs),):
            raise InputError(f"{self.metric}: {len(self.runs)} runs need one value each, not shape {self.values.shape}")
        _check(self.metric, "run", self.runs, self.values)

    def __len__(self) -> int:
        return len(self.runs)


@dataclass(frozen=True, slots=True)
class GroupValues:
    """One number a sample by prompt group, (G, n): the unit of statements at frozen weights is the group.

    `groups` identifies the prompts, so that the same prompt's groups of two arms are paired with each other.

    Raises:
        InputError: There are not as many groups as rows, a group repeats, or a value is NaN or infinite.
    """

    metric: str
    groups: tuple[Hashable, ...]
    values: Floats

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or len(self.values) != len(self.groups):
            raise InputError(f"{self.metric}: {len(self.groups)} groups need rows of samples, not {self.values.shape}")
        _check(self.metric, "group", self.groups, self.values)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def means(self) -> Floats:
        """The mean of each group, (G,)."""
        return np.asarray(self.values.mean(axis=1))


def _check(metric: str, unit: str, names: tuple[Hashable, ...], values: Floats) -> None:
    if len(set(names)) != len(names):
        raise InputError(f"{metric}: {len(names) - len(set(names))} {unit}s are given more than once")
    bad = np.unique(np.argwhere(~np.isfinite(values))[:, 0])
    if bad.size:
        raise InputError(f"{metric}: {bad.size} of {len(names)} {unit}s are NaN or infinite (first {names[bad[0]]})")
