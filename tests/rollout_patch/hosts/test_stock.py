"""A host's own `generate` says what it would send and applies what came back, and is its own again afterwards."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import hypothesis
import pytest
from rollout_patch.hosts.stock import NothingToSend, Stock, StockAdapter, drive, replaced, require

from rollout_patch import Output, UnsupportedHost


class HostSample:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.response = ""
        self.response_length = 0
        self.status = "pending"
        self.metadata: dict[str, Any] = {"nested": []}


def make_host() -> types.ModuleType:
    host = types.ModuleType("host")

    async def post(url: str, payload: Any, headers: Any = None) -> Any:
        raise AssertionError("the host's own post is never called")

    async def generate(sample: HostSample, params: dict[str, Any]) -> HostSample:
        params["max_new_tokens"] -= sample.response_length
        if params["max_new_tokens"] == 0:
            sample.status = "truncated"
            return sample
        sample.tokens = sample.tokens or [1, 2]
        sample.metadata["nested"].append("primed")
        payload = {"input_ids": sample.tokens, "sampling_params": params, "return_logprob": True}
        output = await host.post("http://engine/generate", payload, headers={"key": "k"})
        sample.tokens += output["output_ids"]
        sample.response += output["text"]
        sample.response_length += len(output["output_ids"])
        sample.status = output["meta_info"]["finish_reason"]["type"]
        return sample

    host.post, host.generate = post, generate  # type: ignore[attr-defined]
    return host


def output(identity: str = "a") -> Output:
    meta = {"finish_reason": {"type": "stop"}}
    return Output("xy", [8, 9], [-0.5, -0.5], "stop", None, 2, 0, "w1", identity, meta)


def make_adapter(host: Any, sample: HostSample, budget: int = 5) -> StockAdapter:
    stock = Stock(host.generate, host)
    return StockAdapter(stock, [sample], [{"max_new_tokens": budget}], lambda one: None, "aborted")


def test_it_says_what_it_would_send_and_applies_what_came_back() -> None:
    host, sample = make_host(), HostSample()
    own = host.post
    adapter = make_adapter(host, sample)
    adapter.snapshot(sample)
    asked = adapter.request(sample)
    assert (asked.input_ids, asked.sampling_params, asked.headers) == ([1, 2], {"max_new_tokens": 5}, {"key": "k"})
    assert (asked.options, asked.resumed, adapter.url) == ({"return_logprob": True}, False, "http://engine/generate")
    adapter.apply(sample, output())
    assert (sample.tokens, sample.response, sample.status) == ([1, 2, 8, 9], "xy", "stop")
    assert asked.input_ids == [1, 2]
    assert host.post is own


def test_a_restored_sample_is_what_it_was_in_every_nested_value() -> None:
    host, sample = make_host(), HostSample()
    adapter = make_adapter(host, sample)
    snapshot = adapter.snapshot(sample)
    adapter.request(sample)
    adapter.apply(sample, output())
    sample.extra = "left over"  # type: ignore[attr-defined]
    adapter.restore(sample, snapshot)
    assert vars(sample) == vars(HostSample())


def test_a_sample_that_was_not_sent_is_only_marked() -> None:
    host, sample = make_host(), HostSample()
    adapter = make_adapter(host, sample)
    adapter.snapshot(sample)
    adapter.request(sample)
    adapter.apply(sample, output(identity=""))
    assert vars(sample) == {**vars(HostSample()), "status": "aborted"}


def test_a_sample_without_budget_sends_nothing() -> None:
    host, sample = make_host(), HostSample()
    with pytest.raises(NothingToSend):
        make_adapter(host, sample, budget=0).request(sample)


def test_a_generate_that_waits_for_anything_else_is_refused() -> None:
    with pytest.raises(UnsupportedHost, match="waits for something else"):
        drive(asyncio.sleep(0))


def test_replaced_attributes_come_back_after_an_error() -> None:
    host = make_host()
    own = host.post
    with pytest.raises(KeyError), replaced((host, "post", None)):
        assert host.post is None
        raise KeyError
    assert host.post is own


def test_only_known_signatures_and_calls_pass() -> None:
    host = make_host()
    require(host.generate, ("sample",), ("sample", "params"), calls=("post",))
    with pytest.raises(
        UnsupportedHost, match=r"takes \('sample', 'params'\); the known versions take \(\('args',\),\)"
    ):
        require(host.generate, ("args",))
    with pytest.raises(UnsupportedHost, match=r"no longer calls \['send'\]"):
        require(host.generate, ("sample", "params"), calls=("send",))


def test_a_refusal_names_the_hosts_version() -> None:
    own = r"tests\..*make_host \(tests without an installed version\) takes"
    with pytest.raises(UnsupportedHost, match=own):
        require(make_host, ("args",))
    with pytest.raises(UnsupportedHost, match=r"^hypothesis\.core\.given \(hypothesis \d+\.\d+"):
        require(hypothesis.given, ("args",))
