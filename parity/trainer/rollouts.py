"""One step's rollout: prompts to the engine by way of one arm, responses scored, advantages computed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL.Image import Image
from transformers import PreTrainedTokenizerFast

from parity.engines.vision import IMAGE_PAD
from parity.errors import ExchangeError, UsageError
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample
from parity.records.training_config import TrainingConfig
from parity.trainer.arm_path import ArmPath
from parity.trainer.group_sender import all_or_none, pending_group
from parity.trainer.grpo import group_advantages
from parity.trainer.policy import IMAGE_VOCABULARY
from parity.trainer.tasks import Task
from rollout_patch import Assignment, GroupReport, fixed
from rollout_patch.media import digest

_SEED_RANGE = 1 << 30


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """A rollout and how it was made.

    Attributes:
        rollout: The samples to train on, groups in order and slots in order inside them.
        exchanges: Every request sent for them, group by group.
        reports: One for each group.
        seconds: From the first request to the last response.
        compared: In a probe, samples of the same prompts in the other arm, which are not trained on.
        compared_exchanges: Every request sent for those.
    """

    rollout: Rollout
    exchanges: list[Exchange]
    reports: list[GroupReport]
    seconds: float
    compared: Rollout | None = None
    compared_exchanges: Sequence[Exchange] = ()


async def generate_rollout(
    *,
    task: Task,
    tokenizer: PreTrainedTokenizerFast,
    config: TrainingConfig,
    step: int,
    seed: int,
    arm: str | Callable[[int], Assignment],
    paths: Mapping[str, ArmPath],
    seeded: bool,
    after_scoring: Callable[[int, list[Sample]], None] | None = None,
) -> RolloutResult:
    """Generates, scores and normalises one step's groups, all of them at once.

    Args:
        task: Makes the prompts and scores the responses.
        tokenizer: Of the policy.
        config: Groups, group size and sampling parameters.
        step: Counted from 0; with `seed` it determines the prompts and, if `seeded`, every sampling seed.
        seed: Of the run.
        arm: The arm of every group, or which arms a group gets, by its index.
        paths: By arm, how its groups reach an engine.
        seeded: Whether each sample has a sampling seed of its own.
        after_scoring: Called with the step and its samples after rewards and before advantages; it may change them.

    Raises:
        PatchError: A group could not be generated; the requests of the others are cancelled.
        ExchangeError: A response has no text to score.
    """
    assign = arm if callable(arm) else lambda _: fixed(arm)
    groups = _groups(task, tokenizer, config, step, seed, seeded, assign, paths)
    started = time.perf_counter()
    reports = await all_or_none(paths[group.arm].send(group.samples, group.exchanges, group.images) for group in groups)
    seconds = time.perf_counter() - started
    samples = [sample for group in groups for sample in group.samples]
    _score(task, samples)
    if after_scoring is not None:
        after_scoring(step, samples)
    _normalise([group.samples for group in groups])
    rollout, exchanges = _gathered([group for group in groups if group.trained])
    compared = [group for group in groups if not group.trained]
    return RolloutResult(rollout, exchanges, reports, seconds, *(_gathered(compared) if compared else ()))


def placeholders_of(task: Task) -> frozenset[int]:
    """Token ids that stand for an image in a task's prompts."""
    return frozenset({IMAGE_VOCABULARY[IMAGE_PAD]} if task.has_images else ())


def sampling_seed_base(config: TrainingConfig, seed: int, step: int, group_index: int) -> int:
    """The sampling seed of slot 0 of a group; slot i has i more. Unique in a run, and below 2**31 as SGLang demands.

    Raises:
        UsageError: The run is too long for that.
    """
    index = (step * config.groups_per_step + group_index) * config.group_size
    if index + config.group_size > _SEED_RANGE:
        raise UsageError(f"step {step}: more than {_SEED_RANGE} samples have no sampling seeds of their own")
    offset = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8], "big") % _SEED_RANGE
    return offset + index


@dataclass(frozen=True, slots=True)
class _Group:
    """A prompt in one arm: its samples, the images that it shows, and the exchanges as they come."""

    arm: str
    trained: bool
    samples: list[Sample]
    images: Sequence[Image] = ()
    exchanges: list[Exchange] = field(default_factory=list)


def _groups(
    task: Task,
    tokenizer: PreTrainedTokenizerFast,
    config: TrainingConfig,
    step: int,
    seed: int,
    seeded: bool,
    assign: Callable[[int], Assignment],
    paths: Mapping[str, ArmPath],
) -> list[_Group]:
    """Every group of a step, once in each arm that it was assigned."""
    groups = []
    for group_index, prompt in enumerate(task.prompts(seed, step, config.groups_per_step)):
        view = task.view(prompt)
        place = {"rollout_id": step, "group_index": group_index}
        fields = {
            **place,
            "prompt_ids": tokenizer.encode(view.text),
            "max_new_tokens": task.max_new_tokens,
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "media_sha256": [digest(image) for image in view.images] if task.has_images else None,
        }
        base = sampling_seed_base(config, seed, step, group_index) if seeded else None
        assignment = assign(group_index)
        for arm in assignment.arms:
            extra: dict[str, Any] = {"prompt": prompt}
            if assignment.design != "fixed":
                extra["assignment"] = assignment.of_samples(arm, seed=seed, **place)
            samples = pending_group(config.group_size, extra, base, **{**fields, **paths[arm].arm.sampling})
            groups.append(_Group(arm, arm == assignment.arms[0], samples, view.images))
    return groups


def _gathered(groups: Sequence[_Group]) -> tuple[Rollout, list[Exchange]]:
    samples = [sample for group in groups for sample in group.samples]
    return Rollout.from_samples(samples), [exchange for group in groups for exchange in group.exchanges]


def _score(task: Task, samples: list[Sample]) -> None:
    for sample in samples:
        if sample.text is None:
            raise ExchangeError(
                f"step {sample.rollout_id}, group {sample.group_index}, slot {sample.index}: no text to score"
            )
        sample.reward = task.reward(sample.extra["prompt"], sample.text)


def _normalise(groups: list[list[Sample]]) -> None:
    rewards = np.asarray([[sample.reward for sample in group] for group in groups], dtype=np.float64)
    for group, advantages in zip(groups, group_advantages(rewards).tolist(), strict=True):
        for sample, advantage in zip(group, advantages, strict=True):
            sample.advantage = advantage
