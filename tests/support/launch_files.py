"""Launch files of a stand-in trainer, as tests of launches begin with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import stand_in_trainer

TRAINER = f"{shlex.quote(sys.executable)} {shlex.quote(stand_in_trainer.__file__)} --run {{run}} --seed {{seed}}"


PROBE = f"""
command = {TRAINER + " --steps 60 --seconds 0.1 --probe --groups 16 {arguments}"!r}
seeds = [1, 2, 3]
steps = 60
design = "probe"
[arms.per-sample]
[arms.native]
[results]
curves = "{{run}}/metrics.jsonl"
samples = ["{{run}}/record"]
[place]
at_once = 2
[margins]
reward = 0.1
response_length = 0.2
group_reward_std = 0.2
negative_log_likelihood = 0.3
truncated = 0.1
duplicate_pairs = 0.1
"""
"""A probe with margins wide enough to be decided after some hundred groups."""


def launch_file(folder: Path, experiment: str = "", baseline: str = "", seeds: str = "[1]", more: str = "") -> Path:
    path = folder / "experiment.toml"
    path.write_text(
        f"""
command = {TRAINER + " --steps 6 {arguments}"!r}
seeds = {seeds}
[arms.stock]
arguments = {shlex.split(baseline)}
[arms.native]
arguments = {shlex.split(experiment)}
[results]
curves = "{{run}}/metrics.jsonl"
{more}
"""
    )
    return path
