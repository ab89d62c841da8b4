"""Faults of one of two engines at the same weights, of segments of prompts, and of answers in vLLM's dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parity.faults.edits import Plant
from parity.faults.scenes import RESPONSE, Draws, Engines, Scene
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout

Chosen = npt.NDArray[np.bool_]


def _noise(
    size: float, where: Callable[[Engines], Chosen] = lambda scene: np.ones(scene.logits.shape[:2], bool)
) -> Plant:
    """The changed engine's logits miss those of the other by normal noise, at the places (G, T) that are chosen."""

    def plant(scene: Engines) -> None:
        off = scene.rng.normal(0, size, scene.changed.shape)
        scene.changed = scene.changed + np.where(where(scene)[..., None], off, 0.0)

    return plant


def _position(scene: Engines) -> npt.NDArray[np.int64]:
    """The place of each token in its response, (G, T)."""
    groups, tokens = scene.logits.shape[:2]
    return np.tile(np.arange(tokens) % RESPONSE, (groups, 1))


def _every_fourth_group(scene: Engines) -> Chosen:
    groups, tokens = scene.logits.shape[:2]
    return np.repeat((np.arange(groups) % 4 == 0)[:, None], tokens, axis=1)


def _round(scene: Engines) -> None:
    scene.changed = np.round(scene.changed * 4) / 4


def _hotter(scene: Engines) -> None:
    scene.changed = scene.changed / 1.1


def _six_best(scene: Engines) -> None:
    sixth = np.sort(scene.changed, axis=-1)[..., -6, None]
    scene.changed = np.where(scene.changed >= sixth, scene.changed, -np.inf)


def _lose_rewards(which: Callable[[Draws], Chosen]) -> Plant:
    """The experiment loses the rewards of the groups (G,) that are chosen."""

    def plant(draws: Draws) -> None:
        table = draws.experiment.table
        rewards, _ = draws.experiment.numbers("reward")
        kept = ~which(draws)[draws.experiment.integers("group_index")]
        place = table.schema.get_field_index("reward")
        draws.experiment = Rollout(table.set_column(place, table.schema.field("reward"), pa.array(rewards * kept)))

    return plant


def _hard(draws: Draws) -> Chosen:
    rewards, _ = draws.baseline.numbers("reward")
    return np.asarray(rewards.reshape(len(draws.prompts), -1).mean(axis=1) < 0.4)


def _long(draws: Draws) -> Chosen:
    return np.array([len(prompt) > 8 for prompt in draws.prompts])


def _with_images(draws: Draws) -> Chosen:
    shown = draws.baseline.table.column("media_sha256").to_pylist()
    return np.array([bool(images) for images in shown[:: len(shown) // len(draws.prompts)]])


def _every_second(draws: Draws) -> Chosen:
    return np.asarray(np.arange(len(draws.prompts)) % 2 == 1)


def _answer(change: Callable[[dict[str, Any]], object]) -> Plant:
    """Changes the first group's answer, as vLLM gives it."""

    def plant(scene: Scene) -> None:
        row = deepcopy(scene.exchanges[0].to_json())
        change(row["response"])
        scene.exchanges[0] = Exchange.from_json(row, "a fault")

    return plant


def _sentinel(answer: dict[str, Any]) -> None:
    answer["choices"][0]["logprobs"]["content"][1]["logprob"] = -9999.0


PLANTS: Mapping[str, Plant] = {
    "engine-rounded-to-8-bits": _round,
    "engine-hotter": _hotter,
    "engine-wrong-from-a-position": _noise(0.4, lambda scene: _position(scene) >= RESPONSE // 2),
    "engine-with-stale-prefixes": _noise(0.5, lambda scene: _position(scene) < 4),
    "engine-cuts-rare-tokens": _six_best,
    "engine-keeps-old-weights": _noise(0.15),
    "one-worker-keeps-old-weights": _noise(0.3, _every_fourth_group),
    "engine-rounds-otherwise": _noise(0.004),
    "hard-prompts-lose": _lose_rewards(_hard),
    "long-prompts-lose": _lose_rewards(_long),
    "prompts-with-images-lose": _lose_rewards(_with_images),
    "one-data-set-loses": _lose_rewards(_every_second),
    "vllm-choice-dropped": _answer(lambda answer: answer["choices"].pop(1)),
    "vllm-nan-as-number": _answer(_sentinel),
    "vllm-usage-of-one-choice": _answer(
        lambda answer: answer["usage"].update(completion_tokens=len(answer["choices"][0]["token_ids"]))
    ),
}
"""By name; `engine-rounds-otherwise` is a control."""
