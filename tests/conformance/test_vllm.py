"""The suite of vLLM's dialect: a sound engine passes it, and what breaks a promise is found by the case for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import serve_here

from parity.conformance import CASES, VLLM_CASES, check_engine
from parity.conformance.known import known_deviations
from parity.conformance.probe import About
from parity.engines.client import EngineClient
from parity.engines.embedded.faults import FAULTS
from parity.engines.vllm import VllmClient
from parity.findings import Severity, Status
from parity.trainer.policy import build_policy, policy_config, save_policy

BY_NAME = {case.name: case for case in VLLM_CASES}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    policy = save_policy(
        build_policy(1, policy_config(max_position_embeddings=1024)), tmp_path_factory.mktemp("p") / "1"
    )
    with serve_here(policy, max_running=64, dialect="vllm") as (url, _):
        yield url


def test_the_embedded_engine_keeps_what_a_vllm_must(url: str) -> None:
    findings = check_engine(url, control=True)
    assert [finding.check for finding in findings] == [f"engine_{case.name}" for case in VLLM_CASES]
    assert [(finding.check, finding.message) for finding in findings if finding.fails] == []
    warned = {finding.check for finding in findings if finding.status is Status.FAIL}
    assert warned == {"engine_vllm_key_unknown", "engine_vllm_abort_id_bare"}
    assert {f.severity for f in findings if f.status is Status.FAIL} == {Severity.WARNING}
    apart = {f.check.removeprefix("engine_") for f in findings if f.status is Status.NOT_COMPARED}
    assert apart == {"vllm_seed_of_server", "vllm_chunked_prefill", "vllm_tied_head"}, "it has no such settings"


def test_without_control_nothing_is_changed(url: str) -> None:
    kept = [case for case in VLLM_CASES if case.control]
    assert {finding.status for finding in check_engine(url, cases=kept)} == {Status.NOT_COMPARED}


def test_names_are_of_one_dialect_alone() -> None:
    shared = {case.name for case in CASES} & set(BY_NAME)
    assert shared == {"digests_of_something"}
    known = known_deviations(About(vllm="0.32.0", settings={"device": "cpu"}))
    assert known.keys() <= set(BY_NAME)
    assert known_deviations(About(vllm="0.31.0")) == {}


def drop_last(answer: Any) -> None:
    if len(answer.get("choices", ())) > 1:
        del answer["choices"][-1]


def swap(answer: Any) -> None:
    answer["choices"] = answer["choices"][::-1]


def clone(answer: Any) -> None:
    for choice in answer.get("choices", ())[1:]:
        choice.update({name: answer["choices"][0][name] for name in ("token_ids", "logprobs")})


def untag(answer: Any) -> None:
    for choice in answer.get("choices", ()):
        choice["stop_reason"] = None
        choice["finish_reason"] = "length"


@pytest.mark.parametrize(
    ("damage", "case"),
    [
        (drop_last, "vllm_native_8"),
        (drop_last, "vllm_list"),
        (swap, "vllm_native_2"),
        (clone, "vllm_free_samples_differ"),
        (clone, "vllm_seed_children"),
        (untag, "vllm_stop_token"),
    ],
)
def test_an_engine_that_breaks_a_promise_fails_its_case(
    url: str, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Any], None], case: str
) -> None:
    sound = EngineClient.generate

    async def damaged(self: EngineClient, payload: Any, headers: Any = None) -> Any:
        answer = await sound(self, payload, headers)
        damage(answer)
        return answer

    (passing,) = check_engine(url, cases=[BY_NAME[case]])
    assert passing.status is Status.PASS
    monkeypatch.setattr(EngineClient, "generate", damaged)
    findings = check_engine(url, cases=[BY_NAME[case]])
    assert findings and all(finding.fails for finding in findings)


@pytest.mark.parametrize(
    ("case", "settings", "fails"),
    [
        ("vllm_chunked_prefill", {"device": "cpu", "enable_chunked_prefill": True}, True),
        ("vllm_chunked_prefill", {"device": "cpu", "enable_chunked_prefill": False}, False),
        ("vllm_seed_of_server", {"seed": 0}, True),
        ("vllm_seed_of_server", {"seed": 7}, False),
        ("vllm_tied_head", {"device": "cpu", "hf_overrides": {}}, True),
        ("vllm_tied_head", {"device": "cpu", "hf_overrides": {"tie_word_embeddings": False}}, False),
    ],
)
def test_what_would_end_or_mislead_is_read_off_how_it_was_started(
    url: str, monkeypatch: pytest.MonkeyPatch, case: str, settings: dict[str, Any], fails: bool
) -> None:
    sound = VllmClient.server_info

    async def told(self: VllmClient) -> dict[str, Any]:
        return {**await sound(self), **settings}

    monkeypatch.setattr(VllmClient, "server_info", told)
    (finding,) = check_engine(url, cases=[BY_NAME[case]])
    assert finding.fails is fails
    assert (finding.status is Status.PASS) is not fails


def test_a_stale_prefix_cache_is_found(tmp_path: Path) -> None:
    policy = save_policy(build_policy(1), tmp_path / "policy")
    with serve_here(policy, max_running=8, dialect="vllm") as (url, engine):
        (sound,) = check_engine(url, cases=[BY_NAME["vllm_stale_prefixes"]], control=True)
        FAULTS["stale-prefix-cache"][1](engine)
        (stale,) = check_engine(url, cases=[BY_NAME["vllm_stale_prefixes"]], control=True)
    assert (sound.status, stale.status) == (Status.PASS, Status.FAIL)
