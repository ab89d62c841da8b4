"""The images of a request: off the wire, bounded before they are decoded, and put in the place of their placeholders.

An image is base64 of a file, or a data URL of it. Nothing else is read: no file, no address.
"""

from __future__ import annotations

import hashlib
import io
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from parity.engines.embedded.media import ReadImages, SeenImage, Vision
from parity.engines.embedded.recently_used import RecentlyUsed
from parity.engines.embedded.refusals import RequestRefused, check_length, refused, unexpected
from parity.engines.vision import load_image_processor, merge_size, read_pixels, read_prompt

MAX_PIXELS = 1 << 24
"""Pixels of one image; its header says how many, before anything is decoded."""
MAX_REQUEST_PIXELS = 1 << 25
"""Pixels of all images of one request, each counted as it is or as the model takes it, whichever are more."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
PIXELS_BYTES = 64 << 20
"""Patches of images seen before, which are not decoded again."""

_SHOWN = 100


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """An image of which only the header was read: its tokens, and its pixels as it is or as the model takes it."""

    picture: Image.Image
    tokens: int
    pixels: int
    key: bytes
    item: str
    place: int


class ImageReader:
    """Reads the images of prompts as one checkpoint's model takes them; for one thread.

    Raises:
        InputError: The directory holds no image processor.
    """

    def __init__(self, path: Path, config: Any) -> None:
        self._config = config
        self._patches_a_token = merge_size(config) ** 2
        self._processor = load_image_processor(path)
        self._seen: RecentlyUsed[SeenImage] = RecentlyUsed(PIXELS_BYTES, lambda one: one.patches.nbytes)

    def of_request(self) -> ReadImages:
        """What `parse_generate` reads the images of one request with: each is decoded once, and all are bounded.

        A prompt's images are decoded when the headers of all have said that they fit into the context.
        """
        left = MAX_REQUEST_PIXELS
        found: dict[str, SeenImage | _Opened] = {}

        def look(item: Any, place: int) -> SeenImage | _Opened:
            nonlocal left
            if not isinstance(item, str):
                raise _broken(str(item), place, f"Invalid image: a {unexpected(item)}")
            if item in found:
                return found[item]
            image = self._look(item, place)
            if isinstance(image, _Opened) and (left := left - image.pixels) < 0:
                raise refused(f"The images of one request may hold {MAX_REQUEST_PIXELS} pixels together, not more.")
            found[item] = image
            return image

        def decoded(item: str) -> SeenImage:
            image = found[item]
            if isinstance(image, _Opened):
                found[item] = image = self._cut(image)
            return image

        def read(ids: Sequence[int], items: Sequence[Any]) -> Vision | None:
            # The engine drops images that have no placeholder, and does not read them.
            items = items[: self._placeholders(ids, len(items))]
            tokens = sum(look(item, place).tokens for place, item in enumerate(items))
            check_length(len(ids) - len(items) + tokens, self._config.get_text_config().max_position_embeddings)
            return self._placed(ids, [decoded(item) for item in items]) if items else None

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

    def _look(self, item: str, place: int) -> SeenImage | _Opened:
        """An image that was seen before, or its header."""
        key = hashlib.sha256(item.encode("utf-8", "surrogatepass")).digest()
        if (seen := self._seen.get(key)) is not None:
            return seen
        picture = _open(item, place)
        try:
            patches = self._processor.get_number_of_image_patches(picture.height, picture.width)
        except (ValueError, ZeroDivisionError) as error:
            raise _broken(item, place, f"Could not decode image: {error}") from error
        pixels = max(picture.width * picture.height, patches * self._processor.patch_size**2)
        return _Opened(picture, patches // self._patches_a_token, pixels, key, item, place)

    def _cut(self, opened: _Opened) -> SeenImage:
        try:
            pixels = read_pixels(self._processor, [opened.picture.convert("RGB")])
        except Exception as error:  # decoders raise whatever a broken file leads to
            raise _broken(opened.item, opened.place, f"Could not decode image: {error}") from error
        content = hashlib.sha256(repr(pixels.grid.tolist()).encode())
        content.update(pixels.patches.numpy().tobytes())
        digest = int.from_bytes(content.digest(), "big")
        image = SeenImage(digest, pixels.patches, pixels.grid, len(pixels.patches) // self._patches_a_token)
        self._seen.put(opened.key, image)
        return image

    def _placed(self, ids: Sequence[int], images: Sequence[SeenImage]) -> Vision:
        prompt = read_prompt(self._config, ids, torch.cat([one.grid for one in images]))
        expanded: list[int] = prompt.ids.tolist()
        contents = iter([-1 - one.digest for one in images for _ in range(one.tokens)])
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
