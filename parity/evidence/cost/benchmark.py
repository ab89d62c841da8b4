"""What the rollouts of a benchmark say: means, spread over engines, and ratios where the work was equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from parity.evidence.cost.run_cost import run_ratio
from parity.evidence.two_samples import two_sample
from parity.evidence.values import Interval
from parity.metrics import Spread, spread
from parity.records.bench import QUANTILES, BenchResult, Load, Measurement, Workload

METRICS: Mapping[str, Callable[[Measurement], float | None]] = {
    "seconds": lambda rollout: rollout.seconds,
    "tokens_per_second": lambda rollout: rollout.output_tokens / rollout.seconds,
    "requests": lambda rollout: float(rollout.requests),
    "request_p50": lambda rollout: rollout.request_seconds.get("p50"),
    "group_p50": lambda rollout: rollout.group_seconds.get("p50"),
    "group_p99": lambda rollout: rollout.group_seconds.get("p99"),
    "client_cpu": lambda rollout: rollout.client_cpu,
    "engine_cpu": lambda rollout: rollout.engine_cpu,
}
"""What ratios are made of."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All measured rollouts of one mode under one policy; every value is a mean over rollouts unless it says otherwise.

    Attributes:
        policy: The router's policy, if it was started here.
        mode: The mode's name.
        rollouts: How many.
        seconds: Wall time of a rollout.
        seconds_range: The shortest and the longest.
        requests: HTTP requests.
        tokens_per_second: Response tokens a second.
        request_seconds: Quantiles of the time of a request.
        group_seconds: Quantiles of the time of a group.
        prompt_tokens: Of all rollouts together, once a sample; `None` where the engine did not say.
        cached_share: The share of prompt tokens that came from the prefix cache.
        client_cpu: Seconds of CPU of the client.
        engine_cpu: Of engines and router.
        engines: What each engine served in all rollouts together.
        request_spread: Of those requests.
        token_spread: Of those decode tokens.
        rollout_max_over_mean: The busiest engine's decode tokens over the mean, inside a rollout; of requests where
            tokens are not known.
        uncounted_requests: Requests sent that no engine counted; negative where engines served others too.
        defects: Why the work is not that of the workload; empty where it is.
    """

    policy: str | None
    mode: str
    rollouts: int
    seconds: float
    seconds_range: tuple[float, float]
    requests: float
    tokens_per_second: float
    request_seconds: Mapping[str, float]
    group_seconds: Mapping[str, float]
    prompt_tokens: int | None
    cached_share: float | None
    client_cpu: float
    engine_cpu: float | None
    engines: Mapping[str, Load]
    request_spread: Spread | None
    token_spread: Spread | None
    rollout_max_over_mean: float | None
    uncounted_requests: float | None
    defects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric of one mode over that of another, or over that of the same mode elsewhere.

    Attributes:
        policy: The router's policy, if it was started here.
        metric: One of `METRICS`.
        baseline: What is divided by: a mode under the same policy, a policy in the same mode, an earlier benchmark.
        mode: The mode in question.
        ratio: The ratio of geometric means; `None` where it is refused or the metric is not known.
        ci95: Its 95 % interval, or `None` with one rollout a mode.
        rollouts: Of the baseline and of the mode.
        method: How the interval is made.
        refused: Why there is no ratio.
    """

    policy: str | None
    metric: str
    baseline: str
    mode: str
    ratio: float | None
    ci95: Interval | None
    rollouts: tuple[int, int]
    method: str
    refused: str | None = None


def defects(workload: Workload, rollouts: Sequence[Measurement]) -> tuple[str, ...]:
    """Where rollouts did other work than was asked for: samples, tokens, cap and failures."""
    found: list[str] = []
    for rollout in rollouts:
        place = f"repeat {rollout.repeat}"
        if rollout.failed_groups:
            found.append(
                f"{place}: {rollout.failed_groups} of {workload.groups} groups failed, the first: {rollout.failure}"
            )
        wanted = workload.samples
        if rollout.samples != wanted:
            found.append(f"{place}: {rollout.samples} samples came back, {wanted} were asked for")
        if rollout.output_tokens != rollout.samples * workload.new_tokens:
            found.append(
                f"{place}: {rollout.output_tokens} tokens in {rollout.samples} samples of {workload.new_tokens} tokens "
                "each"
            )
        if rollout.at_cap != rollout.samples:
            found.append(
                f"{place}: {rollout.samples - rollout.at_cap} of {rollout.samples} samples did not end at the cap"
            )
    return tuple(found)


def summarise(workload: Workload, rollouts: Sequence[Measurement]) -> Summary:
    """The summary of rollouts of one mode under one policy, one at least."""
    first = rollouts[0]
    seconds = [rollout.seconds for rollout in rollouts]
    totals = total_loads([rollout.engines for rollout in rollouts])
    counted = [load.requests for load in totals.values()]
    prompts, cached = ([getattr(rollout, name) for rollout in rollouts] for name in ("prompt_tokens", "cached_tokens"))
    known = None not in prompts + cached and sum(prompts) > 0
    return Summary(
        policy=first.policy,
        mode=first.mode,
        rollouts=len(rollouts),
        seconds=float(np.mean(seconds)),
        seconds_range=(min(seconds), max(seconds)),
        requests=float(np.mean([rollout.requests for rollout in rollouts])),
        tokens_per_second=float(np.mean([rollout.output_tokens / rollout.seconds for rollout in rollouts])),
        request_seconds=_mean_quantiles([rollout.request_seconds for rollout in rollouts]),
        group_seconds=_mean_quantiles([rollout.group_seconds for rollout in rollouts]),
        prompt_tokens=None if None in prompts else sum(prompts),
        cached_share=sum(cached) / sum(prompts) if known else None,
        client_cpu=float(np.mean([rollout.client_cpu for rollout in rollouts])),
        engine_cpu=_mean([rollout.engine_cpu for rollout in rollouts]),
        engines=totals,
        request_spread=spread(counted),
        token_spread=spread([load.decode_tokens for load in totals.values()]),
        rollout_max_over_mean=_mean([_max_over_mean(rollout.engines) for rollout in rollouts]),
        uncounted_requests=sum(rollout.requests for rollout in rollouts) - sum(filter(None, counted))
        if counted and None not in counted
        else None,
        defects=defects(workload, rollouts),
    )


def ratios(workload: Workload, baseline: Sequence[Measurement], rollouts: Sequence[Measurement]) -> list[Ratio]:
    """Every metric of one mode over that of another, or of the first policy, with rollouts paired by repeat.

    What a repeat holds takes turns in a random order, so that a drift of the machine is shared and the repeats' log
    ratios are exchangeable: Student's t is on them.
    """
    refused = _unequal(workload, baseline, rollouts)

    def paired(before: np.ndarray, now: np.ndarray) -> tuple[float, Interval | None, str]:
        result = run_ratio(before, now)
        return (
            result.ratio,
            result.ci95,
            "paired t on the log ratio of repeats" if result.ci95 else "one repeat: no interval",
        )

    first, second = baseline[0], rollouts[0]
    called = first.mode if first.policy == second.policy else str(first.policy)
    return _ratios(baseline, rollouts, called, refused, paired)


def compare(workload: Workload, earlier: Sequence[Measurement], rollouts: Sequence[Measurement]) -> list[Ratio]:
    """Every metric of one mode over that of the same mode in an earlier benchmark.

    The two did not take turns, so that Welch's t is on the logs of single rollouts, and the ratio is of machines,
    engines and settings at two times.
    """
    refused = _unequal(workload, earlier, rollouts)
    return _ratios(earlier, rollouts, f"{earlier[0].mode} earlier", refused, _welch)


def _welch(before: np.ndarray, now: np.ndarray) -> tuple[float, Interval | None, str]:
    """Ratio of geometric means of two independent series, and its interval by Welch (1947) on the logs."""
    first, second = np.log(before), np.log(now)
    if min(len(first), len(second)) < 2:
        return float(np.exp(second.mean() - first.mean())), None, "one rollout: no interval"
    estimate, error, freedom = map(float, two_sample(first, second))
    half = float(stats.t.ppf(0.975, freedom)) * error
    interval = float(np.exp(estimate - half)), float(np.exp(estimate + half))
    return float(np.exp(estimate)), interval, "Welch t on the logs of rollouts at two times"


def _ratios(
    baseline: Sequence[Measurement],
    rollouts: Sequence[Measurement],
    called: str,
    refused: str | None,
    estimate: Callable[[np.ndarray, np.ndarray], tuple[float, Interval | None, str]],
) -> list[Ratio]:
    found = []
    for metric, read in METRICS.items():
        before, now = ([read(rollout) for rollout in side] for side in (baseline, rollouts))
        why = refused
        if why is None and None in before + now:
            why = f"{metric} is not known"
        if why is None and not all(value and value > 0 for value in before + now):
            why = f"{metric} is 0 in a rollout"
        ratio, interval, method = (
            (None, None, "") if why else estimate(np.array(before, np.float64), np.array(now, np.float64))
        )
        counts = len(before), len(now)
        found.append(Ratio(rollouts[0].policy, metric, called, rollouts[0].mode, ratio, interval, counts, method, why))
    return found


def _unequal(workload: Workload, baseline: Sequence[Measurement], rollouts: Sequence[Measurement]) -> str | None:
    """Why two modes did not do the same work, in one sentence."""
    sides = [(name_of(side[0].policy, side[0].mode), side) for side in (baseline, rollouts)]
    for name, side in sides:
        if found := defects(workload, side):
            return f"unequal work: {name}, {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else "")
    prompts = [(name, {rollout.prompt_tokens for rollout in side}) for name, side in sides]
    if len(prompts[0][1] | prompts[1][1]) > 1:  # where nobody knows them, the report says that they are not compared
        said = [f"{name} {_listed(counts)}" for name, counts in prompts]
        return f"unequal work: prompt tokens a rollout are {' and '.join(said)}"
    return None


def name_of(policy: str | None, mode: str) -> str:
    """What a mode under a policy is called in words."""
    return f"{policy}, {mode}" if policy else mode


def _listed(counts: set[int | None]) -> str:
    return ", ".join(
        "unknown" if count is None else str(count) for count in sorted(counts, key=lambda tokens: tokens or 0)
    )


def total_loads(rollouts: Sequence[Mapping[str, Load]]) -> dict[str, Load]:
    """What each engine served in all rollouts together; not known where one rollout does not know it."""
    engines = dict.fromkeys(engine for loads in rollouts for engine in loads)
    unknown = Load()
    return {
        engine: Load(
            _total([loads.get(engine, unknown).requests for loads in rollouts]),
            _total([loads.get(engine, unknown).decode_tokens for loads in rollouts]),
        )
        for engine in engines
    }


def _total(values: Sequence[float | None]) -> float | None:
    return None if None in values else float(sum(filter(None, values)))


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values else float(np.mean([value for value in values if value is not None]))


def _max_over_mean(engines: Mapping[str, Load]) -> float | None:
    both = ([load.decode_tokens for load in engines.values()], [load.requests for load in engines.values()])
    found = spread(both[0]) or spread(both[1])
    return found.max_over_mean if found else None


def _mean_quantiles(rollouts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        name: float(np.mean([rollout[name] for rollout in rollouts]))
        for name in QUANTILES
        if all(name in rollout for rollout in rollouts)
    }


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A benchmark and what follows from it.

    Attributes:
        result: What was measured.
        summaries: Mode by mode, policy after policy.
        ratios: Of every mode to the first, under the same policy.
        across: Of every policy to the first, in the same mode.
        compared: Of every mode to itself in an earlier benchmark; empty where there is none.
        not_earlier: The modes that an earlier benchmark does not hold.
    """

    result: BenchResult
    summaries: tuple[Summary, ...]
    ratios: tuple[Ratio, ...]
    across: tuple[Ratio, ...] = ()
    compared: tuple[Ratio, ...] = ()
    not_earlier: tuple[str, ...] = ()

    @property
    def refused(self) -> list[str]:
        """Why ratios of time were refused, each reason once."""
        times = [
            ratio
            for ratio in (*self.ratios, *self.across, *self.compared)
            if ratio.metric == "seconds" and ratio.refused
        ]
        return list(
            dict.fromkeys(
                f"{name_of(ratio.policy, ratio.mode)} to {ratio.baseline}: {ratio.refused}" for ratio in times
            )
        )


def assess_benchmark(result: BenchResult, earlier: BenchResult | None = None) -> BenchReport:
    """Sums a benchmark up, and compares it with an earlier one of the same workload.

    A mode or policy that the earlier one does not have is not compared. Whether the workloads are the same is for the
    caller to see to.
    """
    config, workload = result.config, result.config.workload
    summaries, made, across, compared, missing = [], [], [], [], []
    first_policy, first_mode = config.policies[0], config.modes[0]
    for policy in config.policies:
        for mode in config.modes:
            rows = result.of(policy, mode.name)
            summaries.append(summarise(workload, rows))
            if mode is not first_mode:
                made += ratios(workload, result.of(policy, first_mode.name), rows)
            if policy != first_policy:
                across += ratios(workload, result.of(first_policy, mode.name), rows)
            if earlier and (before := earlier.of(policy, mode.name)):
                compared += compare(workload, before, rows)
            elif earlier:
                missing.append(name_of(policy, mode.name))
    return BenchReport(result, tuple(summaries), tuple(made), tuple(across), tuple(compared), tuple(missing))
