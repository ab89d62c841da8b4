"""Cases with images, for engines that say they take them: shapes by arm, counts of tokens, and what is refused."""

from __future__ import annotations

import base64
import struct
import zlib
from functools import partial
from typing import Any

from parity.conformance.answers import SEED, near
from parity.conformance.probe import (
    TOKENS,
    ConformanceCase,
    NotCompared,
    Output,
    Probe,
    case_of,
    expect,
    finishes,
    ids_of,
    lengths,
    request,
    require,
    triples_of,
)
from parity.conformance.refusals import refused

IMAGE = "<image>"
"""Stands in the prompts of this module for whatever the model calls an image."""
ONE, TWO, NONE = f"a{IMAGE}b", f"a{IMAGE}b{IMAGE}c", "ab"
MORE_PIXELS = 70_000
"""Pixels a side that no server may try to decode: 14 GB."""


def png(width: int, height: int, colour: tuple[int, int, int], content: bytes | None = None) -> str:
    """A picture of one colour as a data URL of a PNG (ISO/IEC 15948), or one with this compressed content instead."""
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
    """A `/generate` body whose prompts have an image of the model's in the place of each `IMAGE`."""
    name = probe.about.image_text
    if name is None:
        raise NotCompared("the engine takes no images, or what stands for one in a prompt of its model is not known")
    texts = [text.replace(IMAGE, name) for text in ([prompt] if isinstance(prompt, str) else prompt)]
    return request(texts[0] if isinstance(prompt, str) else texts, params, image_data=images)


async def _ask(probe: Probe, prompt: Any, images: Any, params: dict[str, Any] | None = None) -> list[Output]:
    return await probe.outputs(with_images(probe, prompt, images, params))


async def _answered(prompt: Any, images: Any, params: dict[str, Any], counts: list[int], probe: Probe) -> None:
    """`counts` are the images of each output's prompt, in order."""
    outputs = await _ask(probe, prompt, images, params)
    expect("output_ids", lengths(outputs), [TOKENS] * len(counts), "tokens, with the end of text ignored")
    expect("finish_reason", finishes(outputs), ["length"] * len(counts), "finish reasons")
    grown = [output["meta_info"].get("image_tokens") or 0 for output in outputs]
    require(
        "image_tokens", all(map(_fits, grown, counts)), counts, grown, "image tokens of prompts with so many images"
    )
    # Here prompts of as many images have the same text.
    bare = [output["meta_info"].get("prompt_tokens", 0) - more for output, more in zip(outputs, grown, strict=True)]
    sizes = sorted(set(zip(counts, bare, strict=True)))
    alike = len(sizes) == len(set(counts))
    require("prompt_tokens", alike, "one length a text", sizes, "images, and prompt tokens that are of none")


def _fits(tokens: int, images: int) -> bool:
    return tokens >= images if images else tokens == 0


_SHAPES: tuple[tuple[str, str, Any, Any, dict[str, Any], list[int]], ...] = (
    ("image_single", "An image in a flat list goes with one prompt", ONE, [RED], {}, [1]),
    ("image_as_string", "An image that is no list goes with one prompt", ONE, RED, {}, [1]),
    ("image_as_base64", "An image may come as base64 alone", ONE, [RED.partition(",")[2]], {}, [1]),
    ("image_native", "An image in a nested list goes with n = 3", ONE, [[RED]], {"n": 3}, [1] * 3),
    ("image_native_flat", "One image in a flat list goes with n = 3", ONE, [RED], {"n": 3}, [1] * 3),
    ("images_two", "Two images in a flat list go with one prompt", TWO, [RED, WIDE], {}, [2]),
    ("images_two_native", "Two images in a nested list go with n = 3", TWO, [[RED, WIDE]], {"n": 3}, [2] * 3),
    ("image_list", "Each prompt of a list has its own list of images", [ONE, TWO], [[RED], [WIDE, BLUE]], {}, [1, 2]),
    ("image_list_flat", "Each prompt of a list has its own image", [ONE] * 2, [RED, WIDE], {}, [1, 1]),
    ("image_list_mixed", "Prompts with and without images go in one list", [ONE, NONE], [[RED], []], {}, [1, 0]),
    ("image_list_by_n", "Images go with prompts for n = 2", [TWO, ONE], [[RED, BLUE], [RED]], {"n": 2}, [2, 2, 1, 1]),
    ("images_none", "An empty list of images is a prompt of text", NONE, [], {"n": 2}, [0, 0]),
)  # fmt: skip


async def _refused(prompt: Any, images: Any, params: dict[str, Any], probe: Probe) -> None:
    await refused(with_images(probe, prompt, images, params), probe)


_BAD: tuple[tuple[str, str, Any, Any, dict[str, Any]], ...] = (
    ("images_two_nested", "A nested list with one prompt and n = 1 is refused", TWO, [[RED, WIDE]], {}),
    ("images_two_native_flat", "A flat list of two images with n = 3 is refused", TWO, [RED, WIDE], {"n": 3}),
    ("image_lists_too_few", "Fewer lists of images than prompts are refused", [ONE, ONE], [[RED]], {}),
    ("image_broken", "A broken image is refused", ONE, [BROKEN], {}),
    ("image_broken_native", "A broken image with n = 3 is refused", ONE, [[BROKEN]], {"n": 3}),
    ("image_broken_in_list", "One broken image refuses the whole list", [ONE, ONE], [[RED], [BROKEN]], {}),
    ("image_too_large", "An image of 4.9 gigapixels is refused, not decoded", ONE, [TOO_LARGE], {}),
    ("image_number", "A number is refused as an image", ONE, [3], {}),
    ("image_missing", "More placeholders than images are refused", TWO, [RED], {}),
)


async def _dropped(prompt: str, images: Any, tokens: int, probe: Probe) -> None:
    """A refusal would be better; SGLang answers, so that what it drops must leave no trace."""
    exchange = await probe.send(with_images(probe, prompt, images, {"n": 2}))
    if exchange.status != 400:
        expect("status", exchange.status, 200, f"status of {str(exchange.response)[:200]!r}")
        seen = [bool(output["meta_info"].get("image_tokens")) for output in exchange.outputs]
        expect("image_tokens", seen, [bool(tokens)] * 2, "image tokens counted")
    await probe.alive()


async def images_told_apart(probe: Probe) -> None:
    """Prompts of one text with different images are different prompts, whatever is cached."""
    seen = []
    for image in (RED, BLUE, RED):
        (output,) = await _ask(probe, ONE, [image], {"temperature": 0.0, "max_new_tokens": 1})
        seen.append(triples_of(output)[0])
    red, blue, again = seen
    require("output_token_logprobs", red[:2] != blue[:2], "another log-prob", blue, "blue is answered as red was")
    expect("output_ids", again[1], red[1], "the first token after red, asked again after blue")
    near("output_token_logprobs", [again[0]], [red[0]], "red asked again after blue, against red before")


async def image_group_cached(probe: Probe) -> None:
    """The n samples of one request share the image's prefix: all of the prompt but its last token is cached."""
    if not probe.about.prefix_cache:
        raise NotCompared("the engine keeps no prefixes")
    outputs = await _ask(probe, f"g{ONE}", [[WIDE]], {"n": 4})
    seen = [(output["meta_info"].get("cached_tokens"), output["meta_info"].get("prompt_tokens")) for output in outputs]
    shared = all(cached is not None and cached == prompt - 1 for cached, prompt in seen)
    require("cached_tokens", shared, "prompt tokens - 1", seen, "cached and prompt tokens")


async def image_greedy_arms(probe: Probe) -> None:
    """Greedy sampling gives every arm the same first token for an image; a deterministic engine, the same tokens."""
    greedy = {"temperature": 0.0}
    answers = [
        *await _ask(probe, ONE, [RED], greedy),
        *await _ask(probe, ONE, [[RED]], {**greedy, "n": 3}),
        *await _ask(probe, [ONE] * 3, [[RED]] * 3, greedy),
    ]
    shown = TOKENS if probe.about.deterministic else 1
    expect("output_ids", [ids_of(output)[:shown] for output in answers], [ids_of(answers[0])[:shown]] * 7, "ids")


async def image_seed_slots(probe: Probe) -> None:
    """With an image and n = 4, sample i is that of seed + i alone, where the engine says so."""
    if not probe.about.seed_per_slot:
        raise NotCompared("the engine does not say that each sample of a request has a seed of its own")
    native = await _ask(probe, TWO, [[RED, BLUE]], {"n": 4, "sampling_seed": SEED})
    alone = [(await _ask(probe, TWO, [RED, BLUE], {"sampling_seed": SEED + slot}))[0] for slot in range(4)]
    tokens = [[triples_of(output) for output in outputs] for outputs in (native, alone)]
    expect("output_ids", tokens[0], tokens[1], "ids and log-probs")


async def image_expanded(probe: Probe) -> None:
    """A placeholder that was repeated already is answered as one, or refused; never left unanswered."""
    body = with_images(probe, ONE, [RED])
    pad = probe.about.image_pad or ""
    exchange = await probe.send(body | {"text": body["text"].replace(pad, pad * 4)})
    require("status", exchange.status in (200, 400), "200 or 400", exchange.status, "status")
    await probe.alive()


_ODD = frozenset({"exchange_request_honoured"})

CASES: tuple[ConformanceCase, ...] = (
    *(ConformanceCase(name, rule, partial(_answered, *asked)) for name, rule, *asked in _SHAPES),
    *(ConformanceCase(name, rule, partial(_refused, *asked)) for name, rule, *asked in _BAD),
    ConformanceCase(
        "image_dropped",
        "An image without a placeholder is refused, or leaves no trace",
        partial(_dropped, ONE, [[RED, BLUE]], 1),
        exempt=_ODD,
    ),
    ConformanceCase(
        "image_of_no_prompt",
        "An image of a prompt without a placeholder is refused, or leaves no trace",
        partial(_dropped, NONE, [[RED]], 0),
        exempt=_ODD,
    ),
    ConformanceCase(
        "placeholder_alone",
        "A placeholder without an image is refused, or is text",
        partial(_dropped, ONE, None, 0),
        exempt=_ODD,
    ),
    *map(case_of, (images_told_apart, image_group_cached, image_greedy_arms, image_seed_slots)),
    case_of(image_expanded, destructive=True, exempt=_ODD),
)
