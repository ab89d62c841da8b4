"""Bodies are those that the real engine was seen to take."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_patch import SampleRequest, plan_requests

KEYS = ("return_logprob", "logprob_start_len", "top_logprobs_num")


def one_sample(payload: dict[str, Any], prompt: Any, params: dict[str, Any], media: dict[str, Any]) -> SampleRequest:
    kind = "text" if isinstance(prompt, str) else "input_ids"
    options = {key: payload[key] for key in KEYS if key in payload}
    return SampleRequest(params, media=media, options=options, **{kind: prompt})


@pytest.mark.parametrize(
    "case",
    [
        "native-n8",
        "native-text-prompt",
        "native-no-logprob",
        "native-prompt-logprobs",
        "native-stop-string-trim",
        "native-top-p",
    ],
)
def test_native_bodies_are_the_recorded_ones(recorded: dict[str, Any], case: str) -> None:
    sent = recorded[case]["request"]
    params = {key: value for key, value in sent["sampling_params"].items() if key != "n"}
    prompt = sent.get("text", sent.get("input_ids"))
    group = [one_sample(sent, prompt, params, {})] * sent["sampling_params"]["n"]
    assert [planned.payload for planned in plan_requests("native", group)] == [sent]


@pytest.mark.parametrize("case", ["batched-8", "batched-distinct-3", "batched-per-item-params"])
def test_batched_bodies_are_the_recorded_ones(recorded: dict[str, Any], case: str) -> None:
    sent = recorded[case]["request"]
    params = sent["sampling_params"]
    each = params if isinstance(params, list) else [params] * len(sent["input_ids"])
    group = [one_sample(sent, ids, one, {}) for ids, one in zip(sent["input_ids"], each, strict=True)]
    assert [planned.payload for planned in plan_requests("batched", group)] == [sent]


def test_a_single_sample_is_asked_for_as_recorded_in_every_arm(recorded: dict[str, Any]) -> None:
    sent = recorded["single"]["request"]
    group = [one_sample(sent, sent["input_ids"], sent["sampling_params"], {})]
    for arm in ("per-sample", "batched", "native"):
        (planned,) = plan_requests(arm, group)
        assert planned.payload == sent


@pytest.mark.parametrize(
    ("arm", "case"),
    [
        ("per-sample", "two-images-single-flat"),
        ("per-sample", "image-single-flat"),
        ("native", "two-images-native-nested"),
        ("native", "image-native-n4"),
        ("native", "image-input-ids-native"),
        ("batched", "two-images-batched-nested"),
    ],
)
def test_media_are_flat_for_one_sample_and_nested_for_more(recorded: dict[str, Any], arm: str, case: str) -> None:
    row = recorded[case]
    sent = row["request"]
    assert row["status"] == 200
    params = {key: value for key, value in sent["sampling_params"].items() if key != "n"}
    prompt = sent.get("text", sent.get("input_ids"))
    prompt = prompt[0] if arm == "batched" else prompt
    images = sent["image_data"] if arm == "per-sample" else sent["image_data"][0]
    n = {"per-sample": 1, "native": sent["sampling_params"].get("n", 1), "batched": len(sent.get("text", ()))}[arm]
    group = [one_sample(sent, prompt, params, {"image_data": images}) for _ in range(n)]
    assert plan_requests(arm, group)[0].payload == sent


def test_the_shapes_that_the_engine_refuses_are_never_planned(recorded: dict[str, Any]) -> None:
    refused = ["two-images-native-flat", "two-images-single-nested"]
    assert [recorded[case]["status"] for case in refused] == [400, 400]
    sample = SampleRequest({"temperature": 1.0}, text="<image><image>", media={"image_data": ["a", "b"]})
    assert plan_requests("native", [sample] * 4)[0].payload["image_data"] == [["a", "b"]]
    assert plan_requests("native", [sample])[0].payload["image_data"] == ["a", "b"]


@pytest.mark.parametrize("kind", ["video_data", "audio_data"])
def test_video_and_audio_nest_as_images_do(kind: str) -> None:
    sample = SampleRequest({}, text="<media>", media={kind: ["clip"], "image_data": []})
    assert plan_requests("native", [sample] * 2)[0].payload[kind] == [["clip"]]
    assert plan_requests("batched", [sample] * 2)[0].payload[kind] == [["clip"], ["clip"]]
    assert plan_requests("per-sample", [sample] * 2)[1].payload[kind] == ["clip"]
    assert all(
        "image_data" not in planned.payload
        for arm in ("native", "batched")
        for planned in plan_requests(arm, [sample] * 2)
    )


def test_a_chunked_group_covers_every_slot_once_and_keeps_each_seed() -> None:
    group = [SampleRequest({"sampling_seed": 40 + slot}, input_ids=[1]) for slot in range(7)]
    plan = plan_requests("native", group, chunk=3)
    assert [planned.slots for planned in plan] == [(0, 1, 2), (3, 4, 5), (6,)]
    assert [planned.payload["sampling_params"] for planned in plan] == [
        {"sampling_seed": 40, "n": 3},
        {"sampling_seed": 43, "n": 3},
        {"sampling_seed": 46},
    ]


def test_bodies_share_nothing_with_the_caller_or_with_each_other() -> None:
    params, ids, images, options = {"stop": ["x"]}, [1, 2], ["a"], {"custom": {"k": []}}
    group = [SampleRequest(params, input_ids=ids, media={"image_data": images}, options=options) for _ in range(2)]
    first, second = plan_requests("per-sample", group)
    first.payload["sampling_params"]["stop"].append("y")
    first.payload["input_ids"].append(3)
    first.payload["image_data"].append("b")
    first.payload["custom"]["k"].append(1)
    assert (params, ids, images, options) == ({"stop": ["x"]}, [1, 2], ["a"], {"custom": {"k": []}})
    assert second.payload == {
        "input_ids": [1, 2],
        "image_data": ["a"],
        "sampling_params": {"stop": ["x"]},
        "custom": {"k": []},
    }
    batched = plan_requests("batched", group)[0].payload
    batched["input_ids"][0].append(3)
    assert batched["input_ids"][1] == [1, 2]


def test_adapters_become_a_list_only_where_they_differ() -> None:
    group = [SampleRequest({}, text="a", options={"lora_path": name}) for name in ("one", "two")]
    assert plan_requests("batched", group)[0].payload["lora_path"] == ["one", "two"]
    assert plan_requests("batched", [group[0]] * 2)[0].payload["lora_path"] == "one"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sampling_params": {}}, "exactly one"),
        ({"sampling_params": {}, "text": "a", "input_ids": [1]}, "exactly one"),
        ({"sampling_params": {"n": 4}, "text": "a"}, "n=4"),
        ({"sampling_params": {}, "text": "a", "options": {"stream": True}}, "streamed"),
    ],
)
def test_requests_that_no_arm_can_make_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SampleRequest(**wrong)


def test_unknown_arms_and_empty_chunks_are_refused() -> None:
    sample = SampleRequest({}, text="a")
    with pytest.raises(ValueError, match="none of"):
        plan_requests("grouped", [sample])
    with pytest.raises(ValueError, match="chunk is 0"):
        plan_requests("native", [sample], chunk=0)
