"""TRL's `GRPOTrainer` with the real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_engine import needs_vllm
from trl_training import GROUP, PROMPTS, TASK, of_training, train

from parity.engines import open_engine
from parity.trainer.warm_start import warm_start
from rollout_patch.hosts.trl import GroupRollout

pytestmark = [*needs_vllm, pytest.mark.filterwarnings("ignore::FutureWarning")]


def test_arms_train_the_same_to_the_bit(policy_cache: Path, tmp_path: Path) -> None:
    policy = warm_start(TASK, policy_cache)
    with open_engine("vllm", policy, tmp_path / "engine") as engine:
        runs = [
            train(policy, GroupRollout(engine.url, arm, weights=tmp_path / arm, seed=1), tmp_path / f"{arm}-out")
            for arm in ("per-sample", "native")
        ]
    (single_log, single), (native_log, native) = runs
    assert of_training(native_log) == of_training(single_log)
    assert native == single
    assert [log[0]["rollout_patch/requests"] for log in (single_log, native_log)] == [PROMPTS * GROUP, PROMPTS]
