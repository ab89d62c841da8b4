"""Cases of invalid requests: each is refused with status 400 and a reason, and the engine goes on."""

from __future__ import annotations

from typing import Any

from parity.conformance.probe import (
    PROMPT,
    SHORT,
    TEXT,
    TOKENS,
    Cases,
    NotCompared,
    Probe,
    expect,
    lengths,
    request,
    require,
    short,
)

CASES = Cases()


async def refused(body: dict[str, Any], probe: Probe) -> None:
    """Expects status 400 with a reason, and an engine that goes on."""
    exchange = await probe.send(body)
    expect("status", exchange.status, 400, "status of the response {response}", response=short(exchange.response))
    error = exchange.response.get("error") if isinstance(exchange.response, dict) else None
    reason = error.get("message") if isinstance(error, dict) else error
    sound = isinstance(reason, str) and bool(reason)
    require("response", sound, "error, or error.message", exchange.response, "a refusal without a reason")
    await probe.alive()


async def refused_or(body: dict[str, Any], field: str, right: Any, read: Any, probe: Probe) -> None:
    """Expects a refusal, or else what `read` makes of the outputs to be right, and an engine that goes on."""
    exchange = await probe.send(body)
    if exchange.status != 400:
        expect("status", exchange.status, 200, "status of the response {response}", response=short(exchange.response))
        expect(field, read(exchange.outputs), right, "{field} of each output", field=field)
    await probe.alive()


def _without(body: dict[str, Any], *names: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names} | more


_TWO = request([PROMPT, SHORT])
_FOUR = {"max_new_tokens": 4}
CASES.table(
    refused,
    (
        ("n_text", "n as text is refused", request(PROMPT, {"n": "4"})),
        ("n_float", "n as a float is refused", request(PROMPT, {"n": 2.0})),
        ("n_fraction", "n as a fraction is refused", request(PROMPT, {"n": 2.5})),
        ("n_true", "n as a boolean is refused", request(PROMPT, {"n": True})),
        ("n_null", "n as null is refused", _without(request(PROMPT), sampling_params={**_FOUR, "n": None})),
        ("sampling_key_unknown", "Unknown sampling parameters are refused", request(PROMPT, {"n": 2, "frobnicate": 1})),
        ("temperature_negative", "A negative temperature is refused", request(PROMPT, {"n": 2, "temperature": -1})),
        ("top_p_zero", "top_p = 0 is refused", request(PROMPT, {"top_p": 0.0})),
        ("top_k_zero", "top_k = 0 is refused", request(PROMPT, {"top_k": 0})),
        ("cap_negative", "A negative max_new_tokens is refused", request(PROMPT, {"max_new_tokens": -1})),
        ("prompt_missing", "A request without a prompt is refused", _without(request(PROMPT), "input_ids")),
        ("prompt_twice", "Text and ids in one request are refused", request(PROMPT, text=TEXT)),
        ("prompt_empty", "An empty prompt is refused", request([], {"n": 2})),
        ("prompt_empty_in_list", "A list with an empty prompt is refused whole", request([[], PROMPT])),
        ("rids_twice", "One id for two prompts is refused", request([PROMPT, PROMPT], rid=["a", "a"])),
        ("rids_for_n", "Ids for each of n = 3 of one prompt are refused", request(PROMPT, {"n": 3}, rid=[*"abc"])),
        ("rids_too_few", "Fewer ids than prompts are refused", request([PROMPT, SHORT], rid=["a"])),
        (
            *("params_too_few", "Fewer sampling parameters than prompts are refused"),
            _without(_TWO, sampling_params=[_FOUR]),
        ),
        (
            *("n_by_prompt", "Another n for each prompt is refused"),
            _without(_TWO, sampling_params=[_FOUR, {**_FOUR, "n": 2}]),
        ),
        (
            *("logprob_start_beyond", "Prompt log-probs from beyond the prompt are refused"),
            request(PROMPT, logprob_start_len=12),
        ),
        (
            *("return_logprob_list_by_n", "A list of return_logprob with n = 2 is refused"),
            request([PROMPT], {"n": 2}, return_logprob=[True]),
        ),
        (
            *("top_logprobs_list_by_n", "A list of top_logprobs_num with n = 2 is refused"),
            request([PROMPT], {"n": 2}, top_logprobs_num=[2]),
        ),
    ),
)


async def _too_long(in_list: bool, probe: Probe) -> None:
    if probe.about.context_length is None:
        raise NotCompared("the engine does not report the length of its context")
    prompt = [5] * (probe.about.context_length + 100)
    await refused(request([PROMPT, prompt]) if in_list else request(prompt, {"n": 2}), probe)


CASES.table(
    _too_long,
    (
        ("prompt_too_long", "A prompt longer than the context is refused", False),
        ("prompt_too_long_in_list", "A list with a prompt too long is refused whole", True),
    ),
)

_ODD = frozenset({"exchange_request_honoured", "exchange_output_count"})
_ONE_SAMPLE = ("output_ids", [TOKENS], lengths)
CASES.table(
    refused_or,
    (
        ("n_zero", "n = 0 is refused, or answered by one sample", request(PROMPT, {"n": 0}), *_ONE_SAMPLE),
        ("n_negative", "n = -1 is refused, or answered by one sample", request(PROMPT, {"n": -1}), *_ONE_SAMPLE),
    ),
    exempt=_ODD,
)


@CASES.case(exempt=_ODD)
async def top_level_n(probe: Probe) -> None:
    """N beside sampling_params is ignored: the response is one object."""
    expect("response", lengths(await probe.ask(PROMPT, n=4)), [TOKENS], "tokens of each output")


@CASES.case()
async def body_broken(probe: Probe) -> None:
    """A body that is no JSON is refused."""
    url, headers = f"{probe.client.url}/generate", {"Content-Type": "application/json"}
    async with probe.session.post(url, data=b"{", headers=headers) as response:
        await response.read()
        require("status", 400 <= response.status < 500, "400 to 499", response.status, "status")
    await probe.alive()


CASES.table(
    refused,
    (
        ("id_outside_vocabulary", "A token id outside the vocabulary is refused", request([*PROMPT, 2**31 - 1])),
        ("id_negative", "A negative token id is refused", request([*PROMPT, -1])),
    ),
    destructive=True,
)
