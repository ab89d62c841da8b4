"""Media: counted against their placeholders, told apart by content, encoded once a group."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollout_patch.requests import SampleRequest

Encoder = Callable[[str, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Encodes the media of one prompt: gets the payload field's name and the items, returns as many for the wire."""


def digest(item: Any) -> str:
    """SHA-256 of a medium's content, as hexadecimal digits.

    Text, bytes, numbers, mappings and sequences count by value; images, arrays and tensors by form and content.
    Anything else counts by identity, so that two objects that cannot be compared are never taken for equal.
    """
    content = _content(item)
    return hashlib.sha256(f"{type(item).__qualname__}:{len(content)}:".encode() + content).hexdigest()


def _content(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    if item is None or isinstance(item, (bool, int, float)):
        return repr(item).encode()
    if isinstance(item, Mapping):
        return "".join(sorted(digest(key) + digest(value) for key, value in item.items())).encode()
    if isinstance(item, (list, tuple)):
        return "".join(map(digest, item)).encode()
    if hasattr(item, "detach") and hasattr(item, "numpy"):
        return str(item.dtype).encode() + _content(_array(item.detach().cpu()))
    if hasattr(item, "tobytes"):
        form = [getattr(item, name, None) for name in ("mode", "size", "shape", "dtype")]
        if hasattr(item, "getpalette"):  # pixels may be numbers of colours
            form += [item.getpalette(), item.info.get("transparency")]
        return repr(form).encode() + bytes(item.tobytes())
    return str(id(item)).encode()


def _array(tensor: Any) -> Any:
    """A tensor as an array; types that NumPy lacks, such as bfloat16, fit float32 exactly."""
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.float().numpy()


def digests(payloads: Sequence[Any]) -> list[str]:
    """The digest of each payload; objects that several share are read once."""
    known = {id(payload): digest(payload) for payload in {id(payload): payload for payload in payloads}.values()}
    return [known[id(payload)] for payload in payloads]


_DIGEST = "sha256:"


def named_by_content(media: Any) -> Any:
    """Media in any nesting with ``sha256:`` and the digest of each in its place; what is named so already stays."""
    if media is None or (isinstance(media, str) and media.startswith(_DIGEST)):
        return media
    if isinstance(media, (list, tuple)):
        return [named_by_content(item) for item in media]
    return _DIGEST + digest(media)


def check_placeholders(
    requests: Sequence[SampleRequest], placeholders: Collection[int | str], runs: bool = True
) -> None:
    """Refuses a group in which a prompt has more or fewer placeholders than media.

    SGLang drops a medium without a placeholder and answers as if all were well, and takes a placeholder for text where
    there are no media at all (seen of 0.5.23), as vLLM does (0.32.0): only the client can know.

    Args:
        requests: What each slot asks for.
        placeholders: What stands for one medium: token ids for prompts of ids, strings for prompts of text. None
            given: nothing is counted.
        runs: Whether, repeated without a gap, they stand for one.

    Raises:
        ValueError: The numbers differ; the message names the slot.
    """
    tokens = {item for item in placeholders if isinstance(item, int)}
    strings = [re.escape(item) for item in placeholders if isinstance(item, str)]
    for slot, request in enumerate(requests):
        known = tokens if request.text is None else strings
        if not known:
            continue
        if request.text is None:
            ids = request.input_ids or ()
            places = sum(token in tokens for token in ([one for one, _ in itertools.groupby(ids)] if runs else ids))
        else:
            places = len(re.findall("|".join(f"(?:{string}){'+' * runs}" for string in strings), request.text))
        media = sum(map(len, request.media.values()))
        if places != media:
            raise ValueError(f"slot {slot} asks with {places} placeholders for {media} media")


async def encode_media(requests: Sequence[SampleRequest], encoder: Encoder) -> list[SampleRequest]:
    """The same requests with their media encoded, each distinct payload once; a group without media calls no encoder.

    Raises:
        ValueError: The encoder returned another number of items than it got.
    """
    kinds = {name: None for request in requests for name, items in request.media.items() if items}
    encoded: list[dict[str, Sequence[Any]]] = [{} for _ in requests]
    for name in kinds:
        payloads = [request.media.get(name, ()) for request in requests]
        done: dict[str, Sequence[Any]] = {}
        for media, payload, key in zip(encoded, payloads, digests(payloads), strict=True):
            if not payload:
                continue
            if key not in done:
                done[key] = await encoder(name, payload)
                if len(done[key]) != len(payload):
                    raise ValueError(f"the encoder made {len(done[key])} items out of {len(payload)} in {name}")
            media[name] = done[key]
    return [replace(request, media=media) for request, media in zip(requests, encoded, strict=True)]
