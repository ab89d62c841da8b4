"""Runs with groups of both arms, on the embedded engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_experiment import Here

from parity.commands.run import assess
from parity.findings import Status
from parity.records.store import RunStore

pytestmark = pytest.mark.slow

STEPS, GROUPS, SIZE = 3, 4, 4


@pytest.fixture(scope="module")
def experiment(parity_here: Here, at_engine: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "out"
    sizes = ("--seeds", 1, "--steps", STEPS, "--groups", GROUPS, "--group-size", SIZE)
    designs = ("--design", "probe", "--probe-share", 1, "--design", "switchback")
    run = parity_here("run", "--baseline", *designs, *sizes, *at_engine, "--out", out)
    assert run.returncode == 3, run  # so few groups show nothing either way
    return out


def requests(store: RunStore, step: int) -> dict[tuple[int, str], int]:
    """Requests by group and arm."""
    counts: dict[tuple[int, str], int] = {}
    for exchange in store.exchanges(step):
        key = (exchange.group_index, exchange.arm)
        counts[key] = counts.get(key, 0) + 1
    return counts


def test_a_probe_asks_every_prompt_in_both_arms_and_trains_on_one(experiment: Path) -> None:
    store = RunStore(experiment / "runs" / "probe-seed1")
    trained_arms = set()
    for step in range(STEPS):
        trained, compared = store.rollout(step), store.compared.rollout(step)
        assert trained.integers("group_index").tolist() == compared.integers("group_index").tolist()
        for first, second in zip(trained.samples(), compared.samples(), strict=True):
            assert {first.arm, second.arm} == {"per-sample", "native"}
            assert first.prompt_ids == second.prompt_ids
            assert first.extra["assignment"]["trained"] and not second.extra["assignment"]["trained"]
            trained_arms.add(first.arm)
        both = requests(store, step) | requests(store.compared, step)
        assert both == {
            (g, arm): {"per-sample": SIZE, "native": 1}[arm] for g in range(GROUPS) for arm in ("per-sample", "native")
        }
    assert trained_arms == {"per-sample", "native"}


def test_a_switchback_asks_each_prompt_in_one_arm(experiment: Path) -> None:
    store = RunStore(experiment / "runs" / "switchback-seed1")
    arms = set()
    for step in range(STEPS):
        rollout = store.rollout(step)
        assert len(rollout) == GROUPS * SIZE
        assert len(requests(store, step)) == GROUPS
        arms |= set(rollout.strings("arm"))
    assert arms == {"per-sample", "native"}
    assert not store.compared.path.exists()


def test_the_report_rests_on_the_contract_and_on_sampling_along_the_way(experiment: Path) -> None:
    report = json.loads((experiment / "report" / "report.json").read_text())
    levels = {one["level"]: one["status"] for one in report["ladder"]}
    assert levels["contract"] == "pass"
    assert levels["sampling"] == "inconclusive"
    assert not [one for one in report["findings"] if one["status"] == "fail" and one["severity"] == "error"]


def test_watching_it_afterwards_says_the_same(parity_here: Here, experiment: Path) -> None:
    watch = parity_here("watch", experiment)  # the runs have ended, so it ends
    assert watch.returncode == 3, watch
    assert "probe: 12 groups" in watch.printed


def test_a_mixed_run_that_goes_on_draws_the_same_arms(parity_here: Here, experiment: Path) -> None:
    """The step before last is taken back, as if the run had been killed in it."""
    store = RunStore(experiment / "runs" / "switchback-seed1")
    before = [store.rollout(step).strings("arm").tolist() for step in range(STEPS)]
    lines = (store.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (store.path / "metrics.jsonl").write_text("".join(lines[:-1]))
    checkpoints = sorted((store.path / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-000002", "step-000003"]
    run = parity_here("run", "--out", experiment, "--resume")
    assert run.returncode == 3, run
    assert [store.rollout(step).strings("arm").tolist() for step in range(STEPS)] == before


def test_what_is_there_of_a_run_that_goes_on_is_judged_as_it_is(experiment: Path) -> None:
    store = RunStore(experiment / "runs" / "probe-seed1")
    lines = (store.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (store.path / "metrics.jsonl").write_text("".join(lines[:-1]))
    unfinished = [one for one in assess(experiment)[0].findings if one.check == "steps_finished"]
    (store.path / "metrics.jsonl").write_text("".join(lines))
    assert [(one.status, one.observed) for one in unfinished] == [(Status.NOT_COMPARED, STEPS - 1)]


def test_no_arm_of_a_mixed_run_has_a_time_or_a_speed_of_its_own(experiment: Path) -> None:
    of_arms = [curves for name, curves in assess(experiment)[0].curves.items() if "/" in name]
    assert len(of_arms) == 4
    for curves in of_arms:
        assert "rollout/raw_reward" in curves
        assert not [metric for metric in curves if metric.startswith("perf/")]


def test_steps_without_a_probed_prompt_leave_the_others_whole(
    parity_here: Here, at_engine: tuple[str, ...], tmp_path: Path
) -> None:
    sizes = ("--seeds", 1, "--steps", 6, "--groups", 2, "--group-size", SIZE)
    run = parity_here(
        "run", "--baseline", "--design", "probe", "--probe-share", 0.2, *sizes, *at_engine, "--out", tmp_path
    )
    assert run.returncode == 3, run
    compared = RunStore(tmp_path / "runs" / "probe-seed1").compared
    there = [compared.rollout_path(step).exists() for step in range(6)]
    assert there != sorted(there, reverse=True), "no step without one lies before another"
    (report,) = assess(tmp_path)
    assert not [one for one in report.findings if one.fails]
