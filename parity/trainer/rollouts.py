"""One step's rollout: prompts to the engine by way of one arm, responses scored, advantages computed."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL.Image import Image
from transformers import PreTrainedTokenizerFast

from parity.engines.answers import RETRY_WAIT
from parity.engines.router import ROUTING_KEY
from parity.engines.vision import IMAGE_PAD, png_data_urls
from parity.errors import ExchangeError, UsageError
from parity.records.exchanges import Exchange, output_id
from parity.records.samples import SAMPLE_FIELDS, STATUS_OF_FINISH_REASON, Rollout, Sample
from parity.records.training_config import TrainingConfig
from parity.trainer.grpo import group_advantages
from parity.trainer.policy import IMAGE_VOCABULARY
from parity.trainer.tasks import Task
from rollout_patch import (
    Assignment,
    Capabilities,
    GroupReport,
    Output,
    Permits,
    Post,
    SampleRequest,
    fixed,
    generate_group,
)
from rollout_patch.media import digest

SEQUENCES_IN_FLIGHT = 512
"""Most samples asked for at once, as slime's `--sglang-server-concurrency` is by default."""

_SEED_RANGE = 1 << 30


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """A rollout and how it was made.

    Attributes:
        rollout: The samples to train on, groups in order and slots in order inside them.
        exchanges: Every request sent for them, group by group.
        reports: One a group.
        seconds: From the first request to the last answer.
        compared: Samples of the same prompts in the other arm, which nothing is trained on; none outside a probe.
        compared_exchanges: Every request sent for those.
    """

    rollout: Rollout
    exchanges: list[Exchange]
    reports: list[GroupReport]
    seconds: float
    compared: Rollout | None = None
    compared_exchanges: Sequence[Exchange] = ()


def routing_headers(sample: Sample) -> dict[str, str]:
    """Headers that keep a group together in every arm, where the router's policy goes by keys."""
    return {ROUTING_KEY: f"{sample.rollout_id}-{sample.group_index}"}


class SampleAdapter:
    """Lets samples take part in `rollout_patch.generate_group`; `images` are what the prompt shows."""

    def __init__(self, images: Sequence[Image] = ()) -> None:
        self._images = images

    def request(self, sample: Sample) -> SampleRequest:
        """The prompt's ids and images, the sample's sampling parameters, and a wish for log-probs."""
        names = ("max_new_tokens", "temperature", "top_p", "top_k", "sampling_seed")
        params = {name: getattr(sample, name) for name in names if getattr(sample, name) is not None}
        return SampleRequest(
            params,
            input_ids=sample.prompt_ids,
            media={"image_data": self._images},
            options={"return_logprob": True},
            headers=routing_headers(sample),
        )

    def apply(self, sample: Sample, output: Output) -> None:
        """Fills in the response; the tokens of an aborted one are not trained on."""
        sample.output_ids, sample.logprobs, sample.text = output.output_ids, output.logprobs, output.text
        sample.finish_reason, sample.status = output.finish_reason, STATUS_OF_FINISH_REASON[output.finish_reason]
        sample.response_length = len(output.output_ids)
        sample.loss_mask = [int(sample.status != "aborted")] * sample.response_length
        sample.weight_versions = None if output.weight_version is None else [output.weight_version]
        sample.prompt_tokens, sample.cached_tokens = output.prompt_tokens, output.cached_tokens

    def snapshot(self, sample: Sample) -> dict[str, Any]:
        """Every field; `apply` replaces values and changes none in place."""
        return {name: getattr(sample, name) for name in SAMPLE_FIELDS}

    def restore(self, sample: Sample, snapshot: Any) -> None:
        """Every field as it was."""
        for name, value in snapshot.items():
            setattr(sample, name, value)


async def generate_rollout(
    *,
    task: Task,
    tokenizer: PreTrainedTokenizerFast,
    config: TrainingConfig,
    step: int,
    seed: int,
    arm: str | Callable[[int], Assignment],
    client_post: Post,
    capabilities: Capabilities,
    served_by: Callable[[str | None], str],
    seeded: bool,
    retries: int = 0,
    after_scoring: Callable[[int, list[Sample]], None] | None = None,
) -> RolloutResult:
    """Generates, scores and normalises one step's groups, all of them at once.

    Args:
        task: Makes the prompts and scores the responses.
        tokenizer: Of the policy.
        config: Groups, group size and sampling parameters.
        step: Counted from 0; with `seed` it determines the prompts and, if `seeded`, every sampling seed.
        seed: Of the run.
        arm: One of `rollout_patch.ARMS`, or which arms a group gets, by its index.
        client_post: Sends one `/generate` request.
        capabilities: Of the engine.
        served_by: Names the engine that gave an output, by the output's id; samples and exchanges carry the name.
        seeded: Whether each sample has a sampling seed of its own.
        retries: How often a request may be sent again.
        after_scoring: Told the step and its samples when they have rewards and no advantages yet; it may change them.

    Raises:
        PatchError: A group could not be generated; the requests of the others are cancelled.
        ExchangeError: A response has no text to score.
    """
    assign = arm if callable(arm) else lambda _: fixed(arm)
    every = _asked_groups(task, tokenizer, config, step, seed, seeded, assign)
    placeholders = {IMAGE_VOCABULARY[IMAGE_PAD]} if task.has_images else ()
    permits = Permits(asyncio.Semaphore(SEQUENCES_IN_FLIGHT), SEQUENCES_IN_FLIGHT)

    async def generate(asked: _AskedGroup) -> GroupReport:
        place = {"rollout_id": step, "group_index": asked.group_index}

        def record(row: dict[str, Any]) -> None:
            where = f"step {step}, group {asked.group_index}"
            engine_id = served_by(output_id(row["response"]))
            asked.exchanges.append(Exchange.from_json({**row, **place, "engine_id": engine_id}, where))

        return await generate_group(
            asked.arm,
            asked.samples,
            adapter=SampleAdapter(asked.images),
            post=client_post,
            capabilities=capabilities,
            retries=retries,
            retry_wait=RETRY_WAIT,
            recorder=record,
            permits=permits,
            encoder=png_data_urls,
            placeholders=placeholders,
        )

    started = time.perf_counter()
    reports = await _all_or_none([asyncio.ensure_future(generate(asked)) for asked in every])
    seconds = time.perf_counter() - started
    for asked, report in zip(every, reports, strict=True):
        _finish(asked.samples, report, served_by)
    samples = [sample for asked in every for sample in asked.samples]
    _score(task, samples)
    if after_scoring is not None:
        after_scoring(step, samples)
    _normalise([asked.samples for asked in every])
    rollout, exchanges = _gathered([asked for asked in every if asked.trained])
    compared = [asked for asked in every if not asked.trained]
    return RolloutResult(rollout, exchanges, reports, seconds, *(_gathered(compared) if compared else ()))


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
class _AskedGroup:
    """A prompt in one arm, its samples, the images that it shows, and the exchanges as they come."""

    group_index: int
    arm: str
    trained: bool
    samples: list[Sample]
    images: Sequence[Image] = ()
    exchanges: list[Exchange] = field(default_factory=list)


def _asked_groups(
    task: Task,
    tokenizer: PreTrainedTokenizerFast,
    config: TrainingConfig,
    step: int,
    seed: int,
    seeded: bool,
    assign: Callable[[int], Assignment],
) -> list[_AskedGroup]:
    """Every group of a step, once in each arm that it was assigned."""
    every = []
    for group_index, prompt in enumerate(task.prompts(seed, step, config.groups_per_step)):
        view = task.view(prompt)
        prompt_ids = tokenizer.encode(view.text)
        media = [digest(image) for image in view.images] if task.has_images else None
        base = sampling_seed_base(config, seed, step, group_index) if seeded else None
        assignment = assign(group_index)
        for arm in assignment.arms:
            trained = arm == assignment.arms[0]
            extra: dict[str, Any] = {"prompt": prompt}
            if assignment.design != "fixed":
                place = {"rollout_id": step, "group_index": group_index}
                extra["assignment"] = assignment.of_samples(arm, seed=seed, **place)
            group = [
                Sample(
                    group_index,
                    index,
                    rollout_id=step,
                    prompt_ids=prompt_ids,
                    status="pending",
                    max_new_tokens=task.max_new_tokens,
                    sampling_seed=None if base is None else base + index,
                    temperature=config.temperature,
                    top_p=config.top_p,
                    top_k=config.top_k,
                    media_sha256=media,
                    extra=dict(extra),
                )
                for index in range(config.group_size)
            ]
            every.append(_AskedGroup(group_index, arm, trained, group, view.images))
    return every


def _gathered(groups: Sequence[_AskedGroup]) -> tuple[Rollout, list[Exchange]]:
    samples = [sample for group in groups for sample in group.samples]
    return Rollout.from_samples(samples), [exchange for group in groups for exchange in group.exchanges]


async def _all_or_none(tasks: list[asyncio.Future[GroupReport]]) -> list[GroupReport]:
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _finish(group: list[Sample], report: GroupReport, served_by: Callable[[str | None], str]) -> None:
    for sample, output in zip(group, report.outputs, strict=True):
        sample.arm, sample.engine_id = report.arm_used, served_by(output.id)


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
