"""Faults of the patch, the host and the trainer: what samples hold, what requests account for, what a twin shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.faults.clean import CAP, EPSILON, FIRST_WORD, SIZE, advantages_of, groups_of, reward_of
from parity.faults.edits import (
    OUTPUT_FIELDS,
    Plant,
    aborted,
    assign,
    copy_output,
    drop,
    edit,
    edit_list,
    in_turn,
    longest_of,
    rewarded,
    rewrite,
    rotate,
    set_all,
    set_entry,
    set_group,
    set_one,
    swap,
    swap_groups,
    swap_unlike,
)
from parity.faults.scenes import Scene
from parity.records.samples import Sample

Floats = npt.NDArray[Any]


def _clone_pairs(every: int) -> Plant:
    """In every so many-th group, one sample becomes a copy of the longest."""

    def plant(scene: Scene) -> None:
        for group in list(groups_of(scene.samples))[every - 1 :: every]:
            longest = longest_of(group)
            copy_output(longest, group[0] if longest is not group[0] else group[1])

    return rewarded(plant)


def _copy_longest(scene: Scene) -> None:
    for group in groups_of(scene.samples):
        longest = longest_of(group)
        for sample in group:
            copy_output(longest, sample)


def _shift_logprobs(scene: Scene) -> None:
    for sample in scene.samples:
        values = sample.logprobs or []
        sample.logprobs = [*values[1:], *values[:1]]


def _reuse_seeds(scene: Scene) -> None:
    for first, second in zip(scene.group(0), scene.group(1), strict=True):
        second.sampling_seed = first.sampling_seed


def _share_prefixes(scene: Scene) -> None:
    longest = longest_of(scene.group())
    prefix = (longest.output_ids or [])[:-1]
    for sample in scene.group()[:3]:
        if sample is not longest:
            rewrite(sample, [*prefix, FIRST_WORD + sample.index])
            sample.finish_reason, sample.status = "length", "truncated"


def _append_end(sample: Sample) -> None:
    rewrite(sample, [*(sample.output_ids or ()), FIRST_WORD + 1])
    assert sample.logprobs is not None
    sample.logprobs[-1] = 0.0


def _repeat(scene: Scene) -> None:
    scene.samples[:] = [replace(sample) for group in groups_of(scene.samples) for _ in range(SIZE) for sample in group]


def _stride(scene: Scene) -> None:
    """Prompts are repeated p1 p2 p1 p2, groups are read as p1 p1 p2 p2."""
    mixed = [sample for pair in zip(scene.group(0), scene.group(1), strict=True) for sample in pair]
    for place, sample in enumerate(mixed):
        sample.group_index, sample.index = divmod(place, SIZE)
    scene.samples[:] = mixed


def _swap_across_groups(scene: Scene) -> None:
    """One sample of each of two groups, with equal rewards, swap outputs."""
    pairs = [
        (first, second)
        for first in scene.group(0)
        for second in scene.group(1)
        if first.reward == second.reward and first.output_ids != second.output_ids
    ]
    swap(*pairs[0], OUTPUT_FIELDS)


def _score_by_other_label(scene: Scene) -> None:
    """The first prompt's label is the opposite of the second's."""
    for sample in scene.group(1):
        sample.reward = 1.0 - reward_of(sample)


def _answer_first(**fields: Any) -> Plant:
    """Changes what is recorded of the first exchange."""

    def plant(scene: Scene) -> None:
        scene.exchanges[0] = replace(scene.exchanges[0], **fields)

    return plant


def _lose_group(status: int, text: str) -> Plant:
    """The first group's request fails and is not retried."""
    return in_turn(_answer_first(status=status, response={"error": {"message": text}}), drop(0))


def _answer_twice(scene: Scene) -> None:
    """The first connection is cut after the response, and the group is requested again."""
    response = deepcopy(scene.exchanges[0].response)
    for body in response:
        body["meta_info"]["id"] += "-again"
    scene.exchanges.insert(1, replace(scene.exchanges[0], response=response))


def _one_group_each(scene: Scene) -> None:
    for number, sample in enumerate(scene.samples):
        sample.group_index, sample.index, sample.advantage = number, 0, sample.reward


def _group_of_one(scene: Scene) -> None:
    scene.samples[:] = [sample for sample in scene.samples if sample.index == 0]
    scene.rules = replace(scene.rules, group_size=1)
    set_group(advantage=math.nan)(scene)


def _request_with(**params: object) -> Plant:
    """Changes sampling parameters of the first request, but not of its samples."""

    def plant(scene: Scene) -> None:
        request = scene.exchanges[0].request
        sent = {**request, "sampling_params": {**request["sampling_params"], **params}}
        scene.exchanges[0] = replace(scene.exchanges[0], request=sent)

    return plant


def _swap_texts(scene: Scene) -> None:
    first, second, *_ = (sample for sample in scene.group() if sample.reward == scene.group()[0].reward)
    swap(first, second, ("text",))


def _other_prompts(scene: Scene) -> None:
    """Another prompt of the same length replaces the first group's."""
    for sample in scene.group():
        sample.prompt_ids = [*(sample.prompt_ids or ())[:-2], FIRST_WORD, FIRST_WORD]
        sample.reward = reward_of(sample)


_TWICE_THE_CAP = rewarded(edit(lambda sample: rewrite(sample, [FIRST_WORD + k for k in range(2 * CAP)]), "length"))


def _advantages(formula: Callable[[Floats], Floats]) -> Plant:
    """Computes the advantages (rows,) of all rewards (rows,) by another formula."""

    def plant(scene: Scene) -> None:
        values = formula(np.array([sample.reward for sample in scene.samples]))
        for sample, value in zip(scene.samples, values, strict=True):
            sample.advantage = float(value)

    return plant


def _by_stride(rewards: Floats) -> Floats:
    whole = len(rewards) // SIZE * SIZE
    return np.concatenate([advantages_of(rewards[:whole].reshape(-1, SIZE)).ravel(), np.zeros(len(rewards) - whole)])


def _centred(rewards: Floats) -> Floats:
    groups = rewards.reshape(-1, SIZE)
    return np.asarray(groups - groups.mean(axis=1, keepdims=True))


def _population(rewards: Floats) -> Floats:
    deviation = rewards.reshape(-1, SIZE).std(axis=1, keepdims=True)
    return np.asarray(_centred(rewards) / (deviation + EPSILON)).ravel()


def _seeds_by_finish(scene: Scene) -> None:
    for seed, sample in enumerate(sorted(scene.group(), key=lambda sample: len(sample.output_ids or ()))):
        sample.sampling_seed = seed


def _reorder_all(scene: Scene) -> None:
    """Outputs reach the slots in another order, and every record agrees."""
    rotate(scene)
    response = scene.exchanges[0].response
    scene.exchanges[0] = replace(scene.exchanges[0], response=[response[-1], *response[:-1]])


def _round_logprobs(scene: Scene) -> None:
    for sample, body in zip(scene.group(), scene.exchanges[0].response, strict=True):
        sample.logprobs = [float(np.float32(value)) for value in sample.logprobs or ()]
        for triple in body["meta_info"]["output_token_logprobs"]:
            triple[0] = float(np.float32(triple[0]))


def _round_advantages(scene: Scene) -> None:
    for sample in scene.samples:
        sample.advantage = float(np.float32(sample.advantage or 0.0))


def _record(**metrics: float) -> Plant:
    """Replaces metrics of the experiment's first training step."""
    return lambda scene: scene.records[0].update({f"train/{name}": value for name, value in metrics.items()})


PLANTS: Mapping[str, Plant] = {
    "exchanged-outputs": lambda scene: swap_unlike(scene.samples, OUTPUT_FIELDS),
    "exchanged-rewards": rewarded(lambda scene: swap_unlike(scene.samples, ("reward",))),
    "truncated-zeroes-all": rewarded(set_all(reward=0.0)),
    "shifted-logprobs": _shift_logprobs,
    "copied-siblings": rewarded(_copy_longest),
    "rewards-of-neighbour": rewarded(swap_groups("reward")),
    "labels-of-first-prompt": rewarded(_score_by_other_label),
    "completions-of-other-group": _swap_across_groups,
    "n-squared": _repeat,
    "sample-lost": drop(0, SIZE - 1),
    "interleaved-groups": _stride,
    "outputs-rotated": rotate,
    "pair-cloned-in-every-group": _clone_pairs(1),
    "pair-cloned-in-tenth-group": _clone_pairs(10),
    "pair-cloned-in-hundredth-group": _clone_pairs(100),
    "shared-beginnings": rewarded(_share_prefixes),
    "one-seed-for-all": set_group(sampling_seed=42),
    "seeds-of-other-group": _reuse_seeds,
    "logprobs-thrown-away": set_one(logprobs=None),
    "logprobs-missing-in-arm": set_all(logprobs=None),
    "three-lengths": in_turn(edit_list("logprobs", lambda v: v.append(-1.0)), edit_list("loss_mask", list.pop)),
    "end-appended": rewarded(edit(_append_end, "stop")),
    "end-dropped": rewarded(edit(lambda sample: rewrite(sample, sample.output_ids[:-1]), "stop")),
    "mask-short": edit_list("loss_mask", list.pop),
    "mask-counts": set_entry("loss_mask", 0, 2),
    "nothing-trainable": edit(lambda sample: assign([sample], loss_mask=[0] * len(sample.output_ids)), "stop"),
    "length-off-by-one": edit(lambda sample: assign([sample], response_length=len(sample.output_ids) - 1)),
    "abort-left-stale": aborted(response_length=0),
    "partial-forgotten": aborted(output_ids=[], logprobs=[], loss_mask=[]),
    "abort-rewarded": aborted(reward=0.0),
    "aborted-by-publishing": set_group(finish_reason="abort", status="aborted", reward=None, advantage=None),
    "reward-nan": set_one(reward=math.nan, advantage=0.0),
    "truncated-unscored": rewarded(set_one("length", reward=None, advantage=None)),
    "status-pending": rewarded(set_one(status="pending", reward=None, advantage=None)),
    "truncated-says-completed": set_one("length", status="completed"),
    "reason-lost": set_one(finish_reason=None),
    "cut-says-stop": set_one("length", finish_reason="stop", status="completed"),
    "length-above-cap": _TWICE_THE_CAP,
    "context-overrun": _TWICE_THE_CAP,
    "group-lost-on-400": _lose_group(400, "batch_prompts_not_supported"),
    "group-lost-on-500": _lose_group(500, "Out of range float values are not JSON compliant"),
    "asked-twice": _answer_twice,
    "retry-unrecorded": _answer_first(attempt=2),
    "orphan-runs-on": lambda scene: scene.exchanges.append(replace(deepcopy(scene.exchanges[0]), group_index=77)),
    "media-lost": set_group(media_sha256=[]),
    "media-of-other-group": swap_groups("media_sha256"),
    "media-of-one-sibling": set_one(media_sha256=["f" * 64]),
    "media-kept-encoded": set_one(extra={"_encoded_media": "data:image/png;base64,iVBORw0KGgo="}),
    "media-kept-as-base64": set_one(extra={"pixels": "Q" * 5000}),
    "cache-above-prompt": set_one(cached_tokens=99),
    "prompt-shrunk": set_one(prompt_tokens=1, cached_tokens=0),
    "id-beyond-vocabulary": set_entry("output_ids", 0, 100_000),
    "padding-logprob": set_entry("logprobs", 1, -9999.0),
    "weights-stale": set_group(weight_versions=["v-1"]),
    "group-across-versions": lambda scene: assign(scene.group()[SIZE // 2 :], weight_versions=["v1"]),
    "temperature-of-one": set_one(temperature=0.7),
    "temperature-of-arm": set_group(temperature=0.9),
    "cap-halved": lambda scene: assign(scene.baseline, max_new_tokens=2 * CAP),
    "prompts-of-others": rewarded(_other_prompts),
    "temperature-in-request": _request_with(temperature=0.7),
    "parameter-added-to-request": _request_with(min_p=0.1),
    "texts-exchanged": _swap_texts,
    "token-masked": set_entry("loss_mask", 1, 0),
    "arms-mixed-in-group": set_one(arm="per-sample"),
    "slot-twice": edit(lambda sample: assign([sample], index=sample.index - 1)),
    "prompt-left-out": in_turn(drop(1), lambda scene: scene.exchanges.pop()),
    "other-size-in-arm": lambda scene: scene.baseline.pop(),
    "rows-shuffled": lambda scene: scene.samples.reverse(),
    "id-per-trajectory": _one_group_each,
    "single-has-nan": _group_of_one,
    "one-group-of-all": in_turn(drop(0, 3), _advantages(lambda rewards: advantages_of(rewards[None])[0])),
    "stride-over-uneven": in_turn(drop(0, 3), _advantages(_by_stride)),
    "deviation-of-population": _advantages(_population),
    "not-divided": _advantages(lambda rewards: _centred(rewards).ravel()),
    "left-one-out": _advantages(lambda rewards: _centred(rewards).ravel() * SIZE / (SIZE - 1)),
    "advantages-of-next-slot": _advantages(lambda r: np.roll(advantages_of(r.reshape(-1, SIZE)), 1, axis=1).ravel()),
    "advantages-negated": _advantages(lambda rewards: -advantages_of(rewards.reshape(-1, SIZE)).ravel()),
    "seeds-by-finish-order": _seeds_by_finish,
    "slots-by-finish-order": _reorder_all,
    "single-precision": _round_logprobs,
    "text-trimmed": edit(lambda sample: assign([sample], text=f"{sample.text} ")),
    "end-masked": set_entry("loss_mask", -1, 0, "stop"),
    "advantage-rounded": _round_advantages,
    "loss-by-tokens": _record(loss=0.011, grad_norm=1.4),
    "gradient-not-clipped": _record(grad_norm=1.6),
}
"""By name, what plants each fault in a scene of samples."""
