"""TRL's own GRPOTrainer as the command of a launch: both arms, two seeds, to a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from parity.cli import cli

pytest.importorskip("trl", reason="TRL is not installed: it is among the packages for development")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trl"
STEPS = 3


@pytest.mark.slow
def test_both_arms_of_a_grpo_trainer_come_to_a_verdict(tmp_path):
    path = tmp_path / "trl.toml"
    text = (EXAMPLE / "experiment.toml").read_text()
    path.write_text(
        text.replace("docs/examples/trl/train.py", str(EXAMPLE / "train.py")).replace("steps 40", f"steps {STEPS}")
    )
    done = CliRunner().invoke(cli, ["launch", str(path), "--out", str(tmp_path / "out"), "--json"])
    report = json.loads(done.stdout)
    assert (report["verdict"], done.exit_code) == ("INCONCLUSIVE", 3)  # three steps show nothing of a training run
    assert report["counts"]["samples"] == 2 * 2 * STEPS * 32
    levels = {one["level"]: one["status"] for one in report["ladder"]}
    assert (levels["contract"], levels["training"]) == ("pass", "inconclusive")
    assert not [one["check"] for one in report["findings"] if one["check"] in ("run_ended", "alarm", "curves_read")]
    assert next(one["status"] for one in report["findings"] if one["check"] == "same_setup") == "pass"
