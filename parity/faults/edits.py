"""Changes of samples that faults and controls are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from parity.faults.clean import MEDIUM, advantages_of, groups_of, log_probs_of, reward_of
from parity.faults.scenes import Plant, Scene
from parity.records.samples import Sample

OUTPUT_FIELDS = (
    "output_ids", "logprobs", "text", "finish_reason", "status", "loss_mask", "response_length", "weight_versions",
)  # fmt: skip
"""What a sample has of its output."""


def in_turn(*changes: Plant) -> Plant:
    """Several changes of one thing, one after the other."""

    def plant(scene: Any) -> None:
        for change in changes:
            change(scene)

    return plant


def show_image(tokens: int, more: int) -> Plant:
    """The first group's prompt begins with an image of so many tokens, and is counted with `more` that are of none."""

    def plant(scene: Scene) -> None:
        first = scene.exchanges[0]
        ids = [MEDIUM, *first.request["input_ids"]]
        scene.exchanges[0] = replace(first, request={**first.request, "input_ids": ids, "image_data": [["a"]]})
        for body in first.response:
            body["meta_info"].update(prompt_tokens=len(ids) - 1 + tokens + more, image_tokens=tokens)

    return plant


def assign(samples: Iterable[Sample], **fields: Any) -> None:
    """Sets fields of samples."""
    for sample in samples:
        for name, value in fields.items():
            setattr(sample, name, value)


def swap(first: Sample, second: Sample, names: Sequence[str]) -> None:
    """Two samples trade fields."""
    for name in names:
        ours, theirs = getattr(first, name), getattr(second, name)
        setattr(first, name, theirs)
        setattr(second, name, ours)


def _unlike(samples: Sequence[Sample]) -> tuple[Sample, Sample] | None:
    """The first neighbours of a group whose rewards differ."""
    for first, second in pairwise(samples):
        if first.group_index == second.group_index and first.reward != second.reward:
            return first, second
    return None


def exchange_fields(samples: Sequence[Sample], names: Sequence[str]) -> None:
    """Exchanges fields of the first neighbours of a group whose rewards differ; without such, nothing."""
    pair = _unlike(samples)
    if pair is not None:
        swap(*pair, names)


def edit(change: Plant, finish: str | None = None) -> Plant:
    """Changes one sample of the first group: the last of several tokens that ended so."""

    def plant(scene: Scene) -> None:
        ended = [sample for sample in scene.group() if finish in (None, sample.finish_reason)]
        change([sample for sample in ended if len(sample.output_ids or ()) > 3][-1])

    return plant


def set_one(finish: str | None = None, **fields: Any) -> Plant:
    """Sets fields of one sample."""
    return edit(lambda sample: assign([sample], **fields), finish)


def set_all(**fields: Any) -> Plant:
    """Sets fields of all samples of the first group."""
    return lambda scene: assign(scene.group(), **fields)


def normalise(samples: Sequence[Sample]) -> None:
    """Computes advantages again from the rewards that samples carry, by group and without what has none."""
    for group in groups_of(samples):
        kept = [sample for sample in group if sample.reward is not None]
        values = advantages_of(np.array([[sample.reward for sample in kept]], dtype=np.float64))[0] if kept else ()
        for sample, value in zip(kept, values, strict=True):
            sample.advantage = float(value)


def rewarded(change: Plant) -> Plant:
    """A change of rewards, before advantages are computed."""

    def plant(scene: Scene) -> None:
        change(scene)
        normalise(scene.samples)

    return plant


def abort(sample: Sample) -> None:
    """Marks a sample as aborted the sound way: no reward, no advantage, what it had kept."""
    sample.finish_reason, sample.status = "abort", "aborted"
    sample.reward = sample.advantage = None


def aborted(change: Plant) -> Plant:
    """Aborts one sample of the first group, and changes it; its siblings' advantages leave it out."""
    return rewarded(edit(in_turn(abort, change)))


def rewrite(sample: Sample, ids: list[int]) -> None:
    """Gives a sample other tokens, consistently, and the reward that follows."""
    sample.output_ids, sample.logprobs = ids, log_probs_of(ids)
    sample.text, sample.loss_mask, sample.response_length = " ".join(map(str, ids)), [1] * len(ids), len(ids)
    sample.reward = reward_of(sample)


def copy_output(source: Sample, target: Sample) -> None:
    """Gives a sample a sibling's output and reward."""
    for name in (*OUTPUT_FIELDS, "reward"):
        setattr(target, name, deepcopy(getattr(source, name)))


def drop(scene: Scene, rows: Callable[[Sample], bool]) -> None:
    """Loses samples."""
    scene.samples[:] = [sample for sample in scene.samples if not rows(sample)]


def edit_list(name: str, change: Plant, finish: str | None = None) -> Plant:
    """Changes one list of one sample."""
    return edit(lambda sample: change(getattr(sample, name)), finish)


def rotate(scene: Scene) -> None:
    """Slot i reads output i - 1; rewards and advantages are computed after that."""
    group = scene.group()
    sources = deepcopy([group[-1], *group[:-1]])
    for source, target in zip(sources, group, strict=True):
        copy_output(source, target)
