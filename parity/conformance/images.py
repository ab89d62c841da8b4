"""Cases with images, for engines that take them: response shapes by arm, token counts, and what is refused."""

from __future__ import annotations

import base64
import struct
import zlib
from functools import partial
from typing import Any

from parity.conformance.answers import SEED, greedy_alike, near, same_tokens
from parity.conformance.probe import (
    GREEDY,
    TOKENS,
    Cases,
    NotCompared,
    Output,
    Probe,
    expect,
    finishes,
    lengths,
    meta_of,
    request,
    require,
    triples_of,
)
from parity.conformance.refusals import refused, refused_or

CASES = Cases()

IMAGE = "<image>"
"""Stands in the prompts of this module for the text that stands for an image in a prompt of the model."""
ONE, TWO, NONE = f"a{IMAGE}b", f"a{IMAGE}b{IMAGE}c", "ab"
MORE_PIXELS = 70_000
"""Pixels a side of an image that no server may try to decode: 14 GB."""


def png(width: int, height: int, colour: tuple[int, int, int], content: bytes | None = None) -> str:
    """A picture of one colour as a data URL of a PNG (ISO/IEC 15948), or one with other compressed content."""
    if content is None:
        content = zlib.compress((b"\0" + bytes(colour) * width) * height)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", content), (b"IEND", b""))
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


RED, BLUE = png(56, 56, (220, 30, 20)), png(56, 56, (10, 40, 230))
WIDE = png(112, 56, (30, 200, 60))
BROKEN = "data:image/png;base64,AAAA"
TOO_LARGE = png(MORE_PIXELS, MORE_PIXELS, (0, 0, 0), b"")


def with_images(probe: Probe, prompt: Any, images: Any, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """A `/generate` body whose prompts have the model's text for an image in the place of each `IMAGE`."""
    name = probe.about.image_text
    if name is None:
        raise NotCompared("the engine takes no images, or how a prompt of its model shows one is not known")
    texts = [text.replace(IMAGE, name) for text in ([prompt] if isinstance(prompt, str) else prompt)]
    return request(texts[0] if isinstance(prompt, str) else texts, params, image_data=images)


async def _ask(probe: Probe, prompt: Any, images: Any, params: dict[str, Any] | None = None) -> list[Output]:
    return await probe.outputs(with_images(probe, prompt, images, params))


async def _answered(prompt: Any, images: Any, params: dict[str, Any], counts: list[int], probe: Probe) -> None:
    """`counts` are the images of each output's prompt, in order."""
    outputs = await _ask(probe, prompt, images, params)
    expect("output_ids", lengths(outputs), [TOKENS] * len(counts), "tokens, with the end of text ignored")
    expect("finish_reason", finishes(outputs), ["length"] * len(counts), "finish reasons")
    grown = [tokens or 0 for tokens in meta_of(outputs, "image_tokens")]
    fit = all(tokens >= images if images else tokens == 0 for tokens, images in zip(grown, counts, strict=True))
    require("image_tokens", fit, counts, grown, "image tokens of prompts with {counts} images", counts=counts)
    # Here prompts with the same number of images have the same text, so they have as many tokens that are of none.
    bare = [(tokens or 0) - more for tokens, more in zip(meta_of(outputs, "prompt_tokens"), grown, strict=True)]
    sizes = sorted(set(zip(counts, bare, strict=True)))
    alike = len(sizes) == len(set(counts))
    require("prompt_tokens", alike, "one length for each text", sizes, "images, and prompt tokens that are of none")


CASES.table(
    _answered,
    (
        ("image_single", "An image in a flat list goes with one prompt", ONE, [RED], {}, [1]),
        ("image_as_string", "An image that is no list goes with one prompt", ONE, RED, {}, [1]),
        ("image_as_base64", "An image may come as base64 alone", ONE, [RED.partition(",")[2]], {}, [1]),
        ("image_native", "An image in a nested list goes with n = 3", ONE, [[RED]], {"n": 3}, [1] * 3),
        ("image_native_flat", "One image in a flat list goes with n = 3", ONE, [RED], {"n": 3}, [1] * 3),
        ("images_two", "Two images in a flat list go with one prompt", TWO, [RED, WIDE], {}, [2]),
        ("images_two_native", "Two images in a nested list go with n = 3", TWO, [[RED, WIDE]], {"n": 3}, [2] * 3),
        ("image_list", "Each prompt of a list has its list of images", [ONE, TWO], [[RED], [WIDE, BLUE]], {}, [1, 2]),
        ("image_list_flat", "Each prompt of a list has its own image", [ONE] * 2, [RED, WIDE], {}, [1, 1]),
        ("image_list_mixed", "Prompts with and without images go in one list", [ONE, NONE], [[RED], []], {}, [1, 0]),
        (
            "image_list_by_n",
            "Images go with prompts for n = 2",
            [TWO, ONE],
            [[RED, BLUE], [RED]],
            {"n": 2},
            [2, 2, 1, 1],
        ),
        ("images_none", "An empty list of images is a prompt of text", NONE, [], {"n": 2}, [0, 0]),
    ),
)


async def _refused(prompt: Any, images: Any, params: dict[str, Any], probe: Probe) -> None:
    await refused(with_images(probe, prompt, images, params), probe)


CASES.table(
    _refused,
    (
        ("images_two_nested", "A nested list with one prompt and n = 1 is refused", TWO, [[RED, WIDE]], {}),
        ("images_two_native_flat", "A flat list of two images with n = 3 is refused", TWO, [RED, WIDE], {"n": 3}),
        ("image_lists_too_few", "Fewer lists of images than prompts are refused", [ONE, ONE], [[RED]], {}),
        ("image_broken", "A broken image is refused", ONE, [BROKEN], {}),
        ("image_broken_native", "A broken image with n = 3 is refused", ONE, [[BROKEN]], {"n": 3}),
        ("image_broken_in_list", "One broken image refuses the whole list", [ONE, ONE], [[RED], [BROKEN]], {}),
        ("image_too_large", "An image of 4.9 gigapixels is refused, not decoded", ONE, [TOO_LARGE], {}),
        ("image_number", "A number is refused as an image", ONE, [3], {}),
        ("image_missing", "More placeholders than images are refused", TWO, [RED], {}),
    ),
)


async def _dropped(prompt: str, images: Any, tokens: bool, probe: Probe) -> None:
    """A refusal would be better; SGLang answers, so a dropped image must leave no trace."""
    body = with_images(probe, prompt, images, {"n": 2})
    await refused_or(body, "image_tokens", [tokens] * 2, _with_image_tokens, probe)


def _with_image_tokens(outputs: list[Output]) -> list[bool]:
    return list(map(bool, meta_of(outputs, "image_tokens")))


_ODD = frozenset({"exchange_request_honoured"})
CASES.table(
    _dropped,
    (
        ("image_dropped", "An image without a placeholder is refused, or leaves no trace", ONE, [[RED, BLUE]], True),
        (
            "image_of_no_prompt",
            "An image of a prompt of text is refused, or leaves no trace",
            NONE,
            [[RED]],
            False,
        ),
        ("placeholder_alone", "A placeholder without an image is refused, or is text", ONE, None, False),
    ),
    exempt=_ODD,
)


@CASES.case()
async def images_told_apart(probe: Probe) -> None:
    """Prompts of one text with different images are different prompts, whatever is cached."""
    seen = []
    for image in (RED, BLUE, RED):
        (output,) = await _ask(probe, ONE, [image], {**GREEDY, "max_new_tokens": 1})
        seen.append(triples_of(output)[0])
    red, blue, again = seen
    require("output_token_logprobs", red[:2] != blue[:2], "another log-prob", blue, "a blue image answered as the red")
    expect("output_ids", again[1], red[1], "first token of the red image after the blue one, and before")
    near("output_token_logprobs", [again[0]], [red[0]], "gap of the red image after the blue one, and before")


@CASES.case()
async def image_group_cached(probe: Probe) -> None:
    """The n samples of one request share the image's prefix: all of the prompt but its last token is cached."""
    if not probe.about.prefix_cache:
        raise NotCompared("the engine has no prefix cache")
    outputs = await _ask(probe, f"g{ONE}", [[WIDE]], {"n": 4})
    seen = list(zip(meta_of(outputs, "cached_tokens"), meta_of(outputs, "prompt_tokens"), strict=True))
    shared = all(cached is not None and cached == prompt - 1 for cached, prompt in seen)
    require("cached_tokens", shared, "prompt tokens - 1", seen, "cached and prompt tokens")


@CASES.case()
async def image_greedy_arms(probe: Probe) -> None:
    """Greedy sampling gives every arm the same first token for an image; a deterministic engine, the same tokens."""
    of = partial(with_images, probe)
    bodies = of(ONE, [RED], GREEDY), of(ONE, [[RED]], {**GREEDY, "n": 3}), of([ONE] * 3, [[RED]] * 3, GREEDY)
    await greedy_alike(probe, *bodies)


@CASES.case()
async def image_seed_slots(probe: Probe) -> None:
    """With an image and n = 4, sample i is that of seed + i alone, where the engine says so."""
    native = with_images(probe, TWO, [[RED, BLUE]], {"n": 4, "sampling_seed": SEED})
    alone = [with_images(probe, TWO, [RED, BLUE], {"sampling_seed": SEED + slot}) for slot in range(4)]
    await same_tokens([native], alone, True, probe)


@CASES.case(destructive=True, exempt=_ODD)
async def image_expanded(probe: Probe) -> None:
    """A placeholder that was repeated already is answered as one, or refused; never left unanswered."""
    body = with_images(probe, ONE, [RED])
    pad = probe.about.image_pad or ""
    exchange = await probe.send(body | {"text": body["text"].replace(pad, pad * 4)})
    require("status", exchange.status in (200, 400), "200 or 400", exchange.status, "status")
    await probe.alive()
