"""Known deviations of the real SGLang, its router and the real vLLM, found by running the suites on the CPU."""

from __future__ import annotations

from parity.conformance.probe import About
from parity.findings import Message

SGLANG = "SGLang 0.5.23"
ROUTER = "sglang-router 0.3.2"
VLLM = "vLLM 0.32.0"

_SGLANG = {
    "n_null": "n as null causes an internal error, status 500",
    "params_too_few": "fewer sampling parameters than prompts cause an internal error, status 500",
    "prompt_twice": "of text and input_ids in one request it silently takes the ids",
    "prompt_empty_in_list": "an empty prompt in a list is answered as one without prompt tokens",
    "id_negative": "a negative token id ends the server",
    "id_outside_vocabulary": "a token id outside the vocabulary ends the server",
    "weights_of_other_shape": "a checkpoint of another shape ends the server",
}
_IGNORED = "sampling_seed is ignored without --enable-deterministic-inference"
_SGLANG_SEEING = {
    "image_too_large": "an image beyond its decoder's limit causes an internal error, status 500",
    "weights_drop_features": "the encoder's output is cached by image only and survives updates and flushes, "
    "unless it is started with SGLANG_VLM_CACHE_SIZE_MB=0",
}
_SGLANG_UNSEEDED = dict.fromkeys(("seed_repeats", "seed_list", "seed_in_traffic"), _IGNORED)


_TYPED = "a value of another type than a field's is refused by the router, status 422, as text"
_LISTS = "lists other than of token ids are refused by the router, status 422, as text"
_ROUTER = {
    "sampling_key_unknown": "unknown fields are silently dropped by the router; of sampling parameters "
    "also beam_width, custom_params, logit_bias, spaces_between_special_tokens, stop_regex, stream_interval and "
    "structural_tag",
    "n_null": "null counts as not given",
    **dict.fromkeys(("n_text", "n_float", "n_fraction", "n_true", "n_negative", "cap_negative"), _TYPED),
    **dict.fromkeys(
        (
            *("list_text", "list_of_params", "list_of_return_logprob", "list_of_rids", "prompt_untouched", "seed_list"),
            *("rids_twice", "rids_for_n", "rids_too_few", "params_too_few", "n_by_prompt"),
            *("return_logprob_list_by_n", "top_logprobs_list_by_n"),
        ),
        _LISTS,
    ),
}


_VLLM = {
    "vllm_key_unknown": "unknown parameters are dropped without a word, so that max_new_tokens caps nothing",
    "vllm_abort_id_bare": "an id without its prefix is said to be aborted, and runs on",
    "vllm_stale_prefixes": "the prefix cache outlives a reload: empty it by a pause or /reset_prefix_cache",
}
_VLLM_CPU = {
    "digests_of_something": "a packed matrix has the digest of zero bytes, so that its checker compares none",
}


def known_deviations(about: About) -> dict[str, Message]:
    """By case, what this engine or its router is known for; a deviation named here is a warning."""
    unseeded = {} if about.deterministic else _SGLANG_UNSEEDED
    of_engine = {} if about.sglang is None else _SGLANG | unseeded | (_SGLANG_SEEING if about.image_text else {})
    of_router = _ROUTER if about.router else {}
    of_vllm = _VLLM | (_VLLM_CPU if about.settings.get("device") == "cpu" else {}) if about.vllm == "0.32.0" else {}
    return {
        case: Message("{software}: {reason}", software=software, reason=Message(reason))
        for software, reasons in ((SGLANG, of_engine), (ROUTER, of_router), (VLLM, of_vllm))
        for case, reason in reasons.items()
    }
