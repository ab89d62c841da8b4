"""A case of weights for engines that take images: what the old encoder made of an image must not outlive it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean

from parity.conformance.checkpoints import with_other_encoder
from parity.conformance.images import IMAGE, png, with_images
from parity.conformance.probe import ConformanceCase, NotCompared, Probe, case_of, expect, require, triples_of
from parity.conformance.weights import LABEL, expect_updated, update, weights_kept

PROMPT = f"{IMAGE} = 0 1 2 3 4 5 6 7 8 9"
SCORED = 8
"""Tokens at the end of the prompt whose log-probs are compared: they come after the image whatever the tokenizer."""
SEEN, TWIN, THIRD = (png(56, 56, (200 + shade, 60, 90)) for shade in range(3))
"""Pictures that are nearly alike: one more shade of red each. The first alone is asked for before the update."""
CLEARLY = 4
"""How many times as far as two pictures nearly alike the two encoders must be apart, to be told from each other."""


async def weights_drop_features(probe: Probe) -> None:
    """An update drops what the old encoder made of an image, so that the new one is asked again."""
    with_images(probe, PROMPT, [SEEN])  # raises where it takes none
    with tempfile.TemporaryDirectory() as scratch:
        async with weights_kept(probe) as path:
            other = Path(scratch) / "other-encoder"
            with_other_encoder(path, other)
            before = await _scores(probe, SEEN)
            expect_updated(*await update(probe, other, weight_version=LABEL))
            seen, twin, third = [await _scores(probe, image) for image in (SEEN, TWIN, THIRD)]
    encoders, pictures = _apart(before, twin), _apart(twin, third)
    if encoders <= CLEARLY * pictures:
        raise NotCompared(
            f"log-probs move by {encoders:.2g} nats with the encoder and by {pictures:.2g} between pictures that are "
            "nearly alike, so that the two encoders cannot be told apart"
        )
    ratio = _apart(seen, twin) / encoders
    require(
        "input_token_logprobs",
        ratio < 0.5,
        "< 0.5",
        ratio,
        "distance of a picture asked before the update from one nearly like it asked only afterwards, as a part of the "
        "distance of the old weights' answer from the new ones'",
    )


async def _scores(probe: Probe, image: str) -> list[float]:
    """Log-probs of the prompt's last tokens after an image."""
    body = with_images(probe, PROMPT, [image], {"max_new_tokens": 1}) | {"logprob_start_len": 0}
    (output,) = await probe.outputs(body)
    rows = triples_of(output, "input_token_logprobs")[-SCORED:]
    expect("input_token_logprobs", len(rows), SCORED, "log-probs at the end of the prompt")
    return [row[0] for row in rows]


def _apart(some: list[float], others: list[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(some, others, strict=True))


CASES: tuple[ConformanceCase, ...] = (case_of(weights_drop_features, control=True),)
