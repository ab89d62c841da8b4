"""A damaged checkpoint is refused before anything starts, with the sound one before it offered."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.errors import InputError
from parity.records.experiment import ExperimentConfig
from parity.records.store import RunStore, create_experiment, run_store, seal_checkpoint
from parity.runner import Watcher, _check_checkpoints

CONFIG = ExperimentConfig("per-sample", "native", twin_steps=4, designs=("twin",))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A twin, two steps of four finished in each arm, with the checkpoints that such an end leaves."""
    create_experiment(tmp_path, {"nonce": "0123abcd", "designs": ["twin"], "config": CONFIG.to_json()})
    for store in stores(tmp_path):
        store.create()
        for step in range(3):
            store.checkpoint_path(step).mkdir()
            (store.checkpoint_path(step) / "model.safetensors").write_text(f"{store.name} {step}")
            seal_checkpoint(store.checkpoint_path(step))
        for step in range(2):
            store.append_metrics({"step": step})
    return tmp_path


def stores(out: Path) -> list[RunStore]:
    return [run_store(out, f"{arm}-seed0") for arm in ("per-sample", "native")]


def check(out: Path, rewind: bool = False) -> list[str]:
    said: list[str] = []
    _check_checkpoints(CONFIG, out, Watcher(lambda _: None, said.append), rewind)
    return said


def damage(out: Path, step: int) -> None:
    (stores(out)[1].checkpoint_path(step) / "model.safetensors").write_text("other")


def test_sound_checkpoints_are_gone_on_from(out: Path) -> None:
    assert check(out) == check(out, rewind=True) == []


def test_a_damaged_one_is_refused_and_the_one_before_is_offered(out: Path) -> None:
    damage(out, 2)
    with pytest.raises(InputError, match=r"(?s)step-000002/model\.safetensors.*step 1 before it is sound.*--rewind"):
        check(out)
    (said,) = check(out, rewind=True)
    assert said.startswith("native-seed0: back to step 1")
    assert [store.finished_steps() for store in stores(out)] == [2, 1]
    assert check(out) == []


def test_without_a_sound_one_before_it_nothing_is_offered(out: Path) -> None:
    damage(out, 1)
    damage(out, 2)
    for rewind in (False, True):
        with pytest.raises(InputError, match="no sound one before"):
            check(out, rewind)
