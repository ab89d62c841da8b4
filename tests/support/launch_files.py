"""Launch files of a stand-in trainer, as tests of launches begin with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import stand_in_trainer

TRAINER = f"{shlex.quote(sys.executable)} {shlex.quote(stand_in_trainer.__file__)} --run {{run}} --seed {{seed}}"


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
