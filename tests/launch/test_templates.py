"""The templates as their hosts see them: the shell makes the arguments, and the host's own parser reads them."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_up_modules import made_up

from parity.cli import cli
from parity.cli.launch import TEMPLATES
from parity.launch import RunPlan, plan_runs, read_launch_file

RUNS = "python3"
"""A Python that writes down what a trainer is started with, and runs everything else."""

STAND_IN = f"""#!{sys.executable}
import json, os, sys
if any(one.endswith(("train.py", "relax.entrypoints.train", "verl.trainer.main_ppo")) for one in sys.argv[1:3]):
    with open(os.environ["SEEN"], "w") as file:
        json.dump(sys.argv[1:], file)
else:
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""


def planned(tmp_path: Path, name: str, *moved: tuple[str, str]) -> list[RunPlan]:
    text = CliRunner().invoke(cli, ["launch", "--init", name]).stdout
    for old, new in moved:
        text = text.replace(old, new)
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return plan_runs(read_launch_file(path), tmp_path / "out")


def started(tmp_path: Path, plan: RunPlan) -> list[str]:
    """The arguments that a run's command starts its trainer with."""
    stand_in = tmp_path / RUNS
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    plan.directory.mkdir(parents=True, exist_ok=True)
    seen = tmp_path / "seen.json"
    seen.unlink(missing_ok=True)
    repository = str(Path(__file__).parents[2])
    environment = {**os.environ, **plan.environment, "SEEN": str(seen), "PYTHONPATH": repository}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    done = subprocess.run(["bash", "-c", plan.command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return list(map(str, json.loads(seen.read_text())))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_a_launch_file(tmp_path, name):
    plans = planned(tmp_path, name)
    assert len(plans) == 6
    baseline, changed = (next(plan for plan in plans if plan.arm == arm) for arm in dict.fromkeys(p.arm for p in plans))
    assert all(str(plan.directory) in plan.command and str(plan.seed) in plan.command for plan in plans)
    assert (baseline.command, baseline.environment) != (changed.command, changed.environment)


def checkout(name: str) -> Path:
    variable = f"{name.upper()}_CHECKOUT"
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no checkout")
    return Path(folder)


PARSERS = {
    "slime": ("slime.utils.arguments", "get_slime_extra_args_provider", "/root/slime"),
    "miles": ("miles.utils.arguments", "get_miles_extra_args_provider", "/root/miles"),
    "relax": ("relax.utils.arguments", "get_slime_extra_args_provider", "/root/Relax"),
}


def parser_of(folder: Path, module: str, provider: str) -> argparse.ArgumentParser:
    """The host's own parser; what it imports of SGLang and Megatron is made up where it is not there."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    missing = [
        one
        for one in ("sglang", "megatron", "mbridge", "polars", "torch_memory_saver")
        if PathFinder.find_spec(one) is None
    ]
    with made_up(missing), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser = argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve")
        getattr(importlib.import_module(module), provider)()(parser)
        if module.startswith("slime"):
            importlib.import_module("slime.backends.sglang_utils.arguments").add_sglang_router_arguments(parser)
        if module.startswith("relax"):
            importlib.import_module("relax.backends.sglang.arguments").add_sglang_router_arguments(parser)
    return parser


def used_in_scripts(folder: Path) -> set[str]:
    """Every option that the host's own launch scripts and its models' files use."""
    scripts = [path for end in ("sh", "py") for path in folder.glob(f"scripts/**/*.{end}")]
    return {option for path in scripts for option in re.findall(r"--[a-z0-9][a-z0-9-]+", path.read_text("utf-8"))}


@pytest.mark.hosts
@pytest.mark.parametrize("name", PARSERS)
def test_a_template_is_read_by_its_hosts_own_parser(tmp_path, name):
    folder = checkout(name)
    module, provider, place = PARSERS[name]
    plans = planned(tmp_path, name, (f"cd {place} ", f"cd {folder} "))
    parser = parser_of(folder, module, provider)
    of_arm: dict[str, Any] = {}
    for plan in (plan for plan in plans if plan.seed == 1):
        parsed, rest = parser.parse_known_args(started(tmp_path, plan))
        options = [one for one in rest if one.startswith("--")]
        # Megatron's and SGLang's own, whose parsers are not there: held to what the host's scripts use.
        assert set(options) <= used_in_scripts(folder) | {"--seed"}, plan.name
        assert (parsed.n_samples_per_prompt, parsed.rollout_batch_size, parsed.rollout_seed) == (8, 32, plan.seed)
        assert parsed.save_debug_rollout_data == f"{plan.directory}/rollout_data/{{rollout_id}}.pt"
        of_arm[plan.arm] = {**vars(parsed), "rest": rest, "save_debug_rollout_data": "", "load": "", "save": ""}
    stock, native = of_arm["stock"], of_arm["native"]
    assert "rollout_patch" in str(native["rollout_function_path"])
    assert "rollout_patch" not in str(stock["rollout_function_path"])
    paths = [str(plan.directory) for plan in plans]
    differing = {option for option in stock if stock[option] != native[option] and option != "rest"}
    assert differing <= {"rollout_function_path", "eval_function_path"}

    def without_paths(rest: list[str]) -> list[str]:
        return [one for one in rest if not one.startswith(tuple(paths))]

    assert without_paths(stock["rest"]) == without_paths(native["rest"])


@pytest.mark.hosts
def test_verls_overrides_are_in_its_configuration(tmp_path):
    import yaml

    folder = checkout("verl")
    with (folder / "verl/trainer/config/_generated_ppo_trainer.yaml").open() as file:
        known = yaml.safe_load(file)
    plans = [plan for plan in planned(tmp_path, "verl") if plan.seed == 1]
    for plan in plans:
        overrides = [one for one in started(tmp_path, plan) if "=" in one]
        assert len(overrides) > 30
        for override in overrides:
            key, _, _ = override.partition("=")
            at = known
            for part in key.split("."):
                assert part in at, f"{key}: verl has {', '.join(at)}"
                at = at[part]
