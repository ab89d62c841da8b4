"""Media: told apart by content, encoded once a group."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
