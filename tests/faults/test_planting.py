from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.faults import planting
from parity.records.samples import Sample


def scored(*groups: list[float]) -> list[Sample]:
    return [
        Sample(group, slot, output_ids=[slot], text=str(slot), reward=reward)
        for group, rewards in enumerate(groups)
        for slot, reward in enumerate(rewards)
    ]


def test_exchanged_outputs_trade_places_while_rewards_stay() -> None:
    samples = scored([1.0, 1.0, 1.0], [0.0, 0.0, 1.0])
    planting(["exchanged-outputs@3"])(3, samples)
    assert [sample.text for sample in samples] == ["0", "1", "2", "0", "2", "1"]
    assert [sample.reward for sample in samples] == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]


def test_other_steps_stay_as_they_are() -> None:
    samples = scored([0.0, 1.0])
    planting(["exchanged-outputs@3"])(2, samples)
    assert samples == scored([0.0, 1.0])


def test_groups_without_a_difference_in_reward_have_nothing_to_exchange() -> None:
    samples = scored([0.0, 0.0], [1.0, 1.0])
    planting(["exchanged-outputs@0"])(0, samples)
    assert samples == scored([0.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exchanged-outputs", "NAME@STEP"),
        ("exchanged-outputs@", "NAME@STEP"),
        ("exchanged-outputs@-1", "NAME@STEP"),
        ("nothing@3", "no such fault, but copied-siblings"),
    ],
)
def test_a_fault_that_there_is_not_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        planting([text])
