"""How much evidence a margin needs: groups at fixed weights, groups inside one run, runs; and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np
from scipy import stats

from parity.errors import InputError, UsageError
from parity.evidence.sampling.margin import groups_for_margin
from parity.evidence.sampling.means import CLIP, FEWEST_GROUPS, FIRST_GROUPS
from parity.evidence.sampling.power import (
    GroupPowerRow,
    PowerRow,
    Stream,
    power_row,
    simulate_groups,
    simulate_power,
)
from parity.evidence.sampling.watched import BLOCK, BOUNDED
from parity.evidence.spreads import MetricSpread
from parity.evidence.two_samples import runs_needed, runs_needed_jointly
from parity.evidence.values import ALPHA
from parity.findings import quantity
from parity.records.margins import METRICS, PROBE_SHARE, RUN, SAMPLING, SAMPLING_MEANS, WHOLE_RUNS, Unit

TWIN_STEPS = 20
GROUP_COUNTS = (64, 256, 1024, 4096)
RUN_COUNTS = (2, 3, 5, 8, 10)
IN_PROPORTION = 1e6
"""How far a margin may be from what varies, either way; beyond, no plan is of use and squares leave a float's range."""
LEAST_SPREAD = 1e-6
"""In margins: a smaller spread, as of a baseline that never truncates, counts as that, since t needs some."""
REPETITIONS = 200
"""Simulated samplings, from which numbers of groups are found."""
SHOWN_REPETITIONS = 100
"""Simulated samplings of each row that is shown; shares have a standard error of 5 % at most."""

MOST_SIMULATED = 40_000
"""Groups above which a formula stands for the simulation."""

HYPOTHESES = 19
"""Hypotheses that share the correction for a difference in `parity sample`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a training step is.

    Attributes:
        group_size: Samples a prompt.
        groups_per_step: Prompts a step.
        steps: Steps of a run.
        seconds_per_step: Of one step, or None.
        gpus: Of the whole job, or None.
        reward_range: The least and the largest reward there can be.
    """

    group_size: int = 8
    groups_per_step: int = 16
    steps: int = 100
    seconds_per_step: float | None = None
    gpus: int | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if not 0 < high - low < np.inf:
            raise UsageError(f"--reward-range {low:g} {high:g}: the lowest, then the highest reward")
        for name in ("group_size", "groups_per_step", "steps", "seconds_per_step", "gpus"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0 and finite, not {value}")

    def gpu_hours(self, steps: float) -> float | None:
        """GPU-hours of so many steps; None where no rate is known."""
        if self.seconds_per_step is None or self.gpus is None:
            return None
        return steps * self.seconds_per_step * self.gpus / 3600


@dataclass(frozen=True, slots=True)
class Design:
    """One way to get evidence, and what it takes; None for what its input does not say.

    Attributes:
        name: ``twin``, ``sample``, ``probe``, ``switchback`` or ``paired``.
        shows: What a PARITY of it means.
        amount: How much it takes, in words.
        groups: Prompt groups, over all arms and runs.
        fixed_groups: Groups of each arm if their number is set beforehand.
        steps: Training steps in all, or as many rollouts.
        requests: Requests of the native arm and the per-sample arm together.
        gpu_hours: At the rate given.
        shows_margin: Whether it shows the margin, and is known to be able to.
    """

    name: str
    shows: str
    amount: str
    groups: int | None = None
    fixed_groups: int | None = None
    steps: int | None = None
    requests: int | None = None
    gpu_hours: float | None = None
    shows_margin: bool = False


@dataclass(frozen=True, slots=True)
class MetricPlan:
    """One metric's margin and what it needs; the power is by simulation.

    Attributes:
        spread: How much it varies.
        margin: The largest difference that does not matter, in the metric's unit.
        bound: The largest difference of a group that evidence is prepared for, in that unit.
        first: Groups that `parity sample` takes to know it, where there is no largest value.
        watched_groups: Groups by which four in five samplings of equal arms have shown PARITY in this metric alone.
        fixed_groups: Groups of which that many do in a design whose size is set beforehand.
        runs: Runs an arm with 80 % power for it, or None above 1,000 or where the spread is not known.
        group_power: Shares of verdicts, by number of groups and true difference.
        run_power: The same by runs.
    """

    spread: MetricSpread
    margin: float
    bound: float
    first: int
    watched_groups: int | None
    fixed_groups: int | None
    runs: int | None
    group_power: tuple[GroupPowerRow, ...]
    run_power: tuple[PowerRow, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        setting: What a step is.
        metrics: By metric; a design must do for all of them.
        designs: From the cheapest kind to the dearest.
        cheapest: The name of the cheapest one that shows every margin, or None.
        warnings: What is not known, or was assumed.
    """

    setting: Setting
    metrics: tuple[MetricPlan, ...]
    designs: tuple[Design, ...]
    cheapest: str | None
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-compatible data."""
        return asdict(self)


def plan(
    margins: Mapping[str, float], spreads: Mapping[str, MetricSpread], setting: Setting, rng: np.random.Generator
) -> Plan:
    """What each design takes to show margins, and the cheapest one that does.

    Args:
        margins: The largest difference that does not matter, by metric, as in `parity.records.margins`.
        spreads: How much each of them varies. A reward of 0 or 1 can vary no more than is assumed without.
        setting: What a step is.
        rng: Source of the simulations.

    Raises:
        UsageError: A metric is unknown, a margin is not positive or out of proportion, or nothing is known of how a
            metric varies.
        InputError: A spread is negative or not finite, or a mean is not finite.
    """
    if unknown := sorted(set(margins) - set(SAMPLING)):
        raise UsageError(f"no margins are known for {unknown}, only for {sorted(SAMPLING)}")
    if not margins:
        raise UsageError("a plan needs a margin: --margin METRIC=VALUE")
    warnings: list[str] = []
    planned = []
    for metric, margin in margins.items():
        if not 0 < margin < np.inf:
            raise UsageError(f"the margin of {metric} must be above 0 and finite, not {margin}")
        spread = spreads.get(metric) or _largest(metric, setting, warnings)
        absolute = _absolute(margin, spread)
        planned.append(_metric_plan(spread, absolute, *_bound(spread, absolute, setting), rng))
        warnings += _outside(planned[-1], setting)
    others = [metric for metric in SAMPLING_MEANS if metric not in margins]
    if unplanned := [metric for metric in others if not _is_known(spreads.get(metric))]:
        warnings.append(
            f"`parity sample` also holds {', '.join(unplanned)} to the default margins, which may take more groups: "
            "--history says how much they vary"
        )
    by_default = [spreads[metric] for metric in others if metric not in unplanned]
    also = []
    for spread in by_default:
        margin = _absolute(SAMPLING_MEANS[spread.metric], spread)
        bound, first = _bound(spread, margin, setting)
        also.append(Stream(_some(spread.group, margin) or 1.0, margin, bound, first=first))
    runs, unknown = _other_runs(margins, spreads)
    if unknown and any(one.spread.run is not None for one in planned):
        warnings.append(
            f"`parity run`, `launch` and `compare` also hold {', '.join(unknown)} to the default margins, which may "
            "take more runs: --history of several runs says how much they vary"
        )
    designs = _designs(planned, also, runs, setting, rng)
    cheapest = next((design.name for design in designs if design.shows_margin), None)
    unknown_runs = [one.spread.metric for one in planned if one.spread.run is None]
    if unknown_runs:
        warnings.append(f"the spread between runs of {', '.join(unknown_runs)} is not known: --history or --sigma-run")
    return Plan(setting, tuple(planned), tuple(designs), cheapest, tuple(warnings))


def _other_runs(
    margins: Mapping[str, float], spreads: Mapping[str, MetricSpread]
) -> tuple[list[tuple[float, float]], list[str]]:
    """Spread and margin of what whole runs are held to by default beside what is planned; and what is not known."""
    known, unknown = [], []
    for metric in (name for name in WHOLE_RUNS if name not in margins):
        spread, margin = spreads.get(metric), RUN[metric]
        if spread is None or spread.run is None or (METRICS[metric].unit is Unit.SHARE and not spread.mean):
            unknown.append(metric)
            continue
        margin = _absolute(margin, spread)
        known.append((_some(spread.run, margin) or 0.0, margin))
    return known, unknown


def _is_known(spread: MetricSpread | None) -> bool:
    """Whether groups of a metric can be simulated, against its margin."""
    if spread is None or spread.group is None:
        return False
    return METRICS[spread.metric].unit is not Unit.SHARE or bool(spread.mean)


def _outside(planned: MetricPlan, setting: Setting) -> list[str]:
    """That values do not lie where they are taken to, as far as can be told."""
    spread, bound = planned.spread, planned.bound
    low, high = setting.reward_range if spread.metric == "reward" else (0.0, 1.0)
    inside = planned.margin < bound and (spread.group or 0) <= bound
    if spread.metric not in BOUNDED or (inside and (spread.mean is None or low <= spread.mean <= high)):
        return []
    more = ": more groups are needed where it is wider, say --reward-range" if spread.metric == "reward" else ""
    return [f"{spread.metric}: taken to lie from {low:g} to {high:g}, which its margin, mean or sigma does not{more}"]


def _largest(metric: str, setting: Setting, warnings: list[str]) -> MetricSpread:
    """The spread of values that are one or the other end of their range, as often as not."""
    if metric not in ("reward", "truncated", "aborted"):
        raise UsageError(f"how much {metric} varies is not known: give --history, or --sigma {metric}=VALUE")
    low, high = setting.reward_range if metric == "reward" else (0.0, 1.0)
    ends = f"a value of {low:g} or {high:g}"
    warnings.append(f"{metric}: taken to vary as much as {ends} can; --history or --sigma says less")
    width = high - low
    group = width * float(np.sqrt(0.5 / setting.group_size))
    return MetricSpread(metric, group=group, prompt=width / 2, source=f"the largest of {ends}")


def _absolute(margin: float, spread: MetricSpread) -> float:
    if spread.mean is not None and not np.isfinite(spread.mean):
        raise InputError(f"{spread.metric}: the mean is {spread.mean}, no finite number")
    if METRICS[spread.metric].unit is not Unit.SHARE:
        return margin
    if not spread.mean:
        raise UsageError(
            f"the margin of {spread.metric} is a share of its mean, which is not known: give --history, or --mean "
            f"{spread.metric}=VALUE"
        )
    return margin * abs(spread.mean)


def _metric_plan(spread: MetricSpread, margin: float, bound: float, first: int, rng: np.random.Generator) -> MetricPlan:
    for name in ("group", "prompt", "run"):
        value = getattr(spread, name)
        if value is not None and not 0 <= value < np.inf:
            raise InputError(f"{spread.metric}: the {name} spread is {value}, no standard deviation")
    varies = max(bound, *(value or 0.0 for value in (spread.group, spread.prompt, spread.run)))
    if not 1 / IN_PROPORTION <= margin / varies <= IN_PROPORTION:
        raise UsageError(
            f"{spread.metric}: a margin of {margin:g} is out of proportion to values that vary by {varies:g}"
        )
    groups, runs = (_some(value, margin) for value in (spread.group, spread.run))
    group_power: list[GroupPowerRow] = []
    watched = fixed = None
    if groups:
        for count in (*GROUP_COUNTS, None):
            for effect in (0.0, margin):
                stream, limit = Stream(groups, margin, bound, effect, first), count or GROUP_COUNTS[-1]
                if limit > first:
                    ends = simulate_groups([stream], limit, rng, SHOWN_REPETITIONS, block=64, fixed=count is not None)
                    group_power.append(power_row(ends, effect, count is None))
        streams = [Stream(groups, margin, bound, first=first)]
        watched, fixed = _groups_jointly(streams, rng), _fixed_jointly(streams, rng)
    run_power = [row for n in RUN_COUNTS for row in simulate_power(runs, n, margin, (0.0, margin), rng)] if runs else []
    return MetricPlan(
        spread,
        margin,
        bound,
        first,
        watched,
        fixed,
        runs_needed(runs, margin) if runs else None,
        tuple(group_power),
        tuple(run_power),
    )


def _some(deviation: float | None, margin: float) -> float | None:
    return None if deviation is None else max(deviation, LEAST_SPREAD * margin)


def _bound(spread: MetricSpread, margin: float, setting: Setting) -> tuple[float, int]:
    """The largest difference of a group that evidence is prepared for, and the groups that it takes to know it."""
    if spread.metric == "reward":
        return setting.reward_range[1] - setting.reward_range[0], 0
    if spread.metric in BOUNDED:
        return 1.0, 0
    if spread.cap is not None:
        return spread.cap, 0
    return max(CLIP * (spread.group or 0.0), margin), FIRST_GROUPS


def _groups_jointly(streams: Sequence[Stream], rng: np.random.Generator, fewest: int = 0, hypotheses: int = 1) -> int:
    """The groups by which four in five samplings of equal arms have shown PARITY in all metrics together."""
    longest = _longest(streams)
    if longest > MOST_SIMULATED:
        return longest
    fewest = max([fewest, *(FEWEST_GROUPS for stream in streams if stream.first)])
    # Looks are as far apart as those of a sampling, or 2 % of it.
    block = max(BLOCK, -(-longest // 50 // BLOCK) * BLOCK)
    limit = -(-max(3 * longest, fewest) // block) * block
    return simulate_groups(streams, limit, rng, REPETITIONS, block, fewest, hypotheses).needed() or limit


def _longest(streams: Sequence[Stream]) -> int:
    return max(stream.first + groups_for_margin(stream.sigma, stream.margin, stream.bound) for stream in streams)


def _fixed_jointly(streams: Sequence[Stream], rng: np.random.Generator, fewest: int = 0) -> int:
    """The groups of a design of set size of which four in five show PARITY of equal arms in all metrics together."""
    # With the spread known, normal theory gives a number that estimating it can only raise; and so does a bound.
    root = float(stats.norm.ppf(1 - ALPHA) + stats.norm.ppf((1 + 0.8) / 2))
    least = max(
        stream.first
        + max((root * stream.sigma / stream.margin) ** 2, -np.log(ALPHA) / np.log1p(stream.margin / stream.bound))
        for stream in streams
    )
    groups = max(ceil(least), fewest)
    while groups <= MOST_SIMULATED:
        ends = simulate_groups(streams, groups, rng, REPETITIONS, fixed=True)
        if ends.parity.mean() >= 0.8:
            break
        groups = ceil(1.05 * groups)
    return int(groups)


def _designs(
    planned: Sequence[MetricPlan],
    also: Sequence[Stream],
    runs: Sequence[tuple[float, float]],
    setting: Setting,
    rng: np.random.Generator,
) -> list[Design]:
    """From the cheapest kind to the dearest; `also` and `runs` are what a sampling and runs hold to their defaults."""
    return [
        _twin(setting),
        _sample(planned, also, setting, rng),
        *_in_one_run(planned, setting, rng),
        _paired(planned, runs, setting),
    ]


def _requests(groups: int, setting: Setting) -> int:
    """Of groups asked half natively, with one request, and half with one a sample."""
    return ceil(groups * (1 + setting.group_size) / 2)


def _twin(setting: Setting) -> Design:
    steps, groups = 2 * TWIN_STEPS, 2 * TWIN_STEPS * setting.groups_per_step
    return Design(
        "twin",
        "both code paths give the same, bit for bit; says nothing of a margin; needs reproducible seeds",
        f"1 pair of {TWIN_STEPS} steps",
        groups,
        None,
        steps,
        _requests(groups, setting),
        setting.gpu_hours(steps),
    )


def _sample(
    planned: Sequence[MetricPlan], also: Sequence[Stream], setting: Setting, rng: np.random.Generator
) -> Design:
    shows = "both arms sample the same groups at fixed weights"
    streams = [_stream(metric, metric.spread.group) for metric in planned]
    if None in streams:
        return Design("sample", shows, "the spread of groups is not known")
    known = [*filter(None, streams), *also]
    needed = _groups_jointly(known, rng, FEWEST_GROUPS, HYPOTHESES)
    fixed = _fixed_jointly(known, rng, FEWEST_GROUPS)
    steps = ceil(2 * needed / setting.groups_per_step)
    amount = f"about {quantity(needed, 'groups')} in each arm, fewer if the answer is clear; --fixed {fixed} looks once"
    cost = _requests(2 * needed, setting), setting.gpu_hours(steps)
    return Design("sample", shows, amount, 2 * needed, fixed, steps, *cost, True)


def _in_one_run(planned: Sequence[MetricPlan], setting: Setting, rng: np.random.Generator) -> list[Design]:
    """Probe and switchback: the arm is drawn by group inside one training run."""
    shows = "both arms sample the same groups along one run"
    found = []
    streams = [_stream(metric, metric.spread.group) for metric in planned]
    pairs = None if None in streams else _groups_jointly([*filter(None, streams)], rng)
    if pairs is None:
        found.append(Design("probe", shows, "the spread of groups is not known"))
    else:
        probed = max(1, round(PROBE_SHARE * setting.groups_per_step))
        steps = ceil(pairs / probed)
        groups = steps * (setting.groups_per_step + probed)
        amount = f"1 run of {quantity(steps, 'steps')} with {quantity(probed, 'prompts')} a step in both arms"
        # Only the probed prompts go both ways; the rest go one request a sample.
        requests = steps * (setting.groups_per_step * setting.group_size + probed)
        hours = setting.gpu_hours(steps * (1 + probed / setting.groups_per_step))
        found.append(Design("probe", shows, amount, groups, None, steps, requests, hours, True))
    # A group's deviation from its centre counts twice, as half of the groups are in each arm.
    streams = [_stream(metric, metric.spread.prompt, factor=2.0) for metric in planned]
    if None in streams:
        return [*found, Design("switchback", shows, "the spread of groups between prompts is not known")]
    steps = ceil(_groups_jointly([*filter(None, streams)], rng) / setting.groups_per_step)
    groups = steps * setting.groups_per_step
    amount = f"1 run of {quantity(steps, 'steps')}, the arm drawn for each group"
    cost = _requests(groups, setting), setting.gpu_hours(steps)
    return [*found, Design("switchback", shows, amount, groups, None, steps, *cost, True)]


def _stream(metric: MetricPlan, deviation: float | None, factor: float = 1.0) -> Stream | None:
    if (sigma := _some(deviation, metric.margin)) is None:
        return None
    return Stream(factor * sigma, metric.margin, factor * metric.bound, first=metric.first)


def _paired(planned: Sequence[MetricPlan], others: Sequence[tuple[float, float]], setting: Setting) -> Design:
    shows = f"whole runs of {quantity(setting.steps, 'steps')} train alike"
    known = all(metric.spread.run is not None for metric in planned)
    spreads = [(_some(metric.spread.run, metric.margin) or 0.0, metric.margin) for metric in planned]
    needed = runs_needed_jointly([*spreads, *others]) if known else None
    if needed is None:
        return Design("paired", shows, "more than 1,000 runs" if known else "the spread of runs is not known")
    steps = 2 * needed * setting.steps
    groups = steps * setting.groups_per_step
    amount = f"{needed} seeds in each arm, {quantity(setting.steps, 'steps')} each"
    cost = _requests(groups, setting), setting.gpu_hours(steps)
    return Design("paired", shows, amount, groups, None, steps, *cost, True)
