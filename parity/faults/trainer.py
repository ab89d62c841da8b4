"""Faults of the trainer and of one arm alone: advantages by another formula, and what only a twin shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.faults.clean import EPSILON, SIZE, advantages_of
from parity.faults.edits import drop, edit, edit_list, normalise, rotate
from parity.faults.scenes import ROLLOUT, TWIN, Fault, Plant, Scene
from parity.findings import Level

Floats = npt.NDArray[Any]


def _advantages(formula: Callable[[Floats], Floats]) -> Plant:
    """Advantages of all rewards (rows,) by another formula."""

    def plant(scene: Scene) -> None:
        values = formula(np.array([sample.reward for sample in scene.samples]))
        for sample, value in zip(scene.samples, values, strict=True):
            sample.advantage = float(value)

    return plant


def _by_stride(rewards: Floats) -> Floats:
    whole = rewards[: len(rewards) // SIZE * SIZE].reshape(-1, SIZE)
    rest = rewards[len(rewards) // SIZE * SIZE :]
    return np.concatenate([advantages_of(whole).ravel(), np.zeros(len(rest))])


def _population(rewards: Floats) -> Floats:
    groups = rewards.reshape(-1, SIZE)
    centred = groups - groups.mean(axis=1, keepdims=True)
    return np.asarray((centred / (groups.std(axis=1, keepdims=True) + EPSILON)).ravel())


def _uneven(plant: Plant) -> Plant:
    """One sample of the first group is lost before advantages are computed."""

    def both(scene: Scene) -> None:
        drop(scene, lambda sample: (sample.group_index, sample.index) == (0, 3))
        plant(scene)

    return both


def _seeds_by_finish(scene: Scene) -> None:
    """Seeds are dealt in the order of finishing, so that the arm decides which slot has which."""
    group = scene.group()
    for seed, sample in enumerate(sorted(group, key=lambda sample: len(sample.output_ids or ()))):
        sample.sampling_seed = seed


def _reorder_all(scene: Scene) -> None:
    """Outputs reach the slots in another order, and all that is recorded agrees with it."""
    rotate(scene)
    normalise(scene.samples)
    response = scene.exchanges[0].response
    scene.exchanges[0] = replace(scene.exchanges[0], response=[response[-1], *response[:-1]])


def _single_precision(scene: Scene) -> None:
    for sample, body in zip(scene.group(), scene.exchanges[0].response, strict=True):
        sample.logprobs = [float(np.float32(value)) for value in sample.logprobs or ()]
        for triple in body["meta_info"]["output_token_logprobs"]:
            triple[0] = float(np.float32(triple[0]))


def _round_advantages(scene: Scene) -> None:
    for sample in scene.samples:
        sample.advantage = float(np.float32(sample.advantage or 0.0))


_UNEVEN = ("output_count", "arms_output_count", "samples_received", "slot_index")

ADVANTAGE_FAULTS = tuple(
    Fault(name, origin, "trainer", description, ROLLOUT, plant, "advantage_recomputed", units=units, companions=others)
    for name, origin, description, plant, units, others in (
        (
            "one-group-of-all", "THUDM/slime#1414", "uneven groups become one group of the whole batch",
            _uneven(_advantages(lambda rewards: advantages_of(rewards[None])[0])), 2,
            _UNEVEN,
        ),
        (
            "stride-over-uneven", "areal-project/AReaL#1419", "uneven groups are cut by a fixed stride",
            _uneven(_advantages(_by_stride)), 1, _UNEVEN,
        ),
        (
            "deviation-of-population", "statistics 7", "the deviation divides by n, not n - 1",
            _advantages(_population), 1, (),
        ),
        (
            "not-divided", "statistics 7", "advantages are centred and not divided",
            _advantages(lambda r: (r.reshape(-1, SIZE) - r.reshape(-1, SIZE).mean(axis=1, keepdims=True)).ravel()),
            1, (),
        ),
    )
)  # fmt: skip

TWIN_FAULTS = tuple(
    Fault(name, origin, place, description, TWIN, plant, check, Level.REPLAY, 1, companions)
    for name, origin, place, description, plant, check, companions in (
        (
            "seeds-by-finish-order", "areal-project/AReaL#1625", "patch", "seeds follow the order of finishing",
            _seeds_by_finish, "twin_sampling_seed", (),
        ),
        (
            "slots-by-finish-order", "vllm-project/vllm#394", "patch", "all agrees, but slots follow another order",
            _reorder_all, "twin_output_ids", ("twin_*",),
        ),
        (
            "single-precision", "statistics 7", "patch", "log-probs go through 32 bits in one arm", _single_precision,
            "twin_logprobs", (),
        ),
        (
            "text-trimmed", "huggingface/trl#5224", "host", "one arm strips the text", edit(
            lambda s: setattr(s, "text", f"{s.text} ")), "twin_text", ("texts_received",),
        ),
        (
            "end-masked", "NovaSky-AI/SkyRL#758", "host", "one arm does not train the end of a response",
            edit_list("loss_mask", lambda mask: mask.__setitem__(-1, 0), "stop"), "twin_loss_mask",
            ("mask_complete",),
        ),
        (
            "advantage-rounded", "statistics 7", "trainer", "advantages go through 32 bits in one arm",
            _round_advantages,
            "twin_advantage", (),
        ),
        (
            "loss-by-tokens", "verl-project/verl#7970", "trainer", "one arm's loss is a mean over tokens, not samples",
            lambda scene: scene.records[0].update({"train/loss": 0.011, "train/grad_norm": 1.4}), "twin_train/loss",
            ("twin_train/grad_norm",),
        ),
        (
            "gradient-not-clipped", "statistics 7", "trainer", "one arm's gradient norm is another at the same loss",
            lambda scene: scene.records[0].update({"train/grad_norm": 1.6}), "twin_train/grad_norm", (),
        ),
    )
)  # fmt: skip

FAULTS = (*ADVANTAGE_FAULTS, *TWIN_FAULTS)
