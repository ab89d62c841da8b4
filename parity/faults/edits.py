"""Operations on samples that faults and controls are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np

from parity.faults.clean import advantages_of, groups_of, log_probs_of, reward_of
from parity.faults.scenes import Scene
from parity.records.samples import Sample

Plant = Callable[[Any], object]
"""Changes a scene in place; its result is ignored."""

OUTPUT_FIELDS = (
    "output_ids", "logprobs", "text", "finish_reason", "status", "loss_mask", "response_length", "weight_versions",
)  # fmt: skip
"""The fields of a sample that describe its output."""


def in_turn(*changes: Plant) -> Plant:
    """Several changes of the same object, applied in order."""

    def plant(target: Any) -> None:
        for change in changes:
            change(target)

    return plant


def assign(samples: Iterable[Sample], **fields: Any) -> None:
    """Sets fields of samples."""
    for sample in samples:
        for name, value in fields.items():
            setattr(sample, name, value)


def swap(first: Sample, second: Sample, names: Sequence[str]) -> None:
    """Two samples swap fields."""
    for name in names:
        values = getattr(first, name), getattr(second, name)
        setattr(second, name, values[0])
        setattr(first, name, values[1])


def swap_unlike(samples: Sequence[Sample], names: Sequence[str]) -> None:
    """Swaps fields of the first two neighbours in a group with different rewards; changes nothing without such."""
    for first, second in pairwise(samples):
        if first.group_index == second.group_index and first.reward != second.reward:
            swap(first, second, names)
            return


def swap_groups(name: str) -> Plant:
    """The first two groups swap one field, slot by slot."""

    def plant(scene: Scene) -> None:
        for first, second in zip(scene.group(0), scene.group(1), strict=True):
            swap(first, second, (name,))

    return plant


def edit(change: Plant, finish: str | None = None) -> Plant:
    """Changes one sample of the first group: the last with more than three tokens and this finish reason."""

    def plant(scene: Scene) -> None:
        group = [sample for sample in scene.group() if finish in (None, sample.finish_reason)]
        change([sample for sample in group if len(sample.output_ids or ()) > 3][-1])

    return plant


def set_one(finish: str | None = None, **fields: Any) -> Plant:
    """Sets fields of one sample."""
    return edit(lambda sample: assign([sample], **fields), finish)


def set_group(**fields: Any) -> Plant:
    """Sets fields of all samples of the first group."""
    return lambda scene: assign(scene.group(), **fields)


def set_all(**fields: Any) -> Plant:
    """Sets fields of all samples."""
    return lambda scene: assign(scene.samples, **fields)


def edit_list(name: str, change: Plant, finish: str | None = None) -> Plant:
    """Changes one list of one sample."""
    return edit(lambda sample: change(getattr(sample, name)), finish)


def set_entry(name: str, place: int, value: Any, finish: str | None = None) -> Plant:
    """Replaces one entry of one list of one sample."""
    return edit_list(name, lambda values: values.__setitem__(place, value), finish)


def normalise(samples: Sequence[Sample]) -> None:
    """Recomputes advantages from the samples' rewards, by group, leaving out samples without a reward."""
    for group in groups_of(samples):
        kept = [sample for sample in group if sample.reward is not None]
        values = advantages_of(np.array([[sample.reward for sample in kept]], dtype=np.float64))[0] if kept else ()
        for sample, value in zip(kept, values, strict=True):
            sample.advantage = float(value)


def rewarded(change: Plant) -> Plant:
    """A change that happens before advantages are computed."""

    def plant(scene: Scene) -> None:
        change(scene)
        normalise(scene.samples)

    return plant


def abort(sample: Sample) -> None:
    """Marks a sample as aborted, as the contract allows: it has no reward and no advantage, and keeps its tokens."""
    assign([sample], finish_reason="abort", status="aborted", reward=None, advantage=None)


def aborted(**fields: Any) -> Plant:
    """Aborts one sample of the first group, then sets fields of it; its group's advantages leave it out."""
    return rewarded(edit(in_turn(abort, lambda sample: assign([sample], **fields))))


def rewrite(sample: Sample, ids: list[int]) -> None:
    """Gives a sample other tokens, and the log-probs, text, mask, length and reward that follow."""
    sample.output_ids, sample.logprobs = ids, log_probs_of(ids)
    sample.text, sample.loss_mask, sample.response_length = " ".join(map(str, ids)), [1] * len(ids), len(ids)
    sample.reward = reward_of(sample)


def copy_output(source: Sample, target: Sample) -> None:
    """Gives a sample the output and reward of another one."""
    for name in (*OUTPUT_FIELDS, "reward"):
        setattr(target, name, deepcopy(getattr(source, name)))


def longest_of(group: Iterable[Sample]) -> Sample:
    """The sample with the most tokens."""
    return max(group, key=lambda sample: len(sample.output_ids or ()))


def drop(group: int, slot: int | None = None) -> Plant:
    """Removes a group, or one sample of it."""

    def plant(scene: Scene) -> None:
        scene.samples[:] = [
            sample for sample in scene.samples if sample.group_index != group or slot not in (None, sample.index)
        ]

    return plant


def rotate(scene: Scene) -> None:
    """Slot i of the first group gets output i - 1, before advantages are computed."""
    group = scene.group()
    for source, target in zip(deepcopy([group[-1], *group[:-1]]), group, strict=True):
        copy_output(source, target)
    normalise(scene.samples)
