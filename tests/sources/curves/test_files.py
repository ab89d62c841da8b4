"""Trackers' files: each made by the real library where it is installed, and read back to the numbers that went in."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError, NotRecognised, UsageError
from parity.evidence.training.recordings import without_odd_zeros
from parity.sources.curves.names import Names, load_names
from parity.sources.curves.recorded_runs import RecordedRun
from parity.sources.registry import read_runs

LOSSES = [0.5, math.nan, 0.25, 1e-9]


def values(run: RecordedRun, metric: str) -> list[float]:
    assert run.curves[metric].steps.tolist() == list(range(len(run.curves[metric].steps)))
    return list(run.curves[metric].values.tolist())


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_verls_file_logger(tmp_path: Path) -> None:
    rows = [{"step": k, "data": {"critic/score/mean": k / 2, "actor/loss": None, "note": "x"}} for k in range(3)]
    (run,) = read_runs(write(tmp_path / "a.jsonl", *rows))
    assert (run.format, values(run, "rollout/raw_reward")) == ("verl file logger", [0.0, 0.5, 1.0])
    assert all(map(math.isnan, values(run, "train/loss")))
    assert run.skipped == ("note: not a number",)


def test_miles_events_of_several_processes_in_the_order_of_time(tmp_path: Path) -> None:
    def event(at: int, **metrics: float) -> dict[str, object]:
        return {"timestamp": f"2026-01-01T00:00:{at:02}", "source": "x", "type": "metric", "metrics": metrics}

    other = {"timestamp": "2026-01-01T00:00:09", "source": "x", "type": "start"}
    events = tmp_path / "events"
    events.mkdir()
    write(events / "rollout.jsonl", *(event(k, **{"rollout/step": k, "rollout/raw_reward": k / 4}) for k in range(3)))
    write(events / "train.jsonl", *(event(k, **{"train/step": k, "train/loss": k}) for k in range(3)), other)
    (run,) = read_runs(str(tmp_path))
    assert values(run, "rollout/raw_reward") == [0, 0.25, 0.5]
    assert values(run, "train/loss") == [0, 1, 2]
    assert run.skipped == ("1 records of other kinds",)


def test_records_with_several_counters_keep_each_metric_at_its_own(tmp_path: Path) -> None:
    rows = [
        {"_step": 10, "rollout/step": 0, "rollout/raw_reward": 0.5, "perf/rollout_time": 2.0},
        {"_step": 11, "train/step": 0, "train/loss": "NaN"},
        {"_step": 12, "train/step": 1, "train/loss": 1.0},
    ]
    (run,) = read_runs(write(tmp_path / "history.jsonl", *rows))
    assert values(run, "perf/rollout_time") == [2.0]
    assert math.isnan(values(run, "train/loss")[0])
    whole = tmp_path / "history.json"
    whole.write_text(json.dumps(rows))
    (again,) = read_runs(str(whole))
    assert again.curves.keys() == run.curves.keys()


def test_a_csv_of_one_run_and_a_chart_of_several(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(",_step,train/loss,rollout/raw_reward,_note\n0,0,0.5,1,a\n1,1,NaN,,b\n2,2,0.25,0,c\n")
    (run,) = read_runs(str(path))
    assert run.curves["rollout/raw_reward"].steps.tolist() == [0, 2]
    assert math.isnan(values(run, "train/loss")[1])
    assert run.skipped == ("_note: not a number",)
    chart = tmp_path / "chart.csv"
    with chart.open("w", newline="") as file:
        columns = ["Step", "base - a - train/loss", "base - a - train/loss__MIN", "native - train/loss"]
        csv.writer(file).writerows([columns, [0, 1.0, 1.0, 2.0], [1, 1.5, 1.5, ""]])
    base, native = read_runs(str(chart))
    assert (base.name, native.name) == (f"{chart}:base - a", f"{chart}:native")
    assert (values(base, "train/loss"), values(native, "train/loss")) == ([1.0, 1.5], [2.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,loss\n0,1,2\n", "more cells"),
        ("step,loss\n0.5,1\n", "not a whole step"),
        ("step,loss,loss\n0,1,2\n", "more than once"),
        ("Wall time,Step,Value\n1,0,1\n", "does not name its metric"),
        ("step,loss\n0,x\n", "without any metric"),
    ],
)
def test_a_csv_that_cannot_be_right_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_runs(str(path))


def test_a_trainer_state_that_transformers_wrote(tmp_path: Path) -> None:
    callback = pytest.importorskip("transformers.trainer_callback")
    history = [
        {"loss": 1.0 - k / 10, "reward": k / 10, "completions/mean_length": 7.0, "epoch": 0.1, "step": k}
        for k in range(5)
    ]
    done = {"train_runtime": 3.0, "train_loss": 0.5, "epoch": 1.0, "step": 4}
    for steps, folder in ((2, "checkpoint-2"), (5, "checkpoint-5")):
        (tmp_path / folder).mkdir()
        state = callback.TrainerState(global_step=steps, max_steps=5, log_history=[*history[:steps], done])
        state.save_to_json(str(tmp_path / folder / "trainer_state.json"))
    (run,) = read_runs(str(tmp_path))
    assert values(run, "rollout/raw_reward") == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert values(run, "train/loss")[4] == pytest.approx(0.6)
    assert run.ending == "completed"
    assert "1 summaries of whole runs" in run.skipped
    (half,) = read_runs(str(tmp_path / "checkpoint-2" / "trainer_state.json"))
    assert half.ending is None


def test_tensorboard_files_of_several_processes_and_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    clock = iter(range(1_000, 2_000))
    for start, stop, offset in ((0, 6, 0.0), (4, 8, 0.5)):
        with writer(str(tmp_path), filename_suffix=f".{start}") as first, writer(str(tmp_path)) as second:
            for step in range(start, stop):
                first.add_scalar("train/loss", step + offset, step, walltime=next(clock))
                second.add_scalar("rollout/raw_reward", step / 8, step, walltime=next(clock))
            first.add_text("args", "lr", 0)
    assert len(list(tmp_path.glob("*tfevents*"))) >= 3
    (run,) = read_runs(str(tmp_path))
    assert values(run, "train/loss") == [0, 1, 2, 3, 4.5, 5.5, 6.5, 7.5]
    assert run.curves["train/loss"].rewound == (4, 5)
    assert values(run, "rollout/raw_reward") == [k / 8 for k in range(8)]
    assert any("args" in sentence for sentence in run.skipped)


def test_each_tensorboard_folder_is_a_run_and_a_cut_file_says_so(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    for seed in (1, 2):
        with writer(str(tmp_path / f"seed{seed}")) as one:
            for step in range(20):
                one.add_scalar("train/loss", float(seed), step)
    runs = read_runs(str(tmp_path))
    assert [run.name for run in runs] == [f"{tmp_path}:seed1", f"{tmp_path}:seed2"]
    (file,) = (tmp_path / "seed1").glob("*tfevents*")
    file.write_bytes(file.read_bytes()[:-30])
    cut = read_runs(str(file))[0]
    assert len(cut.curves["train/loss"].steps) < 20
    file.write_bytes(b"\x00" * 64)
    with pytest.raises(InputError):
        read_runs(str(file))


def session_lines(names: list[str]) -> list[list[dict[str, object]]]:
    """Lines as an offline session has them: a list of events each."""
    scalar = {"type": "training_stats_scalar", "timestamp": 1, "task": "t"}
    rows = [
        [
            {**scalar, "metric": name.split("/")[0], "variant": name.split("/", 1)[1], "iter": k, "value": k / 4}
            for name in names
        ]
        for k in range(4)
    ]
    return [*rows, [{**scalar, "metric": "Summary", "variant": "best", "iter": -(2**31), "value": 1.0}]]


def test_a_clearml_session_as_folder_and_zip(tmp_path: Path) -> None:
    session = tmp_path / "offline-1"
    session.mkdir()
    (session / "task.json").write_text("{}")
    write(session / "metrics.jsonl", *session_lines(["train/loss", "rollout/response_len/mean"]))
    shutil.make_archive(str(tmp_path / "session"), "zip", session)
    for source in (session, tmp_path / "session.zip"):
        (run,) = read_runs(str(source))
        assert values(run, "rollout/response_len/mean") == [0, 0.25, 0.5, 0.75]
        assert run.zero_may_be_nan
        assert run.skipped == ("Summary/best: a value of the whole run",)


SESSION = """
import sys
from clearml import Task
from clearml.utilities.check_updates import CheckPackageUpdates
CheckPackageUpdates._package_version_checked = True  # the one name that it would look up
Task.set_offline(True)
task = Task.init("p", "t", reuse_last_task_id=False, auto_connect_arg_parser=False, auto_connect_frameworks=False,
                 auto_connect_streams=False, auto_resource_monitoring=False)
for step in range(30):
    task.get_logger().report_scalar("train", "grad_norm", float("nan") if step == 9 else 1 + step / 100, step)
task.close()
"""


def test_a_session_that_clearml_wrote_has_0_for_nan(tmp_path: Path) -> None:
    pytest.importorskip("clearml")
    environment = {**os.environ, "HOME": str(tmp_path), "CLEARML_OFFLINE_MODE": "1", "CLEARML_VCS_DIFF": "IA=="}
    subprocess.run([sys.executable, "-c", SESSION], env=environment, check=True, timeout=300, capture_output=True)
    (archive,) = tmp_path.rglob("offline-*.zip")
    (run,) = read_runs(str(archive))
    assert run.curves["train/grad_norm"].values[9] == 0.0
    read = without_odd_zeros(run.curves)["train/grad_norm"].values
    assert np.flatnonzero(np.isnan(read)).tolist() == [9]


def test_a_task_and_a_run_of_servers_are_asked_for_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins of both packages, which answer in the shapes that they document."""
    scalars = {"train": {"loss": {"name": "loss", "x": [0, 1], "y": [0.5, 0.25]}}}
    task = SimpleNamespace(get_all_reported_scalars=lambda x_axis: scalars if x_axis == "iter" else {})
    clearml = SimpleNamespace(Task=SimpleNamespace(get_task=lambda task_id: task))
    monkeypatch.setitem(sys.modules, "clearml", clearml)
    (run,) = read_runs("clearml:0123")
    assert (run.name, values(run, "train/loss")) == ("clearml:0123", [0.5, 0.25])
    history = [{"_step": 7, "train/step": k, "train/loss": "NaN" if k else 1.0, "gap": None} for k in range(2)]
    served = SimpleNamespace(scan_history=lambda: iter(history), state="crashed")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Api=lambda: SimpleNamespace(run=lambda path: served)))
    monkeypatch.setitem(
        sys.modules, "wandb.errors", SimpleNamespace(CommError=ConnectionError, UsageError=PermissionError)
    )
    (run,) = read_runs("wandb:me/grpo/a1b2")
    assert run.ending == "killed"
    assert set(run.curves) == {"train/loss"}
    assert math.isnan(values(run, "train/loss")[1])


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("task.json", "{}")
        archive.writestr("metrics.jsonl", "no json\n")
    with pytest.raises(InputError, match=r"a\.zip"):
        read_runs(str(tmp_path / "a.zip"))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(NotRecognised):
        read_runs(str(tmp_path / "other.zip"))


def test_an_offline_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for variable in ("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    quiet = wandb.Settings(mode="offline", silent=True, console="off", x_disable_stats=True, disable_git=True)
    with wandb.init(project="p", dir=str(tmp_path), settings=quiet) as session:
        for step in range(12):
            odd = math.nan if step == 3 else 1.0
            session.log({"train/loss": step / 3, "train/step": step, "odd": odd, "name": "x" * 5_000}, step=step)
    wandb.teardown()  # returns once the process that writes the file has ended
    (run,) = read_runs(str(tmp_path))
    assert values(run, "train/loss") == [k / 3 for k in range(12)]
    assert math.isnan(run.curves["odd"].values[3])
    assert run.ending == "completed"
    assert "name: not a number" in run.skipped
    (file,) = tmp_path.rglob("*.wandb")
    assert file.stat().st_size > 1 << 15  # so that a record lies across two blocks
    broken = tmp_path / "run.wandb"
    broken.write_bytes(file.read_bytes()[:40_000])
    (cut,) = read_runs(str(broken))
    assert cut.ending is None
    assert 0 < len(cut.curves["train/loss"].steps) < 12
    assert any("cut off" in sentence for sentence in cut.skipped)


def test_a_server_is_asked_only_for_an_address_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clearml", None)
    with pytest.raises(UsageError, match="pip install"):
        read_runs("clearml:0123")


def test_names_of_the_user_go_first_and_leave_out(tmp_path: Path) -> None:
    rows = [{"step": k, "my/score": k, "x/y": 1.0, "critic/score/mean": 2.0} for k in range(2)]
    source = write(tmp_path / "a.jsonl", *rows)
    for name, text in (
        ("names.json", '{"my/score": "rollout/raw_reward", "x/y": ""}'),
        ("names.toml", '"my/score" = "rollout/raw_reward"\n"x/y" = ""\n'),
    ):
        (tmp_path / name).write_text(text)
        (run,) = read_runs(source, load_names(tmp_path / name))
        assert values(run, "rollout/raw_reward") == [0, 1]
        assert any("x/y: left out" in sentence for sentence in run.skipped)
        assert any("already there" in sentence for sentence in run.skipped)
    (tmp_path / "bad.json").write_text('{"a": 3}')
    with pytest.raises(InputError, match="'a'"):
        load_names(tmp_path / "bad.json")
    assert Names().own == {}


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["step", "train/step", "train/loss", "x"]), ODD), max_size=6))
def test_any_records_give_curves_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    source = write(tmp_path_factory.mktemp("lines") / "a.jsonl", {"step": 0, "train/loss": 1.0}, *rows)
    try:
        (run,) = read_runs(source)
    except InputError:
        return
    assert {"train/loss"} <= run.curves.keys()
    assert all(np.diff(curve.steps).min(initial=1) > 0 for curve in run.curves.values())


def test_a_directory_without_runs_is_not_recognised(tmp_path: Path) -> None:
    with pytest.raises(NotRecognised, match="TensorBoard"):
        read_runs(str(tmp_path))


def test_a_last_line_that_breaks_off_is_left_out_and_said(tmp_path: Path) -> None:
    rows = [{"step": k, "rollout/raw_reward": k / 4} for k in range(3)]
    path = tmp_path / "killed.jsonl"
    write(path, *rows)
    with path.open("a") as file:
        file.write('{"step": 3, "rollout/raw_re')
    (run,) = read_runs(str(path))
    assert values(run, "rollout/raw_reward") == [0, 0.25, 0.5]
    assert "killed.jsonl:4" in run.skipped[0] and "breaks off" in run.skipped[0]
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=r"killed.jsonl:4: "):
        read_runs(str(path))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", "step,reward\n1,high\n", "reward: not a number"),
        ("a.log", "\n", "the file is empty"),
        ("a.jsonl", '{"step": 1}\n', "not recognised"),
    ],
)
def test_a_source_without_metrics_says_why(tmp_path: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=told):
        read_runs(str(tmp_path / name))
