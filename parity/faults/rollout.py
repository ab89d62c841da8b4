"""Faults of the patch and the host: what samples hold and what requests account for."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

from parity.faults.clean import CAP, FIRST_WORD, SIZE, groups_of, reward_of
from parity.faults.edits import (
    OUTPUT_FIELDS,
    aborted,
    assign,
    copy_output,
    drop,
    edit,
    edit_list,
    exchange_fields,
    in_turn,
    normalise,
    rewarded,
    rewrite,
    rotate,
    set_all,
    set_one,
    swap,
)
from parity.faults.scenes import ROLLOUT, Fault, Plant, Scene
from parity.records.samples import Sample


def _clone_pairs(every: int) -> Plant:
    """In one group of so many, one sample is a copy of the longest."""

    def plant(scene: Scene) -> None:
        for group in list(groups_of(scene.samples))[every - 1 :: every]:
            longest = max(group, key=lambda sample: len(sample.output_ids or ()))
            copy_output(longest, group[0] if longest is not group[0] else group[1])
        normalise(scene.samples)

    return plant


def _copy_longest(scene: Scene) -> None:
    for group in groups_of(scene.samples):
        longest = max(group, key=lambda sample: len(sample.output_ids or ()))
        for sample in group:
            copy_output(longest, sample)


def _shift_logprobs(scene: Scene) -> None:
    for sample in scene.samples:
        values = sample.logprobs or []
        sample.logprobs = [*values[1:], *values[:1]]


def _seeds_of_other_group(scene: Scene) -> None:
    for first, second in zip(scene.group(0), scene.group(1), strict=True):
        second.sampling_seed = first.sampling_seed


def _second_attempt(scene: Scene) -> None:
    scene.exchanges[0] = replace(scene.exchanges[0], attempt=2)


def _share_prefixes(scene: Scene) -> None:
    """Long siblings share what the longest of them begins with, and then differ."""
    longest = max(scene.group(), key=lambda sample: len(sample.output_ids or ()))
    begin = (longest.output_ids or [])[:-1]
    for sample in scene.group()[:3]:
        if sample is not longest:
            rewrite(sample, [*begin, FIRST_WORD + sample.index])
            sample.finish_reason, sample.status = "length", "truncated"


def _append_end(sample: Sample) -> None:
    rewrite(sample, [*(sample.output_ids or ()), FIRST_WORD + 1])
    assert sample.logprobs is not None
    sample.logprobs[-1] = 0.0


def _repeat(scene: Scene) -> None:
    scene.samples[:] = [replace(sample) for group in groups_of(scene.samples) for _ in range(SIZE) for sample in group]


def _stride(scene: Scene) -> None:
    """Prompts are repeated p1 p2 p1 p2, groups are read as p1 p1 p2 p2."""
    first, second = scene.group(0), scene.group(1)
    mixed = [sample for pair in zip(first, second, strict=True) for sample in pair]
    for place, sample in enumerate(mixed):
        sample.group_index, sample.index = divmod(place, SIZE)
    scene.samples[:] = mixed


def _swap_groups(scene: Scene) -> None:
    """Two samples of two groups trade outputs, and their rewards are equal."""
    for first in scene.group(0):
        for second in scene.group(1):
            if first.reward == second.reward and first.output_ids != second.output_ids:
                swap(first, second, OUTPUT_FIELDS)
                return


def _labels_of_first(scene: Scene) -> None:
    """The second prompt's answers are scored by the first prompt's label, which is the other one."""
    for sample in scene.group(1):
        sample.reward = 1.0 - reward_of(sample)


def _rewards_of_neighbour(scene: Scene) -> None:
    for first, second in zip(scene.group(0), scene.group(1), strict=True):
        swap(first, second, ("reward",))


def _lose_group(status: int, text: str) -> Plant:
    """The first group's request fails, and nobody asks again."""

    def plant(scene: Scene) -> None:
        scene.exchanges[0] = replace(scene.exchanges[0], status=status, response={"error": {"message": text}})
        drop(scene, lambda sample: sample.group_index == 0)

    return plant


def _asked_twice(scene: Scene) -> None:
    """The first connection is cut after it was answered, and the group is asked for again."""
    answers = deepcopy(scene.exchanges[0].response)
    for body in answers:
        body["meta_info"]["id"] += "-again"
    scene.exchanges.insert(1, replace(scene.exchanges[0], response=answers))


def _one_group_each(scene: Scene) -> None:
    for number, sample in enumerate(scene.samples):
        sample.group_index, sample.index, sample.advantage = number, 0, sample.reward


def _alone(scene: Scene) -> None:
    """A group of one, whose standard deviation with n - 1 is NaN."""
    drop(scene, lambda sample: sample.index > 0)
    scene.rules = replace(scene.rules, group_size=1)
    set_all(advantage=math.nan)(scene)


def _swap_media(scene: Scene) -> None:
    for first, second in zip(scene.group(0), scene.group(1), strict=True):
        swap(first, second, ("media_sha256",))


def _split_versions(scene: Scene) -> None:
    for sample in scene.group()[SIZE // 2 :]:
        sample.weight_versions = ["v1"]


def _ask_with(**params: object) -> Plant:
    """The first group is asked for with other sampling parameters; its samples do not say so."""

    def plant(scene: Scene) -> None:
        request = scene.exchanges[0].request
        asked = {**request, "sampling_params": {**request["sampling_params"], **params}}
        scene.exchanges[0] = replace(scene.exchanges[0], request=asked)

    return plant


def _swap_texts(scene: Scene) -> None:
    """Two siblings of one reward trade texts."""
    first, second, *_ = (sample for sample in scene.group() if sample.reward == scene.group()[0].reward)
    swap(first, second, ("text",))


def _unrelated_group(scene: Scene) -> None:
    scene.exchanges.append(replace(deepcopy(scene.exchanges[0]), group_index=77))


def _leave_out(scene: Scene) -> None:
    drop(scene, lambda sample: sample.group_index == 1)
    scene.exchanges.pop()


def _prompts_of_others(scene: Scene) -> None:
    """Another prompt of the same length takes the place of the first group's."""
    for sample in scene.group():
        sample.prompt_ids = [*(sample.prompt_ids or ())[:-2], FIRST_WORD, FIRST_WORD]
        sample.reward = reward_of(sample)


def _too_long(sample: Sample) -> None:
    rewrite(sample, [FIRST_WORD + k for k in range(2 * CAP)])


_RECEIVED = ("samples_received",)
_LOST = ("arms_same_groups", "arms_same_requests")
_COUNTS = ("arms_output_count", "samples_received")
_ABORTED = ("samples_received", "arms_finish_reasons")
_MEDIA = "data:image/png;base64,iVBORw0KGgo="

IN_RUN = frozenset(
    {
        "exchanged-outputs",
        "exchanged-rewards",
        "truncated-zeroes-all",
        "shifted-logprobs",
        "copied-siblings",
        "logprobs-missing-in-arm",
        "media-of-other-group",
    }
)
"""Faults of scored samples, whatever their number and lengths; without log-probs there is nothing to train on."""

FAULTS = tuple(
    Fault(
        name, origin, place, description, ROLLOUT, plant, check, units=units, companions=companions,
        in_run=name in IN_RUN,
    )
    for name, origin, place, description, plant, check, units, companions in (
        (
            "exchanged-outputs", "statistics 7", "host",
            "two outputs of a group are exchanged after scoring, so that each is trained on the other's reward",
            lambda scene: exchange_fields(scene.samples, OUTPUT_FIELDS), "reward_recomputed", 1, _RECEIVED,
        ),
        (
            "exchanged-rewards", "statistics 7", "host", "two rewards of a group are exchanged",
            rewarded(lambda scene: exchange_fields(scene.samples, ("reward",))),
            "reward_recomputed", 1, (),
        ),
        (
            "truncated-zeroes-all", "PrimeIntellect-ai/verifiers#186", "host",
            "to give truncated responses no reward, all rewards are set to 0",
            rewarded(lambda scene: assign(scene.samples, reward=0.0)),
            "reward_recomputed", 1, (),
        ),
        (
            "shifted-logprobs", "statistics 7", "host", "log-probs of a rollout stand one token early",
            _shift_logprobs,
            "samples_received", 1, (),
        ),
        (
            "copied-siblings", "sgl-project/sglang#28805", "host",
            "a group holds its longest output only",
            rewarded(_copy_longest),
            "clones", 1, ("samples_received", "clone_prefixes"),
        ),
        (
            "rewards-of-neighbour", "statistics 7", "host", "a group has the rewards of the next",
            rewarded(_rewards_of_neighbour), "reward_recomputed", 2, (),
        ),
        (
            "labels-of-first-prompt", "StarsfieldAI/R1-V#146", "host", "labels are repeated twice: a later group is "
            "scored by the first prompt's", rewarded(_labels_of_first), "reward_recomputed", 2, (),
        ),
        (
            "completions-of-other-group", "huggingface/trl#3098", "host", "two groups trade completions of one reward",
            _swap_groups, "samples_received", 2, ("reward_recomputed",),
        ),
        (
            "n-squared", "verl-project/verl#2881", "host", "prompts are repeated n times, and n is asked of each",
            _repeat, "output_count", 1,
            (*_COUNTS, "slot_index", "row_order", "advantage_recomputed", "clones", "clone_prefixes", "seed_*"),
        ),
        (
            "sample-lost", "statistics 7", "patch", "one of n samples never reaches the trainer",
            lambda scene: drop(scene, lambda s: (s.group_index, s.index) == (0, SIZE - 1)), "output_count", 1,
            (*_COUNTS, "advantage_recomputed"),
        ),
        (
            "interleaved-groups", "PrimeIntellect-ai/prime-rl#600", "host", "groups are cut from p1 p2 p1 p2 by stride",
            _stride, "group_prompt", 2,
            ("samples_received", "advantage_recomputed", "group_media", "arms_same_prompts", "arms_same_media"),
        ),
        (
            "outputs-rotated", "vllm-project/vllm#394", "patch", "slot i reads output i - 1",
            rewarded(rotate), "samples_received", 1, (),
        ),
        (
            "pair-cloned-in-every-group", "statistics 7", "patch", "two samples of each group are one",
            _clone_pairs(1), "clones", 1, ("samples_received", "clone_prefixes"),
        ),
        (
            "pair-cloned-in-tenth-group", "statistics 7", "patch", "two samples of every tenth group are one",
            _clone_pairs(10), "clones", 16, ("samples_received", "clone_prefixes"),
        ),
        (
            "pair-cloned-in-hundredth-group", "statistics 7", "patch", "two samples of every hundredth group are one",
            _clone_pairs(100), "clones", 128, ("samples_received", "clone_prefixes"),
        ),
        (
            "shared-beginnings", "areal-project/AReaL#1607", "engine", "siblings share all but their last token",
            rewarded(_share_prefixes), "clone_prefixes", 1, _RECEIVED,
        ),
        (
            "one-seed-for-all", "sgl-project/sglang tokenizer_manager.py", "patch", "children share one seed",
            set_all(sampling_seed=42), "seed_distinct", 1, ("seed_reuse",),
        ),
        (
            "seeds-of-other-group", "areal-project/AReaL#1625", "patch", "two groups are given the same seeds",
            _seeds_of_other_group,
            "seed_reuse", 2, (),
        ),
        (
            "logprobs-thrown-away", "THUDM/slime#1976", "host", "log-probs are asked for and thrown away",
            set_one(logprobs=None), "rollout_log_probs_length", 1, ("samples_received", "arms_fields_present"),
        ),
        (
            "logprobs-missing-in-arm", "THUDM/slime#1995", "host", "one arm records no log-probs at all",
            lambda scene: assign(scene.samples, logprobs=None), "arms_fields_present", 1,
            ("samples_received",),
        ),
        (
            "three-lengths", "THUDM/slime#1862", "host", "log-probs, tokens and mask have three lengths",
            in_turn(edit_list("logprobs", lambda v: v.append(-1.0)), edit_list("loss_mask", list.pop)),
            "rollout_log_probs_length", 1, ("samples_received", "loss_mask_length"),
        ),
        (
            "end-appended", "NovaSky-AI/SkyRL#758", "host", "an end that nobody sampled is trained on, log-prob 0",
            rewarded(edit(_append_end, "stop")), "samples_received", 1, ("finish_stop",),
        ),
        (
            "end-dropped", "statistics 7", "host", "the last token of a stopped response is dropped",
            rewarded(edit(lambda s: rewrite(s, (s.output_ids or [])[:-1]), "stop")), "finish_stop", 1, _RECEIVED,
        ),
        (
            "mask-short", "THUDM/slime#1862", "host", "the mask lacks the last token", edit_list("loss_mask", list.pop),
            "loss_mask_length", 1, (),
        ),
        (
            "mask-counts", "NovaSky-AI/SkyRL#758", "host", "a mask holds 2",
            edit_list("loss_mask", lambda mask: mask.__setitem__(0, 2)), "loss_mask_values", 1, (),
        ),
        (
            "nothing-trainable", "NVIDIA-NeMo/ProRL-Agent-Server#52", "host", "no token of a finished response is "
            "trained on", edit(lambda s: setattr(s, "loss_mask", [0] * len(s.output_ids or ()))), "loss_mask_values", 1,
            (),
        ),
        (
            "length-off-by-one", "THUDM/slime#92", "host", "response_length is one short",
            edit(lambda s: setattr(s, "response_length", len(s.output_ids or ()) - 1)), "response_length", 1, (),
        ),
        (
            "abort-left-stale", "THUDM/slime#92", "host", "after an abort the tokens stay and the length is 0",
            aborted(lambda s: setattr(s, "response_length", 0)), "response_length", 1, _ABORTED,
        ),
        (
            "partial-forgotten", "sgl-project/sglang#11673", "host", "an abort's empty answer replaces what there was",
            aborted(lambda s: assign([s], output_ids=[], logprobs=[], loss_mask=[])),
            "response_length", 1, _ABORTED,
        ),
        (
            "abort-rewarded", "radixark/miles#2800", "host", "an aborted sample is kept with reward 0",
            aborted(lambda s: assign([s], reward=0.0)), "reward_missing", 1,
            (*_ABORTED, "advantage_recomputed"),
        ),
        (
            "aborted-by-publishing", "radixark/miles#2296", "trainer", "publishing weights aborts what is in flight",
            set_all(finish_reason="abort", status="aborted", reward=None, advantage=None),
            "arms_finish_reasons", 1, _ABORTED,
        ),
        (
            "reward-nan", "volcengine/verl", "host", "a reward is NaN",
            set_one(reward=math.nan, advantage=0.0), "reward_missing", 1,
            ("reward_recomputed", "advantage_recomputed"),
        ),
        (
            "truncated-unscored", "THUDM/slime#92", "host", "a response cut at its cap gets no reward",
            rewarded(set_one("length", reward=None, advantage=None)), "reward_missing", 1, ("arms_fields_present",),
        ),
        (
            "status-pending", "THUDM/slime#92", "host", "a finished sample is left pending",
            rewarded(set_one(status="pending", reward=None, advantage=None)), "status", 1, (),
        ),
        (
            "truncated-says-completed", "NovaSky-AI/SkyRL#81", "host", "a truncated sample is called completed",
            set_one("length", status="completed"), "status", 1, (),
        ),
        (
            "reason-lost", "InternLM/xtuner#1755", "host", "a sample has no finish reason",
            set_one(finish_reason=None), "finish_reason", 1,
            ("samples_received", "arms_finish_reasons", "arms_fields_present"),
        ),
        (
            "cut-says-stop", "NovaSky-AI/SkyRL#81", "host", "the reason is read after the lists were cut",
            set_one("length", finish_reason="stop", status="completed"), "finish_stop", 1, _RECEIVED,
        ),
        (
            "length-above-cap", "statistics 7", "host", "a resumed response gets a new cap",
            rewarded(edit(_too_long, "length")), "finish_length", 1, ("samples_received", "context"),
        ),
        (
            "context-overrun", "statistics 7", "host", "prompt and response exceed the context",
            rewarded(edit(_too_long, "length")), "context", 1, ("samples_received", "finish_length"),
        ),
        (
            "group-lost-on-400", "smg-project/smg#1903", "patch", "a refused batch is not asked for again",
            _lose_group(400, "batch_prompts_not_supported"), "groups_answered", 1, _LOST,
        ),
        (
            "group-lost-on-500", "sgl-project/sglang tokenizer_manager.py", "patch", "one failed child loses its group",
            _lose_group(500, "Out of range float values are not JSON compliant"), "groups_answered", 1, _LOST,
        ),
        (
            "asked-twice", "radixark/miles#1334", "patch", "a request is sent again though the first is answered",
            _asked_twice, "requests_accounted", 1, ("samples_received", "arms_same_requests"),
        ),
        (
            "retry-unrecorded", "radixark/miles#1334", "patch", "a second attempt without a first that failed",
            _second_attempt,
            "requests_accounted", 1, (),
        ),
        (
            "orphan-runs-on", "sgl-project/sglang#36876", "patch", "a group that was given up is generated",
            _unrelated_group, "groups_answered", 1, ("arms_same_requests",),
        ),
        (
            "media-lost", "PrimeIntellect-ai/prime-rl#2786", "host", "a prompt's placeholder has no image any more",
            set_all(media_sha256=[]), "media_placeholders", 1,
            ("arms_same_media",),
        ),
        (
            "media-of-other-group", "statistics 7", "host", "two groups trade their images", _swap_media,
            "arms_same_media", 2, (),
        ),
        (
            "media-of-one-sibling", "statistics 7", "host", "one sibling has another image",
            set_one(media_sha256=["f" * 64]), "group_media", 1, (),
        ),
        (
            "media-kept-encoded", "PrimeIntellect-ai/prime-rl#1964", "host", "samples keep base64 of their images",
            set_one(extra={"_encoded_media": _MEDIA}), "encoded_media", 1, (),
        ),
        (
            "media-kept-as-base64", "verl-project/verl#7391", "host", "samples keep bytes of images as long base64",
            set_one(extra={"pixels": "Q" * 5000}), "encoded_media", 1, (),
        ),
        (
            "cache-above-prompt", "sgl-project/sglang#5525", "host", "more cached tokens than prompt tokens",
            set_one(cached_tokens=99), "cached_tokens", 1, (),
        ),
        (
            "prompt-shrunk", "THUDM/slime#117", "host", "the engine saw fewer prompt tokens than the sample holds",
            set_one(prompt_tokens=1, cached_tokens=0), "prompt_tokens", 1, (),
        ),
        (
            "id-beyond-vocabulary", "sgl-project/sglang 0.5.23", "host", "a token id is beyond the vocabulary",
            edit_list("output_ids", lambda ids: ids.__setitem__(0, 100_000)), "token_ids", 1, _RECEIVED,
        ),
        (
            "padding-logprob", "vllm-project/vllm#48585", "host", "-9999 among the log-probs",
            edit_list("logprobs", lambda values: values.__setitem__(1, -9999.0)), "logprob_values", 1, _RECEIVED,
        ),
        (
            "weights-stale", "statistics 7", "trainer", "a group comes from the weights of an earlier step",
            set_all(weight_versions=["v-1"]), "weight_version", 1, (),
        ),
        (
            "group-across-versions", "statistics 7", "trainer", "weights change in the middle of a group",
            _split_versions, "weight_version", 1, (),
        ),
        (
            "temperature-of-one", "huggingface/trl#4159", "patch", "one sibling is drawn at another temperature",
            set_one(temperature=0.7), "group_params", 1, ("params_sent",),
        ),
        (
            "temperature-of-arm", "statistics 7", "patch", "the temperature is dropped on the way",
            set_all(temperature=0.9), "arms_same_params", 1, ("params_sent",),
        ),
        (
            "cap-halved", "statistics 7", "patch", "the cap is halved in one arm",
            lambda scene: assign(scene.baseline, max_new_tokens=2 * CAP),
            "arms_same_params", 1, (),
        ),
        (
            "prompts-of-others", "huggingface/trl#3098", "host", "the arms are asked different prompts",
            rewarded(_prompts_of_others), "arms_same_prompts", 1, (),
        ),
        (
            "temperature-in-request", "statistics 7", "patch", "native requests carry another temperature than samples",
            _ask_with(temperature=0.7), "params_sent", 1, ("arms_same_requests",),
        ),
        (
            "parameter-added-to-request", "statistics 7", "patch", "native requests carry a min_p that no sample names",
            _ask_with(min_p=0.1), "arms_same_requests", 1, (),
        ),
        (
            "texts-exchanged", "huggingface/trl#3098", "host", "siblings of one reward have each other's text",
            _swap_texts, "texts_received", 1, (),
        ),
        (
            "token-masked", "NovaSky-AI/SkyRL#758", "host", "one sampled token of a response is not trained on",
            edit_list("loss_mask", lambda mask: mask.__setitem__(1, 0)), "mask_complete", 1, (),
        ),
        (
            "arms-mixed-in-group", "statistics 7", "patch", "a group is asked for by two arms",
            set_one(arm="per-sample"), "group_arm", 1, (),
        ),
        (
            "slot-twice", "ikawrakow/ik_llama.cpp#1303", "patch", "two samples of a group have one slot",
            edit(lambda s: setattr(s, "index", s.index - 1)), "slot_index", 1, (),
        ),
        (
            "prompt-left-out", "statistics 7", "host", "one arm leaves a prompt out before it asks",
            _leave_out, "arms_same_groups", 2, ("arms_same_requests",),
        ),
        (
            "other-size-in-arm", "verl-project/verl#2881", "host", "the arms ask for different numbers of samples",
            lambda scene: scene.baseline.pop(), "arms_output_count", 1, (),
        ),
        (
            "rows-shuffled", "PrimeIntellect-ai/prime-rl#600", "host", "rows of a rollout are not in order",
            lambda scene: scene.samples.reverse(), "row_order", 1, (),
        ),
        (
            "id-per-trajectory", "rllm-org/rllm#776", "host", "each trajectory is a group of its own",
            _one_group_each, "output_count", 1,
            (*_COUNTS, "advantage_recomputed", "requests_accounted", "arms_same_groups"),
        ),
        (
            "single-has-nan", "radixark/miles#1573", "trainer", "the deviation of a group of one is NaN",
            _alone, "advantage_recomputed", 1, _COUNTS,
        ),
    )
)  # fmt: skip
