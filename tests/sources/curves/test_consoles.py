"""What trainers print and write: each in its own form, read to the same metrics under slime's names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.errors import InputError, NotRecognised, UsageError
from parity.sources.curves.recorded_runs import RecordedRun
from parity.sources.registry import read_runs

REWARD, LENGTH, LOSS = "rollout/raw_reward", "rollout/response_len/mean", "train/loss"


def read(tmp_path: Path, *lines: str, name: str = "run.log") -> RecordedRun:
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    (run,) = read_runs(str(tmp_path / name))
    return run


def values(run: RecordedRun, metric: str) -> dict[int, float]:
    curve = run.curves[metric]
    return dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


CONSOLES = {
    "TRL": [
        "{'loss': 0.5, 'grad_norm': 0.25, 'completion_length': 90.0, 'reward': 0.125, 'kl': 0.01, 'epoch': 0.1}",
        "  3%|3         | 2/60 [00:10<05:00]",
        "{'loss': 0.25, 'grad_norm': 0.5, 'completion_length': 80.0, 'reward': 0.25, 'kl': 0.02, 'epoch': 0.2}",
        "{'train_runtime': 12.5, 'train_loss': 0.4, 'epoch': 1.0}",
    ],
    "texts of Transformers 5": [
        "{'loss': '0.5', 'grad_norm': '0.25', 'completions/mean_length': '90', 'reward': '0.125', 'epoch': '0.1'}",
        "{'loss': '0.25', 'grad_norm': '0.5', 'completions/mean_length': '80', 'reward': '0.25', 'epoch': '0.2'}",
    ],
    "ms-swift": [
        "{'loss': 0.5, 'grad_norm': 0.25, 'completions/mean_length': 90.0, 'reward': 0.125, "
        "'global_step/max_steps': '1/438', 'percentage': '0.23%', 'elapsed_time': '1m 5s', 'memory(GiB)': 40.5}",
        "{'loss': 0.25, 'grad_norm': 0.5, 'completions/mean_length': 80.0, 'reward': 0.25, "
        "'global_step/max_steps': '2/438', 'percentage': '0.46%', 'elapsed_time': '2m 9s', 'memory(GiB)': 40.5}",
    ],
    "OpenRLHF": [
        "(PPOTrainer pid=7) INFO ppo_trainer.py:1] ✨ Global step 1: {'policy_loss': 0.5, 'reward': 0.125, "
        "'response_length': 90.0, 'kl': 0.01}",
        "(PPOTrainer pid=7) INFO ppo_trainer.py:1] ✨ Global step 2: {'policy_loss': 0.25, 'reward': 0.25, "
        "'response_length': 80.0, 'kl': 0.02}",
    ],
    "NeMo-RL": [
        "========================= Step 1/100 =========================",
        "▶ Preparing batch...",
        "📊 Training Results:",
        "  • Loss: 0.5000",
        "  • Generation KL Error: 0.0010",
        "  • Avg Reward: 0.1250",
        "  • Mean Generation Length: 90.0000",
        "⏱️  Timing:",
        "  • Total step time: 12.50s",
        "  • generation: 8.00s (64.0%)",
        "========================= Step 2/100 =========================",
        "  • Loss: 0.2500",
        "  • Avg Reward: 0.2500",
        "  • Mean Generation Length: 80.0000",
    ],
    "prime-rl": [
        "10:00:01 SUCCESS Step 1 | Time: 7.50s | Reward: 0.1250 | Throughput: 1500.0 tokens/s | "
        "Seq. Length: 90.0 tokens/sample | Async Level: 1",
        "Generating rollouts (train):  62%|######3   | 80/128 [00:00<00:00, 188.79it/s]",
        "10:00:09 SUCCESS Step 2 | Time: 8.50s | Reward: 0.2500 | Throughput: 1600.0 tokens/s | "
        "Seq. Length: 80.0 tokens/sample | Async Level: 2",
    ],
    "AReaL": [
        "20260101-10:00:00.000 StatsLogger INFO: Epoch 1/10 Step 1/934 Train step 1/9340 done.",
        "20260101-10:00:00.000 StatsLogger INFO: Stats (1/1):",
        "│ ppo_actor/task_reward/avg │ 1.2500e-01 │ ppo_actor/update/grad_norm │ 2.5000e-01 │",
        "│ ppo_actor/update/actor_loss/avg │ 5.0000e-01 │ timeperf/rollout │ 8.0 │",
        "20260101-10:01:00.000 StatsLogger INFO: Epoch 1/10 Step 2/934 Train step 2/9340 done.",
        "│ ppo_actor/task_reward/avg │ 2.5000e-01 │ ppo_actor/update/grad_norm │ 5.0000e-01 │",
    ],
    "ROLL": [
        '[2026-01-01 10:00:00] INFO [rlvr_pipeline.py (1)]: {"critic/score/mean": 0.125, "actor/pg_loss": 0.5, '
        '"tokens/response_length/mean": 90.0}',
        "[2026-01-01 10:00:00] INFO [rlvr_pipeline.py (2)]: pipeline step 1 finished",
        '[2026-01-01 10:01:00] INFO [rlvr_pipeline.py (1)]: {"critic/score/mean": 0.25, "actor/pg_loss": 0.25, '
        '"tokens/response_length/mean": 80.0}',
        "[2026-01-01 10:01:00] INFO [rlvr_pipeline.py (2)]: pipeline step 2 finished",
    ],
    "siiRL": [
        "step:1 - critic/score/mean:0.125 - actor/entropy_loss:0.5 - perf/delta_time/rollout:8.0",
        "step:2 - critic/score/mean:0.25 - actor/entropy_loss:0.5 - perf/delta_time/rollout:8.0",
    ],
    "early verl": [
        "step:1 - critic/score/mean:0.125 - timing/gen:8.0 - actor/entropy_loss:0.5",
        "step:2 - critic/score/mean:0.25 - timing/gen:8.0 - actor/entropy_loss:0.5",
    ],
}
LENGTHS = {"TRL", "texts of Transformers 5", "ms-swift", "OpenRLHF", "NeMo-RL", "ROLL"}
ROLLOUT_TIMES = {"AReaL", "siiRL", "early verl"}


@pytest.mark.parametrize("trainer", CONSOLES)
def test_a_console_is_read_under_slimes_names(trainer: str, tmp_path: Path) -> None:
    run = read(tmp_path, "Loading checkpoint shards: 100%", *CONSOLES[trainer], "done")
    assert values(run, REWARD) == {1: 0.125, 2: 0.25}
    if trainer in LENGTHS:
        assert values(run, LENGTH) == {1: 90.0, 2: 80.0}
    if trainer in ROLLOUT_TIMES:
        assert values(run, "perf/rollout_time")[1] == 8.0
    assert not {"epoch", "train_runtime"} & run.curves.keys()


def test_steps_that_a_log_does_not_print_are_numbered_and_that_is_stated(tmp_path: Path) -> None:
    assert any("numbered" in note for note in read(tmp_path, *CONSOLES["TRL"]).skipped)
    assert not any("numbered" in note for note in read(tmp_path, *CONSOLES["ms-swift"]).skipped)


def test_an_evaluation_belongs_to_the_step_before_it(tmp_path: Path) -> None:
    run = read(tmp_path, CONSOLES["TRL"][0], "{'eval_loss': 0.75, 'eval_reward': 0.5}", CONSOLES["TRL"][2])
    assert values(run, "eval_reward") == {1: 0.5}
    assert values(run, REWARD) == {1: 0.125, 2: 0.25}


def test_dictionaries_that_name_no_step_are_counted_beside_those_that_do(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "step 0: {'train/loss': 0.5}",
        "model.py:9 - {'train/loss': 0.25, 'train/grad_norm': 1.0}",
        "model.py:9 - {'rollout/raw_reward': 0.25}",
    )
    assert values(run, LOSS) == {0: 0.5}
    assert any(note.startswith("2 dictionaries") and "model.py:9" in note for note in run.skipped)


def test_a_name_twice_in_one_line_is_stated(tmp_path: Path) -> None:
    run = read(
        tmp_path, "step 0: {'train/loss': 0.5, 'train/loss': 0.25}", "step 1: {'train/loss': 1, 'train/loss': 1}"
    )
    assert values(run, LOSS) == {0: 0.25, 1: 1.0}
    assert any("train/loss (twice in one line)" in note for note in run.skipped)


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_ms_swifts_logging_file_with_its_summary(tmp_path: Path) -> None:
    rows = [{"loss": k / 4, "reward": k / 8, "global_step/max_steps": f"{k}/438"} for k in (1, 2, 3)]
    summary = {"global_step": 3, "log_history": rows, "memory": 72.5}
    (run,) = read_runs(str(write(tmp_path / "logging.jsonl", {"args": "x"}, *rows, summary)))
    assert values(run, REWARD) == {1: 0.125, 2: 0.25, 3: 0.375}
    assert "memory" not in run.curves
    assert any("1 records" in note for note in run.skipped)


def test_plain_names_and_names_of_trackers(tmp_path: Path) -> None:
    plain = [{"step": k, "reward": 0.5, "response_length": 9.0, "grad_norm": 1.0} for k in range(3)]
    (run,) = read_runs(str(write(tmp_path / "plain.jsonl", *plain)))
    assert {REWARD, LENGTH, "train/grad_norm"} == run.curves.keys()
    tracked = [
        {
            "train/global_step": k,
            "train/reward": 0.5,
            "train/completion_length": 9.0,
            "train/loss": 1.0,
            "train/kl": 0.1,
        }
        for k in range(3)
    ]
    (run,) = read_runs(str(write(tmp_path / "wandb.jsonl", *tracked)))
    assert {REWARD, LENGTH, LOSS, "train/kl_loss"} == run.curves.keys()


def metrics(reward: float) -> list[dict[str, float]]:
    return [{"step": k, "rollout/raw_reward": reward} for k in range(3)]


def test_a_folder_of_several_runs_is_several_runs(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / f"seed{seed}.jsonl", *metrics(seed / 4))
    runs = read_runs(str(tmp_path))
    assert [run.name for run in runs] == [f"{tmp_path}:seed{seed}" for seed in range(3)]
    assert [values(run, REWARD)[0] for run in runs] == [0.0, 0.25, 0.5]
    (chosen,) = read_runs(f"{tmp_path}:seed2")
    assert values(chosen, REWARD)[0] == 0.5
    with pytest.raises(UsageError, match="seed0"):
        read_runs(f"{tmp_path}:seed7")


def test_one_that_cannot_be_read_among_several_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *metrics(0.5))
    write(tmp_path / "b.jsonl", {"step": 0, "note": "x"}, {"step": 1, "rollout/raw_reward": "high"})
    (tmp_path / "c.jsonl").write_text('{"step": 0, "rollout/raw_reward": 0.5}\n{"step": oops\n')
    write(tmp_path / "d.jsonl", *metrics(0.25))
    runs = read_runs(str(tmp_path))
    assert [run.name for run in runs] == [f"{tmp_path}:a", f"{tmp_path}:d"]
    assert any("c.jsonl" in note for note in runs[0].skipped)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "d.jsonl").unlink()
    with pytest.raises(InputError):
        read_runs(str(tmp_path))


def test_a_run_of_a_chart_with_both_arms(tmp_path: Path) -> None:
    chart = tmp_path / "chart.csv"
    chart.write_text("Step,base - train/reward,native - train/reward\n0,0.5,0.25\n1,0.5,0.25\n")
    (native,) = read_runs(f"{chart}:native")
    assert (native.name, values(native, REWARD)) == (f"{chart}:native", {0: 0.25, 1: 0.25})


def test_the_events_of_a_run_are_no_metrics(tmp_path: Path) -> None:
    events = [{"event": "start", "time": 1.5, "step": 0}, {"event": "retry", "time": 2.5, "step": 1, "count": 3}]
    with pytest.raises(NotRecognised):
        read_runs(str(write(tmp_path / "events.jsonl", *events)))


def test_a_folder_of_samples_is_no_run(tmp_path: Path) -> None:
    row = {"input": "q", "output": "a", "score": 1.0, "step": 1}
    write(tmp_path / "rollouts" / "1.jsonl", row)
    for source in (tmp_path / "rollouts", tmp_path / "rollouts" / "1.jsonl"):
        with pytest.raises(NotRecognised):
            read_runs(str(source))
