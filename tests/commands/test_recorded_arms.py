"""The example of a trainer that records arms of its own: what it writes is what is documented, and what is read."""

from __future__ import annotations

import json
import runpy
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.commands.watch import RecordingFollower, Watch, watch
from parity.findings import Verdict
from parity.records.samples import SAMPLE_FIELDS
from parity.sources.dumps.sample_lines import read_sample_lines
from parity.stats import GroupBounds

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "record_arms.py"
SIZE, CAP, GROUPS = 4, 16, 32


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files("parity.records") / "samples.schema.json").read_text())
    return found


def recorded(folder: Path, arms: list[str], steps: int, lower: str = "") -> Path:
    """Groups of a made-up policy, in arms drawn and recorded as the example does; one arm may be right less often."""
    example = runpy.run_path(str(EXAMPLE), {})
    example["ARMS"][:] = arms
    rng = np.random.default_rng(7)
    for step in range(steps):
        for group in range(GROUPS):
            arm = example["draw_arm"](3, step, group)
            responses = []
            for _ in range(SIZE):
                length = int(rng.integers(1, CAP))
                right = rng.random() < (0.2 if arm == lower else 0.5)
                ids = rng.integers(5, 200, length).tolist()
                responses.append((ids, (-rng.exponential(1.0, length)).tolist(), "stop", float(right)))
            prompt = [step % 7, group, 1]
            example["record_group"](folder, 3, step, group, arm, prompt, responses, CAP)
    return folder


def seen(folder: Path, baseline: str = "") -> Watch:
    *_, last = watch(RecordingFollower(folder), Watch(GroupBounds(), baseline=baseline), once=True)
    return last


def test_the_example_writes_what_the_schema_says(tmp_path: Path) -> None:
    lines = (recorded(tmp_path, ["bf16", "fp8"], 1) / "rollout.samples.jsonl").read_text().splitlines()
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    assert len(lines) == GROUPS * SIZE
    for line in lines:
        validator.validate(json.loads(line))
    wrong = json.loads(lines[0])
    wrong["extra"]["assignment"]["probability"] = 2
    assert not validator.is_valid(wrong)


def test_the_schema_names_the_fields_that_are_read(tmp_path: Path) -> None:
    assert set(schema()["properties"]) == set(SAMPLE_FIELDS)
    path = recorded(tmp_path, ["bf16", "fp8"], 1) / "rollout.samples.jsonl"
    (rollout,) = read_sample_lines(path, None)
    row = json.loads(path.read_text().splitlines()[0])
    assert {name: getattr(next(rollout.samples()), name) for name in row} == row


def test_the_example_is_as_short_as_the_page_says() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize(("lower", "verdict"), [("", Verdict.INCONCLUSIVE), ("int8", Verdict.DIFFERENT)])
def test_three_recorded_arms_are_each_compared_with_the_baseline(tmp_path: Path, lower: str, verdict: Verdict) -> None:
    folder = recorded(tmp_path, ["bf16", "fp8", "int8"], 30, lower)
    found = seen(folder)
    assert found.arms == ("bf16", "fp8", "int8")
    assert set(found.trajectories) == {"switchback", "switchback int8"}
    assert found.verdict is verdict
    failing = {arm: [one for one in of_arm if one.fails] for arm, of_arm in found.findings.items()}
    assert not failing["fp8"]
    assert bool(failing["int8"]) is bool(lower)
    shown = CliRunner().invoke(cli, ["watch", str(folder), "--once"])
    assert shown.exit_code == {Verdict.DIFFERENT: 1, Verdict.INCONCLUSIVE: 3}[verdict]
    report = json.loads((folder / "report" / "report.json").read_text())
    assert (report["verdict"], report["baseline"]) == (verdict.value, "bf16")
    assert [one["experiment"] for one in report["comparisons"]] == ["fp8", "int8"]
    assert (folder / "report" / "int8" / "report.md").exists()


def test_the_baseline_may_be_named_and_is_waited_for(tmp_path: Path) -> None:
    folder = recorded(tmp_path, ["bf16", "fp8"], 3)
    assert seen(folder, "fp8").arms == ("fp8", "bf16")
    assert seen(folder, "int4").arms == ()
