"""`parity launch` from the command line to a verdict, with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from launch_files import PROBE, launch_file

from parity.cli import cli
from parity.launch import plan_runs, read_launch_file

SEEDS = "[1, 2, 3, 4, 5, 6]"
MARGINS = "[margins]\nreward = 0.05\nresponse_length = 0.02\ntruncated = 0.02\ngroup_reward_std = 0.5\ngrad_norm = 0.5"


def launched(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["launch", str(path), "--out", str(path.parent / "out"), *options])
    return result.exit_code, result.stdout


def steps(number: int) -> str:
    return f"--steps {number}"


@pytest.mark.parametrize(
    ("experiment", "verdict", "code"),
    [(steps(40), "CURVES_AGREE", 0), (f"{steps(40)} --shift 0.3", "DIFFERENT", 1)],
    ids=["the same", "a higher reward"],
)
def test_both_arms_and_every_seed_are_run_and_judged(tmp_path, experiment, verdict, code):
    path = launch_file(tmp_path, experiment, steps(40), SEEDS, f"[place]\nat_once = 4\n{MARGINS}")
    exit_code, printed = launched(path, "--json")
    report = json.loads(printed)
    assert (report["verdict"], exit_code) == (verdict, code)
    assert (report["baseline"], report["experiment"]) == ("stock", "native")
    assert launched(path, "--status", "--json")[0] == code


def test_a_dry_run_prints_every_command_and_starts_nothing(tmp_path):
    path = launch_file(tmp_path, "--shift 0.3", seeds="[1, 2]")
    code, printed = launched(path, "--dry-run")
    assert code == 0
    for plan in plan_runs(read_launch_file(path), tmp_path / "out"):
        assert plan.name in printed and plan.command in printed.replace("\n", " ")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift", "verdict", "code"), [("", "PARITY", 0), ("--shift 0.4", "DIFFERENT", 1)], ids=["the same", "a shift"]
)
def test_a_probe_stops_all_runs_once_its_groups_decide_and_says_what_that_saves(tmp_path, shift, verdict, code):
    path = tmp_path / "experiment.toml"
    path.write_text(PROBE.replace("{arguments}", shift))
    exit_code, printed = launched(path, "--json")
    report = json.loads(printed)
    assert (report["verdict"], exit_code) == (verdict, code)
    ended = [one for one in report["findings"] if one["check"] == "run_ended"]
    assert {one["observed"] for one in ended} == {"stopped"}
    assert all("saved" in one["message"] for one in ended)
    evidence = next(one for one in report["findings"] if one["check"] == "trajectory_evidence")
    assert 0 < evidence["evidence"]["units"] < 3 * 60 * 16
    assert launched(path, "--status", "--quiet")[0] == code


def test_the_contract_of_what_runs_recorded_is_held(tmp_path):
    samples = 'samples = ["{run}/record"]\n[restart]\npolicy = "never"'
    sound = launch_file(tmp_path, "--groups 2", "--groups 2", more=samples)
    assert launched(sound, "--quiet")[0] == 3
    faulty = tmp_path / "faulty"
    faulty.mkdir()
    code, printed = launched(launch_file(faulty, "--groups 2 --short-logprobs", "--groups 2", more=samples), "--json")
    report = json.loads(printed)
    assert (report["verdict"], code) == ("DIFFERENT", 1)
    failing = {(one["check"], one["where"].get("run")) for one in report["findings"] if one["status"] == "fail"}
    assert ("rollout_log_probs_length", "native-seed1") in failing
    assert not any(run and "stock" in run for _, run in failing)
    assert report["counts"]["samples"] == 2 * 6 * 2 * 4


def test_what_there_is_is_judged_before_any_curve_is_whole(tmp_path):
    path = launch_file(tmp_path, "--fail-at 0 --always", "--fail-at 0 --always", more='[restart]\npolicy = "never"')
    code, printed = launched(path, "--json")
    report = json.loads(printed)
    assert (report["verdict"], code) == ("INCONCLUSIVE", 3)
    ended = {one["where"]["run"]: one["observed"] for one in report["findings"] if one["check"] == "run_ended"}
    assert ended == {"stock-seed1": "failed", "native-seed1": "failed"}
    assert next(one["status"] for one in report["findings"] if one["check"] == "curves") == "not_compared"


def test_what_differs_between_the_arms_is_shown_as_stated_or_not(tmp_path):
    path = launch_file(tmp_path, "--shift 0.1", steps(6))
    report = json.loads(launched(path, "--json")[1])
    found = {one["check"]: one for one in report["findings"]}
    assert "--shift 0.1" in found["stated_differences"]["message"]
    assert found["same_setup"]["status"] == "pass"
    setup = tmp_path / "out" / "runs" / "native-seed1" / "setup-1.json"
    written = json.loads(setup.read_text())
    package = next(iter(written["packages"]))
    written["packages"][package] += ".other"
    written["environment"]["OMP_NUM_THREADS"] = "another"
    setup.write_text(json.dumps(written))
    report = json.loads(launched(path, "--status", "--json")[1])
    same = next(one for one in report["findings"] if one["check"] == "same_setup")
    assert (same["status"], same["severity"], len(same["evidence"]["differences"])) == ("fail", "warning", 2)
    assert package in same["message"] and "OMP_NUM_THREADS" in same["message"]


TWIN = 'samples = ["{run}/record"]\n[place]\nat_once = 2'


@pytest.mark.parametrize(
    ("experiment", "verdict", "failing"),
    [
        ("--twin native", "PARITY", set()),
        ("--twin native --other-at 3", "DIFFERENT", {("twin_reward", "native-seed1", 3, 2)}),
        ("--twin per-sample", "INCONCLUSIVE", set()),
    ],
    ids=["equal", "one other reward", "both arms ask alike"],
)
def test_a_twin_is_compared_bit_for_bit(tmp_path, experiment, verdict, failing):
    path = launch_file(tmp_path, f"--groups 2 {experiment}", "--groups 2 --twin per-sample", more=TWIN)
    path.write_text(path.read_text().replace("seeds", 'design = "twin"\nseeds', 1))
    code, printed = launched(path, "--json")
    report = json.loads(printed)
    assert (report["verdict"], code) == (verdict, {"PARITY": 0, "DIFFERENT": 1, "INCONCLUSIVE": 3}[verdict])
    found = [one for one in report["findings"] if one["status"] == "fail" and one["severity"] == "error"]
    assert {
        (one["check"], one["where"]["run"], one["where"]["rollout_id"], one["where"]["index"]) for one in found
    } == failing
    arms = next(one for one in report["findings"] if one["check"] == "twin_arms")
    assert arms["status"] == ("inconclusive" if verdict == "INCONCLUSIVE" else "pass")
