"""`parity launch` from the command line to a verdict, with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from launch_files import launch_file

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


@pytest.mark.parametrize("name", ["slime", "trl"])
def test_a_template_is_a_launch_file(tmp_path, name):
    path = tmp_path / "experiment.toml"
    path.write_text(CliRunner().invoke(cli, ["launch", "--init", name]).stdout)
    plans = plan_runs(read_launch_file(path), tmp_path)
    assert len(plans) == 6
    changed = next(plan for plan in plans if plan.arm == "native").command
    assert all(str(plan.directory) in plan.command and str(plan.seed) in plan.command for plan in plans)
    assert changed != next(plan for plan in plans if plan.arm == "stock").command
