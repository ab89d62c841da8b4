from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_experiment import SMALL, STEPS, TWIN, Here, curves, stores

from parity.records.store import run_store


def report_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "report" / "report.json").read_bytes()))


@pytest.mark.bits
def test_a_twin_of_a_sound_patch_is_equal_bit_for_bit(finished_twin: tuple[Path, str]) -> None:
    out, printed = finished_twin
    baseline, native = (curves(store) for store in stores(out))
    assert len(baseline) == STEPS
    assert baseline == native
    assert any(row["train/grad_norm"] > 0 for row in baseline)
    assert report_of(out)["verdict"] == "PARITY"
    assert any(line.startswith("PARITY: ") for line in printed.splitlines())


def test_each_step_is_one_plain_line(finished_twin: tuple[Path, str]) -> None:
    _, printed = finished_twin
    lines = [line for line in printed.splitlines() if line.startswith("twin ")]
    assert len(lines) == 2 * STEPS
    assert all("reward" in line and "s left]" in line for line in lines)


def test_the_arms_ask_as_their_names_say(finished_twin: tuple[Path, str]) -> None:
    out, _ = finished_twin
    for store, requests in zip(stores(out), (16, 4), strict=True):
        for step in range(STEPS):
            exchanges = list(store.exchanges(step))
            assert len(exchanges) == requests
            assert sum(len(exchange.outputs) for exchange in exchanges) == 16


def test_training_moves_the_weights_and_the_engine_follows(finished_twin: tuple[Path, str]) -> None:
    """The log-probs that the engine reports are those of the weights that the trainer has, at every step."""
    out, _ = finished_twin
    nonce = json.loads((out / "experiment.json").read_text())["nonce"]
    assert re.fullmatch("[0-9a-f]{8}", nonce)
    for store in stores(out):
        for step, row in enumerate(store.metrics()):
            assert row["train/train_rollout_logprob_abs_diff"] < 1e-4
            versions = store.rollout(step).table.column("weight_versions").to_pylist()
            assert {tuple(version) for version in versions} == {(f"{nonce}-{store.name}-step{step}",)}
        losses = [row["rollout/rollout_log_probs"] for row in store.metrics()]
        assert len(set(losses)) == STEPS


def test_the_report_has_the_eight_rows_and_its_files(finished_twin: tuple[Path, str]) -> None:
    out, _ = finished_twin
    report = (out / "report" / "report.md").read_text()
    names = ["output count", "response length", "rollout_log_probs length", "finish_reason", "reward", "advantage"]
    places = [report.index(f"\n| {name} |") for name in [*names, "loss", "grad norm"]]
    assert places == sorted(places)
    assert {path.suffix for path in (out / "report").iterdir()} == {".md", ".html", ".json", ".xml", ".png"}


def test_a_report_is_written_again_from_the_files_alone(finished_twin: tuple[Path, str], parity_here: Here) -> None:
    out, _ = finished_twin
    before = (out / "report" / "report.md").read_bytes()
    (out / "report" / "report.md").unlink()
    done = parity_here("report", out, "--json")
    assert done.returncode == 0, done.errors
    assert json.loads(done.printed)["verdict"] == "PARITY"
    assert (out / "report" / "report.md").read_bytes() == before


@pytest.mark.bits
def test_outputs_exchanged_after_scoring_are_found_at_their_step_group_and_slot(
    parity_here: Here, at_engine: tuple[str, ...], tmp_path: Path
) -> None:
    done = parity_here("run", *TWIN, *at_engine, "--plant", "exchanged-outputs@2", "--out", tmp_path / "out", "--quiet")
    assert (done.returncode, done.printed.strip()) == (1, "DIFFERENT"), done.errors
    baseline, changed = (list(store.rollout(2).samples()) for store in stores(tmp_path / "out"))
    moved = [
        (ours.group_index, ours.index)
        for ours, theirs in zip(baseline, changed, strict=True)
        if ours.text != theirs.text
    ]
    assert len(moved) == 2, "the fault moves two outputs of one group"
    findings = report_of(tmp_path / "out")["findings"]
    located = {
        (where["rollout_id"], where["group_index"], where["index"])
        for finding in findings
        if finding["status"] == "fail" and "index" in (where := finding["where"])
    }
    assert min(located) == (2, *moved[0])
    assert {place for place in located if place[0] == 2} <= {(2, *place) for place in moved}, "step 3 has other weights"
    # the curves leave each other at that step and not before
    before, after = (curves(store) for store in stores(tmp_path / "out"))
    assert before[:2] == after[:2]
    assert before[2]["train/loss"] != after[2]["train/loss"]


def test_samples_that_cannot_be_trained_on_are_judged_all_the_same(
    parity_here: Here, at_engine: tuple[str, ...], tmp_path: Path
) -> None:
    """Even those of the first step, so that no step is ever finished."""
    out = tmp_path / "out"
    done = parity_here("run", *TWIN, *at_engine, "--plant", "logprobs-missing-in-arm@0", "--out", out)
    assert done.returncode == 1, done
    assert "native-seed0: " in done.errors and "step 0, group 0, slot 0: logprobs " in done.errors
    report = report_of(out)
    assert report["verdict"] == "DIFFERENT"
    places = [
        one["where"] for one in report["findings"] if (one["check"], one["status"]) == ("samples_received", "fail")
    ]
    assert {(where["run"], where["rollout_id"]) for where in places} == {("native-seed0", 0)}
    assert [where["group_index"] for where in places] == [0, 1, 2, 3]
    native = stores(out)[1]
    assert (native.finished_steps(), native.outcome()["status"]) == (0, "failed")


def test_free_pairs_and_a_replay_of_them(parity_here: Here, at_engine: tuple[str, ...], tmp_path: Path) -> None:
    """Without seeds, one recording through both arms takes the twin's place."""
    out = tmp_path / "out"
    designs = ("--design", "replay", "--design", "paired", "--seeds", "2", "--steps", "2")
    done = parity_here("run", "--baseline", "--experiment", "batched", *designs, *SMALL, *at_engine, "--out", out)
    assert done.returncode == 0, done
    replays = [curves(run_store(out, f"replay-{arm}-seed1")) for arm in ("per-sample", "batched")]
    assert replays[0] == replays[1]
    # the baseline's replay trains as the run that was recorded did
    recorded = curves(run_store(out, "per-sample-seed1"))
    assert [row["train/loss"] for row in replays[0]] == [row["train/loss"] for row in recorded]
    free = curves(run_store(out, "batched-seed1"))
    assert [row["rollout/rollout_log_probs"] for row in free] != [row["rollout/rollout_log_probs"] for row in recorded]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--experiment", "per-sample"), "both arms are 'per-sample'"),
        (("--engine", "http://127.0.0.1:1"), "allow it with --control"),
        (("--engine", "vlm"), "no engine 'vlm': expected embedded, sglang, vllm or a URL; did you mean vllm?"),
        (("--task", "chess"), "'chess' is not one of 'arithmetic', 'digits'"),
        (("--steps", "0"), "--steps must be at least 1"),
        (("--plant", "gremlins@1"), "a run takes no such fault, but copied-siblings"),
        (("--plant", "exchanged-output@1"), "did you mean exchanged-outputs?"),
        (("--plant", "exchanged-outputs"), "such as exchanged-outputs@7"),
        (("--plant", "exchanged-outputs@40"), "steps count from 0, and the last one is 39"),
        (("--plant", "media-of-other-group@1"), "task arithmetic shows no images"),
        (("--resume",), "--resume needs --out"),
        (("--design", "replay"), "add --design paired"),
        (("--experiment", "streamed"), "'streamed' is not one of"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(
    arguments: tuple[str, ...], message: str, parity_here: Here, tmp_path: Path
) -> None:
    out = () if "--resume" in arguments else ("--out", tmp_path / "out")
    done = parity_here("run", *arguments, *out)
    assert done.returncode == 2
    assert message in done.errors
    assert "Traceback" not in done.errors


def test_an_experiment_is_neither_overwritten_nor_changed_by_a_resume(
    finished_twin: tuple[Path, str], parity_here: Here
) -> None:
    out, _ = finished_twin
    for arguments, message in (
        (("--out", out), "already holds an experiment"),
        (("--out", out, "--resume", "--twin-steps", "9"), f"twin_steps: {STEPS} there, 9 now"),
    ):
        done = parity_here("run", *arguments)
        assert done.returncode == 2
        assert message in done.errors


def test_nothing_is_nan(finished_twin: tuple[Path, str]) -> None:
    for store in stores(finished_twin[0]):
        assert all(math.isfinite(value) for row in store.metrics() for value in row.values())


def test_a_twin_that_is_not_finished_is_no_parity(
    finished_twin: tuple[Path, str], parity_here: Here, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished_twin[0], out)
    metrics = stores(out)[1].path / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    done = parity_here("report", out, "--json")
    assert done.returncode == 3, done.errors
    (unfinished,) = [one for one in json.loads(done.printed)["findings"] if one["check"] == "steps_finished"]
    assert (unfinished["status"], unfinished["where"]) == ("inconclusive", {"run": "native-seed0"})
    assert (unfinished["expected"], unfinished["observed"]) == (STEPS, STEPS - 1)
