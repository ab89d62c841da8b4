"""Media are told apart by content and encoded once."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rollout_patch import SampleRequest
from rollout_patch.dialects.sglang import without_media
from rollout_patch.media import check_placeholders, digest, encode_media


class Counting:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Sequence[Any]]] = []

    async def __call__(self, kind: str, items: Sequence[Any]) -> Sequence[Any]:
        self.calls.append((kind, items))
        return [f"encoded {item}" for item in items]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ab", "ba"),
        (["ab", "c"], ["a", "bc"]),
        (["a"], "a"),
        ("1", 1),
        (b"a", "a"),
        ({"a": 1}, {"a": 2}),
        (None, "None"),
        (np.zeros(4, np.float32), np.zeros(8, np.float16)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (array("i", [1]), array("i", [2])),
        (object(), object()),
    ],
    ids=range(11),
)
def test_different_media_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    "make",
    [lambda: "text", lambda: ["a", b"b", 3], lambda: {"b": 1, "a": [2]}, lambda: np.arange(6.0).reshape(2, 3)],
    ids=range(4),
)
def test_equal_media_have_equal_digests(make: Any) -> None:
    assert digest(make()) == digest(make())
    assert len(digest(make())) == 64


def test_the_order_of_a_mapping_is_no_content() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_tensors_count_by_content() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        assert digest(torch.ones(3, dtype=dtype)) == digest(torch.ones(3, dtype=dtype))
        assert digest(torch.ones(3, dtype=dtype)) != digest(torch.zeros(3, dtype=dtype))
    assert digest(torch.ones(3)) != digest(torch.ones(3, dtype=torch.bfloat16))
    assert digest(torch.tensor([2**24])) != digest(torch.tensor([2**24 + 1]))


def test_images_count_by_their_colours_not_by_the_numbers_of_these() -> None:
    image_module = pytest.importorskip("PIL.Image")

    def image(red: int, **info: Any) -> Any:
        one = image_module.new("P", (2, 2), 0)
        one.putpalette([red, 0, 0])
        one.info.update(info)
        return one

    assert digest(image(1)) == digest(image(1)) == digest(copy.deepcopy(image(1)))
    assert digest(image(1)) != digest(image(2))
    assert digest(image(1)) != digest(image(1, transparency=0))


async def test_shared_and_copied_media_are_encoded_once() -> None:
    encoder = Counting()
    requests = [SampleRequest({}, text="a", media={"image_data": ["x", "y"]}) for _ in range(4)]
    encoded = await encode_media(requests, encoder)
    assert encoder.calls == [("image_data", ["x", "y"])]
    assert [request.media for request in encoded] == [{"image_data": ["encoded x", "encoded y"]}] * 4
    assert [request.media for request in requests] == [{"image_data": ["x", "y"]}] * 4


async def test_each_distinct_payload_and_kind_is_encoded_by_itself() -> None:
    encoder = Counting()
    media = [{"image_data": ["x"]}, {"image_data": ["y"], "video_data": ["x"]}, {}]
    encoded = await encode_media([SampleRequest({}, text="a", media=one) for one in media], encoder)
    assert sorted(encoder.calls) == [("image_data", ["x"]), ("image_data", ["y"]), ("video_data", ["x"])]
    assert encoded[1].media == {"image_data": ["encoded y"], "video_data": ["encoded x"]}
    assert encoded[2].media == {}


async def test_empty_media_call_no_encoder() -> None:
    encoder = Counting()
    requests = [SampleRequest({}, text="a", media=media) for media in ({}, {"image_data": []}, {"video_data": ()})]
    assert all(not request.media for request in await encode_media(requests, encoder))
    assert encoder.calls == []


async def test_an_encoder_that_loses_an_item_is_noticed() -> None:
    async def lossy(kind: str, items: Sequence[Any]) -> Sequence[Any]:
        return items[:1]

    with pytest.raises(ValueError, match="1 items out of 2 in image_data"):
        await encode_media([SampleRequest({}, text="a", media={"image_data": ["x", "y"]})], lossy)


IMAGE = 9


@pytest.mark.parametrize(
    ("prompt", "images", "counts"),
    [
        ({"input_ids": [1, IMAGE, 2]}, 1, None),
        ({"input_ids": [1, IMAGE, IMAGE, IMAGE, 2, IMAGE]}, 2, None),  # expanded already: a run is one
        ({"input_ids": [1, 2]}, 0, None),
        ({"text": "<image> and <image>"}, 2, None),
        ({"text": "<image><image>"}, 1, None),
        ({"input_ids": [1, IMAGE, 2]}, 2, "1 placeholders for 2 media"),
        ({"input_ids": [1, IMAGE, 2, IMAGE]}, 1, "2 placeholders for 1 media"),
        ({"input_ids": [1, 2]}, 1, "0 placeholders for 1 media"),
        ({"text": "<image>"}, 0, "1 placeholders for 0 media"),
    ],
    ids=range(9),
)
def test_placeholders_are_counted_against_media(prompt: dict[str, Any], images: int, counts: str | None) -> None:
    asked = [SampleRequest({}, input_ids=[1]), SampleRequest({}, media={"image_data": ["x"] * images}, **prompt)]
    check_placeholders(asked, ())
    if counts is None:
        check_placeholders(asked, (IMAGE, "<image>"))
        return
    with pytest.raises(ValueError, match=f"slot 1 asks with {counts}"):
        check_placeholders(asked, (IMAGE, "<image>"))


def test_a_recording_tells_media_apart_and_does_not_hold_them() -> None:
    payload = {"input_ids": [1], "image_data": [["one", "two"], [], None, ["one"]], "video_data": [], "other": "one"}
    kept = without_media(payload)
    (one, two), empty, missing, (again,) = kept["image_data"]
    assert one == again == f"sha256:{digest('one')}" != two
    assert (empty, missing) == ([], None)
    assert {name: kept[name] for name in ("input_ids", "video_data", "other")} == {
        name: payload[name] for name in ("input_ids", "video_data", "other")
    }
    assert without_media(kept) == kept
    assert without_media({"image_data": "one"}) == {"image_data": one}
