from __future__ import annotations

import json
from dataclasses import replace

from parity.records.experiment import ExperimentConfig, plan_pairs
from parity.records.training_config import TrainingConfig

NATIVE = ExperimentConfig("per-sample", "native", seeds=2, steps=3, twin_steps=4)


def test_pairs_have_seeds_of_their_own_and_a_replay_follows_its_recording() -> None:
    pairs = plan_pairs(NATIVE, ("twin", "paired"))
    assert [(pair.design, pair.seed, pair.steps) for pair in pairs] == [
        ("twin", 0, 4),
        ("paired", 1, 3),
        ("paired", 2, 3),
    ]
    assert pairs[1].names == ("per-sample-seed1", "native-seed1")
    replayed = plan_pairs(NATIVE, ("replay", "paired"))
    assert [pair.names[1] for pair in replayed] == ["native-seed1", "replay-native-seed1", "native-seed2"]
    for plan in (pairs, replayed):
        names = [name for pair in plan for name in pair.names]
        assert len(set(names)) == len(names)


def test_a_configuration_survives_its_file() -> None:
    config = replace(NATIVE, training=TrainingConfig(learning_rate=1e-2), plants=("exchanged-outputs@1",))
    assert ExperimentConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
