from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.launch import plan_runs, read_launch_file

SOUND = """
command = "bash train.sh --seed {seed} --save {run} {arguments}"
seeds = [1, 2, 3]

[arms.stock]
[arms.native]
arguments = ["--rollout", "it's native"]
environment = {ARM = "{arm}"}

[results]
curves = "{run}/train.log"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return path


def test_every_arm_runs_with_every_seed_and_the_arms_of_a_seed_stand_together(tmp_path):
    plans = plan_runs(read_launch_file(written(tmp_path, SOUND)), tmp_path)
    assert [plan.seed for plan in plans] == [1, 1, 2, 2, 3, 3]
    assert {plan.name for plan in plans} == {f"{arm}-seed{seed}" for arm in ("stock", "native") for seed in (1, 2, 3)}


def test_over_many_seeds_each_arm_is_first_about_as_often(tmp_path):
    seeds = list(range(400))
    text = SOUND.replace("[1, 2, 3]", str(seeds))
    first = [plan.arm for plan in plan_runs(read_launch_file(written(tmp_path, text)), tmp_path)][::2]
    assert 150 < first.count("native") < 250  # five standard deviations around a half
    assert first == [plan.arm for plan in plan_runs(read_launch_file(written(tmp_path, text)), tmp_path)][::2]


def test_places_are_filled_in_and_arguments_reach_the_shell_as_they_are(tmp_path):
    out = tmp_path / "a folder"
    plans = {plan.name: plan for plan in plan_runs(read_launch_file(written(tmp_path, SOUND)), out)}
    native = plans["native-seed2"]
    assert native.environment == {"ARM": "native"}
    assert native.curves == f"{out}/runs/native-seed2/train.log"
    command = ["bash", "train.sh", "--seed", "2", "--save", f"{out}/runs/native-seed2", "--rollout", "it's native"]
    assert shlex.split(native.command) == command
    assert shlex.split(plans["stock-seed1"].command)[-2:] == ["--save", f"{out}/runs/stock-seed1"]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}"), min_size=1, max_size=20))
def test_no_argument_is_taken_for_code_by_the_shell(tmp_path_factory, argument):
    path = tmp_path_factory.mktemp("launch") / "experiment.toml"
    text = SOUND.replace("bash train.sh --seed {seed} --save {run} {arguments}", "printf %s {arguments}")
    quoted = argument.replace("\\", "\\\\").replace('"', '\\"')
    path.write_text(text.replace('["--rollout", "it\'s native"]', f'["{quoted}"]'), "utf-8")
    plan = next(plan for plan in plan_runs(read_launch_file(path), path.parent) if plan.arm == "native")
    printed = subprocess.run(["bash", "-c", plan.command], capture_output=True, check=True).stdout
    assert printed.decode() == argument


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[arms.stock]\n", "", "needs two"),
        ("[1, 2, 3]", "[]", "seeds"),
        ("[1, 2, 3]", "[1, 1]", "seeds"),
        ("[1, 2, 3]", '["1"]', r"seeds\[0\]"),
        ("{run}/train.log", "/logs/train.log", "results.curves"),
        ("{seed}", "{sede}", "{sede}"),
        ("[results]", "[results]\ncurve = 'x'", "curve"),
        ("[arms.stock]", "[arms.'a/b']", "arms.a/b"),
        ("seeds", 'design = "probe"\nseeds', "both arms in one run"),
        ("[results]", "[results]\nreward_range = [1, 0]", "reward_range"),
        ("[results]", "[margins]\nreward = 0.0\n[results]", "margins.reward"),
        ("[results]", "[restart]\nattempts = 0\n[results]", "restart.attempts"),
        ("[results]", "[place]\ngpus = 8\n[results]", "place"),
        ("seeds", "seeds =", "experiment.toml"),
    ],
)
def test_a_file_that_cannot_be_launched_is_refused_with_its_field(tmp_path, old, new, problem):
    path = written(tmp_path, SOUND.replace(old, new, 1))
    with pytest.raises(InputError, match=problem):
        read_launch_file(path)
