"""Each condition rules out what it must and nothing else; beside planted violations stand groups that pass."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollout_patch import ARMS, CONDITIONS, Capabilities, SampleRequest
from rollout_patch.eligibility import choose_arm, conditions, excluded

ASKS = SampleRequest({"temperature": 1.0, "max_new_tokens": 8}, input_ids=[1, 2, 3], options={"return_logprob": True})
CAN = Capabilities()


class Picture:
    """An image as PIL's: its content is its bytes, and two equal ones are not one object."""

    mode, size = "RGB", (2, 2)

    def __init__(self, content: bytes) -> None:
        self.content = content

    def tobytes(self) -> bytes:
        return self.content


def group(*changes: dict[str, Any], base: SampleRequest = ASKS) -> list[SampleRequest]:
    return [replace(base, **change) for change in changes]


def seeds(*values: int | None) -> list[SampleRequest]:
    return group(*({"sampling_params": {"temperature": 1.0, "sampling_seed": value}} for value in values))


def pictures(*contents: bytes) -> list[SampleRequest]:
    return group(*({"media": {"image_data": [Picture(content)]}} for content in contents))


KEPT = {"sampling_params": {"custom_params": {"return_top_p_token_ids": True}}}
CUSTOM = {"sampling_params": {"custom_params": {"token_ids": [7]}}}
TEXT = {"input_ids": None, "text": "a"}
LORA = {"options": {"lora_path": "adapter"}}

VIOLATED: list[tuple[str, Sequence[SampleRequest], Capabilities]] = [
    ("single_sample", [ASKS], CAN),
    ("prompt_kinds_differ", group({}, {"input_ids": None, "text": "a"}), CAN),
    ("prompts_differ", group({}, {"input_ids": [1, 2]}), CAN),
    ("media_differ", pictures(b"aaaa", b"aaab"), CAN),
    ("media_kinds_differ", [*pictures(b"aaaa"), ASKS], CAN),
    ("media_with_n_refused", pictures(b"aaaa", b"aaaa"), Capabilities(media_with_n=False)),
    ("media_lists_refused", pictures(b"aaaa", b"aaaa"), Capabilities(media_lists=False)),
    ("resumed", group({}, {"resumed": True}), CAN),
    ("sampling_params_differ", group({}, {"sampling_params": {"temperature": 0.5, "max_new_tokens": 8}}), CAN),
    ("sampling_params_lists_refused", seeds(1, 2), Capabilities(sampling_params_lists=False)),
    ("seeds_not_per_slot", seeds(1, 2), CAN),
    ("seeds_not_per_slot", seeds(1, 1), CAN),
    ("seeds_not_per_slot", seeds(1, 3), Capabilities(seeded=True, seed_per_slot=True)),
    ("seeds_not_per_slot", seeds(1, 1), Capabilities(seeded=True, seed_per_slot=True)),
    ("seeds_not_per_slot", seeds(None, 1), Capabilities(seeded=True, seed_per_slot=True)),
    ("deterministic_inference", group({}, {}), Capabilities(seeded=True)),
    (
        "routing_keys_differ",
        group({"headers": {"X-SMG-Routing-Key": "a"}}, {"headers": {"X-SMG-Routing-Key": "b"}}),
        CAN,
    ),
    ("options_differ", group({}, {"options": {}}), CAN),
    ("lora_adapter", group(LORA, LORA), CAN),
    ("lora_lists_refused", group(LORA, LORA), CAN),
    ("client_request_id", group({"options": {"rid": "a"}}, {"options": {"rid": "a"}}), CAN),
    ("kept_tokens", group(KEPT, KEPT), CAN),
    ("parallel_sampling_refused", group({}, {}), Capabilities(parallel_sampling=False)),
    ("prompt_lists_refused", group({}, {}), Capabilities(prompt_lists=False)),
    ("text_lists_refused", group(TEXT, TEXT), Capabilities(text_lists=False)),
]

HELD: list[tuple[str, Sequence[SampleRequest], Capabilities]] = [
    ("single_sample", group({}, {}), CAN),
    ("media_differ", pictures(b"aaaa", b"aaaa"), CAN),
    ("media_differ", group({"media": {"image_data": []}}, {}), CAN),
    ("media_with_n_refused", group({}, {"media": {"image_data": []}}), Capabilities(media_with_n=False)),
    ("media_lists_refused", group({}, {}), Capabilities(media_lists=False)),
    ("sampling_params_differ", seeds(1, 2), CAN),
    ("sampling_params_lists_refused", seeds(1, 1), Capabilities(sampling_params_lists=False)),
    ("seeds_not_per_slot", seeds(5, 6, 7), Capabilities(seeded=True, seed_per_slot=True)),
    ("seeds_not_per_slot", seeds(None, None), CAN),
    ("deterministic_inference", group({}, {}), Capabilities(seeded=True, seed_per_slot=True)),
    (
        "routing_keys_differ",
        group({"headers": {"X-SMG-Routing-Key": "a"}}, {"headers": {"X-SMG-Routing-Key": "a"}}),
        CAN,
    ),
    ("options_differ", group({"options": {"lora_path": "a"}}, {"options": {"lora_path": "b"}}), CAN),
    ("lora_lists_refused", group(LORA, LORA), Capabilities(lora_lists=True)),
    ("lora_adapter", group(LORA, LORA), Capabilities(lora_with_n=True)),
    ("kept_tokens", group(CUSTOM, CUSTOM), CAN),
    ("text_lists_refused", group({}, {}), Capabilities(text_lists=False)),
    ("text_lists_refused", group(TEXT, TEXT), CAN),
]


@pytest.mark.parametrize(
    ("name", "requests", "capabilities"), VIOLATED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_violated_condition_is_named_and_rules_out_its_arms(
    name: str, requests: Sequence[SampleRequest], capabilities: Capabilities
) -> None:
    names = conditions(requests, capabilities)
    assert name in names
    for arm in CONDITIONS[name].arms:
        assert choose_arm(arm, names)[0] != arm
        assert name in choose_arm(arm, names)[1]


@pytest.mark.parametrize(
    ("name", "requests", "capabilities"), HELD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_control_beside_it_passes(name: str, requests: Sequence[SampleRequest], capabilities: Capabilities) -> None:
    assert name not in conditions(requests, capabilities)


def test_a_plain_fresh_group_may_go_every_way() -> None:
    assert conditions(group({}, {}, {}), CAN) == ()
    assert [choose_arm(arm, ()) for arm in ARMS] == [(arm, ()) for arm in ARMS]


def test_every_condition_is_planted_here_or_decided_by_a_host() -> None:
    planted = {name for name, _, _ in VIOLATED}
    by_host = {name for name, condition in CONDITIONS.items() if condition.by == "host"}
    refusals = {"refused_native", "refused_batched"}
    of_vllm = {"greedy_with_n", "list_restarts_seed"}  # in test_vllm.py
    assert planted | by_host | refusals | of_vllm == set(CONDITIONS)
    assert not planted & by_host


@pytest.mark.parametrize("name", [name for name, condition in CONDITIONS.items() if condition.by == "host"])
def test_a_host_can_rule_out_native_by_each_of_its_conditions(name: str) -> None:
    arm, reasons = choose_arm("native", conditions(group({}, {}), CAN, [name]))
    assert arm != "native"
    assert name in reasons


def test_every_condition_of_relax_and_of_miles_has_a_name() -> None:
    relax = {
        "switched_off",
        "evaluation",
        "single_sample",
        "middleware_router",
        "on_policy_distillation",
        "lora_adapter",
        "deterministic_inference",
        "speculative_decoding",
        "custom_generate",
        "sample_generate",
        "prompts_differ",
        "media_differ",
        "resumed",
        "finished_sample",
    }
    miles = {
        "custom_generate",
        "seeds_not_per_slot",
        "routing_keys_differ",
        "media_with_n_refused",
        "resumed",
        "multi_turn",
    }
    assert relax | miles <= set(CONDITIONS)
    assert all(condition.sentence and condition.arms <= set(ARMS) - {"per-sample"} for condition in CONDITIONS.values())


def test_siblings_copied_from_one_another_still_qualify() -> None:
    (first,) = pictures(b"abcd")
    copies = [first, copy.deepcopy(first), copy.deepcopy(first)]
    assert copies[0].media["image_data"][0] is not copies[1].media["image_data"][0]
    assert conditions(copies, CAN) == ()


@pytest.mark.parametrize(
    ("requests", "capabilities"),
    [
        (seeds(3, 1, 9), Capabilities(seeded=True)),
        (group({}, {"resumed": True, "input_ids": [1, 2, 3, 4], "sampling_params": {"max_new_tokens": 7}}), CAN),
        (group(LORA, LORA), Capabilities(lora_lists=True)),
        (pictures(b"aaaa", b"aaab"), CAN),
    ],
    ids=["seeds", "resumed", "lora", "media"],
)
def test_batched_takes_what_native_cannot(requests: Sequence[SampleRequest], capabilities: Capabilities) -> None:
    arm, reasons = choose_arm("native", conditions(requests, capabilities))
    assert arm == "batched"
    assert reasons


def test_what_neither_can_take_goes_per_sample_for_the_reasons_of_both() -> None:
    names = conditions(pictures(b"aaaa", b"aaab"), Capabilities(media_lists=False))
    assert choose_arm("native", names) == ("per-sample", ("media_differ", "media_lists_refused"))


def test_asking_per_sample_is_never_a_fallback() -> None:
    assert choose_arm("per-sample", tuple(CONDITIONS)) == ("per-sample", ())
    assert excluded("per-sample", tuple(CONDITIONS)) == ()


def test_unknown_names_and_empty_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="no_such_condition"):
        conditions(group({}, {}), CAN, ["no_such_condition"])
    with pytest.raises(ValueError, match="at least one"):
        conditions([], CAN)
