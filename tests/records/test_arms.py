"""Files of arms: what they may say, what is refused and how, and what of them is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parity.commands.validation import check_question
from parity.errors import InputError, UsageError
from parity.records.arms import Arm, ArmsAsked, arms_of_engines, differ_beyond_requests, read_arms, set_apart
from parity.records.experiment import ExperimentConfig, plan_pairs

THREE = """
[arms.bf16]
engine = "sglang"

[arms.no-cache]
engine = "sglang"
options = ["--disable-radix-cache"]
environment = { SGLANG_LOG_LEVEL = "info", API_TOKEN = "12345" }

[arms.halves]
way = "native"
chunk = 4
workers = 2
router = "cache_aware"
temperature = 0.9
"""


def read(folder: Path, text: str, defaults: Arm | None = None) -> dict[str, Arm]:
    path = folder / "arms.toml"
    path.write_text(text)
    return read_arms(path, defaults or Arm())


def test_arms_have_what_their_tables_set_and_the_defaults_for_the_rest(tmp_path: Path) -> None:
    arms = read(tmp_path, THREE, Arm(engine="embedded", workers=1))
    assert list(arms) == ["bf16", "no-cache", "halves"]
    assert arms["bf16"] == Arm(engine="sglang")
    assert arms["no-cache"].options == ("--disable-radix-cache",)
    assert arms["halves"] == Arm("native", 4, "embedded", workers=2, router="cache_aware", temperature=0.9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[arms.a]", "names 1 of the two arms"),
        ("[arms.a]\n[arms.b]\nengin = 'sglang'", r"arms.b has an unknown setting: engin; did you mean engine\?"),
        ("[arms.a]\n[arms.b]\nengine = 'sglan'", r"arms.b.engine is 'sglan': .*did you mean sglang\?"),
        ("[arms.a]\n[arms.b]\nway = 'nativ'", r"arms.b.way is 'nativ': .*did you mean native\?"),
        ("[arms.a]\n[arms.b]\nworkers = '2'", "arms.b: Expected `int`, got `str`"),
        ("[arms.a]\n[arms.b]\nworkers = 0", "arms.b.workers is 0"),
        ("[arms.a]\n[arms.b]\nchunk = 2", "arms.b.chunk is 2"),
        ("[arms.a]\n[arms.b]\ntemperature = 0", "arms.b.temperature is 0"),
        ("[arms.a]\n[arms.b]\ntop_p = 1.5", "arms.b.top_p is 1.5"),
        ("[arms.a]\n[arms.b]\ntop_k = 0", "arms.b.top_k is 0"),
        ("[arms.a]\n[arms.native]\nway = 'batched'", "arms.native.way is 'batched'"),
        ("[arms.a]\n[arms.'b/../c']", r"arms.b/../c: a name is made of"),
        ("[arms.a]\n[arms.b]\nengine = 'http://h:1'\noptions = ['-x']", "options and environment are of an engine"),
        ("arms = 3", "expected tables"),
        ("[arms.a]\n[arms.b]\n[seeds]", "it has seeds beside them"),
        ("[arms.a", "arms.toml: "),
        ("[arms]\na = 3\nb = 4", "arms.a is int, not an object"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.toml: No such file"):
        read_arms(tmp_path / "nowhere.toml", Arm())


def test_arms_with_equal_engines_share_one_unless_they_ask_for_their_own() -> None:
    specs = {"a": Arm(), "b": Arm("native"), "c": Arm(options=("--threads", "1")), "d": Arm(own_engine=True)}
    asked = ArmsAsked("a", "b", specs=specs)
    assert list(asked.deployments.values()) == ["a", "c", "d"]
    assert differ_beyond_requests(asked)
    assert not differ_beyond_requests(ArmsAsked("per-sample", "native"))
    assert set_apart(ArmsAsked("a", "b", specs={"a": Arm(top_p=0.9), "b": Arm(top_p=0.9)}), "ab") == frozenset()
    assert set_apart(ArmsAsked("a", "b", specs={"a": Arm(), "b": Arm(top_p=0.9)}), "ab") == {"top_p"}


@pytest.mark.parametrize(
    ("engines", "names", "own"),
    [
        (("http://a:30000", "http://b:30000"), ["a-30000", "b-30000"], False),
        (("embedded", "sglang"), ["embedded", "sglang"], False),
        (("embedded", "embedded"), ["baseline", "experiment"], True),
        (("http://u:p@a:1", "embedded"), ["a-1", "embedded"], False),
    ],
)
def test_two_engines_are_two_arms_named_after_them(engines: tuple[str, str], names: list[str], own: bool) -> None:
    arms = arms_of_engines(*engines, ("per-sample", "per-sample"))
    assert list(arms) == names
    assert {arm.own_engine for arm in arms.values()} == {own}
    assert len(ArmsAsked(*names, specs=arms).deployments) == 2


def test_the_record_has_every_arm_and_no_secret(tmp_path: Path) -> None:
    specs = read(tmp_path, THREE)
    specs["halves"] = replace(specs["halves"], engine="http://user:hidden@host:1", workers=1, router="")
    config = ExperimentConfig("bf16", "no-cache", specs=specs)
    text = json.dumps(config.to_json())
    assert "hidden" not in text
    assert "12345" not in text
    again = ExperimentConfig.from_json(json.loads(text))
    assert list(again.specs) == list(specs)
    assert again.specs["no-cache"].options == specs["no-cache"].options


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"specs": {"a": {"way": "native"}, "b": {"wya": "native"}}}, r"specs.b has an unknown setting: wya; did you"),
        ({"specs": 3}, "specs"),
        ({"steps": "3"}, "Expected `int`"),
        ({"stpes": 3}, r"unknown setting: stpes; did you mean steps\?"),
        ({"training": {"learning_rat": 1}}, r"config.training has an unknown setting: learning_rat; did you mean"),
    ],
)
def test_a_record_that_is_none_is_refused_with_its_place(change: dict[str, object], said: str) -> None:
    row = {**ExperimentConfig("per-sample", "native").to_json(), **change}
    with pytest.raises(InputError, match=said):
        ExperimentConfig.from_json(json.loads(json.dumps(row)))


def test_three_arms_share_the_baseline_of_a_seed_and_have_a_mixed_run_each() -> None:
    specs = {"a": Arm(), "b": Arm("native"), "c": Arm("native", 2)}
    config = ExperimentConfig("a", "b", specs=specs, seeds=2)
    paired, second, *mixed = plan_pairs(config, ("paired", "probe"))
    assert paired.names == ("a-seed1", "b-seed1", "c-seed1")
    assert [pair.names for pair in mixed] == [
        ("probe-b-seed1",),
        ("probe-c-seed1",),
        ("probe-b-seed2",),
        ("probe-c-seed2",),
    ]
    assert second.against("c") == replace(second, arms=("a", "c"))
    assert (mixed[0].against("c"), mixed[0].against("b")) == (None, mixed[0])
    assert config.against("c").arms == ("a", "c")


def test_arms_are_held_to_what_there_is_before_anything_starts() -> None:
    check_question(ArmsAsked("a", "b", specs={"a": Arm(), "b": Arm()}))
    with pytest.raises(UsageError, match=r"no arm 'nativ': .*did you mean native\?"):
        check_question(ArmsAsked("per-sample", "nativ"))
    with pytest.raises(UsageError, match="a deployment as it is"):
        check_question(ArmsAsked("a", "b", specs={"a": Arm(), "b": Arm(engine="http://h:1", workers=2)}))
