"""What margins need: known numbers, ordered costs, spreads found in samples and curves, and what is not known said."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.errors import InputError, UsageError
from parity.evidence import planning
from parity.evidence.planning import Plan, Setting, plan
from parity.evidence.spreads import MetricSpread, group_spreads, merged, run_spreads
from parity.evidence.two_samples import tost_power
from parity.metrics import curves_of_run
from parity.records.samples import Rollout, Sample

WIDE = Setting(reward_range=(-1.0, 1.0))
KNOWN = MetricSpread("reward", 0.5, 0.185, 0.4, 0.035)


@cache
def planned(margin: float = 0.02, spread: MetricSpread = KNOWN, setting: Setting | None = None) -> Plan:
    return plan({"reward": margin}, {"reward": spread}, setting or Setting(), np.random.default_rng(0))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer simulated samplings, where no number of them is asserted; with plans that no other test asks for."""
    monkeypatch.setattr(planning, "REPETITIONS", 40)
    monkeypatch.setattr(planning, "SHOWN_REPETITIONS", 20)


def test_groups_and_runs_of_the_published_designs() -> None:
    (metric,) = planned().metrics
    # A paired t test of a set number takes 733 groups to show PARITY four times in five, and 1,024 show it .93 times.
    # Evidence that holds for any law and is looked at once takes little more; half of the watched samplings end
    # earlier, and a fifth of them after 1.35 to 1.5 times as many.
    assert 733 < metric.fixed_groups < 1.15 * 733
    assert 1.25 * 733 < metric.watched_groups < 1.5 * 733
    rows = {(row.groups, row.watched, row.effect): row for row in metric.group_power}
    assert rows[4096, True, 0.0].median_groups < 1.1 * 733
    assert rows[1024, False, 0.0].parity == pytest.approx(0.93, abs=0.07)
    for row in metric.group_power:
        if row.effect:
            assert row.parity <= 0.05 + 3 * (0.05 * 0.95 / row.repetitions) ** 0.5
    (paired,) = planned(0.07).metrics
    runs = {(row.runs, row.effect): row for row in paired.run_power}
    # two standard deviations between runs: the exact power of Welch's test, integrated over the laws of both variances;
    # Student's, which needs equal spreads, has .38, .78 and .99 for 3, 5 and 10 runs an arm
    for count in (3, 5, 10):
        assert runs[count, 0.0].parity == pytest.approx(tost_power(count, 0.035, 0.07), abs=0.04)
    assert [tost_power(count, 0.035, 0.07) for count in (3, 5, 10)] == pytest.approx([0.30, 0.76, 0.99], abs=0.02)
    assert paired.runs == 6


def test_watched_evidence_of_equal_arms_mostly_ends_within_what_is_planned() -> None:
    (metric,) = planned().metrics
    (equal,) = [row for row in metric.group_power if row.watched and row.effect == 0]
    assert equal.parity > 0.95
    assert equal.median_groups < metric.watched_groups < 1.1 * equal.late_groups


def test_designs_come_by_cost_and_the_first_that_shows_the_margin_is_named() -> None:
    made = planned(setting=Setting(seconds_per_step=100, gpus=8))
    assert [design.name for design in made.designs] == ["twin", "sample", "probe", "switchback", "paired"]
    assert made.cheapest == "sample"
    hours = {design.name: design.gpu_hours for design in made.designs}
    assert hours["twin"] == pytest.approx(40 * 100 * 8 / 3600)
    assert hours["sample"] < hours["probe"] < hours["paired"]
    sample = made.designs[1]
    # one request of n samples in one arm, n requests in the other
    assert sample.requests == sample.groups // 2 * 9


@pytest.mark.usefixtures("few")
def test_a_reward_of_unknown_spread_is_taken_at_its_largest_and_that_is_said() -> None:
    made = plan({"reward": 0.06}, {}, Setting(), np.random.default_rng(0))
    assert made.metrics[0].spread.group == pytest.approx(np.sqrt(2 * 0.25 / 8))
    assert any("0 or 1" in warning for warning in made.warnings)
    assert any("--sigma-run" in warning for warning in made.warnings)


def test_what_is_not_known_is_no_number() -> None:
    made = planned(spread=MetricSpread("reward", group=0.185))
    by_name = {design.name: design for design in made.designs}
    assert by_name["paired"].steps is None and not by_name["paired"].shows_margin
    assert "not known" in by_name["switchback"].amount
    assert planned(spread=MetricSpread("reward", run=0.01)).cheapest == "paired"
    assert planned(spread=MetricSpread("reward", mean=1.0)).cheapest is None


@pytest.mark.parametrize(
    ("margins", "said"),
    [
        ({}, "--margin"),
        ({"beauty": 1.0}, "beauty"),
        ({"reward": 0.0}, "above 0"),
        ({"reward": float("nan")}, "above 0"),
        ({"response_length": 0.02}, "--sigma response_length"),
    ],
)
def test_a_plan_that_cannot_be_made_says_what_it_needs(margins: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(margins, {}, Setting(), np.random.default_rng(0))


def test_what_never_happened_before_varies_by_nothing_and_is_planned_for() -> None:
    never = MetricSpread("truncated", 0.0, 0.0, 0.0, 0.0)
    margins, setting = {"reward": 0.05, "truncated": 0.01}, Setting()
    made = plan(margins, {"reward": KNOWN, "truncated": never}, setting, np.random.default_rng(0))
    alone = planned(0.05)
    assert [design.name for design in made.designs if design.shows_margin] == [
        design.name for design in alone.designs if design.shows_margin
    ]
    truncated = made.metrics[1]
    # a group without a difference multiplies the evidence by 1.01 at most, and 20 are needed
    assert truncated.watched_groups == pytest.approx(np.log(20) / 0.01, rel=0.12)
    assert truncated.runs == 2
    assert {
        row.parity
        for row in truncated.group_power
        if row.effect == 0 and not row.watched and row.groups >= 1024  # 300 are needed
    } == {1.0}
    assert truncated.fixed_groups == pytest.approx(np.log(20) / 0.01, rel=0.12)


def test_a_margin_out_of_proportion_or_a_mean_that_is_none_is_refused() -> None:
    for margin, spread in ((1e200, KNOWN), (1e-9, KNOWN), (0.02, MetricSpread("reward", group=1e200)), (1e-300, KNOWN)):
        with pytest.raises(UsageError, match="out of proportion"):
            planned(margin, spread)
    for mean in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="no finite number"):
            planned(spread=MetricSpread("reward", mean, 0.2))


@pytest.mark.usefixtures("few")
def test_a_reward_that_cannot_be_from_0_to_1_is_said_to_be_outside() -> None:
    for spread, margin in ((MetricSpread("reward", -0.3, 0.5), 0.1), (MetricSpread("reward", 40.0, 8.0), 2.0)):
        assert any("--reward-range" in warning for warning in planned(margin, spread).warnings)
    assert not any("--reward-range" in warning for warning in planned(0.2).warnings)
    assert not any(
        "--reward-range" in warning for warning in planned(0.1, MetricSpread("reward", -0.3, 0.5), WIDE).warnings
    )


@pytest.mark.usefixtures("few")
def test_rewards_of_another_range_are_planned_as_those_from_0_to_1_are_by_its_width() -> None:
    halved = MetricSpread("reward", 0.5, 0.185, 0.4, 0.035)
    narrow, wide = planned(0.06, halved), planned(0.12, MetricSpread("reward", 0.0, 0.37, 0.8, 0.07), WIDE)
    for one, other in zip(narrow.designs, wide.designs, strict=True):
        assert (one.name, one.groups, one.steps) == (other.name, other.groups, other.steps)
    # each with the same draws, as the plans are simulated
    unknown = [
        plan({"reward": margin}, {}, setting, np.random.default_rng(0))
        for margin, setting in ((0.05, Setting()), (0.1, WIDE))
    ]
    assert unknown[0].designs == unknown[1].designs
    with pytest.raises(UsageError, match="--reward-range 1 0"):
        Setting(reward_range=(1.0, 0.0))


def test_a_relative_margin_needs_a_mean_and_a_spread_must_be_one() -> None:
    with pytest.raises(UsageError, match="--mean response_length"):
        plan({"response_length": 0.02}, {"response_length": MetricSpread("response_length", group=5.0)}, Setting(), RNG)
    known = MetricSpread("response_length", mean=200.0, group=5.0)
    assert plan({"response_length": 0.02}, {"response_length": known}, Setting(), RNG).metrics[0].margin == 4.0
    with pytest.raises(InputError, match="standard deviation"):
        planned(spread=MetricSpread("reward", group=float("nan")))
    with pytest.raises(UsageError, match="--gpus"):
        Setting(gpus=0)
    with pytest.raises(UsageError, match="--seconds-per-step"):
        Setting(seconds_per_step=float("inf"))


RNG = np.random.default_rng(0)


def rollout(groups: int, seed: int = 0) -> Rollout:
    """Groups of eight rewards of 0 or 1, whose chance depends on the prompt."""
    rng = np.random.default_rng(seed)
    chances = rng.beta(0.6, 0.6, groups)
    return Rollout.from_samples(
        Sample(group, slot, rollout_id=0, reward=float(rng.random() < chances[group]), finish_reason="stop")
        for group in range(groups)
        for slot in range(8)
    )


def test_the_spread_of_groups_is_that_of_the_law_they_are_drawn_from() -> None:
    found = group_spreads([rollout(1500), rollout(1500, 1)], "here")
    # 2 E[p (1 - p)] / 8 with p of Beta(.6, .6); a group's mean varies by Var p and E[p (1 - p)] / 8
    inside = 0.25 * 1.2 / 2.2
    assert found["reward"].group == pytest.approx(np.sqrt(2 * inside / 8), rel=0.04)
    assert found["reward"].prompt == pytest.approx(np.sqrt(0.25 / 2.2 + inside / 8), rel=0.04)
    assert found["truncated"].group == 0
    assert "response_length" not in found, "no sample has one"
    assert "3000 groups" in found["reward"].source


def test_the_spread_of_runs_is_of_their_late_means() -> None:
    runs = [
        curves_of_run(f"run{run}", ({"step": step, "rollout/raw_reward": float(run)} for step in range(10)))
        for run in range(3)
    ]
    found = run_spreads(runs, "logs")
    assert found["reward"].run == pytest.approx(1.0)
    both = merged(group_spreads([rollout(20)], "dumps"), found)
    assert both["reward"].run == pytest.approx(1.0) and both["reward"].group
    assert both["reward"].source == "dumps, 20 groups; logs, 3 runs"
    assert run_spreads(runs[:1], "logs") == {}


def test_runs_are_planned_for_every_metric_that_they_are_held_to() -> None:
    margins, others = {"reward": 0.07}, {"grad_norm": MetricSpread("grad_norm", -1.0, run=0.3)}
    alone = plan(margins, {"reward": KNOWN}, Setting(), np.random.default_rng(0))
    together = plan(margins, {"reward": KNOWN, **others}, Setting(), np.random.default_rng(0))
    amounts = [made.designs[-1].amount for made in (alone, together)]
    # 0.5 of the log is 1.67 spreads between runs, which takes 8 runs an arm where the margin of rewards takes 6
    assert [amount.split()[0] for amount in amounts] == ["6", "8"]
    assert any("grad_norm" in warning for warning in alone.warnings)
    assert not any("grad_norm" in warning for warning in together.warnings)


def test_the_command_plans_from_what_was_stated_and_from_what_is_on_disk(tmp_path: Path) -> None:
    stated = ["plan", "--margin", "reward=0.05", "--sigma", "reward=0.185", "--sigma-run", "reward=0.035"]
    printed = CliRunner().invoke(cli, stated, catch_exceptions=False)
    assert printed.exit_code == 0 and "Cheapest design" in printed.output
    path = tmp_path / "history.samples.jsonl"
    path.write_text("".join(json.dumps(sample.to_json()) + "\n" for sample in rollout(50).samples()))
    asked = ["plan", "--margin", "reward=0.05", "--history", str(path), "--json"]
    found = json.loads(CliRunner().invoke(cli, asked, catch_exceptions=False).stdout)
    assert found["cheapest"] == "sample"
    assert found["metrics"][0]["spread"]["group"] == pytest.approx(group_spreads([rollout(50)], "")["reward"].group)
    nothing = tmp_path / "notes.txt"
    nothing.write_text("nothing of use\n")
    with pytest.raises((UsageError, InputError)):
        CliRunner().invoke(cli, ["plan", "--margin", "reward=0.05", "--history", str(nothing)], catch_exceptions=False)
