"""Logs as the hosts print them: every oddity that a saved log has, and what a run looks like that went back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError, NotRecognised
from parity.sources.curves.recorded_runs import RecordedRun
from parity.sources.registry import read_runs

RELAX = "2026-08-18 11:58:09 | INFO | relax.backends.megatron.model:1234 "
SLIME = "[2026-08-18 11:58:09] model.py:918 - "


def read(tmp_path: Path, *lines: str, name: str = "run.log") -> RecordedRun:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return read_runs(str(path))[0]


def values(run: RecordedRun, metric: str) -> dict[int, float]:
    curve = run.curves[metric]
    return dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


def test_a_line_of_each_host(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        SLIME + "step 3: {'train/loss': 0.25, 'train/grad_norm': 1.5, 'train/step': 3}",
        RELAX + "rollout 3: {'rollout/raw_reward': 0.5, 'rollout/advantages': -1e-09}",
        "[2026-08-18 11:58:09.123 rollout] metrics.py:89 - perf 3: {'perf/rollout_time': 12}",
    )
    assert {name: values(run, name) for name in run.curves} == {
        "train/loss": {3: 0.25},
        "train/grad_norm": {3: 1.5},
        "rollout/raw_reward": {3: 0.5},
        "rollout/advantages": {3: -1e-9},
        "perf/rollout_time": {3: 12.0},
    }
    assert not run.skipped


def test_colours_ray_and_grep_prefixes_and_progress_bars(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "logs/run.log:17:\x1b[36m(MegatronTrainRayActor pid=12, ip=10.0.0.1)\x1b[0m "
        + SLIME
        + "step 0: {'train/loss': 1.0}\x1b[0m",
        "Rollout:  50%|#####     | 4/8\r"
        + SLIME
        + "rollout 0: {'rollout/raw_reward': 0.5} [repeated 2x across cluster]",
    )
    assert values(run, "train/loss") == {0: 1.0}
    assert values(run, "rollout/raw_reward") == {0: 0.5}


def test_bare_nan_numpy_numbers_and_what_is_no_number(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        SLIME + "step 0: {'train/loss': nan, 'train/odd': inf, 'train/low': -inf, 'passrate/pass@1': np.float64(0.25), "
        "'t': tensor(2.5, device='cuda:0'), 'rollout/mode': 'async', 'flag': True, 'none': None}",
    )
    assert math.isnan(values(run, "train/loss")[0])
    assert values(run, "train/odd") == {0: math.inf}
    assert values(run, "train/low") == {0: -math.inf}
    assert values(run, "passrate/pass@1") == {0: 0.25}
    assert values(run, "t") == {0: 2.5}
    assert "none" not in run.curves or math.isnan(values(run, "none")[0])
    assert any("rollout/mode" in sentence and "flag" in sentence for sentence in run.skipped)


def test_a_dictionary_over_lines_of_one_actor_between_those_of_another(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "(Trainer pid=1) step 0: {'train/loss': 1.0,",
        "(Manager pid=2) rollout 0: {'rollout/raw_reward': 0.5}",
        "(Trainer pid=1)  'train/grad_norm':",
        "(Trainer pid=1)    2.0}",
    )
    assert values(run, "train/grad_norm") == {0: 2.0}
    assert values(run, "rollout/raw_reward") == {0: 0.5}


def test_lines_printed_twice_count_once(tmp_path: Path) -> None:
    line = SLIME + "step 0: {'train/loss': 1.0}"
    run = read(tmp_path, line, line, SLIME + "step 1: {'train/loss': 2.0}", line)
    assert values(run, "train/loss") == {0: 1.0, 1: 2.0}
    assert run.curves["train/loss"].rewound == ()


def test_two_producers_of_one_step_add_up_whichever_is_ahead(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "perf 0: {'perf/rollout_time': 1.0}",
        "perf 1: {'perf/rollout_time': 2.0}",
        "perf 0: {'perf/train_time': 5.0}",
        "perf 1: {'perf/train_time': 6.0}",
    )
    assert values(run, "perf/rollout_time") == {0: 1.0, 1: 2.0}
    assert values(run, "perf/train_time") == {0: 5.0, 1: 6.0}


def test_a_run_that_went_back_keeps_the_last_attempt_of_every_metric(tmp_path: Path) -> None:
    first = [f"step {k}: {{'train/loss': {k}.0, 'train/lr-pg_0': 0.1}}" for k in range(6)]
    again = [f"step {k}: {{'train/loss': {k}.5, 'train/lr-pg_0': 0.1}}" for k in range(3, 5)]
    run = read(tmp_path, *first, *again)
    assert values(run, "train/loss") == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.5, 4: 4.5}
    assert run.curves["train/loss"].rewound == (3, 4, 5)
    # Step 5 of the abandoned attempt is gone for the constant metric too.
    assert list(values(run, "train/lr-pg_0")) == [0, 1, 2, 3, 4]


def test_verl_under_slimes_names(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "(TaskRunner pid=77) step:1 - critic/score/mean:np.float64(0.5) - actor/grad_norm:1e-05 - "
        "response_length/clip_ratio:0.25 - perf/throughput:1000.0 - actor/loss:nan",
    )
    assert values(run, "rollout/raw_reward") == {1: 0.5}
    assert values(run, "train/grad_norm") == {1: 1e-5}
    assert values(run, "rollout/truncated_ratio") == {1: 0.25}
    assert values(run, "perf/throughput") == {1: 1000.0}
    assert math.isnan(values(run, "train/loss")[1])


@pytest.mark.parametrize(
    ("tail", "ending"),
    [
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"], "oom"),
        (["Traceback (most recent call last):", "httpx.HTTPStatusError: Server error '502 Bad Gateway'"], "502"),
        (["slurmstepd: error: *** JOB 7 CANCELLED AT 2026-01-01 ***"], "killed"),
        (["Traceback (most recent call last):", "  File x", "ValueError: no"], "error"),
        (["done"], None),
    ],
)
def test_how_a_run_ended_is_what_follows_its_last_metrics(tmp_path: Path, tail: list[str], ending: str | None) -> None:
    head = ["CUDA out of memory once, caught", "step 0: {'train/loss': 1.0}"]
    assert read(tmp_path, *head, *tail).ending == ending


def test_retried_requests_are_counted(tmp_path: Path) -> None:
    retry = "Error: 502, retrying... (attempt 3/60, url=http://10.0.0.1/generate, response=Bad Gateway)"
    run = read(tmp_path, "step 0: {'train/loss': 1.0}", retry, retry, "step 1: {'train/loss': 1.0}")
    assert run.incidents == {"retry": 2}
    assert run.ending is None


def test_a_dictionary_cut_off_is_said(tmp_path: Path) -> None:
    run = read(tmp_path, "step 0: {'train/loss': 1.0}", "step 1: {'train/loss': 1.0, 'train/gr")
    assert list(values(run, "train/loss")) == [0]
    assert any("never close" in sentence for sentence in run.skipped)


def test_a_text_without_metrics_is_not_recognised(tmp_path: Path) -> None:
    with pytest.raises(NotRecognised, match="trainer_state"):
        read(tmp_path, "hello", "world step 3 {")
    with pytest.raises(InputError, match="no such file"):
        read_runs(str(tmp_path / "absent.log"))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.text(alphabet="step rolut123:{}'/.,()np\x1b[m\r\n-eE", max_size=200))
def test_any_text_gives_curves_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("log") / "run.log"
    path.write_text("step 0: {'train/loss': 1.0}\n" + text, newline="")
    try:
        runs = read_runs(str(path))
    except InputError:
        return
    assert all(curve.steps.size for run in runs for curve in run.curves.values())
