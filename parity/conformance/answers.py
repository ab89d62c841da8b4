"""Cases of one request each, or few: response shapes by arm, log-probs, stops, greedy and seeded sampling, streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import orjson

from parity.conformance.probe import (
    GREEDY,
    MIDDLE,
    PROMPT,
    SHORT,
    TEXT,
    TOKENS,
    Cases,
    NotCompared,
    Output,
    Probe,
    expect,
    finishes,
    ids_of,
    lengths,
    log_probs_of,
    meta_of,
    new_id,
    request,
    require,
    together,
    tokens_of,
    triples_of,
)

TOLERANCE = 0.05
"""Nats by which log-probs of one token may differ on average between two ways to compute them (bfloat16 has 0.01)."""
SEED = 20_251
HOT: dict[str, Any] = {"temperature": 2.0, "max_new_tokens": 32}
"""Sampling parameters with which two samples never agree by chance."""

CASES = Cases()


async def _runs_to_its_cap(prompt: object, params: Mapping[str, Any], probe: Probe) -> None:
    body = request(prompt, params)
    outputs = await probe.outputs(body)
    cap = body["sampling_params"]["max_new_tokens"]
    expect("output_ids", lengths(outputs), [cap] * len(outputs), "tokens, with the end of text ignored")
    expect("finish_reason", finishes(outputs), ["length"] * len(outputs), "finish reasons")


CASES.table(
    _runs_to_its_cap,
    (
        ("single_ids", "One prompt of token ids is answered by an object", PROMPT, {}),
        ("single_text", "One prompt of text is answered by an object", TEXT, {}),
        ("single_n_1", "n = 1 is answered by an object", PROMPT, {"n": 1}),
        ("native_2", "n = 2 is answered by a list of 2", MIDDLE, {"n": 2}),
        ("native_8", "n = 8 is answered by a list of 8", PROMPT, {"n": 8}),
        ("native_64", "n = 64 is answered by a list of 64", PROMPT, {"n": 64, "max_new_tokens": 4}),
        ("native_text", "A prompt of text with n = 4 is answered by a list of 4", TEXT, {"n": 4}),
        ("list_of_1", "A list of one prompt is answered by a list of 1", [PROMPT], {}),
        ("list_of_8", "A list of one prompt eight times is answered by a list of 8", [PROMPT] * 8, {}),
        ("list_distinct", "Distinct prompts are answered in their order", [PROMPT, SHORT, MIDDLE], {}),
        ("list_text", "A list of texts is answered by a list", [TEXT, TEXT[:5], TEXT[4:]], {}),
        ("list_by_n", "2 prompts with n = 3 are answered prompt by prompt", [PROMPT, SHORT], {"n": 3}),
        ("list_of_1_by_n", "A list of one prompt with n = 3 is answered by a list of 3", [PROMPT], {"n": 3}),
        ("single_1_token", "max_new_tokens = 1 gives one token", PROMPT, {"max_new_tokens": 1}),
        ("native_1_token", "max_new_tokens = 1 gives each of n = 4 one token", PROMPT, {"max_new_tokens": 1, "n": 4}),
        ("list_1_token", "max_new_tokens = 1 gives each of a list one token", [PROMPT] * 4, {"max_new_tokens": 1}),
        ("single_0_tokens", "max_new_tokens = 0 gives no token, finished by length", PROMPT, {"max_new_tokens": 0}),
        ("native_0_tokens", "max_new_tokens = 0 gives each of n = 2 no token", PROMPT, {"max_new_tokens": 0, "n": 2}),
        ("native_top_p", "top_p and top_k go with n = 4", PROMPT, {"n": 4, "top_p": 0.8, "top_k": 20}),
    ),
)


async def _holds(
    body: dict[str, Any], field: str, read: Callable[[list[Output]], Any], right: Any, probe: Probe
) -> None:
    expect(field, read(await probe.outputs(body)), right, "{field} of each output", field=field)


def _with_logprobs(outputs: list[Output]) -> list[bool]:
    return list(map(bool, meta_of(outputs, "output_token_logprobs")))


_TWO = [{"max_new_tokens": 4, "ignore_eos": True}, {"max_new_tokens": 9, "ignore_eos": True, "temperature": 0.7}]
CASES.table(
    _holds,
    (
        (
            *("list_of_params", "Each prompt of a list has its own sampling parameters"),
            *(request([PROMPT, PROMPT]) | {"sampling_params": _TWO}, "output_ids", lengths, [4, 9]),
        ),
        (
            *("list_of_return_logprob", "Each prompt of a list says whether it wants log-probs"),
            request([PROMPT, PROMPT], return_logprob=[True, False]),
            *("output_token_logprobs", _with_logprobs, [True, False]),
        ),
        (
            *("logprobs_unasked", "Log-probs that were not requested do not come"),
            request(PROMPT, {"n": 2}, return_logprob=None),
            *("output_token_logprobs", _with_logprobs, [False, False]),
        ),
    ),
)


async def _under_its_id(prompt: object, rid: Any, probe: Probe) -> None:
    outputs = await probe.ask(prompt, rid=rid)
    expect("id", meta_of(outputs, "id"), rid if isinstance(rid, list) else [rid], "ids")


CASES.table(
    _under_its_id,
    (
        ("list_of_rids", "Each prompt of a list is answered under its id", [PROMPT, SHORT], [new_id(), new_id()]),
        ("single_rid", "A request is answered under its id", PROMPT, new_id()),
    ),
)


@CASES.case()
async def default_cap(probe: Probe) -> None:
    """Without max_new_tokens an output ends after 128 tokens."""
    if probe.room(len(PROMPT), 128) < 128:
        raise NotCompared("a context of {length} tokens has no room for 128 more", length=probe.about.context_length)
    expect("output_ids", lengths(await probe.ask(PROMPT, {"max_new_tokens": None})), [128], "tokens")


@CASES.case()
async def concurrent(probe: Probe) -> None:
    """Requests at the same time are each answered by their own outputs."""
    prompts = [list(range(5, 8 + number)) for number in range(16)]
    answers = await together(
        *(probe.ask(prompt, {"max_new_tokens": 3 + 2 * k, "n": 1 + k % 3}) for k, prompt in enumerate(prompts))
    )
    for number, (prompt, outputs) in enumerate(zip(prompts, answers, strict=True)):
        seen = list(zip(meta_of(outputs, "prompt_tokens"), lengths(outputs), strict=True))
        wanted = [(len(prompt), 3 + 2 * number)] * (1 + number % 3)
        expect("prompt_tokens", seen, wanted, "prompt and output tokens of request {number}", number=number)


@CASES.case()
async def prompt_untouched(probe: Probe) -> None:
    """A text becomes the same prompt tokens on every arm."""
    sent: tuple[tuple[object, dict[str, Any]], ...] = ((TEXT, {}), (TEXT, {"n": 2}), ([TEXT, TEXT], {}))
    outputs = [output for prompt, params in sent for output in await probe.ask(prompt, params, logprob_start_len=0)]
    prompts = [[row[1] for row in triples_of(output, "input_token_logprobs")] for output in outputs]
    expect("input_token_logprobs", prompts, [prompts[0]] * 5, "prompt ids")


# --- log-probs


async def _top_logprobs(prompt: object, params: Mapping[str, Any], probe: Probe) -> None:
    top = "output_top_logprobs"
    for output in await probe.ask(prompt, params, top_logprobs_num=3):
        rows = output["meta_info"].get(top)
        shape = [len(row) if isinstance(row, list) else row for row in rows] if isinstance(rows, list) else rows
        expect(top, shape, [3] * TOKENS, "top log-probs of each token")
        for (value, token, *_), best in zip(triples_of(output), rows or (), strict=True):
            values = [row[0] for row in best]
            require(top, values == sorted(values, reverse=True), "descending", values, "top log-probs")
            same = [row[0] for row in best if row[1] == token]
            if same:
                expect(top, same, [value], "top log-prob of the sampled id {token}", token=token)
            else:
                what = "log-prob of the sampled id, which is not among the top ones"
                require(top, value <= values[-1], f"<= {values[-1]}", value, what)


CASES.table(
    _top_logprobs,
    (
        ("top_logprobs_single", "Top log-probs are sorted and hold that of the sampled id", PROMPT, {}),
        ("top_logprobs_native", "Top log-probs come with n = 2", PROMPT, {"n": 2}),
        ("top_logprobs_list", "Top log-probs come with a list", [PROMPT] * 2, {}),
    ),
)


@CASES.case()
async def logprobs_greedy(probe: Probe) -> None:
    """Greedy sampling takes the most likely id."""
    (output,) = await probe.ask(PROMPT, GREEDY, top_logprobs_num=2)
    likeliest = [row[0][0] for row in output["meta_info"].get("output_top_logprobs", [])]
    expect("output_token_logprobs", log_probs_of(output), likeliest, "log-probs of the sampled ids")


def near(field: str, observed: list[float], expected: list[float], what: str) -> None:
    """Raises `Broken` unless log-probs differ by no more than `TOLERANCE` on average."""
    apart = fmean(abs(a - b) for a, b in zip(observed, expected, strict=True))
    require(field, apart <= TOLERANCE, f"<= {TOLERANCE} nats", apart, what)


@CASES.case()
async def logprobs_untruncated(probe: Probe) -> None:
    """Log-probs are those of the distribution before top_k and top_p."""
    (free,) = await probe.ask(PROMPT, {"max_new_tokens": 1}, top_logprobs_num=2)
    (truncated,) = await probe.ask(PROMPT, {"top_k": 2, "max_new_tokens": 1})
    whole = {token: value for value, token, *_ in _two_likeliest(free)}
    ((value, token, *_),) = triples_of(truncated)
    require("output_ids", token in whole, sorted(whole), token, "an id that top_k = 2 excludes")
    near("output_token_logprobs", [value], [whole[token]], "gap of a log-prob with and without top_k = 2")


@CASES.case()
async def logprobs_at_temperature(probe: Probe) -> None:
    """Log-probs are those of the temperature sampled at."""
    gaps = []
    for temperature in (1.0, 0.5):
        (output,) = await probe.ask(PROMPT, {"temperature": temperature, "max_new_tokens": 1}, top_logprobs_num=2)
        best, second = _two_likeliest(output)
        gaps.append(best[0] - second[0])
    what = "gap of the two likeliest ids at temperature 0.5, against twice that at 1"
    near("output_top_logprobs", [gaps[1]], [2 * gaps[0]], what)


def _two_likeliest(output: Output) -> list[Any]:
    """The two likeliest ids of the first token, with their log-probs."""
    rows = output["meta_info"].get("output_top_logprobs") or [[]]
    expect("output_top_logprobs", len(rows[0]), 2, "top log-probs of the first token")
    return list(rows[0])


@CASES.case()
async def logprobs_recomputed(probe: Probe) -> None:
    """Log-probs of sampled tokens are those of the same tokens as a prompt."""
    (sampled,) = await probe.ask(PROMPT, {"max_new_tokens": 24})
    (scored,) = await probe.ask([*PROMPT, *ids_of(sampled)], {"max_new_tokens": 1}, logprob_start_len=0)
    again = log_probs_of(scored, "input_token_logprobs")[len(PROMPT) :]
    expect("input_token_logprobs", len(again), 24, "prompt log-probs after the prompt")
    near("output_token_logprobs", log_probs_of(sampled), again, "mean gap")


async def _prompt_logprobs(prompt: object, params: Mapping[str, Any], probe: Probe) -> None:
    field = "input_token_logprobs"
    (alone,) = await probe.ask(PROMPT, logprob_start_len=0)
    for output in await probe.ask(prompt, params, logprob_start_len=0):
        rows = triples_of(output, field)
        expect(field, rows[0][0] if rows else "nothing", None, "log-prob of the first prompt token")
        expect(field, [row[1] for row in rows], PROMPT, "prompt ids")
        near(field, log_probs_of(output, field)[1:], log_probs_of(alone, field)[1:], "mean gap to a single request")


CASES.table(
    _prompt_logprobs,
    (
        ("prompt_logprobs_single", "Every prompt token but the first has a log-prob", PROMPT, {}),
        ("prompt_logprobs_native", "Samples with n = 2 share their prompt log-probs", PROMPT, {"n": 2}),
        ("prompt_logprobs_list", "Prompts of a list have their prompt log-probs", [PROMPT] * 2, {}),
    ),
)


@CASES.case()
async def prompt_logprobs_part(probe: Probe) -> None:
    """Prompt log-probs from a position on are those of the whole prompt from there on."""
    field = "input_token_logprobs"
    (whole,), (part,) = [await probe.ask(PROMPT, logprob_start_len=start) for start in (0, 6)]
    expect(field, [row[1] for row in triples_of(part, field)[1:]], PROMPT[7:], "ids after the first")
    near(field, log_probs_of(part, field)[1:], log_probs_of(whole, field)[7:], "mean gap to the whole")


# --- stops


async def _greedy_token(probe: Probe) -> tuple[int, str]:
    """The first id and the text of greedy sampling."""
    (output,) = await probe.ask(PROMPT, {**GREEDY, "max_new_tokens": 48})
    return ids_of(output)[0], str(output.get("text", ""))


async def _stop_token(prompt: object, params: Mapping[str, Any], probe: Probe) -> None:
    token, _ = await _greedy_token(probe)
    outputs = await probe.ask(prompt, {**GREEDY, **params, "ignore_eos": None, "stop_token_ids": [token]})
    expect("output_ids", [ids_of(output) for output in outputs], [[token]] * len(outputs), "output ids")
    matched = [reason.get("matched") for reason in meta_of(outputs, "finish_reason")]
    expect("finish_reason", matched, [token] * len(outputs), "matched tokens")


CASES.table(
    _stop_token,
    (
        ("stop_token_single", "An output ends with the stop token that matched", PROMPT, {}),
        ("stop_token_native", "Stop tokens end each of n = 3", PROMPT, {"n": 3}),
        ("stop_token_list", "Stop tokens end each of a list", [PROMPT] * 3, {}),
    ),
)


@CASES.case()
async def stop_token_sampled(probe: Probe) -> None:
    """Each sample of n = 8 ends at its own first stop token."""
    stops = {"ignore_eos": None, "stop_token_ids": list(range(0, 256, 4))}
    kinds = finishes(await probe.ask(PROMPT, {"n": 8, "max_new_tokens": 64, **stops}))
    require("finish_reason", "stop" in kinds, "a stop", kinds, "finish reasons where one byte in four stops")


@CASES.case()
async def stop_token_ignored(probe: Probe) -> None:
    """ignore_eos takes precedence over stop tokens."""
    token, _ = await _greedy_token(probe)
    expect("output_ids", lengths(await probe.ask(PROMPT, {**GREEDY, "stop_token_ids": [token]})), [TOKENS], "tokens")


@CASES.case()
async def stop_token_trimmed(probe: Probe) -> None:
    """The text leaves a matched stop token out, and holds it with no_stop_trim."""
    token, text = await _greedy_token(probe)
    params = {**GREEDY, "ignore_eos": None, "stop_token_ids": [token]}
    (bare,), (full,) = await probe.ask(PROMPT, params), await probe.ask(PROMPT, {**params, "no_stop_trim": True})
    expect("text", bare.get("text"), "", "text before the first token")
    require("text", text.startswith(str(full.get("text"))), text[:20], full.get("text"), "text of the first token")


async def _stop_string(params: Mapping[str, Any], probe: Probe) -> None:
    _, text = await _greedy_token(probe)
    string = next((c for c in text if c.isascii() and c.isprintable() and not c.isspace()), None)
    if string is None:
        raise NotCompared("greedy sampling gives no printable character to stop at: {text}", text=repr(text[:40]))
    outputs = await probe.ask(PROMPT, {**GREEDY, **params, "max_new_tokens": 48, "ignore_eos": None, "stop": [string]})
    end = text.index(string) + len(string) * bool(params.get("no_stop_trim"))
    count = len(outputs)
    reasons = meta_of(outputs, "finish_reason")
    expect("finish_reason", reasons, [{"type": "stop", "matched": string}] * count, "finish reasons")
    expect("text", [output.get("text") for output in outputs], [text[:end]] * count, "texts")


CASES.table(
    _stop_string,
    (
        ("stop_string_single", "The text ends before the string that matched", {}),
        ("stop_string_native", "Stop strings end each of n = 3", {"n": 3}),
        ("stop_string_kept", "With no_stop_trim the text ends with the string that matched", {"no_stop_trim": True}),
    ),
)


# --- greedy, free and seeded sampling


async def greedy_alike(probe: Probe, single: Any, native: Any, listed: Any) -> None:
    """Expects one greedy response of a single request, of one with n = 3 and of a list of 3."""
    outputs = [output for body in (single, native, listed) for output in await probe.outputs(body)]
    shown = TOKENS if probe.about.deterministic else 1
    expect("output_ids", [ids_of(output)[:shown] for output in outputs], [ids_of(outputs[0])[:shown]] * 7, "ids")


@CASES.case()
async def greedy_arms(probe: Probe) -> None:
    """Greedy sampling gives every arm the same first token; a deterministic engine, the same tokens."""
    await greedy_alike(
        probe, request(PROMPT, GREEDY), request(PROMPT, {**GREEDY, "n": 3}), request([PROMPT] * 3, GREEDY)
    )


async def _differ(bodies: list[dict[str, Any]], probe: Probe) -> None:
    """All samples of these requests, sent at once, are distinct."""
    outputs = [output for of_one in await together(*map(probe.outputs, bodies)) for output in of_one]
    expect("output_ids", len({tuple(ids_of(output)) for output in outputs}), len(outputs), "distinct responses")


def _seeded(slot: int = 0, **params: Any) -> dict[str, Any]:
    return request(PROMPT, {"sampling_seed": SEED + slot, **params})


CASES.table(
    _differ,
    (
        ("free_samples_differ", "Free samples differ", [request(PROMPT, {**HOT, "n": 8}), request([PROMPT] * 8, HOT)]),
        (
            "free_requests_differ",
            "A request sent twice without a seed gives two samples",
            [request(PROMPT, HOT)] * 2,
        ),
        ("seeds_differ", "Different seeds give different tokens", [_seeded(slot, **HOT) for slot in range(4)]),
        ("seed_native", "A seed with n = 4 gives four samples, not one four times", [_seeded(n=4, **HOT)]),
    ),
)


async def same_tokens(some: list[Any], others: list[Any], per_slot: bool, probe: Probe) -> None:
    """Expects the same tokens and log-probs of some requests and of others; `per_slot` if that needs seeds by slot."""
    if per_slot and not probe.about.seed_per_slot:
        raise NotCompared("the engine does not report that each sample of a request has a seed of its own")
    first, second = [[output for body in bodies for output in await probe.outputs(body)] for bodies in (some, others)]
    expect("output_ids", tokens_of(first), tokens_of(second), "ids and log-probs")


_ALONE = [_seeded(slot) for slot in range(4)]
_LISTED = request([PROMPT] * 4) | {"sampling_params": [body["sampling_params"] for body in _ALONE]}
CASES.table(
    same_tokens,
    (
        ("seed_repeats", "The same seed gives the same tokens and log-probs again", [_seeded()], [_seeded()], False),
        ("seed_slots", "With n = 4, sample i is that of seed + i alone, if reported", [_seeded(n=4)], _ALONE, True),
        ("seed_list", "Each prompt of a list is sampled by its own seed, as it is alone", [_LISTED], _ALONE, False),
    ),
)


@CASES.case()
async def seed_in_traffic(probe: Probe) -> None:
    """A seeded response does not depend on other requests."""
    seeded = {"sampling_seed": SEED, "max_new_tokens": 32}
    alone = await probe.ask(PROMPT, seeded)
    _, among, _ = await together(
        probe.ask(MIDDLE, {"n": 5, "max_new_tokens": 48}), probe.ask(PROMPT, seeded), probe.ask([SHORT, PROMPT])
    )
    expect("output_ids", tokens_of(among), tokens_of(alone), "ids and log-probs")


# --- streams


async def _stream(params: Mapping[str, Any], probe: Probe) -> None:
    n = params.get("n", 1)
    last: dict[int, tuple[list[int], Any]] = {}
    async with probe.session.post(
        f"{probe.client.url}/generate", json=request(PROMPT, params, stream=True)
    ) as response:
        text = (await response.read()).decode(errors="replace")
    events = [line.removeprefix("data:").strip() for line in text.split("\n\n") if line.strip()]
    require("response", events[-1:] == ["[DONE]"], "[DONE]", events[-1:], "last event")
    for event in events[:-1]:
        chunk = _decoded(event)
        index, ids = chunk.get("index", 0), ids_of(chunk)
        before = last[index][0] if index in last else []
        require("output_ids", ids[: len(before)] == before, before, ids, "ids that do not continue those before")
        last[index] = ids, finishes([chunk])[0]
    expect("index", sorted(last), list(range(n)), "indices")
    expect("output_ids", [len(last[index][0]) for index in range(n)], [TOKENS] * n, "tokens at the end")
    expect("finish_reason", [last[index][1] for index in range(n)], ["length"] * n, "finish reasons at the end")


def _decoded(event: str) -> Output:
    try:
        chunk = orjson.loads(event)
    except orjson.JSONDecodeError:
        chunk = None
    sound = isinstance(chunk, dict) and isinstance(chunk.get("meta_info"), dict)
    require("response", sound, "a JSON object with meta_info", event[:80], "an event")
    return dict(chunk or {})


CASES.table(
    _stream,
    (
        ("stream_single", "A stream grows, and ends with a finish reason and [DONE]", {}),
        ("stream_native", "A stream of n = 2 tells its samples apart by index", {"n": 2}),
    ),
)
