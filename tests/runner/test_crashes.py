"""Whatever file operation a run dies at, torn writes and a second death on the way back included, it ends the same.

A toy in place of the trainer and of the engine leaves what a run does to files as it is. A death is one for files: no
operation below the experiment happens any more, however much the program still tidies up. Some points are drawn by a
seed; ``make crashes`` takes all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity import runner
from parity.records.experiment import ExperimentConfig, Pair
from parity.records.samples import Rollout, Sample
from parity.records.store import RunStore, run_store
from parity.trainer.policy import replacing_directory
from parity.trainer.rollouts import RolloutResult

STEPS = 3
PAIR = Pair("twin", 0, STEPS, ("per-sample", "native"))
CONFIG = ExperimentConfig("per-sample", "native", twin_steps=STEPS, designs=("twin",))
DRAWN = 24
ALL = os.environ.get("PARITY_CRASHES") == "all"


class Death(BaseException):
    """The process has died, as far as files are concerned."""


class Disk:
    """Counts operations on files below a directory, and stops them all from a chosen one on."""

    def __init__(self) -> None:
        self.root: Path | None = None
        self.at = self.count = 0
        self.torn = False
        sys.addaudithook(self._operation)

    def _operation(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.root is None:
            return
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            changes, path = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"), arguments and arguments[0]
        if changes and isinstance(path, (str, Path)) and (not os.path.isabs(path) or self._holds(str(path))):
            self._count()

    def _holds(self, path: str) -> bool:
        return path.startswith(str(self.root))

    def _count(self) -> None:
        self.count += 1
        if self.at and self.count >= self.at:
            raise Death

    def sync(self, descriptor: int) -> None:
        """In place of `os.fsync`: the file may have been written half when the process died."""
        if self.root is None:
            return
        self.count += 1
        if self.at and self.count >= self.at:
            if self.torn and self.count == self.at and not os.path.isdir(f"/proc/self/fd/{descriptor}"):
                os.truncate(f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_size // 2)
            raise Death

    @contextmanager
    def dying(self, root: Path, at: int, torn: bool = False) -> Iterator[None]:
        """Dies at the operation of this number, counted from 1; never at 0."""
        self.root, self.at, self.count, self.torn = root, at, 0, torn
        try:
            yield
        finally:
            self.root = None


DISK = Disk()


class ToyTrainer:
    """Weights are a digest of all that was trained on."""

    def __init__(self, checkpoint: Path, *_: object) -> None:
        self.weights = (checkpoint / "model.safetensors").read_text()

    def train(self, rollout: Rollout) -> dict[str, float]:
        self.weights = hashlib.sha256(f"{self.weights}{rollout.table.to_pylist()}".encode()).hexdigest()
        return {"train/loss": int(self.weights[:8], 16) / 2**32}

    def save(self, path: Path) -> None:
        with replacing_directory(path) as scratch:
            (scratch / "model.safetensors").write_text(self.weights)


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valid_samples: Callable[..., list[Sample]]
) -> Callable[[Path], None]:
    """Makes the runs of a pair, or goes on with them."""
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "model.safetensors").write_text("first")

    async def rollout(bench: Any, run: Any, step: int, recording: object) -> RolloutResult:
        seed = int(hashlib.sha256(f"{run.trainer.weights} {step}".encode()).hexdigest()[:8], 16)
        samples = valid_samples(seed=seed, groups=2, n=2)
        return RolloutResult(Rollout.from_samples(samples), [], [], 1.0)

    async def update_weights(path: Path, version: str) -> None:
        assert (path / "model.safetensors").exists()

    monkeypatch.setattr(os, "fsync", DISK.sync)
    monkeypatch.setattr(runner, "Trainer", ToyTrainer)
    monkeypatch.setattr(runner, "_rollout", rollout)
    monkeypatch.setattr(runner, "group_metrics", lambda reports: {})
    monkeypatch.setattr(runner, "_memory", lambda: 0)

    def go(out: Path) -> None:
        nothing: Any = None
        client: Any = SimpleNamespace(update_weights=update_weights)
        its = CONFIG.deployment("native")
        bench = runner._Bench(CONFIG, out, nothing, nothing, policy, {its: nothing}, {its: client}, {}, "")

        async def pair() -> None:
            runs = [runner._open_run(bench, PAIR, role, resume=True) for role in range(2)]
            async for _ in runner._run_pair(bench, PAIR, runs, runner.Watcher(lambda _: None, lambda _: None)):
                pass

        asyncio.run(pair())

    return go


def stores(out: Path) -> list[RunStore]:
    return [run_store(out, name) for name in PAIR.names]


def result(out: Path) -> list[Any]:
    """What must not depend on deaths: samples, metrics but times, the weights at the end, and that all is said done."""
    return [
        (
            [store.rollout(step).table.to_pylist() for step in range(STEPS)],
            [{name: value for name, value in row.items() if not name.startswith("perf/")} for row in store.metrics()],
            (store.checkpoint_path(STEPS) / "model.safetensors").read_text(),
            store.damage_of_checkpoint(STEPS),
            json.loads((store.path / "run.json").read_text())["status"],
        )
        for store in stores(out)
    ]


def test_a_run_that_dies_at_any_file_operation_ends_as_one_that_does_not(
    train: Callable[[Path], None], tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    with DISK.dying(undisturbed, 0):
        train(undisturbed)
    operations = DISK.count
    expected = result(undisturbed)
    assert operations > 60
    cases = [(at, torn) for at in range(1, operations + 1) for torn in (False, True)]
    rng = random.Random(20_261_201)
    for number, (at, torn) in enumerate(cases if ALL else rng.sample(cases, DRAWN)):
        out = tmp_path / f"out{number}"
        deaths = 0
        for point in (at, rng.randrange(1, operations), 0):
            try:
                with DISK.dying(out, point, torn):
                    train(out)
            except Death:
                deaths += 1
        assert deaths >= 1, f"no death at operation {at}"
        assert result(out) == expected, f"died at operation {at} of {operations}, torn: {torn}"
        left = {path.name for store in stores(out) for path in (store.path / "checkpoints").iterdir()}
        assert left <= {f"step-{step:06d}" for step in (STEPS - 1, STEPS)}, f"left behind at {at}: {left}"
