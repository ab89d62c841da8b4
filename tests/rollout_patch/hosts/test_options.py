"""Options come from the host's arguments first, then from the environment, and a wrong one is refused by name."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from rollout_patch.hosts.options import Options, read_options


def test_without_any_every_group_is_asked_for_natively() -> None:
    assert read_options(Namespace(), {}) == Options("native", "fixed", None, None, False, False)


def test_arguments_win_over_the_environment() -> None:
    environment = {"ROLLOUT_PATCH_ARM": "batched", "ROLLOUT_PATCH_CHUNK": "4", "ROLLOUT_PATCH_PARAMETER_LISTS": "1"}
    args = Namespace(rollout_patch_arm="per-sample", rollout_patch_record="out", rollout_patch_seed_per_slot=True)
    assert read_options(args, environment) == Options("per-sample", "fixed", 4, Path("out"), True, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arm", "grouped"),
        ("design", "bandit"),
        ("share", "1.5"),
        ("share", "nan"),
        ("share", "half"),
        ("chunk", "0"),
        ("chunk", "four"),
        ("parameter_lists", "maybe"),
        ("seed_per_slot", "2"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"rollout_patch_{name} is '{value}'"):
        read_options(Namespace(), {f"ROLLOUT_PATCH_{name.upper()}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("record", True),
        ("record", 5),
        ("chunk", True),
        ("chunk", 4.0),
        ("chunk", "\u00b2"),
        ("chunk", "9" * 5000),
        ("share", True),
        ("arm", ["native"]),
        ("arm", False),  # as YAML reads `off`
        ("design", {}),
        ("strict", []),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"rollout_patch_{name} is "):
        read_options(Namespace(**{f"rollout_patch_{name}": value}), {})


def test_switchback_draws_between_the_baseline_and_the_arm_asked_for() -> None:
    options = Options(design="switchback")
    drawn = [options.assign(seed=1, rollout_id=0, group_index=group).arms for group in range(64)]
    assert set(drawn) == {("native",), ("per-sample",)}
    assert Options().assign(seed=1, rollout_id=0, group_index=0).arms == ("native",)


def test_a_probe_asks_its_share_in_both_arms() -> None:
    options = read_options(Namespace(rollout_patch_design="probe", rollout_patch_share=0.5), {})
    drawn = [options.assign(seed=1, rollout_id=0, group_index=group).arms for group in range(64)]
    assert set(drawn) == {("per-sample",), ("per-sample", "native"), ("native", "per-sample")}
    assert 16 < sum(len(arms) == 2 for arms in drawn) < 48


@pytest.mark.parametrize("design", ["switchback", "probe"])
def test_a_design_that_compares_the_baseline_with_itself_is_refused(design: str) -> None:
    with pytest.raises(ValueError, match="'per-sample', with which"):
        read_options(Namespace(rollout_patch_design=design, rollout_patch_arm="per-sample"), {})


@pytest.mark.parametrize(
    ("args", "environment", "said"),
    [
        (
            {"rollout_patch_desing": "switchback"},
            {},
            r"no option rollout_patch_desing; did you mean rollout_patch_design\?",
        ),
        ({"rollout_patch_Record": "x"}, {}, r"did you mean rollout_patch_record\?"),
        ({"rollout_patch_xyz": 1}, {}, "there are rollout_patch_arm, "),
        ({}, {"ROLLOUT_PATCH_ARMS": "native"}, r"did you mean ROLLOUT_PATCH_ARM\?"),
        ({}, {"rollout_patch_arm": "native"}, r"did you mean ROLLOUT_PATCH_ARM\?"),
        ({}, {"SGLANG_NATIVE_GROUP_SAMPLING": "true"}, "is 'true'; it is 0 or 1"),
        ({}, {"SGLANG_NATIVE_GROUP_SAMPLINGS": "1"}, r"did you mean SGLANG_NATIVE_GROUP_SAMPLING\?"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_what_may_be_meant(
    args: dict[str, Any], environment: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        read_options(Namespace(**args), environment)


def test_variables_of_others_are_none_of_ours() -> None:
    others = {"SGLANG_HOST_IP": "1", "ROLLOUT_BATCH": "8", "PATH": "/bin", "SGLANG_NATIVE_GROUP_SAMPLING": "1"}
    assert read_options(Namespace(rollout_batch_size=8), others) == Options()


def test_a_host_may_have_no_arguments_at_all() -> None:
    assert read_options(None, {}) == Options()
