"""Cases that a vLLM must keep: what it answers, what it drops without a word, and what would end it."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parity.conformance import weights
from parity.conformance.checkpoints import LAYERS, served_checkpoint, with_reversed_rows
from parity.conformance.phases import FRACTIONS
from parity.conformance.probe import (
    MIDDLE,
    PROMPT,
    SHORT,
    TOKENS,
    Cases,
    NotCompared,
    Output,
    Probe,
    expect,
    finishes,
    ids_of,
    lengths,
    meta_of,
    require,
    together,
    tokens_of,
)
from parity.conformance.refusals import refused
from parity.conformance.weights import gap
from parity.engines.checkpoints import ties_head

CASES = Cases()
HOT: dict[str, Any] = {"temperature": 2.0, "max_tokens": 24}
"""Sampling parameters with which two samples never agree by chance."""
SEED = 20_251
LONG = 600
"""Tokens of a request that is to be interrupted, where the context allows."""
BLOCK = 128
"""Tokens of a block of the prefix cache on a CPU; a shorter prompt is never cached."""
NEAR = 1e-3
"""Nats by which log-probs of one prompt and the same weights may differ."""


def generate(prompt: list[int], params: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A `/inference/v1/generate` body: `TOKENS` tokens, with log-probs; parameters that are `None` are taken out."""
    sampling = {"max_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True, "logprobs": 0, **(params or {})}
    given = {name: value for name, value in sampling.items() if value is not None}
    return {"token_ids": prompt, "sampling_params": given, **fields}


def completions(prompts: list[list[int]], **params: Any) -> dict[str, Any]:
    """A `/v1/completions` body for a list of prompts of token ids."""
    asked = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 0, "ignore_eos": True}
    return {"prompt": prompts, "max_tokens": TOKENS, "temperature": 1.0, **asked, **params}


async def _runs_to_its_cap(body: dict[str, Any], count: int, probe: Probe) -> None:
    outputs = await probe.outputs(body)
    expect("response", len(outputs), count, "choices")
    expect("index", [output.get("index") for output in outputs], list(range(count)), "indices of the choices")
    expect("output_ids", lengths(outputs), [TOKENS] * count, "tokens, with the end of text ignored")
    expect("finish_reason", finishes(outputs), ["length"] * count, "finish reasons")


CASES.table(
    _runs_to_its_cap,
    (
        ("vllm_single", "One prompt is answered by one choice", generate(PROMPT), 1),
        ("vllm_native_2", "n = 2 is answered by 2 choices, in the order of their index", generate(PROMPT, {"n": 2}), 2),
        ("vllm_native_8", "n = 8 is answered by 8 choices, in the order of their index", generate(PROMPT, {"n": 8}), 8),
        (
            "vllm_native_64",
            "n = 64 is answered by 64 choices, in the order of their index",
            *(generate(PROMPT, {"n": 64}), 64),
        ),
        ("vllm_list", "A list of prompts is answered prompt by prompt", completions([PROMPT, SHORT], n=3), 6),
    ),
)


@CASES.case()
async def vllm_concurrent(probe: Probe) -> None:
    """Requests with n at the same time are each answered by all their choices."""
    bodies = [generate(PROMPT[: 3 + k % 8], {"n": 2 + k % 3, "max_tokens": 2 + k}) for k in range(16)]
    answers = await together(*map(probe.outputs, bodies))
    for number, outputs in enumerate(answers):
        expect("output_ids", lengths(outputs), [2 + number] * (2 + number % 3), "tokens of request {k}", k=number)


@CASES.case()
async def vllm_free_samples_differ(probe: Probe) -> None:
    """Without a seed the samples of a request differ."""
    found = {tuple(ids_of(output)) for output in await probe.outputs(generate(PROMPT, {**HOT, "n": 8}))}
    expect("output_ids", len(found), 8, "different responses of 8")


@CASES.case()
async def vllm_seed_of_server(probe: Probe) -> None:
    """The server draws from a seed of its own: with the default 0, fresh servers answer the first request alike."""
    seed = probe.about.settings.get("seed")
    if seed is None:
        raise NotCompared("the server does not say its seed, unless VLLM_SERVER_DEV_MODE=1")
    require("seed", seed != 0, "another than 0, by --seed", seed, "seed of every server that is started without --seed")


async def _alone(probe: Probe, count: int) -> list[Any]:
    answers = [await probe.outputs(generate(PROMPT, {**HOT, "seed": SEED + slot})) for slot in range(count)]
    return [tokens_of(outputs)[0] for outputs in answers]


@CASES.case()
async def vllm_seed_children(probe: Probe) -> None:
    """Choice i of a request with a seed is the sample of that seed plus i, tokens and log-probs."""
    native = tokens_of(await probe.outputs(generate(PROMPT, {**HOT, "seed": SEED, "n": 4})))
    expect("output_ids", native, await _alone(probe, 4), "responses of 4 choices")


@CASES.case()
async def vllm_seed_in_traffic(probe: Probe) -> None:
    """A seed repeats its response beside other work."""
    alone = await _alone(probe, 2)
    others = [generate(MIDDLE, {"max_tokens": 40}) for _ in range(8)]
    *_, first, second = await together(
        *(probe.outputs(body) for body in (*others, *(generate(PROMPT, {**HOT, "seed": SEED + k}) for k in range(2))))
    )
    expect("output_ids", [tokens_of(first)[0], tokens_of(second)[0]], alone, "responses beside other work")


@CASES.case(exempt=frozenset({"exchange_distinct_outputs"}))
async def vllm_seed_prompts(probe: Probe) -> None:
    """Every prompt of a list restarts at the seed."""
    outputs = await probe.outputs(completions([PROMPT, PROMPT], n=2, seed=SEED))
    expect("output_ids", tokens_of(outputs[2:]), tokens_of(outputs[:2]), "responses to the second of two equal prompts")


# --- stops and log-probs


async def _third_token(probe: Probe) -> tuple[dict[str, Any], list[int]]:
    params = {"seed": SEED, "temperature": 1.0}
    (output,) = await probe.outputs(generate(PROMPT, params))
    return params, ids_of(output)


async def _stops(ignore_eos: bool, probe: Probe) -> None:
    params, ids = await _third_token(probe)
    asked = {**params, "ignore_eos": ignore_eos, "stop_token_ids": [ids[2]]}
    (output,) = await probe.outputs(generate(PROMPT, asked))
    expect("output_ids", ids_of(output), ids[: ids.index(ids[2]) + 1], "tokens, the stop token the last of them")
    (finish,) = meta_of([output], "finish_reason")
    expect("stop_reason", finish.get("matched"), ids[2], "stop_reason")


CASES.table(
    _stops,
    (
        ("vllm_stop_token", "An output ends with the stop token that matched, which stop_reason names", False),
        ("vllm_stop_token_kept", "ignore_eos leaves stop_token_ids in force", True),
    ),
    exempt=frozenset({"exchange_finish_stop"}),  # which holds ignore_eos to SGLang's meaning
)


@CASES.case()
async def vllm_logprobs_and_temperature(probe: Probe) -> None:
    """Log-probs are those before temperature, or after it where the server was started with processed log-probs."""
    mode = probe.about.settings.get("logprobs_mode") or "raw_logprobs"
    gaps = []
    for temperature in (1.0, 0.5):
        params = {"temperature": temperature, "max_tokens": 1, "logprobs": 3, "seed": SEED}
        exchange = await probe.send(generate(PROMPT, params))
        content = (exchange.as_said or ({}, {}))[1]["choices"][0]["logprobs"]["content"]
        expect("logprobs", len(content[0]["top_logprobs"]), 3, "log-probs of a token where 3 were asked for")
        best = sorted((row["logprob"] for row in content[0]["top_logprobs"]), reverse=True)
        gaps.append(best[0] - best[1])
    factor = 2 if str(mode).startswith("processed") else 1
    what = "gap of the two likeliest tokens at temperature 0.5, against {factor} times that at 1, by {mode}"
    near = abs(gaps[1] - factor * gaps[0]) < 0.05
    require("logprobs", near, factor * gaps[0], gaps[1], what, factor=factor, mode=mode)


# --- what is refused, and what is dropped without a word

CASES.table(
    refused,
    (
        ("vllm_n_0", "n = 0 is refused", generate(PROMPT, {"n": 0})),
        ("vllm_greedy_n", "n > 1 at temperature 0 is refused", generate(PROMPT, {"n": 2, "temperature": 0.0})),
        ("vllm_max_tokens_0", "max_tokens = 0 is refused", generate(PROMPT, {"max_tokens": 0})),
        ("vllm_temperature_hot", "A temperature above 2 is refused", generate(PROMPT, {"temperature": 2.5})),
        ("vllm_prompt_empty", "An empty prompt is refused", generate([])),
        ("vllm_id_negative", "A negative token id is refused", generate([5, -1])),
        ("vllm_prompt_list", "A list of prompts is refused by generate", generate([[5], [6]])),  # type: ignore[list-item]
        ("vllm_seed_list", "A list of seeds is refused", completions([PROMPT, SHORT], seed=[1, 2])),
        ("vllm_prompt_empty_in_list", "An empty prompt in a list is refused", completions([PROMPT, []])),
    ),
)


@CASES.case(exempt=frozenset({"exchange_request_honoured"}))
async def vllm_key_unknown(probe: Probe) -> None:
    """A sampling parameter that it does not know is refused."""
    exchange = await probe.send(generate(PROMPT, {"max_new_tokens": 2, "max_tokens": 4}))
    what = "status of a request with max_new_tokens, which another engine would have obeyed"
    expect("status", exchange.status, 400, what)


@CASES.case()
async def vllm_cap_left_out(probe: Probe) -> None:
    """Without max_tokens generate runs to the end of the context."""
    if (context := probe.about.context_length) is None or context > 4096:
        raise NotCompared("a context of {length} tokens is too long to run to its end", length=context)
    (output,) = await probe.outputs(generate(PROMPT, {"max_tokens": None}))
    expect("output_ids", lengths([output]), [context - len(PROMPT)], "tokens")


# --- how it was started


@CASES.case()
async def vllm_chunked_prefill(probe: Probe) -> None:
    """On a CPU no prefill is chunked, as a request with a seed that is beside one ends the engine."""
    settings = probe.about.settings
    if settings.get("device") is None or settings.get("enable_chunked_prefill") is None:
        raise NotCompared("the server does not say how it was started, unless VLLM_SERVER_DEV_MODE=1")
    if settings["device"] != "cpu":
        raise NotCompared("generators of a {device} have an offset", device=settings["device"])
    chunked = settings["enable_chunked_prefill"]
    require("enable_chunked_prefill", not chunked, "--no-enable-chunked-prefill", chunked, "chunked prefill on a CPU")


@CASES.case()
async def vllm_tied_head(probe: Probe) -> None:
    """On a CPU the model does not tie its output head to the embedding, as a reload would leave the old head."""
    if probe.about.settings.get("device") != "cpu":
        raise NotCompared("the server does not say that it runs on a CPU")
    path, _ = await served_checkpoint(probe)
    overrides = probe.about.settings.get("hf_overrides") or {}
    tied = ties_head(path) and overrides.get("tie_word_embeddings") is not False
    what = "tied embeddings without --hf-overrides and a lm_head.weight of their own"
    require("tie_word_embeddings", not tied, "tie_word_embeddings false", tied, what)


# --- aborts, pauses, clients that go away


async def _running(probe: Probe) -> float:
    status, page = await probe.get("/metrics")
    names = ("vllm:num_requests_running", "sglang:num_running_reqs")
    rows = [line for line in str(page).splitlines() if line.startswith(names)]
    if status != 200 or not rows:
        raise NotCompared("/metrics does not count what runs: status {status}", status=status)
    return sum(float(row.rpartition(" ")[2]) for row in rows)


async def _while_running(
    probe: Probe,
    body: dict[str, Any],
    act: Callable[[], Any],
    hit: Callable[[list[Output]], bool] = lambda outputs: True,
) -> list[Output]:
    """The outputs of a request during which something is done, at one of several moments, until they are `hit`."""
    started = time.monotonic()
    await probe.outputs(body)
    undisturbed, outputs = time.monotonic() - started, []
    for fraction in FRACTIONS:
        answer = asyncio.create_task(probe.outputs(body))
        try:
            await asyncio.sleep(undisturbed * fraction)
            await act()
            outputs = await answer
        finally:
            answer.cancel()
        if hit(outputs):
            break
    return outputs


_SAME_IDS = frozenset({"exchange_unique_ids"})


def _aborted(outputs: list[Output]) -> bool:
    return set(finishes(outputs)) == {"abort"}


def _long(probe: Probe, **fields: Any) -> dict[str, Any]:
    return generate(PROMPT, {"max_tokens": probe.room(len(PROMPT), LONG), "n": 4}, **fields)


@CASES.case()
async def vllm_client_gone(probe: Probe) -> None:
    """When its client goes away a request ends."""
    before = await _running(probe)
    waiting = asyncio.create_task(probe.send(_long(probe)))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait([waiting])
    for _ in range(100):
        if (running := await _running(probe)) <= before:
            return
        await asyncio.sleep(0.2)
    expect("num_requests_running", running, before, "running requests 20 s later")


@CASES.case(control=True, exempt=_SAME_IDS)
async def vllm_abort_id(probe: Probe) -> None:
    """Aborting an id with its prefix ends all choices, each with what it has so far."""
    name = uuid.uuid4().hex

    async def act() -> None:
        await probe.control("/abort_requests", {"request_ids": [f"generate-tokens-{name}"]})

    outputs = await _while_running(probe, _long(probe, request_id=name), act, _aborted)
    expect("finish_reason", finishes(outputs), ["abort"] * 4, "finish reasons")


@CASES.case(control=True, exempt=_SAME_IDS)
async def vllm_abort_id_bare(probe: Probe) -> None:
    """An id without its prefix, which aborts nothing, is not said to be aborted."""
    name, said = uuid.uuid4().hex, []

    async def act() -> None:
        said.append(await probe.post("/abort_requests", {"request_ids": [name]}))

    kinds = set(finishes(await _while_running(probe, _long(probe, request_id=name), act)))
    status, answer = said[-1]
    claims = status == 200 and isinstance(answer, dict) and answer.get("aborted") == 1
    require("aborted", not claims or kinds == {"abort"}, "aborted 0, or an abort", answer, "answer to a bare id")


async def _pauses(mode: str, ends: str, probe: Probe) -> None:
    held: list[bool] = []

    async def act() -> None:
        await probe.control(f"/pause?mode={mode}")
        try:
            late = asyncio.create_task(probe.send(generate(SHORT, {"max_tokens": 1})))
            await asyncio.sleep(0.5)
            held.append(not late.done())
        finally:
            await probe.control("/resume")
        await late

    hit = _aborted if ends == "abort" else lambda outputs: True
    outputs = await _while_running(probe, _long(probe), act, hit)
    expect("finish_reason", finishes(outputs), [ends] * 4, "finish reasons of what ran")
    expect("response", set(held), {True}, "that a request sent during the pause waits")


CASES.table(
    _pauses,
    (
        ("vllm_pause_abort", "A pause by abort ends what runs, and holds what comes", "abort", "abort"),
        ("vllm_pause_wait", "A pause by wait lets what runs end, and holds what comes", "wait", "length"),
        ("vllm_pause_keep", "A pause by keep lets what runs go on later, and holds what comes", "keep", "length"),
    ),
    control=True,
)


# --- weights


@CASES.case(control=True, partial_versions=True)
async def vllm_version_spans(probe: Probe) -> None:
    """A label that changes while a request runs parts its tokens into spans without a gap."""
    version = (await probe.client.model_info()).get("weight_version")

    async def act() -> None:
        await probe.control("/update_weight_version", {"new_version": "parity-conformance"})

    try:
        outputs = await _while_running(probe, _long(probe), act)
    finally:
        await probe.control("/update_weight_version", {"new_version": version or "default"})
    for spans, count in zip(meta_of(outputs, "weight_versions"), lengths(outputs), strict=True):
        edges = [(span["start"], span["end"]) for span in spans]
        joined = [0, *(end for _, end in edges)] == [*(start for start, _ in edges), count]
        require("weight_versions", joined, f"spans from 0 to {count}", edges, "spans of {count} tokens", count=count)


async def _scores(probe: Probe, prompt: list[int], **fields: Any) -> list[float]:
    params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "logprobs": None}
    exchange = await probe.send(generate(prompt, params, **fields))
    rows = (exchange.as_said or ({}, {}))[1]["prompt_logprobs"][1:]
    return [row[str(token)]["logprob"] for row, token in zip(rows, prompt[1:], strict=True)]


async def _reload(probe: Probe, path: Path) -> None:
    await probe.control("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})


async def _loaded(probe: Probe, path: Path) -> list[float]:
    """The log-probs of a prompt under a checkpoint that is loaded while nothing runs."""
    await probe.control("/pause?mode=wait")
    await _reload(probe, path)
    await probe.control("/resume")
    return await _scores(probe, PROMPT, cache_salt=uuid.uuid4().hex)


@CASES.case(control=True)
async def vllm_weights_take_effect(probe: Probe) -> None:
    """Reloaded weights change the log-probs of a prompt, and the old weights bring the old log-probs back."""
    path, _ = await served_checkpoint(probe)  # the one that it was started with: of later ones it does not tell
    with tempfile.TemporaryDirectory() as scratch:
        with_reversed_rows(path, other := Path(scratch) / "other", LAYERS, most_files=1)
        first, changed, again = [await _loaded(probe, one) for one in (path, other, path)]
    moved, left = gap(first, changed), gap(first, again)
    require("prompt_logprobs", moved > 0.05, "> 0.05 nats", moved, "effect of changed weights")
    require("prompt_logprobs", left < NEAR, f"< {NEAR} nats", left, "gap with the old weights again")


@CASES.case(control=True)
async def vllm_stale_prefixes(probe: Probe) -> None:
    """A reload drops the prefix cache, which holds keys and values of the old weights."""
    context = probe.about.context_length
    if context is not None and context < 2 * BLOCK:
        raise NotCompared("a context of {length} tokens has no room for a cached block", length=context)
    path, _ = await served_checkpoint(probe)
    prompt = [5 + number % 200 for number in range(2 * BLOCK - 8)]
    body = generate(prompt, {"max_tokens": 1, "temperature": 0.0})
    with tempfile.TemporaryDirectory() as scratch:
        with_reversed_rows(path, other := Path(scratch) / "other", LAYERS, most_files=1)
        await _loaded(probe, path)
        await probe.outputs(body)
        try:
            await _reload(probe, other)
            (stale,) = tokens_of(await probe.outputs(body))
            (fresh,) = tokens_of(await probe.outputs({**body, "cache_salt": uuid.uuid4().hex}))
        finally:
            await _loaded(probe, path)
    expect("output_ids", json.dumps(stale), json.dumps(fresh), "a cached prompt's answer after a reload")


CASES.append(next(case for case in weights.CASES if case.run is weights.digests_of_something))
