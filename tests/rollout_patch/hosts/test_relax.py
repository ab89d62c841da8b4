"""Relax's flags and its launcher's environment, which need no checkout."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from rollout_patch.hosts.calls import RolloutCalls
from rollout_patch.hosts.relax import conditions_of, launcher_flags


def arguments(**changes: Any) -> Namespace:
    return Namespace(**{"group_rm": False, "sglang_router_policy": "round_robin", "rollout_seed": 5, **changes})


def warns(**changes: Any) -> bool:
    args = arguments(**changes)
    return RolloutCalls.of(args, 0).warn_if_never(conditions_of(args))


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"group_rm": True}, []),
        ({"partial_rollout": True}, []),
        ({"lora_rank": 8}, []),
        ({"use_slime_router": True}, ["middleware_router"]),
        ({"use_opd": True}, []),
        ({"fully_async": True}, []),
        ({"use_rollout_routing_replay": True}, []),
        ({"sglang_speculative_algorithm": "EAGLE"}, ["speculative_decoding"]),
        ({"custom_generate_function_path": "a.b"}, ["custom_generate"]),
        ({"lora_rank": 8, "lora_adapter_mode": True}, ["lora_adapter", "lora_lists_refused"]),
        ({"prefill_num_servers": 1}, ["disaggregated_prefill"]),
    ],
)
def test_flags_rule_groups_out_by_name(changes: dict[str, Any], reasons: list[str]) -> None:
    assert conditions_of(arguments(**changes)) == reasons


def test_the_launcher_adds_what_the_switch_needs_and_nothing_without_it() -> None:
    on = {"SGLANG_NATIVE_GROUP_SAMPLING": "1"}
    assert launcher_flags({}) == []
    assert launcher_flags({"SGLANG_NATIVE_GROUP_SAMPLING": "0"}) == []
    assert launcher_flags({"SGLANG_ROUTER_POLICY": "random"}) == ["--sglang-router-policy", "random"]
    assert "--group-rm" not in launcher_flags(on)  # it would hand a reward function of one sample a list
    assert launcher_flags(on)[-2:] == ["--sglang-router-policy", "round_robin"]
    assert launcher_flags({**on, "SGLANG_ROUTER_POLICY": "cache_aware"})[-1] == "cache_aware"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SGLANG_NATIVE_GROUP_SAMPLING", "true", "'true'; it is 0 or 1"),
        ("SGLANG_NATIVE_GROUP_SAMPLE", "1", "did you mean SGLANG_NATIVE_GROUP_SAMPLING?"),
        ("ROLLOUT_PATCH_DESING", "probe", "did you mean ROLLOUT_PATCH_DESIGN?"),
    ],
)
def test_a_variable_that_would_do_nothing_is_refused(variable: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        launcher_flags({variable: value})


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, False),
        ({"use_slime_router": True}, True),
        ({"use_slime_router": True, "rollout_patch_arm": "per-sample"}, False),
        ({"lora_rank": 8}, False),
        ({"lora_rank": 8, "lora_adapter_mode": True}, True),
        ({"partial_rollout": True}, False),
        ({"sglang_enable_deterministic_inference": True}, True),
        ({"sglang_enable_deterministic_inference": True, "rollout_patch_parameter_lists": True}, False),
        ({"sglang_enable_deterministic_inference": True, "rollout_patch_seed_per_slot": True}, False),
    ],
)
def test_a_warning_where_flags_leave_no_group_anything_but_per_sample(changes: dict[str, Any], warned: bool) -> None:
    assert warns(**changes) is warned


def test_the_warning_names_the_reasons_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        warns(custom_generate_function_path="a.b", use_slime_router=True, sglang_speculative_algorithm="EAGLE3")
    (line,) = [record.getMessage() for record in caplog.records if "no group can go native" in record.getMessage()]
    assert all(reason in line for reason in ("middleware_router", "custom_generate", "speculative_decoding"))
