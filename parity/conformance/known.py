"""What the real SGLang is known to do otherwise: found by running the suite against 0.5.23 on the CPU."""

from __future__ import annotations

from parity.conformance.probe import About

SGLANG = "SGLang 0.5.23"

_SGLANG = {
    "n_null": "n as null ends in an internal error, status 500",
    "params_too_few": "fewer sampling parameters than prompts end in an internal error, status 500",
    "prompt_twice": "of text and input_ids in one request it takes the ids, without a word",
    "prompt_empty_in_list": "an empty prompt inside a list is answered, as one without prompt tokens",
    "id_negative": "a negative token id ends the server",
    "id_outside_vocabulary": "a token id outside the vocabulary ends the server",
    "weights_of_other_shape": "a checkpoint of another shape ends the server",
}
_IGNORED = "sampling_seed is ignored without --enable-deterministic-inference"
_SGLANG_UNSEEDED = dict.fromkeys(("seed_repeats", "seed_list", "seed_in_traffic"), _IGNORED)


def known_deviations(about: About) -> dict[str, str]:
    """Case to reason, for this engine; a deviation named here is a warning."""
    if about.sglang is None:
        return {}
    return _SGLANG | ({} if about.deterministic else _SGLANG_UNSEEDED)
