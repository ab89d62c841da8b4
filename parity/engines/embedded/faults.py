"""Defects that the embedded engine can be started with (`parity serve --fault`): what a changed engine gets wrong.

Each is planted in one served model, at the place where it really occurs: in the weights, the rotary table, the cache,
or the draw of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parity.engines.embedded.sampling import Floats, log_softmax
from parity.engines.embedded.served import ServedModel

TEMPERATURE_FACTOR = 1.03
WRONG_BASE_FROM = 10
"""The first position whose rotary angles have another base; prompts of the default task have about 8 tokens."""
WRONG_BASE_FACTOR = 4.0
STEADY_LOGPROBS, STEADY_TOKENS = 8, 24
"""Sequences in flight up to which log-probs, and tokens, do not depend on the batch."""

Plant = Callable[[ServedModel], None]


def _replace(owner: object, name: str, change: Callable[[Any], Any]) -> None:
    """Puts what `change` makes of one object's method in the method's place."""
    setattr(owner, name, change(getattr(owner, name)))


def _rounded(rounding: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Weights rounded when they are loaded, now and at each update."""

    def plant(engine: ServedModel) -> None:
        def round_all() -> None:
            with torch.inference_mode():
                for weight in engine.model.weights().values():
                    weight.copy_(rounding(weight))

        def loading(load: Callable[..., None]) -> Callable[..., None]:
            def load_and_round(*arguments: Any) -> None:
                load(*arguments)
                round_all()

            return load_and_round

        round_all()
        _replace(engine.model, "load", loading)

    return plant


def _to_bfloat16(weight: torch.Tensor) -> torch.Tensor:
    return weight.bfloat16().double()


def _to_int8(weight: torch.Tensor) -> torch.Tensor:
    """Rounded to 8 bits with a scale for each row of a matrix; vectors (norms, biases) stay."""
    if weight.dim() < 2:
        return weight
    scale = weight.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127
    return (weight / scale).round() * scale


def _wrong_rotary_base(engine: ServedModel) -> None:
    cosines, sines = engine.model.rotary_tables()
    places = torch.arange(cosines.shape[-2], dtype=torch.float64)[WRONG_BASE_FROM:, None]
    half = cosines.shape[-1] // 2
    base = WRONG_BASE_FACTOR * float(engine.model.config.rope_parameters["rope_theta"])
    angles = (places * base ** -(torch.arange(half, dtype=torch.float64) / half)).repeat(1, 2)
    cosines[..., WRONG_BASE_FROM:, :], sines[..., WRONG_BASE_FROM:, :] = angles.cos(), angles.sin()


def _stale_prefixes(engine: ServedModel) -> None:
    _replace(engine.scheduler, "forget", lambda _: engine.scheduler.features.clear)


def _old_weights(engine: ServedModel) -> None:
    _replace(engine.model, "load", lambda _: lambda path: None)


def _drawn(change: Callable[[Any], Any]) -> Plant:
    """Another draw of tokens; see `parity.engines.embedded.sampling.sample`."""
    return lambda engine: _replace(engine.scheduler, "draw", change)


def _temperature_off(draw: Any) -> Any:
    return lambda logits, temperature, *rest: draw(logits, TEMPERATURE_FACTOR * temperature, *rest)


def _without_top_p(draw: Any) -> Any:
    return lambda logits, temperature, top_k, top_p, *rest: draw(logits, temperature, top_k, np.ones_like(top_p), *rest)


def _untempered_logprobs(draw: Any) -> Any:
    return lambda logits, *rest: (draw(logits, *rest)[0], log_softmax(logits))


def _batch_dependent(draw: Any) -> Any:
    def drawn(logits: Floats, *rest: Any) -> Any:
        tokens, logprobs = draw(logits, *rest)
        if len(logits) > STEADY_LOGPROBS:
            logprobs = logprobs - 1e-3
        return (tokens + 1) % logits.shape[1] if len(logits) > STEADY_TOKENS else tokens, logprobs

    return drawn


FAULTS: Mapping[str, tuple[str, Plant]] = {
    "bfloat16-weights": ("weights are rounded to bfloat16", _rounded(_to_bfloat16)),
    "int8-weights": ("weights are rounded to 8 bits, with a scale a row", _rounded(_to_int8)),
    "temperature-off": ("the temperature is 3 % too high", _drawn(_temperature_off)),
    "top-p-ignored": ("top_p is not looked at", _drawn(_without_top_p)),
    "wrong-rotary-base": ("from position 10 on, rotary angles have another base", _wrong_rotary_base),
    "stale-prefix-cache": ("prefixes stay cached when weights change, and when the cache is flushed", _stale_prefixes),
    "old-weights": ("a weight update is acknowledged and not done", _old_weights),
    "logprobs-before-temperature": ("log-probs are those of temperature 1", _drawn(_untempered_logprobs)),
    "batch-dependent": (
        "with more than 8 sequences in flight log-probs move, with more than 24 tokens too",
        _drawn(_batch_dependent),
    ),
}
"""What each fault is, and what plants it, by name."""
