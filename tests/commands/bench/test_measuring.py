"""Rollouts asked of engines whose answers are known."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paced_worker import VOCABULARY, paced_workers
from PIL import Image
from toy_engine import toy_engine

from parity.commands.bench import run_bench
from parity.commands.bench.measuring import cpu_seconds, measure, quantiles
from parity.commands.bench.prompts import Vocabulary, requests, vocabulary_of
from parity.commands.bench.running import _rounds
from parity.commands.validation import check_bench
from parity.engines import EngineClient
from parity.errors import EngineError, UsageError
from parity.evidence.cost.benchmark import defects
from parity.records.bench import PRESETS, BenchConfig, Load, Measurement, Workload, parse_mode

WORK = Workload(groups=6, group_size=4, prompt_tokens=12, new_tokens=5)
PLAIN = Vocabulary(VOCABULARY)


def ask(url: str, mode: str, workload: Workload = WORK) -> Measurement:
    async def run() -> Measurement:
        async with EngineClient(url, "engine") as client:
            groups = requests(workload, PLAIN, np.random.default_rng(0))
            return await measure(client, parse_mode(mode), groups, workload)

    return asyncio.run(run())


@pytest.mark.parametrize(("mode", "sent"), [("per-sample", 24), ("batched", 6), ("native", 6), ("chunk=3", 12)])
def test_every_mode_asks_for_the_same_work_in_its_own_number_of_requests(mode, sent):
    with paced_workers(1) as (worker,):
        found = ask(worker.url, mode)
        assert (worker.requests, worker.tokens) == (sent, 24 * 5)
    assert (found.requests, found.samples, found.output_tokens, found.at_cap) == (sent, 24, 24 * 5, 24)
    assert (found.prompt_tokens, found.cached_tokens, found.failed_groups) == (24 * 12, 0, 0)
    assert defects(WORK, [found]) == ()


@pytest.mark.parametrize(
    ("name", "groups", "size", "requests"),
    [("text-256x4x256", 256, 4, [1024, 256]), ("text-512x4x16", 512, 4, [2048, 512]), ("image-64x8", 64, 8, [512, 64])],
)
def test_presets_ask_for_what_was_published(name, groups, size, requests):
    config = PRESETS[name]
    config.validate()
    assert (config.workload.groups, config.workload.group_size) == (groups, size)
    assert [config.workload.samples, groups] == requests
    assert [mode.name for mode in config.modes] == ["per-sample", "native"]
    assert config.workload.concurrency >= config.workload.samples


@pytest.mark.parametrize(("mode", "concurrency"), [("per-sample", 3), ("native", 8), ("native", 3), ("chunk=2", 5)])
def test_no_more_samples_are_in_flight_than_allowed(mode, concurrency):
    workload = Workload(groups=12, group_size=4, prompt_tokens=4, new_tokens=2, concurrency=concurrency)
    with paced_workers(1, token_seconds=0.002) as (worker,):
        ask(worker.url, mode, workload)
        # A request for more than are allowed is alone.
        assert worker.most_in_flight <= max(concurrency, 4 if mode == "native" else 0)
        assert worker.tokens == 12 * 4 * 2


def test_a_rollout_takes_at_least_what_its_engine_takes():
    """24 sequences of 5 tokens of 4 ms each in 8 slots are three rounds of 20 ms; a sleep is never shorter."""
    with paced_workers(1, slots=8, token_seconds=0.004) as (worker,):
        for mode in ("per-sample", "native"):
            found = ask(worker.url, mode)
            assert found.seconds >= 0.06
            assert 0.02 <= found.request_seconds["p50"] <= found.request_seconds["max"] <= found.seconds
            assert found.request_seconds["p50"] <= found.group_seconds["p50"]


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50))
def test_quantiles_are_those_of_numpy_and_in_order(values):
    found = quantiles(values)
    assert found["p95"] == pytest.approx(np.quantile(values, 0.95))
    assert list(found.values()) == sorted(found.values())
    assert quantiles([]) == {}


def lose_one(payload: dict[str, Any], outputs: list[Any]) -> None:
    if len(outputs) > 1:
        outputs.pop()


def cut_short(payload: dict[str, Any], outputs: list[Any]) -> None:
    if payload["sampling_params"].get("n", 1) > 1:
        outputs[0]["output_ids"].pop()


def end_early(payload: dict[str, Any], outputs: list[Any]) -> None:
    if payload["sampling_params"].get("n", 1) > 1:
        outputs[0]["meta_info"]["finish_reason"] = {"type": "stop", "matched": 2}


def hold_no_sample(payload: dict[str, Any], outputs: list[Any]) -> None:
    if payload["sampling_params"].get("n", 1) > 1:
        del outputs[0]["meta_info"]["finish_reason"]


def move_one(payload: dict[str, Any], outputs: list[Any]) -> None:
    """Every second answer has one sample more, and the others one less: the sum is right."""
    if len(outputs) > 1:
        outputs[:] = [*outputs, outputs[0]] if next(TURNS) else outputs[:-1]


TURNS = itertools.cycle([True, False])


def never_stop(payload: dict[str, Any]) -> None:
    payload["sampling_params"]["chance"] = 0.0


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lose_one, "18 samples came back, 24 were asked for"),
        (move_one, "6 of 6 groups failed, the first: a request for 4 samples was answered with 5"),
        (cut_short, "6 of 24 samples did not end at the cap"),
        (end_early, "6 of 24 samples did not end at the cap"),
        (hold_no_sample, "a response has no sample"),
    ],
)
def test_work_that_an_engine_does_not_do_is_found(lie, said):
    with toy_engine(ask=never_stop) as sound, toy_engine(ask=never_stop, lie=lie) as lying:
        assert defects(WORK, [ask(sound.url, "native")]) == ()  # the control
        assert defects(WORK, [ask(lying.url, "per-sample")]) == ()
        assert said in "; ".join(defects(WORK, [ask(lying.url, "native")]))


@pytest.mark.parametrize("count", [-1, 1.5, "12", None, True])
def test_a_count_of_prompt_tokens_that_is_none_is_not_known(count):
    def claim(payload: dict[str, Any], outputs: list[Any]) -> None:
        outputs[-1]["meta_info"].update(prompt_tokens=count, cached_tokens=count)

    with toy_engine(ask=never_stop, lie=claim) as engine:
        found = ask(engine.url, "native")
    assert (found.prompt_tokens, found.cached_tokens, found.samples) == (None, None, 24)


def test_an_engine_that_heeds_no_ignore_eos_is_found():
    def drop(payload: dict[str, Any]) -> None:
        payload["sampling_params"].pop("ignore_eos")

    with toy_engine(ask=drop) as engine:  # ends at one token in five
        assert any("did not end at the cap" in found for found in defects(WORK, [ask(engine.url, "per-sample")]))


def test_prompts_are_new_in_every_rollout_and_share_what_they_should():
    vocabulary = Vocabulary(50, frozenset({0, 1, 7}))
    workload = Workload(groups=5, group_size=2, prompt_tokens=10, shared_prefix=0.4)
    drawn = [
        [one.input_ids for one in requests(workload, vocabulary, np.random.default_rng(seed))] for seed in (0, 1, 0)
    ]
    assert drawn[0] == drawn[2]
    assert not any(one in drawn[1] for one in drawn[0])
    assert {tuple(ids[:4]) for ids in drawn[0]} == {tuple(drawn[0][0][:4])}
    assert len({tuple(ids) for ids in drawn[0]}) == 5
    assert not {0, 1, 7}.intersection(itertools.chain(*drawn[0])) and max(itertools.chain(*drawn[0])) < 50


def test_a_prompt_that_is_shared_whole_is_the_same_in_all_groups():
    workload = Workload(groups=5, prompt_tokens=10, shared_prefix=1.0)
    asked = list(requests(workload, PLAIN, np.random.default_rng(0)))
    assert len({tuple(one.input_ids) for one in asked}) == 1
    assert len({one.headers["X-SMG-Routing-Key"] for one in asked}) == 5


def test_each_image_has_one_placeholder_and_is_a_picture_of_its_own():
    config = {
        "vision_start_token_id": 3,
        "image_token_id": 4,
        "vision_end_token_id": 5,
        "text_config": {"vocab_size": 90},
    }
    vocabulary = vocabulary_of(config)
    assert vocabulary == Vocabulary(90, frozenset({3, 4, 5}), (3, 4, 5))
    workload = Workload(groups=2, prompt_tokens=10, images=2, image_side=8)
    asked = list(requests(workload, vocabulary, np.random.default_rng(0)))
    encoded = [image for one in asked for image in one.media["image_data"]]
    pictures = [np.asarray(Image.open(io.BytesIO(base64.b64decode(image)))) for image in encoded]
    assert [picture.shape for picture in pictures] == [(8, 8, 3)] * 4
    assert len({picture.tobytes() for picture in pictures}) == 4
    assert [one.input_ids.count(4) for one in asked] == [2, 2]
    assert [len(one.input_ids) for one in asked] == [10, 10]


def test_a_model_without_images_is_asked_for_none():
    with pytest.raises(UsageError, match="no image_token_id"):
        next(requests(Workload(images=1), PLAIN, np.random.default_rng(0)))


@pytest.mark.parametrize("size", [1 << 25, 1 << 40, 1 << 62])
def test_a_vocabulary_that_no_model_has_is_refused_before_it_takes_memory(size):
    with pytest.raises(UsageError, match=f"{size}"):
        next(requests(WORK, vocabulary_of({"vocab_size": size}), np.random.default_rng(0)))


def test_special_ids_that_are_none_of_the_vocabulary_are_left_out():
    claimed = {"vocab_size": 90, "eos_token_id": [2, 1 << 63], "pad_token_id": -1, "image_token_id": 90}
    vocabulary = vocabulary_of(claimed)
    assert vocabulary == Vocabulary(90, frozenset({2}))
    asked = list(requests(Workload(groups=3, prompt_tokens=50), vocabulary, np.random.default_rng(0)))
    assert not any(2 in one.input_ids for one in asked)


@pytest.mark.parametrize("routers", [(), ("cache_aware", "round_robin")])
def test_modes_and_policies_take_turns_in_an_order_that_varies(routers):
    config = BenchConfig(repeats=40, warm_up=2, routers=routers, workers=2)
    rounds = _rounds(config)
    assert len(rounds) == config.rollouts
    each = {(policy, mode) for policy in routers or (None,) for mode in ("per-sample", "batched", "native")}
    for repeat in range(-2, 40):
        assert {(policy, mode.name) for at, policy, mode in rounds if at == repeat} == each
    assert [at for at, *_ in rounds] == sorted(at for at, *_ in rounds)
    first = [next((policy, mode.name) for at, policy, mode in rounds if at == repeat) for repeat in range(40)]
    assert set(first) == each


def test_nothing_that_changes_an_engine_is_asked_without_leave(tmp_path):
    config = BenchConfig(WORK, repeats=1, warm_up=0)
    with paced_workers(1) as (worker,):
        config = BenchConfig(WORK, repeats=1, warm_up=0, engine=worker.url)
        assert not run_bench(config, None, tmp_path).cache_emptied
        assert "/flush_cache" not in worker.paths
        assert run_bench(config, None, tmp_path, control=True).cache_emptied
        assert worker.paths.count("/flush_cache") == 3


def test_a_count_that_no_engine_makes_is_not_waited_for(tmp_path):
    readings = []

    async def read() -> dict[str, Load]:
        readings.append(float(worker.tokens))
        return {"engine": Load(None, readings[-1])}

    with paced_workers(1) as (worker,):
        config = BenchConfig(WORK, (parse_mode("native"),), repeats=1, warm_up=0, engine=worker.url)
        (row,) = run_bench(config, None, tmp_path, sources=[read]).rollouts
    assert readings == [0, WORK.samples * WORK.new_tokens]
    assert row.engines == {"engine": Load(None, readings[-1])}


def test_no_rollout_uses_a_connection_of_another(tmp_path):
    """A server that lags closes idle connections just as they are used again, and the request is lost."""
    with paced_workers(1) as (worker,):
        config = BenchConfig(WORK, (parse_mode("native"),), repeats=3, warm_up=0, engine=worker.url)
        run_bench(config, None, tmp_path)
        rollouts = [set(worker.peers[start : start + 6]) for start in (0, 6, 12)]
    assert len(set.union(*rollouts)) == sum(map(len, rollouts))


def test_an_engine_that_refuses_a_mode_altogether_is_said(tmp_path):
    def refuse(payload: dict[str, Any]) -> None:
        raise RuntimeError

    with toy_engine(ask=refuse) as engine:
        config = BenchConfig(WORK, repeats=1, warm_up=0, engine=engine.url)
        with pytest.raises(EngineError):
            run_bench(config, None, tmp_path, vocabulary=50)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (BenchConfig(Workload(groups=0)), "--groups is 0"),
        (BenchConfig(Workload(group_size=1)), "--group-size 1"),
        (BenchConfig(repeats=0), "--repeats is 0"),
        (BenchConfig(engine="http://h:1", workers=2), "is a deployment as it is"),
        (BenchConfig(modes=(parse_mode("native"), parse_mode("native"))), "measured once"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_starts(config, said):
    with pytest.raises(UsageError, match=said):
        check_bench(config)


@pytest.mark.parametrize("name", ["chunk=0", "chunk=", "chunk=-1", "chunk=²", "chunks=2", "natif", ""])
def test_a_mode_that_there_is_not_is_refused(name):
    with pytest.raises(UsageError, match="no mode"):
        parse_mode(name)


def test_cpu_time_of_processes_that_are_gone_is_none():
    assert cpu_seconds([2**22 + 1]) == 0
