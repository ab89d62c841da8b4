"""Cases of one request each, or few: shapes by arm, log-probs, stops, greedy and seeded sampling."""

from __future__ import annotations

import uuid
from functools import partial
from statistics import fmean
from typing import Any

import orjson

from parity.conformance.probe import (
    MIDDLE,
    PROMPT,
    SHORT,
    TEXT,
    TOKENS,
    Broken,
    ConformanceCase,
    NotCompared,
    Output,
    Probe,
    case_of,
    expect,
    finishes,
    ids_of,
    lengths,
    request,
    require,
    together,
    triples_of,
)

TOLERANCE = 0.05
"""Nats by which log-probs of one token may differ on average between two ways to compute them (bfloat16 has 0.01)."""
GREEDY: dict[str, Any] = {"temperature": 0.0}
SEED = 20_251


async def _runs_to_its_cap(prompt: object, params: dict[str, Any], probe: Probe) -> None:
    body = request(prompt, params)
    outputs = await probe.outputs(body)
    cap = body["sampling_params"]["max_new_tokens"]
    expect("output_ids", lengths(outputs), [cap] * len(outputs), "tokens, with the end of text ignored")
    expect("finish_reason", finishes(outputs), ["length"] * len(outputs), "finish reasons")


_SHAPES: tuple[tuple[str, str, object, dict[str, Any]], ...] = (
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
    ("list_by_n", "2 prompts with n = 3 are answered prompt-major", [PROMPT, SHORT], {"n": 3}),
    ("list_of_1_by_n", "A list of one prompt with n = 3 is answered by a list of 3", [PROMPT], {"n": 3}),
    ("single_1_token", "A cap of one token gives one token", PROMPT, {"max_new_tokens": 1}),
    ("native_1_token", "A cap of one token gives each of n = 4 one token", PROMPT, {"max_new_tokens": 1, "n": 4}),
    ("list_1_token", "A cap of one token gives each of a list one token", [PROMPT] * 4, {"max_new_tokens": 1}),
    ("single_0_tokens", "A cap of no tokens gives none, finished by length", PROMPT, {"max_new_tokens": 0}),
    ("native_0_tokens", "A cap of no tokens gives n = 2 none", PROMPT, {"max_new_tokens": 0, "n": 2}),
    ("native_top_p", "top_p and top_k go with n = 4", PROMPT, {"n": 4, "top_p": 0.8, "top_k": 20}),
)


async def list_of_params(probe: Probe) -> None:
    """Each prompt of a list has its own sampling parameters."""
    params = [{"max_new_tokens": 4, "ignore_eos": True}, {"max_new_tokens": 9, "ignore_eos": True, "temperature": 0.7}]
    outputs = await probe.outputs(request([PROMPT, PROMPT]) | {"sampling_params": params})
    expect("output_ids", lengths(outputs), [4, 9], "tokens")


async def list_of_return_logprob(probe: Probe) -> None:
    """Each prompt of a list says whether it wants log-probs."""
    outputs = await probe.ask([PROMPT, PROMPT], return_logprob=[True, False])
    given = [bool(output["meta_info"].get("output_token_logprobs")) for output in outputs]
    expect("output_token_logprobs", given, [True, False], "log-probs given")


async def list_of_rids(probe: Probe) -> None:
    """Each prompt of a list is answered under the id it was given."""
    ids = [uuid.uuid4().hex, uuid.uuid4().hex]
    outputs = await probe.ask([PROMPT, SHORT], rid=ids)
    expect("id", [output["meta_info"].get("id") for output in outputs], ids, "ids")


async def single_rid(probe: Probe) -> None:
    """A request is answered under the id it was given."""
    rid = uuid.uuid4().hex
    outputs = await probe.ask(PROMPT, rid=rid)
    expect("id", [output["meta_info"].get("id") for output in outputs], [rid], "ids")


async def default_cap(probe: Probe) -> None:
    """Without max_new_tokens an output ends after 128 tokens."""
    if probe.room(len(PROMPT), 128) < 128:
        raise NotCompared(f"the context of {probe.about.context_length} tokens has no room for 128 more")
    expect("output_ids", lengths(await probe.ask(PROMPT, {"max_new_tokens": None})), [128], "tokens")


async def concurrent(probe: Probe) -> None:
    """Requests at the same time are each answered by their own outputs."""
    prompts = [range(5, 8 + number) for number in range(16)]
    answers = await together(
        *(probe.ask(prompt, {"max_new_tokens": 3 + 2 * k, "n": 1 + k % 3}) for k, prompt in enumerate(prompts))
    )
    for number, (prompt, outputs) in enumerate(zip(prompts, answers, strict=True)):
        seen = [(output["meta_info"].get("prompt_tokens"), len(ids_of(output))) for output in outputs]
        wanted = [(len(prompt), 3 + 2 * number)] * (1 + number % 3)
        expect("prompt_tokens", seen, wanted, f"prompt and output tokens of request {number}")


async def prompt_untouched(probe: Probe) -> None:
    """A text becomes the same prompt tokens on every arm."""
    asked: tuple[tuple[object, dict[str, Any]], ...] = ((TEXT, {}), (TEXT, {"n": 2}), ([TEXT, TEXT], {}))
    answers = [item for prompt, params in asked for item in await probe.ask(prompt, params, logprob_start_len=0)]
    prompts = [[row[1] for row in triples_of(output, "input_token_logprobs")] for output in answers]
    expect("input_token_logprobs", prompts, [prompts[0]] * 5, "prompt ids")


# --- log-probs


async def logprobs_unasked(probe: Probe) -> None:
    """Log-probs that were not asked for do not come."""
    for output in await probe.ask(PROMPT, {"n": 2}, return_logprob=None):
        got = output["meta_info"].get("output_token_logprobs")
        require("output_token_logprobs", not got, None, got, "log-probs came unasked")


async def _top_logprobs(prompt: object, params: dict[str, Any], probe: Probe) -> None:
    for output in await probe.ask(prompt, params, top_logprobs_num=3):
        rows = output["meta_info"].get("output_top_logprobs")
        shape = [len(row) if isinstance(row, list) else row for row in rows] if isinstance(rows, list) else rows
        expect("output_top_logprobs", shape, [3] * TOKENS, "top log-probs a token")
        assert isinstance(rows, list)
        for (value, token, *_), best in zip(triples_of(output), rows, strict=True):
            values = [row[0] for row in best]
            require(
                "output_top_logprobs", values == sorted(values, reverse=True), "descending", values, "top log-probs"
            )
            same = [row[0] for row in best if row[1] == token]
            if same:
                expect("output_top_logprobs", same, [value], f"top log-prob of the sampled id {token}")
            else:
                top = "the sampled id is more likely than all top ones"
                require("output_top_logprobs", value <= values[-1], f"<= {values[-1]}", value, top)


async def logprobs_greedy(probe: Probe) -> None:
    """Greedy sampling takes the most likely id."""
    (output,) = await probe.ask(PROMPT, GREEDY, top_logprobs_num=2)
    likeliest = [row[0][0] for row in output["meta_info"].get("output_top_logprobs", [])]
    expect("output_token_logprobs", [row[0] for row in triples_of(output)], likeliest, "log-probs of what was taken")


def near(field: str, observed: list[float], expected: list[float], what: str) -> None:
    """Raises `Broken` unless log-probs differ by no more than `TOLERANCE` on average."""
    apart = fmean(abs(a - b) for a, b in zip(observed, expected, strict=True))
    require(field, apart <= TOLERANCE, f"<= {TOLERANCE} nats", apart, what)


async def logprobs_untruncated(probe: Probe) -> None:
    """Log-probs are those of the distribution before top_k and top_p."""
    (free,) = await probe.ask(PROMPT, {"max_new_tokens": 1}, top_logprobs_num=2)
    (truncated,) = await probe.ask(PROMPT, {"top_k": 2, "max_new_tokens": 1})
    whole = {token: value for value, token, *_ in _first_top_logprobs(free)}
    ((value, token, *_),) = triples_of(truncated)
    require("output_ids", token in whole, sorted(whole), token, "an id that top_k = 2 does not leave")
    near("output_token_logprobs", [value], [whole[token]], "log-prob with top_k = 2 against that without")


async def logprobs_at_temperature(probe: Probe) -> None:
    """Log-probs are those of the temperature sampled at."""
    gaps = []
    for temperature in (1.0, 0.5):
        (output,) = await probe.ask(PROMPT, {"temperature": temperature, "max_new_tokens": 1}, top_logprobs_num=2)
        best, second = _first_top_logprobs(output)
        gaps.append(best[0] - second[0])
    what = "gap of the two likeliest at temperature 0.5 against twice that at 1"
    near("output_top_logprobs", [gaps[1]], [2 * gaps[0]], what)


def _first_top_logprobs(output: Output) -> list[Any]:
    """The two likeliest of the first token."""
    rows = output["meta_info"].get("output_top_logprobs") or [[]]
    expect("output_top_logprobs", len(rows[0]), 2, "top log-probs of the first token")
    first: list[Any] = rows[0]
    return first


async def logprobs_recomputed(probe: Probe) -> None:
    """Log-probs of what was sampled are those of the same tokens as a prompt."""
    (sampled,) = await probe.ask(PROMPT, {"max_new_tokens": 24})
    (scored,) = await probe.ask([*PROMPT, *ids_of(sampled)], {"max_new_tokens": 1}, logprob_start_len=0)
    again = [row[0] for row in triples_of(scored, "input_token_logprobs")[len(PROMPT) :]]
    expect("input_token_logprobs", len(again), 24, "prompt log-probs after the prompt")
    near("output_token_logprobs", [row[0] for row in triples_of(sampled)], again, "mean distance")


async def _prompt_logprobs(prompt: object, params: dict[str, Any], probe: Probe) -> None:
    outputs = await probe.ask(prompt, params, logprob_start_len=0)
    (alone,) = await probe.ask(PROMPT, logprob_start_len=0)
    expected = triples_of(alone, "input_token_logprobs")
    for output in outputs:
        rows = triples_of(output, "input_token_logprobs")
        first = rows[0][0] if rows else "nothing"
        expect("input_token_logprobs", first, None, "log-prob of the first prompt token")
        expect("input_token_logprobs", [row[1] for row in rows], list(PROMPT), "ids")
        near("input_token_logprobs", [r[0] for r in rows[1:]], [r[0] for r in expected[1:]], "against asked alone")


async def prompt_logprobs_part(probe: Probe) -> None:
    """Prompt log-probs from a place on are those of the whole from there on."""
    (whole,), (part,) = [await probe.ask(PROMPT, logprob_start_len=start) for start in (0, 6)]
    tail, rows = triples_of(whole, "input_token_logprobs")[7:], triples_of(part, "input_token_logprobs")[1:]
    expect("input_token_logprobs", [row[1] for row in rows], [row[1] for row in tail], "ids after the first")
    near("input_token_logprobs", [row[0] for row in rows], [row[0] for row in tail], "against the whole")


# --- stops


async def _greedy_token(probe: Probe) -> tuple[int, str]:
    """The first id and the text of greedy sampling."""
    (output,) = await probe.ask(PROMPT, {**GREEDY, "max_new_tokens": 48})
    return ids_of(output)[0], str(output.get("text", ""))


async def _stop_token(prompt: object, params: dict[str, Any], probe: Probe) -> None:
    token, _ = await _greedy_token(probe)
    outputs = await probe.ask(prompt, {**GREEDY, **params, "ignore_eos": None, "stop_token_ids": [token]})
    expect("output_ids", [ids_of(output) for output in outputs], [[token]] * len(outputs), "output ids")
    matched = [output["meta_info"].get("finish_reason", {}).get("matched") for output in outputs]
    expect("finish_reason", matched, [token] * len(outputs), "what matched")


async def stop_token_sampled(probe: Probe) -> None:
    """Each sample of n = 8 ends at its own first stop token."""
    outputs = await probe.ask(
        PROMPT, {"n": 8, "max_new_tokens": 64, "ignore_eos": None, "stop_token_ids": list(range(0, 256, 4))}
    )
    kinds = finishes(outputs)
    require("finish_reason", "stop" in kinds, "some stop", kinds, "none of 8 outputs met a quarter of all bytes")


async def stop_token_ignored(probe: Probe) -> None:
    """ignore_eos goes before stop tokens."""
    token, _ = await _greedy_token(probe)
    outputs = await probe.ask(PROMPT, {**GREEDY, "stop_token_ids": [token]})
    expect("output_ids", lengths(outputs), [TOKENS], "tokens")


async def stop_token_trimmed(probe: Probe) -> None:
    """The text leaves a matched stop token out, and holds it with no_stop_trim."""
    token, text = await _greedy_token(probe)
    asked = {**GREEDY, "ignore_eos": None, "stop_token_ids": [token]}
    (bare,), (full,) = await probe.ask(PROMPT, asked), await probe.ask(PROMPT, {**asked, "no_stop_trim": True})
    expect("text", bare.get("text"), "", "text before the first token")
    require("text", text.startswith(str(full.get("text"))), text[:20], full.get("text"), "text of the first token")


async def _stop_string(params: dict[str, Any], probe: Probe) -> None:
    _, text = await _greedy_token(probe)
    string = next((c for c in text if c.isascii() and c.isprintable() and not c.isspace()), None)
    if string is None:
        raise NotCompared(f"greedy sampling gives no printable character to stop at: {text[:40]!r}")
    outputs = await probe.ask(PROMPT, {**GREEDY, **params, "max_new_tokens": 48, "ignore_eos": None, "stop": [string]})
    end = text.index(string) + len(string) * bool(params.get("no_stop_trim"))
    for output in outputs:
        expect("finish_reason", output["meta_info"].get("finish_reason"), {"type": "stop", "matched": string}, "finish")
        expect("text", output.get("text"), text[:end], "text")


# --- greedy and free sampling


async def greedy_arms(probe: Probe) -> None:
    """Greedy sampling gives every arm the same first token; a deterministic engine, the same tokens."""
    answers = [
        *await probe.ask(PROMPT, GREEDY),
        *await probe.ask(PROMPT, {**GREEDY, "n": 3}),
        *await probe.ask([PROMPT] * 3, GREEDY),
    ]
    shown = TOKENS if probe.about.deterministic else 1
    expect("output_ids", [ids_of(output)[:shown] for output in answers], [ids_of(answers[0])[:shown]] * 7, "ids")


async def free_samples_differ(probe: Probe) -> None:
    """Free samples of one request are no clones of each other."""
    for prompt, params in ((PROMPT, {"n": 8}), ([PROMPT] * 8, {})):
        outputs = await probe.ask(prompt, {**params, "temperature": 2.0, "max_new_tokens": 32})
        _no_clones(outputs)


def _no_clones(outputs: list[Output]) -> None:
    distinct = len({tuple(ids_of(output)) for output in outputs})
    require("output_ids", distinct == len(outputs), len(outputs), distinct, "distinct responses")


async def free_requests_differ(probe: Probe) -> None:
    """The same request twice, without a seed, is sampled anew."""
    hot = {"temperature": 2.0, "max_new_tokens": 32}
    _no_clones([*await probe.ask(PROMPT, hot), *await probe.ask(PROMPT, hot)])


# --- seeds


def _tokens(outputs: list[Output]) -> list[Any]:
    return [(ids_of(output), [row[0] for row in triples_of(output)]) for output in outputs]


async def seed_repeats(probe: Probe) -> None:
    """The same seed gives the same tokens and log-probs again."""
    seeded = {"sampling_seed": SEED}
    first, again = await probe.ask(PROMPT, seeded), await probe.ask(PROMPT, seeded)
    expect("output_ids", _tokens(again), _tokens(first), "ids and log-probs")


async def seeds_differ(probe: Probe) -> None:
    """Different seeds give different tokens."""
    hot = {"temperature": 2.0, "max_new_tokens": 32}
    asked = [probe.ask(PROMPT, {**hot, "sampling_seed": SEED + number}) for number in range(4)]
    _no_clones([output for outputs in await together(*asked) for output in outputs])


async def seed_native(probe: Probe) -> None:
    """A seed with n = 4 gives four samples, not one four times."""
    _no_clones(await probe.ask(PROMPT, {"n": 4, "temperature": 2.0, "max_new_tokens": 32, "sampling_seed": SEED}))


async def seed_slots(probe: Probe) -> None:
    """With n = 4, sample i is that of seed + i alone, where the engine says so."""
    if not probe.about.seed_per_slot:
        raise NotCompared("the engine does not say that each sample of a request has a seed of its own")
    native = await probe.ask(PROMPT, {"n": 4, "sampling_seed": SEED})
    alone = [(await probe.ask(PROMPT, {"sampling_seed": SEED + slot}))[0] for slot in range(4)]
    expect("output_ids", _tokens(native), _tokens(alone), "ids and log-probs")


async def seed_list(probe: Probe) -> None:
    """Each prompt of a list is sampled by its own seed, as it is alone."""
    params = [{"max_new_tokens": TOKENS, "ignore_eos": True, "sampling_seed": SEED + slot} for slot in range(4)]
    listed = await probe.outputs(request([PROMPT] * 4) | {"sampling_params": params})
    alone = [(await probe.ask(PROMPT, {"sampling_seed": SEED + slot}))[0] for slot in range(4)]
    expect("output_ids", _tokens(listed), _tokens(alone), "ids and log-probs")


async def seed_in_traffic(probe: Probe) -> None:
    """A seeded response does not depend on what else runs."""
    seeded = {"sampling_seed": SEED, "max_new_tokens": 32}
    alone = await probe.ask(PROMPT, seeded)
    _, among, _ = await together(
        probe.ask(MIDDLE, {"n": 5, "max_new_tokens": 48}), probe.ask(PROMPT, seeded), probe.ask([SHORT, PROMPT])
    )
    expect("output_ids", _tokens(among), _tokens(alone), "ids and log-probs")


# --- streams


async def _stream(params: dict[str, Any], probe: Probe) -> None:
    n = params.get("n", 1)
    body = request(PROMPT, params, stream=True)
    last: dict[int, tuple[list[int], str]] = {}
    ends: dict[int, Any] = {}
    async with probe.session.post(f"{probe.client.url}/generate", json=body) as response:
        text = (await response.read()).decode(errors="replace")
    events = [line.removeprefix("data:").strip() for line in text.split("\n\n") if line.strip()]
    require("response", events[-1:] == ["[DONE]"], "[DONE]", events[-1:], "the last event")
    for event in events[:-1]:
        chunk = _decoded(event)
        index = chunk.get("index", 0)
        ids, before = ids_of(chunk), last.get(index, ([], ""))[0]
        require("output_ids", ids[: len(before)] == before, before, ids, "ids of an event do not go on from the last")
        last[index], ends[index] = (ids, str(chunk.get("text"))), finishes([chunk])[0]
    expect("index", sorted(last), list(range(n)), "indices")
    expect("output_ids", [len(last[index][0]) for index in range(n)], [TOKENS] * n, "tokens at the end")
    expect("finish_reason", [ends[index] for index in range(n)], ["length"] * n, "finish reasons at the end")


def _decoded(event: str) -> Output:
    try:
        chunk = orjson.loads(event)
    except orjson.JSONDecodeError as error:
        raise Broken("response", "JSON", event[:80], f"an event is no JSON: {error}") from error
    if not isinstance(chunk, dict) or not isinstance(chunk.get("meta_info"), dict):
        raise Broken("response", "an object with meta_info", event[:80], f"an event holds {event[:80]}")
    return chunk


_TABLES: tuple[ConformanceCase, ...] = (
    ConformanceCase(
        "top_logprobs_single",
        "Top log-probs are sorted and hold that of the id sampled",
        partial(_top_logprobs, PROMPT, {}),
    ),
    ConformanceCase("top_logprobs_native", "Top log-probs come with n = 2", partial(_top_logprobs, PROMPT, {"n": 2})),
    ConformanceCase("top_logprobs_list", "Top log-probs come with a list", partial(_top_logprobs, [PROMPT] * 2, {})),
    ConformanceCase(
        "prompt_logprobs_single",
        "Every prompt token but the first has a log-prob",
        partial(_prompt_logprobs, PROMPT, {}),
    ),
    ConformanceCase(
        "prompt_logprobs_native",
        "Samples with n = 2 share their prompt log-probs",
        partial(_prompt_logprobs, PROMPT, {"n": 2}),
    ),
    ConformanceCase(
        "prompt_logprobs_list",
        "Prompts of a list have their prompt log-probs",
        partial(_prompt_logprobs, [PROMPT] * 2, {}),
    ),
    ConformanceCase(
        "stop_token_single", "An output ends with the stop token that matched", partial(_stop_token, PROMPT, {})
    ),
    ConformanceCase("stop_token_native", "Stop tokens end each of n = 3", partial(_stop_token, PROMPT, {"n": 3})),
    ConformanceCase("stop_token_list", "Stop tokens end each of a list", partial(_stop_token, [PROMPT] * 3, {})),
    ConformanceCase("stop_string_single", "The text ends before the string that matched", partial(_stop_string, {})),
    ConformanceCase("stop_string_native", "Stop strings end each of n = 3", partial(_stop_string, {"n": 3})),
    ConformanceCase(
        "stop_string_kept",
        "With no_stop_trim the text ends with the string that matched",
        partial(_stop_string, {"no_stop_trim": True}),
    ),
    ConformanceCase("stream_single", "A stream grows, and ends with a finish reason and [DONE]", partial(_stream, {})),
    ConformanceCase("stream_native", "A stream of n = 2 tells its samples apart by index", partial(_stream, {"n": 2})),
)

CASES: tuple[ConformanceCase, ...] = (
    *(ConformanceCase(name, rule, partial(_runs_to_its_cap, prompt, params)) for name, rule, prompt, params in _SHAPES),
    *map(
        case_of,
        (
            list_of_params,
            list_of_return_logprob,
            list_of_rids,
            single_rid,
            default_cap,
            concurrent,
            prompt_untouched,
            logprobs_unasked,
            logprobs_greedy,
            logprobs_untruncated,
            logprobs_at_temperature,
            logprobs_recomputed,
            prompt_logprobs_part,
            stop_token_sampled,
            stop_token_ignored,
            stop_token_trimmed,
            greedy_arms,
            free_samples_differ,
            free_requests_differ,
            seed_repeats,
            seeds_differ,
            seed_native,
            seed_slots,
            seed_list,
            seed_in_traffic,
        ),
    ),
    *_TABLES,
)
