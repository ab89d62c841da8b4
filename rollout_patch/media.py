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

    Text, bytes, numbers, mappings and sequences count by value; images and arrays by type, form and `tobytes()`.
    Anything else counts by identity, so that two objects that cannot be compared are never taken for equal.
    """
    state = hashlib.sha256()
    _update(state, item)
    return state.hexdigest()


def _update(state: Any, item: Any) -> None:
    """Feeds type and content, each with its length, so that no two different items feed the same bytes."""
    if isinstance(item, str):
        content = item.encode("utf-8", "surrogatepass")
    elif isinstance(item, (bytes, bytearray, memoryview)):
        content = bytes(item)
    elif item is None or isinstance(item, (bool, int, float)):
        content = repr(item).encode()
    elif isinstance(item, Mapping):
        content = "".join(sorted(digest(key) + digest(value) for key, value in item.items())).encode()
    elif isinstance(item, (list, tuple)):
        content = "".join(map(digest, item)).encode()
    elif hasattr(item, "tobytes"):
        form = [getattr(item, name, None) for name in ("mode", "size", "shape", "dtype")]
        content = repr(form).encode() + item.tobytes()
    else:
        content = f"{id(item)}".encode()
    state.update(f"{type(item).__qualname__}:{len(content)}:".encode())
    state.update(content)


async def encode_media(requests: Sequence[SampleRequest], encoder: Encoder) -> list[SampleRequest]:
    """The same requests with their media encoded, each distinct payload once; a group without media calls no encoder.

    Raises:
        ValueError: The encoder returned another number of items than it got.
    """
    done: dict[tuple[str, str], Sequence[Any]] = {}
    encoded = []
    for request in requests:
        media: dict[str, Sequence[Any]] = {}
        for name, items in request.media.items():
            if not items:
                continue
            key = (name, digest(items))
            if key not in done:
                done[key] = await encoder(name, items)
                if len(done[key]) != len(items):
                    raise ValueError(f"the encoder made {len(done[key])} items out of {len(items)} in {name}")
            media[name] = done[key]
        encoded.append(replace(request, media=media))
    return encoded
