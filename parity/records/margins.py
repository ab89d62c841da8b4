"""The metrics that decide: their names, and the largest difference between arms that does not matter.

Every command takes the same names. A margin is stated before the data are looked at; whoever states none gets the
default of this table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import TypeVar

from parity.errors import UsageError

TOKEN_KL = 0.001
"""Nats a token: the default margin of KL between two engines at the same weights."""

M = TypeVar("M", float, "float | None")

PROBE_SHARE = 0.1
"""The share of prompts that a probe asks in both arms, as in the options of `rollout_patch`."""


class Unit(str, Enum):
    """What the number of a margin is."""

    ABSOLUTE = "absolute"
    SHARE = "share of the baseline's mean"
    LOG = "difference of logarithms"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that decides.

    Attributes:
        name: Its name, as in ``--margin reward=0.03``.
        curve: The name of its curve, which is another name for it; None where runs record none.
        unit: Of its margins.
        sampling: The default margin at fixed weights (`parity sample`); None where it is not compared there.
        run: The default margin inside a run and between runs (`run`, `watch`, `compare`); None likewise.
        reason: Why the defaults are what they are.
    """

    name: str
    curve: str | None
    unit: Unit
    sampling: float | None
    run: float | None
    reason: str


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "reward", "rollout/raw_reward", Unit.ABSOLUTE, 0.03, 0.10,
            "three points of a pass rate; between runs about what re-seeding a small task does",
        ),
        Metric(
            "response_length", "rollout/response_len/mean", Unit.SHARE, 0.03, 0.10,
            "costs 3 % more tokens; a lost token at the end of short answers is more than 10 %",
        ),
        Metric(
            "negative_log_likelihood", "rollout/rollout_log_probs", Unit.SHARE, 0.02, 0.10,
            "a temperature of 0.9 in place of 1 moves it further; along a run it falls towards 0",
        ),
        Metric(
            "truncated", "rollout/truncated_ratio", Unit.ABSOLUTE, 0.02, 0.05,
            "two responses in a hundred that lose their reward",
        ),
        Metric("aborted", "rollout/finish_reason/abort", Unit.ABSOLUTE, 0.02, None, "as truncated"),
        Metric(
            "group_reward_std", "rollout/group_reward_std", Unit.ABSOLUTE, 0.03, 0.10,
            "advantages are divided by it",
        ),
        Metric(
            "constant_reward", None, Unit.ABSOLUTE, 0.03, None,
            "three groups in a hundred without a gradient",
        ),
        Metric(
            "token_kl", None, Unit.ABSOLUTE, None, None,
            "0.001 where two engines answer; prime-rl lets trainer and engine differ ten times that",
        ),
        Metric(
            "duplicate_pairs", "rollout/duplicate_pairs", Unit.ABSOLUTE, None, 0.03,
            "one cloned pair in every group of 8 is 1 / 28",
        ),
        Metric(
            "grad_norm", "train/grad_norm", Unit.LOG, None, 0.50,
            "a factor of 1.6, which heavy tails reach between seeds",
        ),
    )
}  # fmt: skip
"""All of them, by name."""

SAMPLING: Mapping[str, float] = {
    name: metric.sampling for name, metric in METRICS.items() if metric.sampling is not None
}
"""Default margins at fixed weights, by name."""

SPREADS = ("group_reward_std", "constant_reward")
"""Metrics of how much rewards differ inside a group, whose parity is not asked for at fixed weights unless stated."""

SAMPLING_MEANS: Mapping[str, float] = {name: margin for name, margin in SAMPLING.items() if name not in SPREADS}
"""The default margins of means that `parity sample` must show parity in."""

RUN: Mapping[str, float] = {name: metric.run for name, metric in METRICS.items() if metric.run is not None}
"""Default margins inside a run and between runs, by name."""

WHOLE_RUNS = ("reward", "response_length", "truncated", "group_reward_std", "grad_norm")
"""The metrics that decide between whole runs; those inside a run are measured of groups."""

RUN_CURVES: Mapping[str, float] = {METRICS[name].curve or name: RUN[name] for name in WHOLE_RUNS}
"""The default margins between whole runs, by curve."""

IN_RUN = ("reward", "response_length", "truncated", "group_reward_std", "negative_log_likelihood", "duplicate_pairs")
"""The metrics that decide inside a run."""

_BY_CURVE = {metric.curve: metric for metric in METRICS.values() if metric.curve}


def metric_named(name: str) -> Metric | None:
    """The metric of a name or of a curve's name, or None."""
    return METRICS.get(name) or _BY_CURVE.get(name)


def canonical(name: str) -> str:
    """The metric's own name where it is known by this one, else the name as it is."""
    metric = metric_named(name)
    return metric.name if metric else name


def by_curve(margins: Mapping[str, M]) -> dict[str, M]:
    """Margins under the names of curves; names of other curves stay."""
    return {
        metric.curve if (metric := metric_named(name)) and metric.curve else name: margin
        for name, margin in margins.items()
    }


def check_margin(name: str, margin: float) -> None:
    """Refuses a margin that no difference can be held to.

    Raises:
        UsageError: It is not positive and finite, or a share of the mean of 1 or more.
    """
    if not 0 < margin < float("inf"):
        raise UsageError(f"--margin {name}={margin:g}: a margin must be positive and finite")
    metric = metric_named(name)
    if metric is not None and metric.unit is Unit.SHARE and margin >= 1:
        raise UsageError(
            f"--margin {name}={margin:g}: must be a share of the baseline's mean, below 1; for 20 of 400 tokens say "
            f"{metric.name}=0.05"
        )


def parse_margins(texts: Iterable[str], known: Iterable[str], others: bool = False) -> dict[str, float]:
    """Reads ``METRIC=NUMBER`` texts, each metric under its name or its curve's: the margins by metric's name.

    Args:
        texts: As given after ``--margin``.
        known: The metrics that the command compares, by name.
        others: Whether names outside the table may be given, which are curves that only the runs know; their margins
            are absolute.

    Raises:
        UsageError: A text is not of that form, its number is no margin, or its metric is not compared.
    """
    there = list(known)
    margins: dict[str, float] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UsageError(f"--margin {text}: expected METRIC=NUMBER, such as reward=0.03")
        try:
            margin = float(value)
        except ValueError as error:
            raise UsageError(f"--margin {text}: {value!r} is not a number; expected METRIC=NUMBER") from error
        metric = canonical(name)
        if metric not in there and not (others and metric_named(name) is None):
            raise UsageError(f"--margin {name}: {_not_compared(name, there)}")
        check_margin(name, margin)
        if metric in margins:
            raise UsageError(f"--margin {name}: {metric} is given more than once")
        margins[metric] = margin
    return margins


def margin_option_help(defaults: Mapping[str, float]) -> str:
    """What ``--margin`` is, with the defaults of a command."""
    shown = ", ".join(f"{name} {margin:g}{_UNIT_SHORT[METRICS[name].unit]}" for name, margin in defaults.items())
    return f"The largest difference between the arms that does not matter; may be given again. Defaults: {shown}."


_UNIT_SHORT = {Unit.ABSOLUTE: "", Unit.SHARE: " (share of the baseline's mean)", Unit.LOG: " (of the log)"}


def _not_compared(name: str, there: list[str]) -> str:
    names = [alias for metric in there for alias in (metric, METRICS[metric].curve) if alias]
    alike = get_close_matches(name, names, 1, 0.6)
    meant = f"did you mean {alike[0]}? " if alike else ""
    known = "is not compared by this command" if metric_named(name) else "no such metric"
    return f"{known}; {meant}there are {', '.join(sorted(there))}"


def check_sampling_margins(margins: Mapping[str, float]) -> None:
    """Checks margins at fixed weights.

    Raises:
        UsageError: A metric is unknown, or a margin is not positive and finite.
    """
    if unknown := sorted(set(margins) - set(SAMPLING)):
        raise UsageError(f"no margins are known for {unknown}, only for {sorted(SAMPLING)}")
    if wrong := {name: margin for name, margin in margins.items() if not 0 < margin < math.inf}:
        raise UsageError(f"margins must be above 0 and finite, not {wrong}")
