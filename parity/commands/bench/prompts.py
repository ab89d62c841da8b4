"""Prompts of random ids, and random images: new at every rollout, and of one distribution in every mode."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from PIL import Image

from parity.engines.router import ROUTING_KEY
from parity.errors import UsageError
from parity.records.bench import Workload
from rollout_patch import SampleRequest

MOST_IDS = 1 << 24
"""Of a vocabulary; what claims more is no model's."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids that prompts are made of.

    Attributes:
        size: Ids are below it.
        special: Ids that no prompt holds, but for placeholders.
        image: The ids that stand for one image; empty where the model takes none.
    """

    size: int
    special: frozenset[int] = frozenset()
    image: tuple[int, ...] = ()


def vocabulary_of(config: Mapping[str, Any]) -> Vocabulary | None:
    """The vocabulary by a model's `config.json`, or by any object with `vocab_size`; `None` where it says nothing."""
    texts = [part for part in (config.get("text_config"), config) if isinstance(part, Mapping)]
    size = next((part["vocab_size"] for part in texts if type(part.get("vocab_size")) is int), 0)
    named = {name: value for part in texts for name, value in part.items() if name.endswith("_token_id")}
    ids = {name: value if isinstance(value, list) else [value] for name, value in named.items()}
    known = {name: [id_ for id_ in values if type(id_) is int and 0 <= id_ < size] for name, values in ids.items()}
    image = [known.get(f"{name}_token_id", [])[:1] for name in ("vision_start", "image", "vision_end")]
    placeholder = tuple(chain(*image)) if image[1] else ()
    return Vocabulary(size, frozenset(chain(*known.values())), placeholder) if size > 0 else None


def requests(workload: Workload, vocabulary: Vocabulary, rng: np.random.Generator) -> Iterator[SampleRequest]:
    """What the samples of each group ask for, one group at a time; the shared prefix is drawn first.

    Raises:
        UsageError: The model takes no images, or their placeholders do not fit into a prompt.
    """
    if workload.images and not vocabulary.image:
        raise UsageError("--images: the model's config names no image_token_id, so it takes no images")
    placeholders = vocabulary.image * workload.images
    plain = workload.prompt_tokens - len(placeholders)
    if plain < 1:
        raise UsageError(
            f"--prompt-tokens {workload.prompt_tokens}: placeholders of {workload.images} images take "
            f"{len(placeholders)}, and a prompt needs at least 1 more id"
        )
    if vocabulary.size > MOST_IDS:
        raise UsageError(f"a vocabulary of {vocabulary.size} ids is no model's; say its size with --vocabulary")
    allowed = np.setdiff1d(np.arange(vocabulary.size), np.fromiter(vocabulary.special, np.int64, -1))
    if allowed.size < 2:
        raise UsageError(f"a vocabulary of {vocabulary.size} ids leaves {allowed.size} for prompts")
    params = {"temperature": 1.0, "max_new_tokens": workload.new_tokens, "ignore_eos": True}
    shared = rng.choice(allowed, round(workload.shared_prefix * plain)).tolist()
    tag = int(rng.integers(1 << 48))
    for group in range(workload.groups):
        rest = rng.choice(allowed, plain - len(shared)).tolist()
        yield SampleRequest(
            params,
            input_ids=[*shared, *placeholders, *rest],
            media={"image_data": [random_image(workload.image_side, rng) for _ in range(workload.images)]},
            options={"return_logprob": True},
            headers={ROUTING_KEY: f"bench-{tag:x}-{group}"},
        )


def random_image(side: int, rng: np.random.Generator) -> str:
    """A square RGB image of noise as base64 of a PNG, not compressed, since noise is not compressible."""
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(file, "PNG", compress_level=0)
    return base64.b64encode(file.getvalue()).decode()
