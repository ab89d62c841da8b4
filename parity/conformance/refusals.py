"""Cases of requests that make no sense: refused with status 400 and a reason, and the engine goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

from parity.conformance.probe import (
    PROMPT,
    SHORT,
    TEXT,
    TOKENS,
    ConformanceCase,
    NotCompared,
    Probe,
    case_of,
    expect,
    lengths,
    request,
    require,
)


async def refused(body: dict[str, Any], probe: Probe) -> None:
    """Expects status 400 with a reason, and an engine that goes on."""
    exchange = await probe.send(body)
    expect("status", exchange.status, 400, f"status of {str(exchange.response)[:200]!r}")
    error = exchange.response.get("error") if isinstance(exchange.response, dict) else None
    reason = error.get("message") if isinstance(error, dict) else error
    sound = isinstance(reason, str) and bool(reason)
    require("response", sound, "error, or error.message", exchange.response, "the refusal gives no reason")
    await probe.alive()


def _without(body: dict[str, Any], *names: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names} | more


_BAD: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("n_text", "n as text is refused", request(PROMPT, {"n": "4"})),
    ("n_float", "n as a float is refused", request(PROMPT, {"n": 2.0})),
    ("n_fraction", "n as a fraction is refused", request(PROMPT, {"n": 2.5})),
    ("n_true", "n as a boolean is refused", request(PROMPT, {"n": True})),
    ("n_null", "n as null is refused", _without(request(PROMPT), sampling_params={"max_new_tokens": 4, "n": None})),
    ("sampling_key_unknown", "An unknown sampling parameter is refused", request(PROMPT, {"n": 2, "frobnicate": 1})),
    ("temperature_negative", "A negative temperature is refused", request(PROMPT, {"n": 2, "temperature": -1})),
    ("top_p_zero", "top_p = 0 is refused", request(PROMPT, {"top_p": 0.0})),
    ("top_k_zero", "top_k = 0 is refused", request(PROMPT, {"top_k": 0})),
    ("cap_negative", "A negative cap is refused", request(PROMPT, {"max_new_tokens": -1})),
    ("prompt_missing", "A request without a prompt is refused", _without(request(PROMPT), "input_ids")),
    ("prompt_twice", "Text and ids in one request are refused", request(PROMPT, text=TEXT)),
    ("prompt_empty", "An empty prompt is refused", request([], {"n": 2})),
    ("prompt_empty_in_list", "A list with an empty prompt is refused whole", request([[], PROMPT])),
    ("rids_twice", "One id for two prompts is refused", request([PROMPT, PROMPT], rid=["a", "a"])),
    ("rids_for_n", "Ids for each of n = 3 of one prompt are refused", request(PROMPT, {"n": 3}, rid=["a", "b", "c"])),
    ("rids_too_few", "Fewer ids than prompts are refused", request([PROMPT, SHORT], rid=["a"])),
    (
        "params_too_few",
        "Fewer sampling parameters than prompts are refused",
        _without(request([PROMPT, SHORT]), sampling_params=[{"max_new_tokens": 4}]),
    ),
    (
        "n_by_prompt",
        "Another n for each prompt is refused",
        _without(request([PROMPT, SHORT]), sampling_params=[{"max_new_tokens": 4}, {"max_new_tokens": 4, "n": 2}]),
    ),
    (
        "logprob_start_beyond",
        "Prompt log-probs from beyond the prompt are refused",
        request(PROMPT, logprob_start_len=12),
    ),
    (
        "return_logprob_list_by_n",
        "A list of return_logprob with n = 2 is refused",
        request([PROMPT], {"n": 2}, return_logprob=[True]),
    ),
    (
        "top_logprobs_list_by_n",
        "A list of top_logprobs_num with n = 2 is refused",
        request([PROMPT], {"n": 2}, top_logprobs_num=[2]),
    ),
)


async def _too_long(list_first: bool, probe: Probe) -> None:
    if probe.about.context_length is None:
        raise NotCompared("the engine does not say how long its context is")
    prompt = [5] * (probe.about.context_length + 100)
    await refused(request([PROMPT, prompt] if list_first else prompt, {"n": None if list_first else 2}), probe)


async def body_broken(probe: Probe) -> None:
    """A body that is no JSON is refused."""
    async with probe.session.post(
        f"{probe.client.url}/generate", data=b"{", headers={"Content-Type": "application/json"}
    ) as response:
        await response.read()
        require("status", 400 <= response.status < 500, "400 to 499", response.status, "status")
    await probe.alive()


async def _odd_n(n: int, probe: Probe) -> None:
    body = request(PROMPT, {"n": n})
    exchange = await probe.send(body)
    if exchange.status != 400:
        expect("status", exchange.status, 200, f"status of {str(exchange.response)[:200]!r}")
        expect("response", lengths(exchange.outputs), [TOKENS], "tokens of what was answered to it")
    await probe.alive()


async def top_level_n(probe: Probe) -> None:
    """N beside sampling_params counts as nothing: one object."""
    outputs = await probe.ask(PROMPT, n=4)
    expect("response", lengths(outputs), [TOKENS], "tokens")


async def id_outside_vocabulary(probe: Probe) -> None:
    """A token id outside the vocabulary is refused."""
    await refused(request([*PROMPT, 2**31 - 1]), probe)


async def id_negative(probe: Probe) -> None:
    """A negative token id is refused."""
    await refused(request([*PROMPT, -1]), probe)


_ODD = frozenset({"exchange_request_honoured", "exchange_output_count"})

CASES: tuple[ConformanceCase, ...] = (
    *(ConformanceCase(name, rule, partial(refused, body)) for name, rule, body in _BAD),
    ConformanceCase("prompt_too_long", "A prompt longer than the context is refused", partial(_too_long, False)),
    ConformanceCase(
        "prompt_too_long_in_list", "A list with a prompt too long is refused whole", partial(_too_long, True)
    ),
    ConformanceCase("n_zero", "n = 0 is refused, or answered by one sample", partial(_odd_n, 0), exempt=_ODD),
    ConformanceCase("n_negative", "n = -1 is refused, or answered by one sample", partial(_odd_n, -1), exempt=_ODD),
    case_of(top_level_n, exempt=_ODD),
    case_of(body_broken),
    case_of(id_outside_vocabulary, destructive=True),
    case_of(id_negative, destructive=True),
)
