from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.errors import InputError, UsageError
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample
from parity.records.store import (
    DIGESTS_FILE,
    RunStore,
    create_experiment,
    exclusive,
    read_experiment,
    seal_checkpoint,
    write_atomically,
)


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path / "runs" / "native-seed1")
    store.create()
    return store


def finish(run: RunStore, step: int) -> None:
    rollout = Rollout.from_samples([Sample(0, 0, rollout_id=step, output_ids=[1, 2], logprobs=[-0.5, -0.25])])
    run.write_step(step, rollout, [Exchange({"input_ids": [1]}, 200, {"text": "x"}, rollout_id=step)])
    run.checkpoint_path(step + 1).mkdir()
    run.append_metrics({"step": step, "train/loss": 0.125 * step})


def test_what_was_written_is_read_again(run: RunStore) -> None:
    finish(run, 0)
    assert run.metrics() == [{"step": 0, "train/loss": 0.0}]
    assert next(run.rollout(0).samples()).logprobs == [-0.5, -0.25]
    assert next(run.exchanges(0)).response == {"text": "x"}


def test_a_step_is_counted_once(run: RunStore) -> None:
    finish(run, 0)
    for step in (0, 2):
        with pytest.raises(InputError, match=f"{step}.* 1 "):
            run.append_metrics({"step": step})


def test_a_line_cut_off_while_it_was_written_is_no_finished_step(run: RunStore) -> None:
    for step in range(3):
        finish(run, step)
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    (run.path / "rollouts" / ".step-000003.parquet.partial").write_bytes(b"half")
    run.drop_unfinished()
    assert run.finished_steps() == 2
    assert {item.name for item in (run.path / "rollouts").iterdir()} == {"step-000000.parquet", "step-000001.parquet"}
    # the checkpoint that the cut-off step starts from stays; the one it made goes
    assert [item.name for item in sorted((run.path / "checkpoints").iterdir())] == ["step-000001", "step-000002"]
    finish(run, 2)
    assert run.finished_steps() == 3


def test_a_step_without_its_line_is_written_and_not_finished(run: RunStore) -> None:
    finish(run, 0)
    run.write_step(1, run.rollout(0), [])
    assert (run.finished_steps(), run.written_steps()) == (1, 2)
    run.exchanges_path(1).unlink()  # they are written last
    assert run.written_steps() == 1


def test_checkpoints_before_the_last_step_go(run: RunStore) -> None:
    for step in range(3):
        finish(run, step)
    run.prune_checkpoints(keep_from=2)
    assert [item.name for item in sorted((run.path / "checkpoints").iterdir())] == ["step-000002", "step-000003"]


def test_a_hole_in_the_steps_is_an_error(run: RunStore) -> None:
    (run.path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 2}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: .*2.*1"):
        run.metrics()


def test_a_nan_stays_a_nan(run: RunStore) -> None:
    run.append_metrics({"step": 0, "train/loss": math.nan})
    assert math.isnan(run.metrics()[0]["train/loss"])


def test_an_experiment_is_not_started_over(tmp_path: Path) -> None:
    create_experiment(tmp_path, {"baseline": "per-sample"})
    with pytest.raises(UsageError, match="--resume"):
        create_experiment(tmp_path, {"baseline": "batched"})
    assert read_experiment(tmp_path) == {"baseline": "per-sample"}


def test_only_one_process_writes_to_an_experiment(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(UsageError, match=re.escape(str(tmp_path))), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def test_a_broken_experiment_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        read_experiment(tmp_path)
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(InputError, match=r"experiment\.json"):
        read_experiment(tmp_path)
    (tmp_path / "experiment.json").write_text("[]")
    with pytest.raises(InputError, match=r"experiment\.json.*list"):
        read_experiment(tmp_path)


def test_an_atomic_write_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"1")
    write_atomically(path, json.dumps({"a": 1}).encode())
    assert [item.name for item in tmp_path.iterdir()] == ["file.json"]
    assert json.loads(path.read_bytes()) == {"a": 1}


def test_how_many_steps_are_finished_is_read_off_the_last_whole_line(run: RunStore) -> None:
    path = run.path / "metrics.jsonl"
    assert run.finished_steps() == 0
    for content, steps in (
        (b"", 0),
        (b'{"step": 0', 0),
        (b'{"step": 0}\n', 1),
        (b'{"step": 0}\n{"step": 1, "x": "' + b"a" * 200_000 + b'"}\n', 2),
        (b'{"step": 0}\n{"step": 1}\n{"step": 2, "x": "' + b"a" * 200_000, 2),
        (b'{"step": 0}\n{"step": 1}\n{"st', 2),
    ):
        path.write_bytes(content)
        assert run.finished_steps() == steps
        assert run.finished_steps() == len(run.metrics())
    path.write_bytes(b'{"step": 0}\nhalf\n')
    with pytest.raises(InputError, match="last line"):
        run.finished_steps()


def sealed(run: RunStore, step: int) -> Path:
    path = run.checkpoint_path(step)
    path.mkdir(exist_ok=True)
    for name in ("model.safetensors", "trainer.json"):
        (path / name).write_bytes(f"{name} of step {step}".encode())
    seal_checkpoint(path)
    return path


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [flip_a_bit, Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("name", ["model.safetensors", "trainer.json"])
def test_a_checkpoint_is_sound_as_it_was_saved_and_not_otherwise(
    run: RunStore, damage: Callable[[Path], object], name: str
) -> None:
    path = sealed(run, 3)
    assert run.damage_of_checkpoint(3) == ""
    damage(path / name)
    assert str(path / name) in run.damage_of_checkpoint(3)


def test_a_checkpoint_without_digests_is_damaged(run: RunStore) -> None:
    (sealed(run, 1) / DIGESTS_FILE).unlink()
    assert DIGESTS_FILE in run.damage_of_checkpoint(1)


def test_a_run_that_is_rewound_makes_its_last_step_again(run: RunStore) -> None:
    sealed(run, 0)
    for step in range(2):
        finish(run, step)
    run.rewind()
    assert (run.finished_steps(), run.written_steps()) == (1, 1)
    assert not run.checkpoint_path(2).exists()
    finish(run, 1)
    assert run.finished_steps() == 2


def test_what_is_on_disk_outlives_a_loss_of_power(run: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file system that keeps what was synced alone: content by its file, names by their directory."""
    kept: dict[Path, bytes | set[str]] = {}

    def sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        kept[path] = {item.name for item in path.iterdir()} if path.is_dir() else path.read_bytes()

    monkeypatch.setattr(os, "fsync", sync)
    finish(run, 0)
    run.append_event("end", 1.0)
    run.write_outcome({"status": "completed"})
    for path in (
        run.path / "metrics.jsonl",
        run.path / "events.jsonl",
        run.path / "run.json",
        run.rollout_path(0),
        run.exchanges_path(0),
    ):
        names = kept[path.parent]
        assert isinstance(names, set)
        assert path.name in names
        synced = kept.get(path, kept.get(path.with_name(f".{path.name}.partial")))
        assert synced == path.read_bytes()
