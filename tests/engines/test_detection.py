"""What an engine promises is found by asking it: a kind of engine for each promise, beside the engine that keeps it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lies
import pytest
from aiohttp import web
from served import serve_here
from toy_engine import Seeding, by_slot, default_seed, greedy, nothing, one_seed, toy_engine

from parity.engines import EngineClient
from parity.engines.detection import Determinism, detect_determinism
from parity.engines.remote import remote_engine
from parity.errors import EngineUnavailable
from parity.trainer.policy import build_policy, policy_config, save_policy
from rollout_patch import Capabilities, RequestFailed

SGLANG_DETERMINISTIC = {"version": "0.5.23", "enable_deterministic_inference": True}
EMBEDDED = {"deterministic": True, "seed_per_slot": True}


def seen_of(url: str) -> Determinism:
    async def ask() -> Determinism:
        async with EngineClient(url, "toy") as client:
            return await detect_determinism(client.generate, await client.capabilities())

    return asyncio.run(ask())


def refuses(of: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], None]:
    """A router or engine that answers such requests with 422."""

    def refuse(payload: dict[str, Any]) -> None:
        if of(payload):
            raise web.HTTPUnprocessableEntity(text="data did not match any variant")

    return refuse


def has_list(payload: dict[str, Any]) -> bool:
    return isinstance(payload["sampling_params"], list)


def asks_for_n(payload: dict[str, Any]) -> bool:
    return lies.is_native(payload)


def held(seen: Determinism) -> dict[str, bool | None]:
    return {name: getattr(seen, name).holds for name in ("repeats", "in_any_batch", "seeds_differ")}


def free(seen: Determinism) -> dict[str, bool | None]:
    return {name: getattr(seen, f"free_{name}").holds for name in ("per_sample", "batched", "native")}


FREE = {"per_sample": True, "batched": True, "native": True}


@pytest.mark.parametrize(
    ("seeding", "info", "seeded", "per_slot", "per_item"),
    [
        (nothing, {}, False, None, None),
        (by_slot, EMBEDDED, True, True, True),
        (one_seed, SGLANG_DETERMINISTIC, True, False, True),
        (default_seed, SGLANG_DETERMINISTIC, True, False, True),
        (greedy, {}, False, None, None),
    ],
    ids=["seeds ignored", "a seed a slot", "one seed for n", "a default seed", "greedy"],
)
def test_how_seeds_are_taken(
    seeding: Seeding, info: dict[str, Any], seeded: bool, per_slot: bool | None, per_item: bool | None
) -> None:
    with toy_engine(seeding=seeding, info=info) as engine:
        seen = seen_of(engine.url)
        assert engine.asked < 40
    assert (seen.capabilities.seeded, seen.seed_per_slot.holds, seen.seed_per_item.holds) == (
        seeded,
        per_slot,
        per_item,
    )
    assert seen.capabilities.seed_per_slot is bool(per_slot)
    assert seen.contradictions == ()


@pytest.mark.parametrize(
    ("seeding", "clones"),
    [
        (default_seed, ("per-sample", "batched", "native")),
        (greedy, ("per-sample", "batched", "native")),
        (one_seed, ()),
        (by_slot, ()),
        (nothing, ()),
    ],
)
def test_groups_without_seeds_are_clones_where_a_default_seed_makes_them(
    seeding: Seeding, clones: tuple[str, ...]
) -> None:
    with toy_engine(seeding=seeding) as engine:
        seen = seen_of(engine.url)
    assert seen.clones == clones
    assert seen.capabilities.free_clones is bool(clones)
    assert free(seen) == ({name: False for name in FREE} if clones else FREE)


def test_clones_of_native_alone_are_seen_and_are_a_fault_and_no_default_seed() -> None:
    def copies(payload: dict[str, Any], outputs: list[dict[str, Any]]) -> None:
        for output in outputs[1:] if lies.is_native(payload) else ():
            lies.clone(outputs[0], output)

    with toy_engine(lie=copies) as engine:
        seen = seen_of(engine.url)
    assert free(seen) == {**FREE, "native": False}
    assert (seen.free_native.seen, seen.clones) == ("1 different of 4", ())


def test_two_copies_among_four_are_no_group_of_distinct_samples() -> None:
    with toy_engine(lie=lies.one_cloned_pair, seeding=by_slot) as engine:
        seen = seen_of(engine.url)
    assert (seen.free_native.holds, seen.free_native.seen) == (False, "3 different of 4")
    assert seen.seed_per_slot.holds is False


@contextmanager
def crowded(disturb: Callable[[dict[str, Any], bool], None]) -> Iterator[str]:
    """An engine by slot, whose answers `disturb` changes, told whether another prompt was just asked for."""
    before: list[int] = []

    def lie(payload: dict[str, Any], outputs: list[dict[str, Any]]) -> None:
        other = len(payload["input_ids"]) > 11
        before.append(other)
        if not other:
            for output in outputs:
                disturb(output, any(before[-7:]))

    with toy_engine(lie=lie, seeding=by_slot, info=EMBEDDED) as engine:
        yield engine.url


def test_seeds_that_hold_alone_and_not_beside_other_work_do_not_hold() -> None:
    def longer(output: dict[str, Any], busy: bool) -> None:
        if busy:
            output["output_ids"][0] += 1
            output["meta_info"]["output_token_logprobs"][0][1] += 1

    with crowded(longer) as url:
        seen = seen_of(url)
    assert held(seen) == {"repeats": True, "in_any_batch": False, "seeds_differ": True}
    assert not seen.capabilities.seeded
    assert seen.contradictions == ("the engine announces seeds that hold, and they do not",)


def test_log_probs_that_a_batch_moves_by_a_bit_do_not_hold_either() -> None:
    def rounded(output: dict[str, Any], busy: bool) -> None:
        if busy:
            output["meta_info"]["output_token_logprobs"][3][0] += 1e-9

    with crowded(rounded) as url:
        seen = seen_of(url)
    assert (seen.in_any_batch.holds, seen.in_any_batch.seen) == (False, "4 of 4 differ, in log-probs only")
    with crowded(nothing) as url:
        assert (seen_of(url)).in_any_batch.holds is True


@pytest.mark.parametrize(
    ("seeding", "info", "contradictions"),
    [
        (nothing, SGLANG_DETERMINISTIC, ["the engine announces seeds that hold, and they do not"]),
        (one_seed, EMBEDDED, ["the engine announces a seed per slot of a native request, and there is none"]),
        (one_seed, {}, ["the engine does not announce that its seeds hold, and they do"]),
        (
            by_slot,
            SGLANG_DETERMINISTIC,
            ["the engine does not announce a seed per slot of a native request, and there is one"],
        ),
        (by_slot, EMBEDDED, []),
    ],
)
def test_a_lie_is_named(seeding: Seeding, info: dict[str, Any], contradictions: list[str]) -> None:
    with toy_engine(seeding=seeding, info=info) as engine:
        seen = seen_of(engine.url)
    assert list(seen.contradictions) == contradictions
    assert all(one in seen.summary for one in contradictions)


def test_what_a_router_refuses_is_not_compared_with_its_reason() -> None:
    with toy_engine(seeding=by_slot, ask=refuses(has_list), info=EMBEDDED) as engine:
        seen = seen_of(engine.url)
    assert (seen.seed_per_item.holds, seen.seed_per_slot.holds) == (None, True)
    assert seen.seed_per_item.seen == "refused with HTTP 422: data did not match any variant"
    can = seen.capabilities
    assert (can.sampling_params_lists, can.prompt_lists, can.parallel_sampling) == (False, True, True)


def test_an_engine_that_takes_no_n_is_asked_for_the_rest() -> None:
    with toy_engine(ask=refuses(asks_for_n)) as engine:
        seen = seen_of(engine.url)
    assert (seen.free_native.holds, seen.free_batched.holds) == (None, True)
    assert (seen.capabilities.parallel_sampling, seen.capabilities.prompt_lists) == (False, True)


def test_an_answer_of_one_sample_for_four_is_not_taken_for_a_group() -> None:
    def drop_n(payload: dict[str, Any]) -> None:
        if lies.is_native(payload):
            del payload["sampling_params"]["n"]

    with toy_engine(ask=drop_n) as engine:
        seen = seen_of(engine.url)
    assert seen.free_native.holds is None
    assert "the answer breaks the protocol" in seen.free_native.seen
    assert seen.capabilities.parallel_sampling, "no refusal: the run asks, and shows what comes"


def test_an_engine_that_is_gone_is_an_error_and_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.engines.detection.RETRY_WAIT", 0)
    monkeypatch.setattr("parity.engines.client.CONTROL_ATTEMPTS", 2)
    with toy_engine() as engine:
        url = engine.url
    with pytest.raises(EngineUnavailable, match="/server_info"):
        seen_of(url)

    async def loading(payload: dict[str, Any], headers: Any) -> Any:
        raise RequestFailed(503, "loading")

    with pytest.raises(EngineUnavailable, match=r"21 times.*503: loading"):
        asyncio.run(detect_determinism(loading, Capabilities()))


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_damaged_answers_change_no_promise(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.engines.detection.RETRY_WAIT", 0)
    rng, damaged = random.Random(f"damage {share}"), [0]

    async def damage(payload: dict[str, Any], headers: Any) -> Any:
        answer = engine.outputs(payload)
        if rng.random() >= share:
            return answer
        damaged[0] += 1
        raise RequestFailed(*rng.choice([(200, "{'cut"), (302, ""), (None, "cut"), (500, "odd"), (429, "busy")]))

    with toy_engine(seeding=by_slot, info=EMBEDDED) as engine:
        sound = seen_of(engine.url)
        assert asyncio.run(detect_determinism(damage, Capabilities(seeded=True, seed_per_slot=True))) == sound
    assert damaged[0] > 0


def test_a_wrong_answer_now_and_then_changes_no_promise() -> None:
    asked = itertools.count()

    def cut(payload: dict[str, Any], outputs: list[dict[str, Any]]) -> None:
        if next(asked) % 3 == 0:
            del outputs[-1]["meta_info"]["output_token_logprobs"]

    with toy_engine(seeding=by_slot, info=EMBEDDED) as engine:
        sound = seen_of(engine.url)
    with toy_engine(seeding=by_slot, info=EMBEDDED, lie=cut) as engine:
        assert seen_of(engine.url) == sound


async def test_the_embedded_engine_keeps_what_it_announces(tmp_path: Path) -> None:
    policy = save_policy(build_policy(1, policy_config()), tmp_path / "policy")
    with serve_here(policy, max_running=64) as (url, _):
        async with remote_engine(url, control=False).client() as client:
            announced = await client.capabilities()
            seen = await detect_determinism(client.generate, announced)
    assert (announced.seeded, announced.seed_per_slot) == (True, True)
    assert all(fact.holds for fact in seen.facts.values())
    assert (seen.clones, seen.contradictions) == ((), ())
