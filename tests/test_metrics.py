"""Metrics against hand-computed rollouts, and curves and alignments with every kind of defect that runs have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.metrics import (
    Curve,
    Point,
    align,
    area_under_curve,
    balance_metrics,
    curves_of_points,
    curves_of_run,
    late_mean,
    late_median_log,
    rollout_metrics,
)
from parity.records.samples import Rollout, Sample


def two_groups() -> list[Sample]:
    """Two groups of two: rewards 1 0 and 1 1, lengths 2 4 and 6 8, one of them truncated."""
    rows = [(0, 0, 1.0, 2, "stop"), (0, 1, 0.0, 4, "stop"), (1, 0, 1.0, 6, "stop"), (1, 1, 1.0, 8, "length")]
    return [
        Sample(
            group_index=group,
            index=index,
            rollout_id=7,
            output_ids=[5] * length,
            logprobs=[-0.5 * (index + 1)] * length,
            loss_mask=[1] * length,
            response_length=length,
            finish_reason=reason,
            status="truncated" if reason == "length" else "completed",
            reward=reward,
            advantage=0.5 - index,
            prompt_tokens=10,
            cached_tokens=0 if index == 0 else 9,
            engine_id="engine-0",
        )
        for group, index, reward, length, reason in rows
    ]


def test_the_spread_over_engines_worked_out_by_hand() -> None:
    samples = two_groups()
    for sample, engine, length in zip(samples, ("a", "b", "b", "unknown"), (4, 6, 2, 9), strict=True):
        sample.engine_id, sample.output_ids = engine, [5] * length
    metrics = balance_metrics(Rollout.from_samples(samples), ["a", "b", "b", None], ["a", "b", "c"])
    assert metrics == pytest.approx(
        {
            "perf/engine_requests/cv": math.sqrt(((1 - 1) ** 2 + (2 - 1) ** 2 + (0 - 1) ** 2) / 3) / 1,
            "perf/engine_requests/max_over_mean": 2.0,
            "perf/engine_requests/unknown": 1,
            "perf/engine_tokens/cv": math.sqrt(((4 - 4) ** 2 + (8 - 4) ** 2 + (0 - 4) ** 2) / 3) / 4,
            "perf/engine_tokens/max_over_mean": 2.0,
            "perf/engine_tokens/unknown": 9,
        }
    )
    assert balance_metrics(Rollout.from_samples(samples), [], ["c"]) == {"perf/engine_tokens/unknown": 4 + 6 + 2 + 9}
    assert (
        balance_metrics(Rollout.from_samples(samples[:3]), ["a"], ["a", "b"])
        .keys()
        .isdisjoint({"perf/engine_requests/unknown", "perf/engine_tokens/unknown"})
    )


def test_engines_that_were_sent_nothing_count_for_tokens_an_engine() -> None:
    rollout = Rollout.from_samples(two_groups())
    alone, of_four = (rollout_metrics(rollout, 4.0, engines)["perf/tokens_per_gpu_per_sec"] for engines in (1, 4))
    assert alone == 4 * of_four


def test_a_rollout_worked_out_by_hand() -> None:
    metrics = rollout_metrics(Rollout.from_samples(two_groups()), seconds=4.0)
    assert metrics == pytest.approx(
        {
            "rollout/samples": 4,
            "rollout/groups": 2,
            "rollout/raw_reward": 0.75,
            "rollout/group_reward_std": (math.sqrt(0.5) + 0) / 2,
            "rollout/zero_std/count_1.0": 1,
            "rollout/advantages": 0.0,
            "rollout/response_len/mean": 5,
            "rollout/response_len/median": 5,
            "rollout/response_len/max": 8,
            "rollout/response_len/min": 2,
            "rollout/truncated_ratio": 0.25,
            "rollout/finish_reason/stop": 0.75,
            "rollout/finish_reason/length": 0.25,
            "rollout/finish_reason/abort": 0,
            "rollout/rollout_log_probs": -0.75,
            "rollout/rollout_log_probs_len/mean": 5,
            "rollout/avg_cached_tokens_per_sample": 4.5,
            "rollout/prefix_cache_hit_rate": 18 / 40,
            "perf/rollout_time": 4.0,
            "perf/tokens_per_gpu_per_sec": 5.0,
            "perf/longest_sample_tokens_per_sec": 2.0,
        }
    )


def test_two_engines_share_the_tokens_a_second() -> None:
    samples = two_groups()
    samples[3].engine_id = "engine-1"
    assert rollout_metrics(Rollout.from_samples(samples), 4.0)["perf/tokens_per_gpu_per_sec"] == 2.5


def test_masked_tokens_count_neither_for_length_nor_for_log_probs() -> None:
    samples = two_groups()
    samples[3].loss_mask = [0, 0, 1, 1, 1, 1, 1, 1]
    samples[3].logprobs = [-100.0, math.nan, *[-1.0] * 6]
    metrics = rollout_metrics(Rollout.from_samples(samples), 4.0)
    assert metrics["rollout/response_len/max"] == 6
    assert metrics["rollout/rollout_log_probs"] == pytest.approx(-0.75)


def test_what_no_sample_has_is_absent_and_what_some_lack_is_counted() -> None:
    samples = two_groups()
    for sample in samples:
        sample.reward = None
    samples[0].advantage = None
    metrics = rollout_metrics(Rollout.from_samples(samples), 4.0)
    assert "rollout/raw_reward" not in metrics
    assert not any(name.startswith("rollout/zero_std") for name in metrics)
    assert metrics["rollout/missing/advantage"] == 1
    assert metrics["rollout/advantages"] == pytest.approx((-0.5 + 0.5 - 0.5) / 3)


def test_log_probs_of_another_length_than_the_mask_are_counted_not_averaged() -> None:
    samples = two_groups()
    samples[2].logprobs = samples[2].logprobs[:-1]
    metrics = rollout_metrics(Rollout.from_samples(samples), 4.0)
    assert "rollout/rollout_log_probs" not in metrics
    assert metrics["rollout/missing/aligned_loss_mask"] == 1


def test_a_nan_reward_shows_as_nan() -> None:
    samples = two_groups()
    samples[0].reward = math.nan
    assert math.isnan(rollout_metrics(Rollout.from_samples(samples), 4.0)["rollout/raw_reward"])


def test_without_lengths_the_output_ids_are_counted() -> None:
    samples = two_groups()
    for sample in samples:
        sample.response_length, sample.loss_mask = None, None
    assert rollout_metrics(Rollout.from_samples(samples), 4.0)["rollout/response_len/mean"] == 5


def test_an_unknown_finish_reason_has_its_own_share() -> None:
    samples = two_groups()
    samples[0].finish_reason = "vanished"
    assert rollout_metrics(Rollout.from_samples(samples), 4.0)["rollout/finish_reason/vanished"] == 0.25


@pytest.mark.parametrize(("samples", "seconds"), [([], 1.0), (two_groups(), 0.0), (two_groups(), math.nan)])
def test_an_empty_rollout_or_no_time_is_refused(samples: list[Sample], seconds: float) -> None:
    with pytest.raises(InputError):
        rollout_metrics(Rollout.from_samples(samples), seconds)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.permutations(range(4)), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4))
def test_metrics_do_not_depend_on_the_order_of_samples(order: list[int], rewards: list[float]) -> None:
    samples = two_groups()
    for sample, reward in zip(samples, rewards, strict=True):
        sample.reward = reward
    straight = rollout_metrics(Rollout.from_samples(samples), 3.0)
    shuffled = rollout_metrics(Rollout.from_samples([samples[row] for row in order]), 3.0)
    assert shuffled == pytest.approx(straight)


def curve(run: str, steps: list[int], values: list[float]) -> Curve:
    return Curve(run, "m", np.array(steps, np.int64), np.array(values, np.float64))


def test_a_resumed_run_keeps_the_branch_that_training_went_on_from() -> None:
    records = [
        {"step": step, "m": value} for step, value in [(0, 1.0), (1, 2.0), (2, 3.0), (1, 20.0), (2, 30.0), (3, 40.0)]
    ]
    resumed = curves_of_run("run", records)["m"]
    assert resumed.steps.tolist() == [0, 1, 2, 3]
    assert resumed.values.tolist() == [1.0, 20.0, 30.0, 40.0]
    assert resumed.rewound == (1, 2)


def test_steps_of_an_abandoned_branch_beyond_the_resumed_run_are_dropped() -> None:
    records = [{"step": step, "m": 1.0} for step in (0, 1, 2, 3, 1)]
    assert curves_of_run("run", records)["m"].steps.tolist() == [0, 1]


def test_a_null_metric_is_nan_and_a_missing_one_is_no_point() -> None:
    curves = curves_of_run("run", [{"step": 0, "a": None, "b": 1}, {"step": 1, "a": 2.0}])
    assert np.isnan(curves["a"].values[0])
    assert curves["b"].steps.tolist() == [0]


@pytest.mark.parametrize("record", [{"m": 1.0}, {"step": "1", "m": 1.0}, {"step": 1, "m": "high"}, {"step": True}])
def test_a_record_that_is_no_metrics_line_is_refused_by_name(record: dict[str, object]) -> None:
    with pytest.raises(InputError, match="run-3"):
        curves_of_run("run-3", [record])


def test_runs_are_aligned_on_the_steps_that_all_have_and_losses_are_stated() -> None:
    aligned = align(
        [curve("a", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]), curve("b", [1, 2, 4, 5], [10, 20, 40, 50])],
    )
    assert aligned.steps.tolist() == [1, 2, 4]
    assert aligned.values.tolist() == [[1, 2, 4], [10, 20, 40]]
    assert aligned.common_range == (1, 4)
    assert aligned.missing == {"b": (3,)}
    assert aligned.outside == {"a": 1, "b": 1}
    assert aligned.missing_share == 0.25
    assert any("b lacks 1 step " in note for note in aligned.notes())


def test_runs_that_do_not_overlap_have_no_common_range() -> None:
    aligned = align([curve("a", [0, 1], [0, 1]), curve("b", [5, 6], [0, 1])])
    assert aligned.common_range is None
    assert len(aligned.steps) == 0


def test_nan_is_found_and_stated() -> None:
    aligned = align([curve("a", [0, 1], [0.0, math.nan]), curve("b", [0, 1], [0.0, 1.0])])
    assert aligned.not_finite == {"a": (1,)}
    assert "NaN" in aligned.notes()[0]


def test_the_same_run_twice_or_two_metrics_are_refused() -> None:
    one = curve("a", [0, 1], [0, 1])
    with pytest.raises(InputError, match="more than once"):
        align([one, one])
    with pytest.raises(InputError, match="one metric"):
        align([one, Curve("b", "other", one.steps, one.values)])


def test_summaries_of_a_straight_line() -> None:
    aligned = align([curve("a", [0, 1, 2, 3], [0, 1, 2, 3])])
    assert late_mean(aligned).tolist() == [2.5]
    assert area_under_curve(aligned).tolist() == [1.5]


def test_area_weighs_unequal_steps_by_their_width() -> None:
    assert area_under_curve(align([curve("a", [0, 1, 5], [0, 2, 2])])).tolist() == [pytest.approx((1 + 8) / 5)]


def test_the_late_median_log_shrugs_off_one_spike_and_steps_without_a_gradient() -> None:
    spiked = align([curve("a", list(range(6)), [9, 9, 9, 1, 1, 1e9])])
    assert late_median_log(spiked).tolist() == [0.0]
    resting = align([curve("a", list(range(6)), [1, 1, 1, math.e, 0, math.e])])
    assert late_median_log(resting).tolist() == [1.0]
    mostly = align([curve("a", list(range(6)), [1, 1, 1, 0, 0, math.e])])
    assert late_median_log(mostly).tolist() == [1.0]
    never = align([curve("a", list(range(6)), [1, 1, 1, 0, 0, 0])])
    assert late_median_log(never).tolist() == [-math.inf]
    negative = align([curve("a", list(range(6)), [1, 1, 1, 1, -1, 1])])
    assert np.isnan(late_median_log(negative)).all()


ATTEMPTS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=5)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(ATTEMPTS, st.booleans())
def test_of_several_attempts_each_step_is_from_the_last_that_reached_it(
    attempts: list[tuple[int, int]], doubled: bool
) -> None:
    """Attempts from a step on, each with values of its own, whether or not every line is printed twice."""
    points, expected, end = [], dict[int, float](), 0
    for number, (start, length) in enumerate(attempts):
        first = min(start, end)  # a run resumes at a step that it has reached
        for step in range(first, first + length):
            points += [Point("train", step, {"loss": 100.0 * number + step, "lr": 1.0})] * (1 + doubled)
        end = first + length
        expected = {step: value for step, value in expected.items() if step < first}
        expected |= {step: 100.0 * number + step for step in range(first, end)}
    curves = curves_of_points("run", points)
    for metric, series in (("loss", expected), ("lr", dict.fromkeys(expected, 1.0))):
        assert dict(zip(curves[metric].steps.tolist(), curves[metric].values.tolist(), strict=True)) == series


def test_producers_of_one_step_add_up_and_a_stream_goes_back_alone() -> None:
    points = [
        Point("train", 0, {"loss": 1.0}),
        Point("eval", 0, {"score": 0.5}),
        Point("train", 1, {"loss": 2.0}),
        Point("eval", 1, {"score": 0.75}),
        Point("train", 0, {"norm": 3.0}),
        Point("train", 0, {"loss": 9.0}),
    ]
    curves = curves_of_points("run", points)
    assert curves["score"].steps.tolist() == [0, 1]
    assert curves["loss"].values.tolist() == [9.0]
    assert curves["loss"].rewound == (0, 1)
    assert "norm" not in curves  # it was recorded on the branch that was abandoned at step 0
