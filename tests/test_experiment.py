from __future__ import annotations

import json
from dataclasses import replace

import pytest

from parity.errors import UsageError
from parity.experiment import ExperimentConfig, plan_pairs
from parity.runner import choose_designs
from parity.training.config import TrainingConfig
from rollout_patch import Capabilities

NATIVE = ExperimentConfig("per-sample", "native", seeds=2, steps=3, twin_steps=4)
BATCHED = replace(NATIVE, experiment="batched")
PLAIN = Capabilities()
ONE_SEED = Capabilities(seeded=True)
SEED_PER_SLOT = Capabilities(seeded=True, seed_per_slot=True)


@pytest.mark.parametrize(
    ("config", "capabilities", "designs"),
    [
        (NATIVE, SEED_PER_SLOT, ("twin", "paired")),
        (NATIVE, PLAIN, ("replay", "paired")),
        # deterministic SGLang gives all n samples of a request one seed, but takes a seed an item of a list
        (NATIVE, ONE_SEED, ("replay", "paired")),
        (BATCHED, ONE_SEED, ("twin", "paired")),
    ],
)
def test_the_designs_follow_what_the_engine_can_promise(
    config: ExperimentConfig, capabilities: Capabilities, designs: tuple[str, ...]
) -> None:
    assert choose_designs(config, capabilities) == designs


@pytest.mark.parametrize(
    ("capabilities", "reason"), [(PLAIN, "does not honour sampling_seed"), (ONE_SEED, "a seeded group is n clones")]
)
def test_a_twin_that_could_not_be_equal_is_refused_with_the_reason(capabilities: Capabilities, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        choose_designs(replace(NATIVE, designs=("twin",)), capabilities)


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
