"""Checks take anything: what is broken becomes a finding that JSON can hold, never an exception."""

from __future__ import annotations

import copy
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.contract_checks import Rules, check_accounting, check_arms, check_exchanges, check_samples, samples_of
from parity.evidence.replay.twins import compare_twins
from parity.findings import Finding, Status
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import Rollout, Sample

RECORDED = [
    exchange
    for exchange in read_exchanges(Path(__file__).parents[2] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl")
    if exchange.extra["case"] in ("native-stop-token", "batched-2x-native-3", "native-prompt-logprobs", "single")
]
RULES = Rules(
    group_size=2,
    max_new_tokens=8,
    context_length=16,
    vocab_size=50,
    stop_token_ids=frozenset({2, 3}),
    temperature=1.0,
    reward=lambda sample: float(sample.index),
    advantage="grpo",
    weight_versions={0: "v0"},
    media_placeholders=frozenset({7, "<image>"}),
)

scraps = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([[]]),
)


def serialisable(findings: list[Finding]) -> None:
    for finding in findings:
        orjson.dumps(finding.to_json())
        assert finding.message


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, one of each list's likes."""
    inner = node.items() if isinstance(node, dict) else list(enumerate(node))[:3] if isinstance(node, list) else []
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def put(node: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.data())
def test_no_answer_and_no_request_breaks_the_checks(data: st.DataObject) -> None:
    exchange = copy.deepcopy(data.draw(st.sampled_from(RECORDED)))
    whole = {"request": exchange.request, "response": exchange.response}
    path = data.draw(st.sampled_from([place for place in places(whole) if place and place != ("request",)]))
    put(whole, path, data.draw(scraps))
    broken = replace(exchange, request=whole["request"], response=whole["response"], rollout_id=0, group_index=0)
    for rules in (Rules(), RULES):
        serialisable(check_exchanges([broken], rules))
    serialisable(check_accounting(Rollout.from_samples([Sample(0, 0, rollout_id=0, output_ids=[1])]), [broken]))
    assert isinstance(list(samples_of([broken])), list)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


tokens = maybe(st.lists(st.one_of(st.none(), st.integers(-1, 60)), max_size=4))
numbers = maybe(st.one_of(st.floats(width=32), st.integers(-2, 2).map(float)))
whole_numbers = maybe(st.integers(-2, 20))
any_samples = st.builds(
    Sample,
    group_index=st.integers(-1, 2),
    index=st.integers(-1, 3),
    rollout_id=maybe(st.integers(0, 1)),
    prompt_ids=tokens,
    output_ids=tokens,
    logprobs=maybe(st.lists(st.one_of(st.none(), st.floats()), max_size=4)),
    text=maybe(st.text(max_size=5)),
    finish_reason=maybe(st.sampled_from(["stop", "length", "abort", "eos", ""])),
    status=maybe(st.sampled_from(["completed", "pending", "aborted", "failed", "odd"])),
    reward=numbers,
    advantage=numbers,
    loss_mask=maybe(st.lists(st.one_of(st.none(), st.integers(-1, 2)), max_size=4)),
    response_length=whole_numbers,
    max_new_tokens=whole_numbers,
    weight_versions=maybe(st.lists(st.sampled_from(["v0", "v1"]), max_size=2)),
    sampling_seed=whole_numbers,
    temperature=numbers,
    top_p=numbers,
    top_k=whole_numbers,
    prompt_tokens=whole_numbers,
    cached_tokens=whole_numbers,
    media_sha256=maybe(st.lists(st.sampled_from(["a", "b"]), max_size=2)),
    arm=maybe(st.sampled_from(["native", "per-sample"])),
)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.lists(any_samples, max_size=6), st.lists(any_samples, max_size=6))
def test_no_sample_breaks_the_checks(ours: list[Sample], theirs: list[Sample]) -> None:
    left, right = Rollout.from_samples(ours), Rollout.from_samples(theirs)
    for rules in (Rules(), RULES):
        serialisable(check_samples(left, rules))
    serialisable(check_arms(left, right))
    serialisable(compare_twins(left, right))
    serialisable(check_accounting(left, [Exchange({}, 200, None), Exchange({}, 0, "cut")]))


@settings(derandomize=True, max_examples=20, deadline=None)
@given(st.lists(any_samples, min_size=1, max_size=6, unique_by=lambda s: (s.rollout_id, s.group_index, s.index)))
def test_a_rollout_is_its_own_twin(samples: list[Sample]) -> None:
    rollout = Rollout.from_samples(samples)
    assert [f for f in compare_twins(rollout, rollout) if f.status is Status.FAIL] == []


def test_a_number_of_samples_that_nobody_answers_takes_no_memory() -> None:
    asked = {"input_ids": [1, 2], "sampling_params": {"n": 10**7}}
    tracemalloc.start()
    try:
        findings = check_exchanges([Exchange(asked, 200, [{"output_ids": [5], "meta_info": {}}])], Rules())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    count = next(finding for finding in findings if finding.check == "exchange_output_count")
    assert (count.expected, count.observed) == (10**7, 1)
