"""`parity compare` as a user runs it: several sources after one option, exit codes, files, and errors that help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_runs import recorded, write_log

from parity.cli import cli
from parity.cli.compare import compare
from parity.errors import ParityError, UsageError
from parity.records.experiment import ExperimentConfig
from parity.records.store import create_experiment, run_store
from parity.sources.registry import read_runs

MARGINS = {
    "rollout/raw_reward": 0.1,
    "rollout/response_len/mean": 0.1,
    "rollout/truncated_ratio": 0.05,
    "rollout/group_reward_std": 0.1,
    "train/grad_norm": 0.5,
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logs")
    for k in range(4):
        write_log(directory / f"base{k}.log", recorded("b", k))
        write_log(directory / f"same{k}.log", recorded("s", 100 + k, seconds=8.0))
        write_log(directory / f"lower{k}.log", recorded("l", 200 + k, shift=-0.3))
    return directory


def compared(logs: Path, out: Path, *options: str, experiment: str = "same", runs: int = 4) -> tuple[int, str]:
    arms = [[str(logs / f"{name}{k}.log") for k in range(runs)] for name in ("base", experiment)]
    margins = [option for metric, margin in MARGINS.items() for option in ("--margin", f"{metric}={margin}")]
    arguments = ["compare", "--baseline", *arms[0], "--experiment", *arms[1], *margins, "--out", str(out), *options]
    result = CliRunner().invoke(cli, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_default_margins_are_named_and_exit_3(logs: Path, tmp_path: Path) -> None:
    arms = [[str(logs / f"{name}{k}.log") for k in range(4)] for name in ("base", "same")]
    arguments = ["compare", "--baseline", *arms[0], "--experiment", *arms[1], "--out", str(tmp_path)]
    result = CliRunner().invoke(
        cli, [*arguments, "--margin", f"rollout/response_len/mean={MARGINS['rollout/response_len/mean']}"]
    )
    assert result.exit_code == 3
    assert "default margins" in " ".join(result.stdout.split())


def test_curves_that_agree_exit_0_and_write_the_report(logs: Path, tmp_path: Path) -> None:
    code, output = compared(logs, tmp_path)
    assert code == 0, output
    assert "CURVES AGREE" in output
    assert "PARITY:" not in output
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"report.md", "comment.md", "report.json", "junit.xml", "curves-recorded.png"} <= names
    printed = " ".join(output.split())
    assert all(name in printed for name in names if not name.endswith(".png"))
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    assert document["verdict"] == "CURVES_AGREE"
    assert set(document["scope"]["margins"]) == set(MARGINS)
    assert document["scope"]["default_margins"] == []
    assert document["cost"][1]["ratio"] == pytest.approx(0.8, abs=0.03)


def test_a_difference_exits_1_and_one_run_an_arm_3(logs: Path, tmp_path: Path) -> None:
    code, output = compared(logs, tmp_path / "a", "--quiet", experiment="lower")
    assert (code, output.strip()) == (1, "DIFFERENT")
    code, output = compared(logs, tmp_path / "b", "--json", runs=1)
    assert code == 3
    document = json.loads(output)
    assert document["verdict"] == "INCONCLUSIVE"
    assert [1, 1] in [finding["evidence"].get("units") for finding in document["findings"]]


def test_options_of_several_values_take_all_that_follow_and_may_be_repeated() -> None:
    arguments = ["--baseline", "a", "b", "--quiet", "--experiment", "c", "--history", "d", "e", "--experiment", "f"]
    given = compare.make_context("compare", [*arguments, "--margin", "m=1"]).params
    assert [given[name] for name in ("baseline", "experiment", "history")] == [("a", "b"), ("c", "f"), ("d", "e")]
    assert (given["quiet"], given["margins"]) == (True, ("m=1",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--margin", "rollout/raw_reward"], "METRIC=NUMBER"),
        (["--margin", "rollout/raw_reward=-1"], "positive"),
        (["--margin", "rollout/raw_reward=x"], "not a number"),
        (["--ended", "nobody=oom"], "names no run"),
        (["--names", "absent.json"], "absent.json"),
        (["--history", "absent.log"], "no such file"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(logs: Path, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(ParityError, match=message):
        compared(logs, tmp_path, *options)


def experiment_on_disk(directory: Path, steps: int = 40) -> Path:
    """An experiment with a twin and two freely sampled pairs, as `parity run` leaves it."""
    config = ExperimentConfig("per-sample", "native", designs=("twin", "paired"), seeds=2, steps=steps)
    create_experiment(directory, {"config": config.to_json(), "designs": ["twin", "paired"]})
    for seed in range(3):
        for number, arm in enumerate(("per-sample", "native")):
            store = run_store(directory, f"{arm}-seed{seed}")
            store.create()
            store.append_event("start", 0.0)
            store.append_event("retry", 1.0, count=2, step=3)
            run = recorded("x", 10 * seed + number)
            for step in range(steps):
                row = {metric: float(curve.values[step]) for metric, curve in run.curves.items()}
                store.append_metrics({"step": step, **row})
            store.write_outcome({"status": "completed"})
    return directory


def test_an_experiment_of_parity_gives_each_side_its_freely_sampled_runs(tmp_path: Path) -> None:
    directory = experiment_on_disk(tmp_path / "experiment")
    arguments = ["compare", "--baseline", str(directory), "--experiment", str(directory), "--json"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "out")])
    document = json.loads(result.stdout)
    names = {(run["arm"], run["run"].rpartition(":")[2]) for run in document["runs"]}
    baseline = {("baseline", f"per-sample-seed{seed}") for seed in (1, 2)}
    assert names == baseline | {("experiment", f"native-seed{seed}") for seed in (1, 2)}
    assert {(run["status"], run["retries"]) for run in document["runs"]} == {("completed", 2)}
    assert {found["check"] for found in document["findings"]} >= {"training_parity", "runs_cut_off", "incidents"}


def test_a_run_directory_is_a_source_and_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    run = experiment_on_disk(tmp_path / "experiment", steps=2) / "runs" / "native-seed1"
    (found,) = read_runs(str(run))
    assert (found.name, found.ending, found.incidents) == (str(run), "completed", {"retry": 2})
    result = CliRunner().invoke(cli, ["compare", "--baseline", str(run), "--experiment", str(run)])
    assert isinstance(result.exception, UsageError)
    assert "given more than once" in str(result.exception)
