"""`parity report` on an experiment on disk: its files, its language, GitHub, and what changed between two."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from parity.cli import main
from parity.metrics import rollout_metrics
from parity.records.exchanges import Exchange
from parity.records.experiment import ExperimentConfig
from parity.records.samples import Rollout, Sample
from parity.records.store import create_experiment, run_store

Build = Callable[..., list[Sample]]
Answer = Callable[[Sequence[Sample]], list[Exchange]]


@pytest.fixture
def experiment(valid_samples: Build, valid_exchanges: Answer, tmp_path: Path) -> Path:
    """A twin of two steps, as the runner leaves it; its rewards are not those of its task."""
    config = ExperimentConfig("per-sample", "native", designs=("twin",), twin_steps=2)
    policy = {"vocab_size": 200, "context_length": 64, "stop_token_ids": [2]}
    arms = {"baseline": "per-sample", "experiment": "native"}
    out = tmp_path / "out"
    create_experiment(out, {**arms, "config": config.to_json(), "designs": ["twin"], "policy": policy})
    for arm in arms.values():
        store = run_store(out, f"{arm}-seed0")
        store.create()
        samples = [replace(sample, extra={"prompt": "1+2="}) for sample in valid_samples(steps=2, groups=1, arm=arm)]
        for step in range(2):
            own = [sample for sample in samples if sample.rollout_id == step]
            rollout = Rollout.from_samples(own)
            store.write_step(step, rollout, valid_exchanges(own))
            store.append_metrics({"step": step, **rollout_metrics(rollout, 1.0), "train/loss": 0.5})
    return out


Parity = Callable[..., int]


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> Parity:
    """Runs the command in this process; gives its exit code."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["parity", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


def test_all_files_are_written_and_the_exit_code_is_the_verdicts(
    experiment: Path, parity: Parity, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity("report", experiment, "--quiet") == 1
    assert capsys.readouterr().out == "DIFFERENT\n"
    written = {path.name for path in (experiment / "report").iterdir()}
    assert {"report.html", "report.md", "report.json", "junit.xml"} <= written
    assert 'id="samples-twin-0-1"' in (experiment / "report" / "report.html").read_text()


def test_an_experiment_of_which_one_arm_has_not_begun_has_its_page(experiment: Path, parity: Parity) -> None:
    shutil.rmtree(experiment / "runs" / "native-seed0")
    assert parity("report", experiment, "--quiet") == 1
    assert 'id="samples-twin-0-1"' in (experiment / "report" / "report.html").read_text()


def test_in_chinese_the_verdict_of_the_json_stays_english(experiment: Path, parity: Parity) -> None:
    parity("report", experiment, "--quiet", "--lang", "zh")
    said = (experiment / "report" / "report.md").read_text()
    assert "## 八项指标" in said
    prose = said.partition("<summary>")[0]
    assert re.findall(r"\b[a-z]{2,} [a-z]{2,} [a-z]{2,} [a-z]{2,}\b", prose) == []
    assert '<html lang="zh-CN">' in (experiment / "report" / "report.html").read_text()
    assert json.loads((experiment / "report" / "report.json").read_bytes())["headline"].startswith("DIFFERENT: native")


def test_in_github_actions_failures_are_annotations_and_the_report_is_the_summary(
    experiment: Path, parity: Parity, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(experiment / "summary.md"))
    assert parity("report", experiment, "--json") == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "DIFFERENT"
    assert said.err.startswith("::error title=rollout parity%3A DIFFERENT::DIFFERENT: native differs from per-sample")
    assert (experiment / "summary.md").read_text().startswith("# Rollout parity: DIFFERENT\n")


def test_a_summary_that_cannot_be_written_is_told_and_the_verdict_stays(
    experiment: Path, parity: Parity, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(experiment / "none" / "summary.md"))
    assert parity("report", experiment, "--quiet") == 1
    said = capsys.readouterr()
    assert said.out == "DIFFERENT\n"
    assert said.err == (
        f"parity: warning: {experiment}/none/summary.md: the step's summary cannot be written: "
        "No such file or directory\n"
    )


def test_two_reports_of_one_experiment_are_compared(
    experiment: Path, parity: Parity, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parity("report", experiment, "--quiet")
    before = json.loads((experiment / "report" / "report.json").read_bytes())
    before["verdict"] = "PARITY"
    (tmp_path / "before.json").write_text(json.dumps(before))
    capsys.readouterr()
    assert parity("report", "--diff", experiment, experiment) == 0
    assert capsys.readouterr().out == "the same conclusions: 0 changes of verdict or findings, 0 other changes\n"
    assert parity("report", "--diff", tmp_path / "before.json", experiment, "--json") == 1
    assert json.loads(capsys.readouterr().out) == {
        "same_conclusion": False,
        "changes": [{"kind": "verdict", "name": "verdict", "before": "PARITY", "after": "DIFFERENT"}],
    }


def test_a_directory_or_two_reports_are_asked_for(
    experiment: Path, parity: Parity, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity("report") == 2
    assert parity("report", experiment, "--diff", experiment, experiment) == 2
    assert capsys.readouterr().err.count("takes the directory of an experiment, or --diff with two reports") == 2
