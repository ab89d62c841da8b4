"""A case of weights for engines that take images: what the old encoder made of an image must not outlive it."""

from __future__ import annotations

from parity.conformance.checkpoints import ENCODER
from parity.conformance.images import IMAGE, png, with_images
from parity.conformance.probe import Cases, NotCompared, Probe, expect, log_probs_of, require
from parity.conformance.weights import gap, other_weights, push

PROMPT = f"{IMAGE} = 0 1 2 3 4 5 6 7 8 9"
SCORED = 8
"""Tokens at the end of the prompt whose log-probs are compared: they come after the image whatever the tokenizer."""
SEEN, TWIN, THIRD = (png(56, 56, (200 + shade, 60, 90)) for shade in range(3))
"""Pictures that are nearly alike: one more shade of red each. Only the first is sent before the update."""
CLEARLY = 4
"""The answers of two encoders are told apart where their gap is so many times that of two pictures nearly alike."""

CASES = Cases()


@CASES.case(control=True)
async def weights_drop_features(probe: Probe) -> None:
    """An update drops what the old encoder made of an image, so that the new one is used."""
    with_images(probe, PROMPT, [SEEN])  # raises unless the engine takes images
    async with other_weights(probe, ENCODER) as other:
        before = await _scores(probe, SEEN)
        await push(probe, other)
        seen, twin, third = [await _scores(probe, image) for image in (SEEN, TWIN, THIRD)]
    encoders, pictures = gap(before, twin), gap(twin, third)
    if encoders <= CLEARLY * pictures:
        raise NotCompared(
            "the two encoders cannot be told apart: log-probs move by {encoders:.2g} nats with the encoder and by "
            "{pictures:.2g} between pictures that are nearly alike",
            encoders=encoders,
            pictures=pictures,
        )
    ratio = gap(seen, twin) / encoders
    what = (
        "gap between a picture sent before the update and one nearly like it sent only afterwards, as a share of the "
        "gap between old and new weights"
    )
    require("input_token_logprobs", ratio < 0.5, "< 0.5", ratio, what)


async def _scores(probe: Probe, image: str) -> list[float]:
    """Log-probs of the prompt's last tokens after an image."""
    body = with_images(probe, PROMPT, [image], {"max_new_tokens": 1}) | {"logprob_start_len": 0}
    (output,) = await probe.outputs(body)
    values = log_probs_of(output, "input_token_logprobs")[-SCORED:]
    expect("input_token_logprobs", len(values), SCORED, "log-probs at the end of the prompt")
    return values
