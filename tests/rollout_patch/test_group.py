"""A group is applied whole or not at all, whatever the engine and the host do meanwhile."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rollout_patch import (
    ARMS,
    Capabilities,
    Output,
    Permits,
    RequestAborted,
    RequestFailed,
    ResponseRefused,
    generate_group,
    group_metrics,
    logs,
)
from rollout_patch.refusals import ASKED_AGAIN_AFTER, Refusals
from rollout_patch.responses import DOUBTS

Group = list[SimpleNamespace]
MakeGroup = Callable[..., Group]


def state(samples: Group) -> list[dict[str, Any]]:
    return [copy.deepcopy(vars(sample)) for sample in samples]


def aborted_item(item: dict[str, Any], tokens: int) -> dict[str, Any]:
    meta = item["meta_info"]
    message = "Aborted" if tokens else "Abort in waiting queue"
    changed = {
        "finish_reason": {"type": "abort", "message": message},
        "completion_tokens": tokens,
        "weight_versions": [],
    }
    kept = {key: value for key, value in meta.items() if tokens or key not in ("prompt_tokens", "cached_tokens")}
    logprobs = meta["output_token_logprobs"][:tokens]
    return {
        "text": "",
        "output_ids": item["output_ids"][:tokens],
        "meta_info": {**kept, **changed, "output_token_logprobs": logprobs},
    }


@pytest.mark.parametrize("arm", ARMS)
async def test_every_arm_fills_every_sample_once(arm: str, engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(4)
    report = await generate_group(arm, group, adapter=adapter, post=engine.post)
    assert (report.arm_asked, report.arm_used, report.reasons, report.retries) == (arm, arm, (), 0)
    assert report.requests == len(engine.sent) == (4 if arm == "per-sample" else 1)
    assert [sample.tokens for sample in group] == [[1, 2, 3, number, 7] for number in (1, 2, 3, 4)]
    assert [sample.logprobs for sample in group] == [[-0.5, -0.25]] * 4
    assert len({id(sample.logprobs) for sample in group}) == 4
    assert [output.id for output in report.outputs] == ["id-1", "id-2", "id-3", "id-4"]


async def test_a_chunked_group_is_k_requests_and_one_group(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(8)
    report = await generate_group("native", group, adapter=adapter, post=engine.post, chunk=4)
    assert report.requests == 2
    assert [payload["sampling_params"]["n"] for payload in engine.sent] == [4, 4]
    assert [sample.tokens[3] for sample in group] == list(range(1, 9))


@pytest.mark.parametrize("arm", ARMS)
async def test_a_refused_answer_changes_no_sample(arm: str, engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(4)
    before = state(group)
    engine.script = [None, None, None, None] if arm == "per-sample" else [None]
    engine.script[-1] = lambda answer: None
    with pytest.raises(ResponseRefused):
        await generate_group(arm, group, adapter=adapter, post=engine.post)
    assert state(group) == before


async def test_a_broken_last_item_changes_no_earlier_sibling(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(4)
    before = state(group)
    engine.script = [lambda items: [*items[:3], {"text": "no meta_info"}]]
    with pytest.raises(
        ResponseRefused, match=r"slot 3: an item holds the object meta_info, unlike dict .*no meta_info"
    ):
        await generate_group("native", group, adapter=adapter, post=engine.post)
    assert state(group) == before


async def test_one_sample_per_sample_of_another_weight_version_is_refused(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    def newer(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "meta_info": {**item["meta_info"], "weight_version": "w2", "weight_versions": []}}

    engine.script = [None, None, newer]
    group = make_group(3)
    before = state(group)
    with pytest.raises(ResponseRefused, match="2 weight versions"):
        await generate_group("per-sample", group, adapter=adapter, post=engine.post)
    assert state(group) == before


async def test_an_adapter_that_fails_midway_leaves_all_as_before(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    group = make_group(4)
    before = state(group)
    apply = adapter.apply

    def failing(sample: SimpleNamespace, output: Output) -> None:
        apply(sample, output)
        if sample is group[2]:
            raise OverflowError("the third sample")

    adapter.apply = failing
    with pytest.raises(OverflowError, match="third"):
        await generate_group("native", group, adapter=adapter, post=engine.post)
    assert state(group) == before


@pytest.mark.parametrize(("asked", "status"), [("native", 400), ("native", 422), ("batched", 400), ("batched", 501)])
async def test_an_engine_that_cannot_is_asked_another_way_and_it_is_recorded(
    asked: str, status: int, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    refusals = {"native": 2, "batched": 1}[asked]
    engine.script = [RequestFailed(status, {"error": {"message": "not supported"}})] * refusals
    group = make_group(3)
    report = await generate_group(asked, group, adapter=adapter, post=engine.post)
    assert report.arm_used == "per-sample"
    assert report.reasons == {"native": ("refused_native", "refused_batched"), "batched": ("refused_batched",)}[asked]
    assert (report.requests, report.retries) == (refusals + 3, 0)
    assert all(sample.status == "stop" for sample in group)


@pytest.mark.parametrize("asked", ["native", "batched"])
async def test_a_router_that_drops_what_asks_for_several_is_asked_another_way(
    asked: str, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    engine.script = [lambda items: items[0]]
    group = make_group(3)
    report = await generate_group(asked, group, adapter=adapter, post=engine.post)
    assert (report.arm_used, report.reasons) == (
        {"native": "batched", "batched": "per-sample"}[asked],
        (f"refused_{asked}",),
    )
    assert len({tuple(sample.tokens) for sample in group}) == 3

    engine.script = [lambda items: {"error": {"message": "out of memory"}}]
    with pytest.raises(ResponseRefused, match="out of memory"):
        await generate_group(asked, make_group(3), adapter=adapter, post=engine.post)


async def test_an_arm_that_was_refused_is_asked_again_after_a_while(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    now = 0.0
    refused = Refusals(clock=lambda: now)

    async def ask(**changes: Any) -> tuple[Any, ...]:
        group = make_group(3, **changes)
        report = await generate_group("native", group, adapter=adapter, post=engine.post, refused=refused)
        return report.arm_used, report.requests, report.reasons

    images = {"media": {"image_data": ["an image"]}}
    fell_back = ("batched", 2, ("refused_native",))
    engine.script = [RequestFailed(400, "an accident")]
    assert await ask() == fell_back
    assert await ask() == ("native", 1, ())  # one refusal costs one group
    engine.script = [RequestFailed(400, "no n with images"), None] * 2
    assert [await ask(**images), await ask(**images)] == [fell_back] * 2
    assert await ask(**images) == ("batched", 1, ("refused_native",))
    assert await ask() == ("native", 1, ())  # groups without media are another matter
    now = ASKED_AGAIN_AFTER
    engine.script = [RequestFailed(400, "no n with images")]
    assert await ask(**images) == fell_back
    assert await ask(**images) == ("batched", 1, ("refused_native",))
    now = 2 * ASKED_AGAIN_AFTER
    assert await ask(**images) == ("native", 1, ())
    engine.script = [RequestFailed(400, "an accident")]
    assert [await ask(**images), await ask(**images)] == [fell_back, ("native", 1, ())]


async def test_a_prompt_that_is_refused_in_every_arm_says_nothing_about_others(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    refused = Refusals()
    engine.script = [RequestFailed(400, "input is longer than the model's context")] * 5
    with pytest.raises(RequestFailed):
        await generate_group("native", make_group(3), adapter=adapter, post=engine.post, refused=refused)
    sent = len(engine.sent)
    engine.script = [RequestFailed(400, "not supported"), RequestAborted("before any output")]
    group = make_group(3)
    assert (await generate_group("native", group, adapter=adapter, post=engine.post, refused=refused)).aborted
    assert (len(engine.sent) - sent, refused._counts) == (2, {})


async def test_a_request_that_every_arm_is_refused_fails_with_the_engines_words(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    engine.script = [RequestFailed(400, "input is longer than the model's context")] * 5
    group = make_group(3)
    before = state(group)
    with pytest.raises(RequestFailed, match="HTTP 400: input is longer") as failed:
        await generate_group("native", group, adapter=adapter, post=engine.post)
    assert failed.value.status == 400
    assert state(group) == before


@pytest.mark.parametrize(
    "failure", [RequestFailed(502, "bad gateway"), RequestFailed(None, "cut"), OSError("cut"), TimeoutError()]
)
async def test_a_retry_regenerates_the_whole_group_exactly_once(
    failure: BaseException, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    engine.script = [failure, failure]
    group = make_group(4)
    report = await generate_group("native", group, adapter=adapter, post=engine.post, retries=2, retry_wait=0)
    assert (report.requests, report.retries, report.arm_used) == (3, 2, "native")
    assert [payload["sampling_params"]["n"] for payload in engine.sent] == [4, 4, 4]
    assert [sample.tokens[3] for sample in group] == [1, 2, 3, 4]


async def test_per_sample_only_the_failed_request_is_sent_again(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    engine.script = [None, RequestFailed(503, "busy")]
    report = await generate_group(
        "per-sample", make_group(4), adapter=adapter, post=engine.post, retries=1, retry_wait=0
    )
    assert (report.requests, report.retries) == (5, 1)


@pytest.mark.parametrize("failure", [RequestFailed(502, "bad gateway"), RequestFailed(401, "who?"), OSError("cut")])
async def test_without_retries_left_the_failure_is_the_callers(
    failure: BaseException, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    engine.script = [failure]
    group = make_group(4)
    before = state(group)
    with pytest.raises(RequestFailed):
        await generate_group("native", group, adapter=adapter, post=engine.post)
    assert len(engine.sent) == 1
    assert state(group) == before


async def test_when_one_sample_fails_no_request_is_left_running(adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(4)
    before = state(group)
    running: list[int] = []

    async def post(payload: Any, headers: Any) -> Any:
        running.append(1)
        if len(running) == 2:
            raise RequestFailed(400, "no")
        try:
            return await asyncio.Event().wait()
        finally:
            running.pop()

    with pytest.raises(RequestFailed):
        await generate_group("per-sample", group, adapter=adapter, post=post)
    assert running == [1]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert state(group) == before


@pytest.mark.parametrize("arm", ARMS)
async def test_an_abort_before_anything_is_sent_leaves_the_group_as_it_was(
    arm: str, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    group = make_group(4)
    before = state(group)
    report = await generate_group(arm, group, adapter=adapter, post=engine.post, aborted=lambda: True)
    assert (report.aborted, report.requests, engine.sent) == (True, 0, [])
    assert [output.finish_reason for output in report.outputs] == ["abort"] * 4
    assert state(group) == before


@pytest.mark.parametrize("arm", ARMS)
async def test_an_abort_that_the_host_raises_leaves_the_group_as_it_was(
    arm: str, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    group = make_group(4)
    before = state(group)
    engine.script = [RequestAborted("before any output")] * 4
    assert (await generate_group(arm, group, adapter=adapter, post=engine.post)).aborted
    assert state(group) == before


async def test_a_group_aborted_in_the_queue_is_eligible_again(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(4)
    before = state(group)
    engine.script = [lambda items: [aborted_item(item, 0) for item in items]]
    report = await generate_group("native", group, adapter=adapter, post=engine.post, aborted=lambda: bool(engine.sent))
    assert report.aborted
    assert state(group) == before
    assert (await generate_group("native", group, adapter=adapter, post=engine.post)).arm_used == "native"
    assert all(sample.status == "stop" for sample in group)


async def test_a_group_that_the_engine_aborts_by_itself_is_marked_as_the_host_marks_one(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    """Left as it was, it would be handed over as a group that nobody has asked for yet."""
    group = make_group(4)
    engine.script = [lambda items: [aborted_item(item, 0) for item in items]]
    report = await generate_group("native", group, adapter=adapter, post=engine.post)
    assert not report.aborted
    assert [(sample.status, sample.logprobs) for sample in group] == [("abort", [])] * 4


async def test_partial_outputs_of_an_abort_are_kept_and_marked(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    group = make_group(4)
    engine.script = [
        lambda items: [*(aborted_item(item, tokens) for item, tokens in zip(items, (0, 1, 2), strict=False)), items[3]]
    ]
    report = await generate_group("native", group, adapter=adapter, post=engine.post)
    assert not report.aborted
    assert [sample.status for sample in group] == ["abort", "abort", "abort", "stop"]
    assert [len(sample.logprobs) for sample in group] == [0, 1, 2, 2]


async def test_an_abort_between_samples_keeps_what_came(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(4)
    permits = Permits(asyncio.Semaphore(1), 1)
    report = await generate_group(
        "per-sample", group, adapter=adapter, post=engine.post, permits=permits, aborted=lambda: len(engine.sent) >= 2
    )
    assert report.requests == 2
    assert [sample.status for sample in group] == ["stop", "stop", "abort", "abort"]
    assert not report.aborted


async def test_an_abort_that_the_group_outlived_is_noticed(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(3)
    report = await generate_group("native", group, adapter=adapter, post=engine.post, aborted=lambda: bool(engine.sent))
    assert report.notes == ("abort_missed",)
    assert all(sample.status == "stop" for sample in group)


async def test_no_request_is_sent_again_after_an_abort(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = make_group(3)
    before = state(group)
    engine.script = [RequestFailed(502, "gone")]
    report = await generate_group(
        "native", group, adapter=adapter, post=engine.post, retries=5, retry_wait=0, aborted=lambda: bool(engine.sent)
    )
    assert (report.aborted, report.requests) == (True, 1)
    assert state(group) == before


@pytest.mark.parametrize("arm", ARMS)
async def test_fewer_permits_than_samples_do_not_deadlock_and_are_noted(
    arm: str, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    semaphore = asyncio.Semaphore(3)
    permits = Permits(semaphore, 3)
    groups = [make_group(8) for _ in range(4)]
    reports = await asyncio.wait_for(
        asyncio.gather(
            *(generate_group(arm, group, adapter=adapter, post=engine.post, permits=permits) for group in groups)
        ),
        timeout=10,
    )
    assert [report.notes for report in reports] == [() if arm == "per-sample" else ("permits_short",)] * 4
    assert all(sample.status == "stop" for group in groups for sample in group)


async def test_a_native_request_holds_as_many_permits_as_samples(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    semaphore = asyncio.Semaphore(8)
    free: list[int] = []

    async def post(payload: Any, headers: Any) -> Any:
        free.append(semaphore._value)
        return await engine.post(payload, headers)

    await generate_group("native", make_group(5), adapter=adapter, post=post, permits=Permits(semaphore, 8))
    assert (free, semaphore._value) == ([3], 8)


async def test_media_are_encoded_once_and_reach_no_sample(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    calls: list[str] = []

    async def encoder(kind: str, items: Any) -> list[str]:
        calls.append(kind)
        return ["data:image/png;base64,AAAA" for _ in items]

    group = make_group(4, media={"image_data": ["one", "two"], "video_data": []})
    report = await generate_group("native", group, adapter=adapter, post=engine.post, encoder=encoder)
    assert calls == ["image_data"]
    assert engine.sent[0]["image_data"] == [["data:image/png;base64,AAAA"] * 2]
    assert "base64" not in repr([vars(sample) for sample in group])
    assert report.asked[0].media == {"image_data": ["one", "two"], "video_data": []}


async def test_an_image_without_a_placeholder_is_noticed_before_anything_is_sent(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    group = make_group(4, input_ids=[1, 9, 2], media={"image_data": ["one", "two"]})
    before = state(group)
    with pytest.raises(ValueError, match="slot 0 asks with 1 placeholders for 2 media"):
        await generate_group("native", group, adapter=adapter, post=engine.post, placeholders=(9,))
    assert engine.sent == []
    assert state(group) == before
    sound = make_group(4, input_ids=[1, 9, 2], media={"image_data": ["one"]})
    assert (await generate_group("native", sound, adapter=adapter, post=engine.post, placeholders=(9,))).requests == 1


async def test_a_failing_encoder_sends_nothing_and_changes_nothing(
    engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    async def encoder(kind: str, items: Any) -> list[str]:
        raise OSError("no such picture")

    group = make_group(4, media={"image_data": ["one"]})
    before = state(group)
    with pytest.raises(OSError, match="no such picture"):
        await generate_group("native", group, adapter=adapter, post=engine.post, encoder=encoder)
    assert engine.sent == []
    assert state(group) == before


async def test_seeds_of_a_deterministic_engine_go_as_a_list(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    group = [make_group(1, sampling_params={"sampling_seed": seed})[0] for seed in (9, 4, 7)]
    report = await generate_group(
        "native", group, adapter=adapter, post=engine.post, capabilities=Capabilities(seeded=True)
    )
    assert report.arm_used == "batched"
    assert report.reasons == ("seeds_not_per_slot", "deterministic_inference")
    assert engine.sent[0]["sampling_params"] == [{"sampling_seed": seed} for seed in (9, 4, 7)]


async def test_routing_headers_travel_with_the_request(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    for arm in ARMS:
        await generate_group(arm, make_group(2, headers={"X-SMG-Routing-Key": "k"}), adapter=adapter, post=engine.post)
    assert engine.headers == [{"X-SMG-Routing-Key": "k"}] * 4


async def test_a_fallback_is_logged_once_a_reason(
    engine: Any, adapter: Any, make_group: MakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    logs._said.clear()  # whatever was said by tests before
    with caplog.at_level(logging.WARNING, logger="rollout_patch"):
        for more in ([], ["custom_generate"], []):
            held = ["speculative_decoding", *more]
            await generate_group("native", make_group(2), adapter=adapter, post=engine.post, circumstances=held)
    lines = [record.getMessage() for record in caplog.records if "speculative_decoding" in record.getMessage()]
    assert len(lines) == 1
    assert "was not seen with more than one sample" in lines[0]


async def test_an_engine_that_is_down_is_a_line_and_not_one_an_attempt(
    engine: Any, adapter: Any, make_group: MakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    logs._seldom.clear()
    engine.script = [RequestFailed(503, "starting")] * 30
    report = await generate_group("native", make_group(2), adapter=adapter, post=engine.post, retries=59, retry_wait=0)
    assert report.retries == 30
    (line,) = [record.getMessage() for record in caplog.records if "attempt" in record.getMessage()]
    assert line == "attempt 1 of 60 failed: HTTP 503: starting"


async def test_a_refusal_is_logged_once_an_arm_and_status_with_the_engines_words(
    engine: Any, adapter: Any, make_group: MakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    logs._said.clear()
    for number in range(3):
        engine.script = [RequestFailed(400, f"no n, says request {number}")]
        await generate_group("native", make_group(2), adapter=adapter, post=engine.post)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert [line for line in lines if "sent native" in line] == [
        "the engine refused a group of 2 sent native: HTTP 400: no n, says request 0; said once"
    ]


async def test_what_cannot_be_asked_is_the_callers_error(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    with pytest.raises(ValueError, match="none of"):
        await generate_group("grouped", make_group(2), adapter=adapter, post=engine.post)
    with pytest.raises(ValueError, match="at least one"):
        await generate_group("native", [], adapter=adapter, post=engine.post)
    group = make_group(2)
    before = state(group)
    with pytest.raises(ValueError, match="unknown conditions"):
        await generate_group("native", group, adapter=adapter, post=engine.post, circumstances=["rain"])
    assert state(group) == before


DOUBTFUL = {
    "mixed_weight_versions": lambda items: items[0]["meta_info"].update(weight_version="another"),
    "weight_version_type": lambda items: [item["meta_info"].update(weight_version=7) for item in items],
    "missing_id": lambda items: items[1]["meta_info"].pop("id"),
    "missing_prompt_tokens": lambda items: items[1]["meta_info"].pop("prompt_tokens"),
    "positive_logprob": lambda items: items[1]["meta_info"]["output_token_logprobs"][0].__setitem__(0, 0.5),
}


@pytest.mark.parametrize("doubt", DOUBTS)
async def test_what_hosts_train_on_is_noted_unless_it_is_refused(
    doubt: str, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    def change(items: Any) -> Any:
        DOUBTFUL[doubt](items)
        return items

    engine.script = [change]
    group = make_group(3)
    report = await generate_group("native", group, adapter=adapter, post=engine.post, strict=False)
    assert report.notes == (f"doubts/{doubt}",)
    assert group_metrics([report])[f"rollout_patch/doubts/{doubt}"] == 1
    assert all(sample.status == "stop" for sample in group)

    engine.script = [change]
    fresh = make_group(3)
    before = state(fresh)
    with pytest.raises(ResponseRefused):
        await generate_group("native", fresh, adapter=adapter, post=engine.post)
    assert state(fresh) == before


async def test_equal_answers_are_noted(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    def alike(items: Any) -> Any:
        for item in items:
            item["output_ids"] = [5, 7]
            item["meta_info"]["output_token_logprobs"] = [[-0.5, 5, None], [-0.25, 7, None]]
        return items

    engine.script = [None, alike]
    notes = [(await generate_group("native", make_group(3), adapter=adapter, post=engine.post)).notes for _ in range(2)]
    assert notes == [(), ("equal_answers",)]
