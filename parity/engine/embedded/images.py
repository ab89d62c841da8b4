"""The images of a request: off the wire, bounded before they are decoded, and put in the place of their placeholders.

An image is base64 of a file, or a data URL of it. Nothing else is read: no file, no address.
"""

from __future__ import annotations

import hashlib
import io
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from parity.engine.embedded.media import ReadImages, SeenImage, Vision
from parity.engine.embedded.recently_used import RecentlyUsed
from parity.engine.embedded.refusals import RequestRefused, refused, unexpected
from parity.vision import load_image_processor, read_pixels, read_prompt

MAX_PIXELS = 1 << 24
"""Pixels of one image; its header says how many, before anything is decoded."""
MAX_REQUEST_PIXELS = 1 << 25
"""Pixels of all images of one request."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
PIXELS_BYTES = 64 << 20
"""Patches of images seen before, which are not decoded again."""

_SHOWN = 100


class ImageReader:
    """Reads the images of prompts as one checkpoint's model takes them; for one thread.

    Raises:
        InputError: The directory holds no image processor.
    """

    def __init__(self, path: Path, config: Any) -> None:
        self._config = config
        self._processor = load_image_processor(path)
        self._seen: RecentlyUsed[SeenImage] = RecentlyUsed(PIXELS_BYTES, lambda one: one.patches.nbytes)

    def of_request(self) -> ReadImages:
        """What `parse_generate` reads the images of one request with: each is decoded once, and all are bounded."""
        left = MAX_REQUEST_PIXELS
        own: dict[bytes, SeenImage] = {}

        def image(item: Any, place: int) -> SeenImage:
            nonlocal left
            if not isinstance(item, str):
                raise _broken(str(item), place, f"Invalid image: a {unexpected(item)}")
            key = hashlib.sha256(item.encode("utf-8", "surrogatepass")).digest()
            if (known := own.get(key) or self._seen.get(key)) is not None:
                return known
            picture = _open(item, place)
            left -= picture.width * picture.height
            if left < 0:
                raise refused(f"The images of one request may hold {MAX_REQUEST_PIXELS} pixels together, not more.")
            own[key] = self._cut(picture, item, place)
            self._seen.put(key, own[key])
            return own[key]

        def read(ids: Sequence[int], items: Sequence[Any]) -> Vision | None:
            count = self._placeholders(ids, len(items))
            # The engine drops images that have no placeholder, and does not read them.
            images = [image(item, place) for place, item in enumerate(items[:count])]
            return self._placed(ids, images) if images else None

        return read

    def _placeholders(self, ids: Sequence[int], images: int) -> int:
        """Placeholders of a prompt as the engine counts them: between the tokens of a start and an end of vision."""
        config = self._config
        start, pad, end = config.vision_start_token_id, config.image_token_id, config.vision_end_token_id
        framed = repeated = 0
        for place, token in enumerate(ids):
            if token == start and place + 1 < len(ids) and ids[place + 1] == pad:
                stop = next((after for after in range(place + 1, len(ids)) if ids[after] != pad), len(ids))
                framed += stop < len(ids) and ids[stop] == end
                repeated += stop - place > 2
        if not framed:
            return 0
        if repeated or list(ids).count(pad) != framed:
            raise refused(
                f"The prompt holds {list(ids).count(pad)} image placeholders in {framed} places for an image. Send one "
                "placeholder an image, between a start and an end of vision; the engine repeats it."
            )
        if framed > images:
            raise refused(f"Prompt has {framed} image placeholders but {images} image inputs were provided")
        return framed

    def _cut(self, picture: Image.Image, item: str, place: int) -> SeenImage:
        try:
            pixels = read_pixels(self._processor, [picture.convert("RGB")])
        except Exception as error:  # decoders raise whatever a broken file leads to
            raise _broken(item, place, f"Could not decode image: {error}") from error
        content = hashlib.sha256(repr(pixels.grid.tolist()).encode())
        content.update(pixels.patches.numpy().tobytes())
        return SeenImage(int.from_bytes(content.digest(), "big"), pixels.patches, pixels.grid)

    def _placed(self, ids: Sequence[int], images: Sequence[SeenImage]) -> Vision:
        prompt = read_prompt(self._config, ids, torch.cat([one.grid for one in images]))
        expanded: list[int] = prompt.ids.tolist()
        merge = self._config.vision_config.spatial_merge_size
        contents = iter([-1 - one.digest for one in images for _ in range(int(one.grid.prod()) // merge**2)])
        key = tuple(next(contents) if token == self._config.image_token_id else token for token in expanded)
        return Vision(tuple(expanded), key, prompt.positions, tuple(images))


def _open(item: str, place: int) -> Image.Image:
    """The image, its header read alone; anything but base64 of a small enough one is refused."""
    if item.startswith(("http://", "https://", "file://")):
        raise _broken(item, place, "no address or file is read; send the image itself, as base64 or as a data URL")
    encoded = item
    if item.startswith("data:"):
        _, comma, encoded = item.partition(",")
        if not comma:
            raise _broken(item, place, "a data URL without a comma")
    try:
        content = b64decode(encoded, validate=True)
    except ValueError as error:
        raise _broken(item, place, f"{error}; no file is read") from error
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except Exception as error:  # as above
        raise _broken(item, place, f"Could not decode image: {error}") from error
    if (pixels := picture.width * picture.height) > MAX_PIXELS:
        raise _broken(item, place, f"{picture.width} x {picture.height} are {pixels} pixels, more than {MAX_PIXELS}")
    return picture


def _broken(item: str, place: int, why: str) -> RequestRefused:
    shown = item if len(item) <= _SHOWN else item[:_SHOWN] + "..."
    return refused(
        f"An exception occurred while loading IMAGE data at index {place}: Error while loading data {shown}: {why}"
    )
