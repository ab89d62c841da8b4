"""What the real SGLang is known to do otherwise: found by running the suite against 0.5.23 on the CPU."""

from __future__ import annotations

from parity.conformance.probe import About

SGLANG = "SGLang 0.5.23"

_SGLANG: dict[str, str] = {}
_IGNORED = "sampling_seed is ignored without --enable-deterministic-inference"
_SGLANG_UNSEEDED = dict.fromkeys(("seed_repeats", "seed_slots", "seed_list", "seed_in_traffic"), _IGNORED)


def known_deviations(about: About) -> dict[str, str]:
    """Case to reason, for this engine; a deviation named here is a warning."""
    if about.sglang is None:
        return {}
    return _SGLANG | ({} if about.deterministic else _SGLANG_UNSEEDED)
