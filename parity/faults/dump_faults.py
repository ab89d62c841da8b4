"""Faults of what a dump keeps beside single groups, and what is easily mistaken for them.

Copies of other groups, lists beside the tokens, made-up placeholders, the trainer's log-probs, and samples that several
requests brought.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from parity.contract_checks import Rules
from parity.faults.clean import CAP, MEDIUM, SIZE, groups_of, log_probs_of, reward_of
from parity.faults.edits import Plant, assign, copy_output, edit, longest_of, rewarded
from parity.faults.scenes import Scene
from parity.records.samples import TRAINER_LOGPROBS, Sample


def _share_prompt(scene: Scene) -> None:
    """The first two groups have one prompt, in both arms."""
    for samples in (scene.samples, scene.baseline):
        first, second = list(groups_of(samples))[:2]
        for sample in second:
            assign([sample], prompt_ids=first[0].prompt_ids, media_sha256=first[0].media_sha256)
            assign([sample], prompt_tokens=first[0].prompt_tokens, cached_tokens=first[0].cached_tokens)
            sample.reward = reward_of(sample)


def _train_twice(scene: Scene) -> None:
    _share_prompt(scene)
    for source, target in zip(scene.group(0), scene.group(1), strict=True):
        copy_output(source, target)


def _copy_across_groups(scene: Scene) -> None:
    _share_prompt(scene)
    copy_output(longest_of(scene.group(0)), scene.group(1)[0])


def _texts_alone(text: Callable[[Sample], str]) -> Plant:
    """Both arms keep texts alone, as a text dump does."""

    def plant(scene: Scene) -> None:
        scene.rules = Rules(group_size=SIZE)
        scene.exchanges = scene.baseline_exchanges = []
        for sample in (*scene.samples, *scene.baseline):
            sample.text = text(sample)
            for name in ("output_ids", "logprobs", "loss_mask", "response_length", "temperature"):
                setattr(sample, name, None)

    return plant


def _with_experts(entries: Callable[[Sample, int], int]) -> Plant:
    """Keeps routed experts of all tokens but the last."""

    def plant(scene: Scene) -> None:
        for sample in scene.samples:
            total = len(sample.prompt_ids or ()) + len(sample.output_ids or ())
            sample.extra["rollout_routed_experts"] = {"shape": [entries(sample, total - 1), 4, 2]}

    return plant


def _train_at(temperature: float) -> Plant:
    """Keeps the trainer's log-probs, which are of a temperature."""

    def plant(scene: Scene) -> None:
        for sample in scene.samples:
            sample.extra[TRAINER_LOGPROBS] = log_probs_of(sample.output_ids or (), temperature)

    return plant


def _generate_placeholder(sample: Any) -> None:
    sample.output_ids[0] = MEDIUM


def _resume(scene: Scene, twice: bool = False) -> None:
    """A response of the first group was aborted after two tokens and went on in a second request, both recorded."""
    sample = longest_of(scene.group())
    kept = (sample.output_ids or [])[:2]
    native = scene.exchanges[0]
    body = deepcopy(native.response[sample.index])
    whole = deepcopy(body)
    for part, start, end in ((body, 0, 2), (whole, 2, CAP)):
        meta = part["meta_info"]
        part["output_ids"] = part["output_ids"][start:end]
        meta["output_token_logprobs"] = meta["output_token_logprobs"][start:end]
        meta["completion_tokens"] = len(part["output_ids"])
    body["meta_info"]["finish_reason"] = {"type": "abort", "message": "weights were updated"}
    whole["meta_info"] |= {"id": "resumed", "prompt_tokens": len(sample.prompt_ids or ()) + 2}
    params = {**native.request["sampling_params"], "n": 1, "max_new_tokens": CAP - 2}
    request = {**native.request, "input_ids": [*(sample.prompt_ids or ()), *kept], "sampling_params": params}
    answers = [*native.response[: sample.index], body, *native.response[sample.index + 1 :]]
    resumed = replace(native, request=request, response=whole)
    scene.exchanges = [replace(native, response=answers), resumed, *scene.exchanges[1:]]
    scene.baseline_exchanges = scene.exchanges
    if twice:
        for name in ("output_ids", "logprobs", "loss_mask"):
            values = getattr(sample, name)
            setattr(sample, name, [*values[:2], *values])
        sample.response_length = len(sample.output_ids or ())


def _mask_truncated(scene: Scene) -> None:
    for sample in scene.samples:
        if sample.finish_reason == "length":
            sample.loss_mask = [0] * len(sample.output_ids or ())


def _put_back(scene: Scene) -> None:
    """The first group was aborted before its first token and waits for the next rollout."""
    nothing: dict[str, Any] = {"output_ids": [], "logprobs": None, "loss_mask": None, "response_length": 0}
    nothing |= {"weight_versions": []}
    for samples in (scene.samples, scene.baseline):
        group = [sample for sample in samples if sample.group_index == 0]
        assign(group, **nothing, finish_reason="abort", status="aborted", reward=None, advantage=None, text="")
    scene.exchanges = scene.baseline_exchanges = []


PLANTS: Mapping[str, Plant] = {
    "batch-trained-twice": rewarded(_train_twice),
    "copied-from-another-group": rewarded(_copy_across_groups),
    "texts-cloned": _texts_alone(lambda sample: "the answer is what follows from the question " * 3),
    "texts-alone": _texts_alone(lambda sample: f"{sample.text} " * 8),
    "experts-recorded-twice": _with_experts(lambda sample, entries: entries * (2 if sample.index == 3 else 1)),
    "experts-recorded": _with_experts(lambda sample, entries: entries),
    "trainer-at-another-temperature": _train_at(0.5),
    "trainer-agrees": _train_at(1.0),
    "placeholder-generated": edit(_generate_placeholder),
    "prefix-kept-twice": lambda scene: _resume(scene, twice=True),
    "response-resumed": _resume,
    "overlong-filtered": _mask_truncated,
    "group-put-back": _put_back,
}
"""By name, what plants each fault and each control in a scene of samples."""
