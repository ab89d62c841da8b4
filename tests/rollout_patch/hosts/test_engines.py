"""What engines say of themselves decides what they are asked; one that says nothing is a case of its own."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_patch import Capabilities
from rollout_patch.hosts.engines import Engines, ask_engines


def answering(answers: dict[str, Any]) -> Any:
    async def get(url: str) -> Any:
        if url not in answers:
            raise OSError(f"404 {url}")
        return answers[url]

    return get


WORKERS = {"workers": [{"url": "http://a:1"}, {"url": "http://b:2/"}, {"url": "http://a:1@1"}]}


async def test_each_engine_behind_a_router_is_asked_once_by_either_name() -> None:
    get = answering(
        {
            "http://router/workers": WORKERS,
            "http://a:1/server_info": {"version": "0.5.23", "disaggregation_mode": "null", "dp_size": 1},
            "http://b:2/get_server_info": {"version": "0.5.9", "enable_dp_attention": True, "dp_size": 8},
        }
    )
    engines = await ask_engines("http://router", get)
    assert sorted(engines.infos) == ["http://a:1", "http://b:2"]
    assert (engines.silent, engines.conditions(), engines.seeded()) == ((), [], False)
    assert engines.described() == "2 of version 0.5.23/0.5.9, enable_dp_attention True, dp_size 8"


@pytest.mark.parametrize("answers", [{}, {"http://router/workers": {"workers": 7}}, {"http://router/workers": WORKERS}])
async def test_what_does_not_answer_is_silent(answers: dict[str, Any]) -> None:
    engines = await ask_engines("http://router", answering(answers))
    assert engines.infos == {}
    assert engines.silent == (
        ("http://a:1", "http://b:2") if answers.get("http://router/workers") == WORKERS else ("http://router",)
    )
    assert engines.conditions() == []


async def test_an_older_router_lists_addresses() -> None:
    get = answering(
        {"http://router/list_workers": {"urls": ["http://a:1"]}, "http://a:1/server_info": {"version": "1"}}
    )
    assert list((await ask_engines("http://router", get)).infos) == ["http://a:1"]


@pytest.mark.parametrize(
    ("versions", "silent", "lora"),
    [
        (["0.5.23"], (), True),
        (["0.5.23.post1", "0.6.0"], (), True),
        (["0.5.23", "0.5.16"], (), False),
        (["0.5.24.dev7+g1a2b"], (), False),
        (["0.5.23rc1"], (), False),
        (["unknown"], (), False),
        (["0.5.23"], ("http://b",), False),
        ([], (), False),
    ],
)
def test_adapters_go_with_n_where_every_engine_is_of_a_release_that_unloads_them(
    versions: list[str], silent: tuple[str, ...], lora: bool
) -> None:
    infos = {f"http://{at}": {"version": version} for at, version in enumerate(versions)}
    able = Engines(infos, silent).added_to(Capabilities())
    assert able == Capabilities(lora_with_n=lora, lora_lists=lora)


@pytest.mark.parametrize(
    ("info", "names"),
    [
        ({"disaggregation_mode": "prefill"}, ["disaggregated_prefill"]),
        ({"disaggregation_mode": "decode"}, ["disaggregated_prefill"]),
        ({"disaggregation_mode": "null"}, []),
        ({"speculative_algorithm": "EAGLE"}, ["speculative_decoding"]),
        ({"speculative_algorithm": None}, []),
        ({"enable_dp_attention": True, "skip_tokenizer_init": True, "enable_lora": True}, []),
    ],
)
def test_one_engine_rules_a_way_out_for_all(info: dict[str, Any], names: list[str]) -> None:
    assert Engines({"a": {"version": "1"}, "b": {"version": "1", **info}}).conditions() == names
    assert Engines({"a": {"enable_deterministic_inference": True}}).seeded()
