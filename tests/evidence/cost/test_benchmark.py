"""Ratios of simulated rollouts, and work that is not equal."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from parity.evidence.cost.benchmark import compare, ratios, summarise
from parity.records.bench import BenchConfig, BenchResult, Load, Measurement, Workload, parse_mode
from parity.report.bench import print_bench
from parity.stats import assess_benchmark

WORK = Workload(groups=4, group_size=2, new_tokens=10)


def rollout(mode: str, repeat: int, seconds: float) -> Measurement:
    return Measurement(
        mode=mode,
        repeat=repeat,
        seconds=seconds,
        requests=4 if mode == "native" else 8,
        samples=8,
        output_tokens=80,
        prompt_tokens=100,
        cached_tokens=25,
        at_cap=8,
        failed_groups=0,
        failure=None,
        request_seconds={"p50": seconds},
        group_seconds={"p50": seconds, "p99": seconds},
        client_cpu=0.1,
    )


def rollouts(mode: str, seconds: np.ndarray | list[float]) -> list[Measurement]:
    return [rollout(mode, repeat, float(value)) for repeat, value in enumerate(seconds)]


def wall(found):
    return next(one for one in found if one.metric == "seconds")


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    """A machine that drifts by a third, shared by both modes of a repeat, and noise of 5 % of its own in each."""
    rng = np.random.default_rng(0)
    covered, repeats, true = 0, 5, 0.8
    for _ in range(500):
        drift = np.linspace(0, 0.3, repeats) + rng.normal(0, 0.1, repeats)
        before, now = (np.exp(drift + rng.normal(0, 0.05, repeats)) for _ in range(2))
        low, high = wall(ratios(WORK, rollouts("per-sample", before), rollouts("native", true * now))).ci95
        covered += low <= true <= high
    # 500 draws at 0.95 have a standard deviation of 0.01.
    assert covered / 500 == pytest.approx(0.95, abs=0.03)


def test_the_paired_interval_is_that_of_scipy():
    rng = np.random.default_rng(1)
    before, now = rng.uniform(1, 2, 6), rng.uniform(1, 2, 6)
    found = wall(ratios(WORK, rollouts("per-sample", before), rollouts("native", now)))
    expected = stats.ttest_rel(np.log(now), np.log(before)).confidence_interval()
    assert np.log(found.ci95) == pytest.approx((expected.low, expected.high))
    assert found.ratio == pytest.approx(np.exp(np.log(now / before).mean()))


def test_the_interval_to_an_earlier_benchmark_is_that_of_scipy():
    rng = np.random.default_rng(2)
    before, now = rng.uniform(1, 2, 6), rng.uniform(1, 2, 4)
    found = wall(compare(WORK, rollouts("native", before), rollouts("native", now)))
    expected = stats.ttest_ind(np.log(now), np.log(before), equal_var=False).confidence_interval()
    assert np.log(found.ci95) == pytest.approx((expected.low, expected.high))


def test_policies_are_compared_mode_by_mode_with_the_first_as_modes_are_under_each():
    modes = tuple(map(parse_mode, ("per-sample", "native")))
    asked = BenchConfig(WORK, modes, repeats=2, workers=2, routers=("cache_aware", "round_robin"))
    seconds = {
        ("cache_aware", "per-sample"): [8.0, 16.0],
        ("cache_aware", "native"): [20.0, 40.0],
        ("round_robin", "per-sample"): [4.0, 8.0],
        ("round_robin", "native"): [2.0, 4.0],
    }
    rows = [replace(one, policy=policy) for (policy, mode), values in seconds.items() for one in rollouts(mode, values)]
    report = assess_benchmark(BenchResult(asked, {}, True, tuple(rows)))
    walls = {(one.policy, one.mode, one.baseline): one.ratio for one in report.ratios if one.metric == "seconds"}
    assert walls == pytest.approx(
        {("cache_aware", "native", "per-sample"): 2.5, ("round_robin", "native", "per-sample"): 0.5}
    )
    across = {(one.policy, one.mode, one.baseline): one.ratio for one in report.across if one.metric == "seconds"}
    assert across == pytest.approx(
        {("round_robin", "per-sample", "cache_aware"): 0.5, ("round_robin", "native", "cache_aware"): 0.1}
    )
    rows[-1] = replace(rows[-1], samples=7)
    broken = assess_benchmark(BenchResult(asked, {}, True, tuple(rows)))
    assert [reason.partition(":")[0] for reason in broken.refused] == [
        "round_robin, native to per-sample",
        "round_robin, native to cache_aware",
    ]
    assert "round_robin, native, repeat 1: 7 samples came back, 8 were asked for" in broken.refused[1]


def test_a_table_says_once_what_an_earlier_benchmark_lacks_and_no_interval_without_a_width():
    modes = tuple(map(parse_mode, ("per-sample", "native")))
    seconds = {"per-sample": [1.0, 1.3, 1.2], "native": [0.5, 0.7, 0.9]}
    rows = [
        replace(one, policy=policy)
        for policy in ("cache_aware", "random")
        for mode, values in seconds.items()
        for one in rollouts(mode, values)
    ]
    asked = BenchConfig(WORK, modes, repeats=3, workers=2, routers=("cache_aware", "random"))
    result = BenchResult(asked, {}, True, tuple(rows))
    earlier = replace(result, rollouts=tuple(row for row in rows if row.policy != "random"))
    console = Console(record=True, width=200, file=io.StringIO())
    print_bench(assess_benchmark(result, earlier), console)
    printed = console.export_text()
    assert "earlier benchmark: random, per-sample; random, native, which" in printed
    assert "0.5 to 0.5" not in printed  # of 4 requests to 8, three times, whose mean log is rounded
    low, high = wall(assess_benchmark(result).ratios).ci95
    assert f"{low:.3g} to {high:.3g}" in printed  # the control


def test_one_repeat_has_a_ratio_and_no_interval():
    found = wall(ratios(WORK, rollouts("per-sample", [2.0]), rollouts("native", [1.0])))
    assert (found.ratio, found.ci95) == (0.5, None)


def test_requests_are_a_ratio_of_counts():
    found = ratios(WORK, rollouts("per-sample", [2.0, 2.1]), rollouts("native", [1.0, 1.2]))
    assert next(one.ratio for one in found if one.metric == "requests") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 7, "output_tokens": 70, "at_cap": 7}, "7 samples came back, 8 were asked for"),
        ({"output_tokens": 79}, "79 tokens in 8 samples of 10 tokens each"),
        ({"at_cap": 7}, "1 of 8 samples did not end at the cap"),
        ({"failed_groups": 1, "failure": "status 503"}, "1 of 4 groups failed, the first: status 503"),
        ({"prompt_tokens": 101}, "prompt tokens a rollout are per-sample 100 and native 100, 101"),
    ],
)
def test_unequal_work_has_no_ratio(change, said):
    before, now = rollouts("per-sample", [2.0, 2.1]), rollouts("native", [1.0, 1.2])
    assert wall(ratios(WORK, before, now)).refused is None  # the control
    for rows in (
        ratios(WORK, before, [now[0], replace(now[1], **change)]),
        compare(WORK, before, [replace(now[0], **change)]),
    ):
        assert [one.ratio for one in rows] == [None] * len(rows)
        assert said.split(" are ")[0] in rows[0].refused
    assert said in wall(ratios(WORK, before, [now[0], replace(now[1], **change)])).refused


def test_what_is_not_known_has_no_ratio_and_spoils_no_other():
    before, now = rollouts("per-sample", [2.0, 2.1]), rollouts("native", [1.0, 1.2])
    found = {one.metric: one for one in ratios(WORK, before, [replace(one, engine_cpu=1.0) for one in now])}
    assert found["engine_cpu"].refused == "engine_cpu is not known"
    assert found["seconds"].ratio is not None


def test_a_summary_adds_up_what_engines_served():
    rows = rollouts("native", [1.0, 3.0])
    loads = [{"a": Load(3.0, 60.0), "b": Load(1.0, 20.0)}, {"a": Load(1.0, 20.0), "b": Load(3.0, 60.0)}]
    found = summarise(WORK, [replace(row, engines=load) for row, load in zip(rows, loads, strict=True)])
    assert found.engines == {"a": Load(4.0, 80.0), "b": Load(4.0, 80.0)}
    assert (found.request_spread.cv, found.token_spread.max_over_mean) == (0, 1)
    assert found.rollout_max_over_mean == 1.5  # even over both rollouts, uneven inside each
    assert (found.seconds, found.seconds_range, found.cached_share, found.uncounted_requests) == (2, (1, 3), 0.25, 0)
    assert found.tokens_per_second == pytest.approx((80 / 1 + 80 / 3) / 2)


def test_an_engine_whose_count_is_lost_in_one_rollout_is_not_known():
    rows = rollouts("native", [1.0, 3.0])
    loads = [{"a": Load(3.0), "b": Load(1.0)}, {"a": Load(4.0), "b": Load()}]
    found = summarise(WORK, [replace(row, engines=load) for row, load in zip(rows, loads, strict=True)])
    assert found.engines == {"a": Load(7.0), "b": Load()}
    assert (found.request_spread, found.uncounted_requests) == (None, None)
