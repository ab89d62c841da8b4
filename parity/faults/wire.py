"""Faults of engines and routers: what comes back from a request."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from parity.faults.clean import CAP, FIRST_WORD, MEDIUM, SIZE, STOP
from parity.faults.edits import in_turn, show_image
from parity.faults.scenes import WIRE, Fault, Plant, Scene

Body = dict[str, Any]


def _answer(change: Callable[[list[Body]], Any]) -> Plant:
    """Changes the whole answer of the first group."""

    def plant(scene: Scene) -> None:
        scene.exchanges[0] = replace(scene.exchanges[0], response=change(scene.exchanges[0].response))

    return plant


def _ask(changes: Mapping[str, Any]) -> Plant:
    """Changes the first request; what it was answered stays."""

    def plant(scene: Scene) -> None:
        request = scene.exchanges[0].request
        scene.exchanges[0] = replace(scene.exchanges[0], request={**request, **changes})

    return plant


def _params(changes: Mapping[str, Any]) -> Plant:
    """Changes the sampling parameters of the first request."""
    return lambda scene: _ask({"sampling_params": {**scene.exchanges[0].request["sampling_params"], **changes}})(scene)


def _output(change: Callable[[Body], object], finish: str | None = None) -> Plant:
    """Changes one output of the first group: its second, or the first that ended so and has several tokens."""

    def plant(scene: Scene) -> None:
        outputs = scene.exchanges[0].response
        ended = [item for item in outputs if finish in (None, item["meta_info"]["finish_reason"]["type"])]
        change([item for item in ended if len(item["output_ids"]) > 3][-1])

    return plant


def _meta(finish: str | None = None, **changes: Any) -> Plant:
    return _output(lambda body: body["meta_info"].update(changes), finish)


def _log_prob(value: Any) -> Plant:
    """Puts a value in the place of one log-prob."""
    return _output(lambda body: body["meta_info"]["output_token_logprobs"][1].__setitem__(0, value))


def _resize(ids: list[int]) -> Callable[[Body], None]:
    """Gives an output other tokens, consistently: log-probs, counts and spans with them."""

    def change(body: Body) -> None:
        meta = body["meta_info"]
        log_probs = [item[0] for item in meta["output_token_logprobs"]] + [-1.0] * len(ids)
        body.update(output_ids=ids, text=" ".join(map(str, ids)))
        meta["output_token_logprobs"] = [[p, token, None] for p, token in zip(log_probs, ids, strict=False)]
        meta["completion_tokens"] = len(ids)
        meta["weight_versions"] = [{**meta["weight_versions"][0], "end": len(ids)}]

    return change


def _cut(body: Body) -> None:
    _resize(body["output_ids"][:-1])(body)


def _append(body: Body) -> None:
    _resize([*body["output_ids"], FIRST_WORD, FIRST_WORD + 1])(body)


def _one_request(scene: Scene) -> None:
    """Asks for the first two groups in one request, a list of two prompts with n."""
    first, second = scene.exchanges[:2]
    request = {**first.request, "input_ids": [first.request["input_ids"], second.request["input_ids"]]}
    merged = replace(first, request=request, response=[*first.response, *second.response], group_index=None)
    scene.exchanges[:2] = [merged]


def _indices(scene: Scene) -> None:
    _one_request(scene)
    for place, body in enumerate(scene.exchanges[0].response):
        body["index"] = place % SIZE


def _copies(count: int) -> Callable[[list[Body]], list[Body]]:
    """The first outputs of an answer all hold the tokens of its longest."""

    def change(outputs: list[Body]) -> list[Body]:
        longest = max(outputs, key=lambda body: len(body["output_ids"]))
        copied = [{**longest, "meta_info": {**longest["meta_info"], "id": f"copy-{k}"}} for k in range(count)]
        return [*copied, *[body for body in outputs if body is not longest][: SIZE - count]]

    return change


def _single_requests_alike(scene: Scene) -> None:
    """The first group is asked for one by one with a seed each, and every answer is the same."""
    first = scene.exchanges[0]
    params = {key: value for key, value in first.request["sampling_params"].items() if key != "n"}
    scene.exchanges[:1] = [
        replace(
            first,
            request={**first.request, "sampling_params": {**params, "sampling_seed": 42 + number}},
            response=body,
            arm="per-sample",
        )
        for number, body in enumerate(_copies(SIZE)(first.response))
    ]


def _shift_log_probs(body: Body) -> None:
    triples = body["meta_info"]["output_token_logprobs"]
    body["meta_info"]["output_token_logprobs"] = [*triples[1:], triples[0]]


def _pad_tail(body: Body) -> None:
    for triple in body["meta_info"]["output_token_logprobs"][-3:]:
        triple[0] = 0.0


def _drop_top(scene: Scene) -> None:
    """Alternatives are asked for, for the prompt too; a router keeps only those of the output."""
    _ask({"top_logprobs_num": 2, "logprob_start_len": 0})(scene)
    prompt = scene.exchanges[0].request["input_ids"]
    for body in scene.exchanges[0].response:
        pairs = [[-1.0, FIRST_WORD, None], [-2.0, FIRST_WORD + 1, None]]
        body["meta_info"]["output_top_logprobs"] = [pairs] * len(body["output_ids"])
        body["meta_info"]["input_token_logprobs"] = [[None, prompt[0], None], *([-1.0, t, None] for t in prompt[1:])]


def _prompt_log_probs_of_others(scene: Scene) -> None:
    _ask({"logprob_start_len": 0})(scene)
    for body in scene.exchanges[0].response:
        ids = scene.exchanges[0].request["input_ids"]
        body["meta_info"]["input_token_logprobs"] = [[-1.0, token, None] for token in reversed(ids)]


def _stop_string_left(body: Body) -> None:
    body["text"] += " END"
    body["meta_info"]["finish_reason"] = {"type": "stop", "matched": "END"}


def _abort(body: Body, **finish: Any) -> None:
    body["meta_info"]["finish_reason"] = {"type": "abort", **finish}


def _lose_partial(body: Body) -> None:
    """Aborted while queued again: the count is of the first view, the tokens are gone."""
    _abort(body, message="aborted in the waiting queue")
    body.update(output_ids=[], text="")
    body["meta_info"].update(output_token_logprobs=[])


def stream(scene: Scene) -> None:
    """The first group's answer comes as a stream: every output in three views, and the end."""
    _ask({"stream": True})(scene)
    answer = scene.exchanges[0].response
    views = [_view(index, body, part) for part in (1, 2, 3) for index, body in enumerate(answer)]
    scene.exchanges[0] = replace(scene.exchanges[0], response=[*views, "[DONE]"])


def _view(index: int, body: Body, part: int) -> Body:
    """The first third of an output, two thirds, or all of it."""
    view = deepcopy(body) | {"index": index}
    if part < 3:
        _resize(body["output_ids"][: len(body["output_ids"]) * part // 3])(view)
        view["meta_info"]["finish_reason"] = None
    return view


def _last_view(change: Callable[[Body], object]) -> Plant:
    """Changes the last view of the longest output of a stream."""

    def plant(scene: Scene) -> None:
        stream(scene)
        change(max(scene.exchanges[0].response[-SIZE - 1 : -1], key=lambda body: len(body["output_ids"])))

    return plant


def _lose_all(body: Body) -> None:
    """Aborted while queued again: the last view is empty, and counts nothing."""
    _resize([])(body)
    _abort(body, message="aborted in the waiting queue")


def _fail(scene: Scene, status: int, text: str) -> None:
    scene.exchanges[0] = replace(scene.exchanges[0], status=status, response={"error": {"message": text}})


def _cached(scene: Scene) -> None:
    body = scene.exchanges[0].response[1]
    body["meta_info"]["cached_tokens"] = body["meta_info"]["prompt_tokens"] + 1


def _fewer_prompt_tokens(scene: Scene) -> None:
    for body in scene.exchanges[0].response:
        body["meta_info"].update(prompt_tokens=1, cached_tokens=0)


def _newer_version(scene: Scene) -> None:
    for body in scene.exchanges[0].response:
        body["meta_info"].update(weight_version="v1", weight_versions=[])


_SHAPE = ("exchange_output_count", "output_count")
_LENGTHS = ("exchange_version_spans", "response_length")
_CLONES = ("clone_prefixes",)

FAULTS = tuple(
    Fault(
        name, origin, place, description, WIRE, plant, check, units=units,
        companions=(check.removeprefix("exchange_"), *companions),
    )
    for name, origin, place, description, plant, check, units, companions in (
        (
            "lone-object", "sgl-project/sglang#11048", "router", "n = 8 is answered by one object",
            _answer(lambda outputs: outputs[0]), "exchange_response_shape", 1, _SHAPE,
        ),
        (
            "wrapped-list", "AstroVela/vane#673", "router", "the list of outputs comes inside an object",
            _answer(lambda outputs: {"outputs": outputs}), "exchange_response_shape", 1,
            (*_SHAPE, "exchange_logprobs_returned", "exchange_finish_reason"),
        ),
        (
            "siblings-overwritten", "vllm-project/vllm#14280", "engine", "children overwrite each other, one is left",
            _answer(lambda outputs: [{**outputs[-1], "index": SIZE - 1}]), "exchange_output_count", 1,
            (*_SHAPE, "exchange_output_order"),
        ),
        (
            "late-child-lost", "vllm-project/vllm#24029", "engine", "of children that end together one is lost",
            _answer(lambda outputs: outputs[:-1]), "exchange_output_count", 1, _SHAPE,
        ),
        (
            "expanded-twice", "verl-project/verl#2881", "engine", "n is applied to outputs that had it applied",
            _answer(lambda outputs: [{**body, "meta_info": {**body["meta_info"], "id": f"{k}-{copy}"}}
                                     for k, body in enumerate(outputs) for copy in range(2)]),
            "exchange_output_count", 1, (*_SHAPE, *_CLONES, "clones"),
        ),
        (
            "indices-restart", "smg-project/smg#1957", "router", "indices count inside each prompt of a batch",
            _indices, "exchange_output_order", 2, (),
        ),
        (
            "indices-all-zero", "ikawrakow/ik_llama.cpp#1303", "engine", "every output of a batch has index 0",
            _answer(lambda outputs: [{**body, "index": 0} for body in outputs]), "exchange_output_order", 1, (),
        ),
        (
            "finish-order", "vllm-project/vllm#394", "engine", "outputs of a batch come in the order of finishing",
            in_turn(_one_request, _answer(lambda outputs: outputs[SIZE:] + outputs[:SIZE])),
            "exchange_output_order", 2, ("prompt_tokens",),
        ),
        (
            "sample-major", "sgl-project/sglang tokenizer_manager.py", "router", "outputs come sample by sample, not "
            "prompt by prompt",
            in_turn(_one_request, _answer(lambda o: [o[k + s] for s in range(SIZE) for k in (0, SIZE)])),
            "exchange_output_order", 2, ("prompt_tokens",),
        ),
        (
            "shared-id", "sgl-project/sglang#37202", "engine", "all children carry the id of the request",
            _answer(lambda outputs: [{**b, "meta_info": {**b["meta_info"], "id": "r"}} for b in outputs]),
            "exchange_unique_ids", 1, (),
        ),
        (
            "media-with-n-refused", "sgl-project/sglang#37202", "router", "n > 1 with media is refused with 400",
            lambda scene: _fail(scene, 400, "parallel sampling (n > 1) is not supported with multimodal fields"),
            "exchange_status", 1, (),
        ),
        (
            "nan-in-json", "sgl-project/sglang#5984", "engine", "one child's NaN makes the whole answer a 500",
            lambda scene: _fail(scene, 500, "Out of range float values are not JSON compliant"),
            "exchange_status", 1, (),
        ),
        (
            "list-not-expanded", "sgl-project/sglang#7830", "patch", "a list with one entry a prompt has one in all",
            in_turn(_one_request, _ask({"sampling_params": [{"n": SIZE, "max_new_tokens": CAP, "temperature": 1.0}]})),
            "exchange_request_lists", 2, (),
        ),
        (
            "flat-media", "sgl-project/sglang tokenizer_manager.py", "patch", "media of two prompts in one flat list",
            in_turn(_one_request, _ask({"image_data": ["a", "b", "c"]})),
            "exchange_request_lists", 2, ("exchange_request_honoured",),
        ),
        (
            "second-image-dropped", "sgl-project/sglang 0.5.23", "engine", "two images for one placeholder",
            lambda scene: _ask({"image_data": ["a", "b"], "input_ids": [MEDIUM, *scene.exchanges[0].request[
                "input_ids"][1:]]})(scene),
            "exchange_request_honoured", 1, (),
        ),
        (
            "image-prompt-encoded-again", "sgl-project/sglang#26555", "engine", "ids around an image are encoded again",
            show_image(tokens=4, more=2), "exchange_output_order", 1, (),
        ),
        (
            "n-beside-params", "sgl-project/sglang 0.5.23", "patch", "n stands beside sampling_params and is ignored",
            in_turn(_ask({"n": SIZE, "sampling_params": {"max_new_tokens": CAP, "temperature": 1.0}}),
                  _answer(lambda outputs: outputs[0])),
            "exchange_request_honoured", 1, ("output_count",),
        ),
        (
            "n-zero-answered", "sgl-project/sglang 0.5.23", "engine", "n = 0 is answered with one sample",
            in_turn(_params({"n": 0}), _answer(lambda outputs: outputs[0])), "exchange_request_honoured", 1, _SHAPE,
        ),
        (
            "all-clones", "Tencent-Hunyuan/UniRL#208", "engine", "deterministic mode gives all children one seed",
            _answer(_copies(SIZE)), "clones", 1, _CLONES,
        ),
        (
            "seed-ignored", "sgl-project/sglang#15746", "engine", "seeds 42 to 49 give one and the same response",
            _single_requests_alike, "clones", 1, _CLONES,
        ),
        (
            "half-clones", "vllm-project/vllm#10852", "engine", "4 of 8 copies are identical",
            _answer(_copies(4)), "clones", 1, _CLONES,
        ),
        (
            "stop-cut-from-ids", "NVIDIA/TensorRT-LLM#18190", "engine", "stop tokens are cut from ids, not log-probs",
            _output(lambda body: body["output_ids"].pop(), "stop"), "exchange_rollout_log_probs_length", 1,
            (*_LENGTHS, "exchange_finish_stop", "finish_stop"),
        ),
        (
            "stop-dropped", "statistics 7", "engine", "the last token of a stopped response is dropped everywhere",
            _output(_cut, "stop"), "exchange_finish_stop", 1, ("finish_stop",),
        ),
        (
            "text-encoded-again", "rllm-org/rllm#816", "router", "ids come from the text, longer than the log-probs",
            _output(lambda body: body["output_ids"].insert(0, FIRST_WORD)), "exchange_rollout_log_probs_length", 1,
            _LENGTHS,
        ),
        (
            "zero-filled-tail", "rllm-org/rllm#898", "router", "missing log-probs at the end are filled up with 0",
            _output(_pad_tail), "logprob_tail", 1, (),
        ),
        (
            "logprobs-left-out", "THUDM/slime#1976", "router", "log-probs were asked for and are not there",
            _output(lambda body: body["meta_info"].pop("output_token_logprobs")), "exchange_logprobs_returned", 1,
            ("rollout_log_probs_length",),
        ),
        (
            "one-logprob-only", "sgl-project/sglang#10764", "router", "the log-prob of one token only",
            _output(lambda b: b["meta_info"].update(output_token_logprobs=b["meta_info"]["output_token_logprobs"][:1])),
            "exchange_rollout_log_probs_length", 1, ("rollout_log_probs_length",),
        ),
        (
            "alternatives-dropped", "sgl-project/sglang#10766", "router", "alternatives of the prompt are dropped",
            _drop_top, "exchange_top_logprobs", 1, (),
        ),
        (
            "meta-stripped", "NVIDIA-NeMo/ProRL-Agent-Server#52", "router", "outputs come without meta_info",
            _output(lambda body: body.pop("meta_info")), "exchange_response_shape", 1,
            ("exchange_logprobs_returned", "exchange_finish_reason", "rollout_log_probs_length", "finish_reason",
             "status", "response_length"),
        ),
        (
            "alternatives-in-triple", "sgl-project/sglang#12418", "engine", "a list stands where a token's text does",
            _output(lambda b: b["meta_info"]["output_token_logprobs"][0].__setitem__(2, [[-0.1, 5]])),
            "exchange_logprobs_returned", 1, (),
        ),
        (
            "null-logprob", "huggingface/trl#6693", "engine", "a NaN log-prob comes as null", _log_prob(None),
            "exchange_logprob_values", 1, (),
        ),
        (
            "positive-logprob", "huggingface/trl#6166", "engine", "a log-prob above 0", _log_prob(0.5),
            "exchange_logprob_values", 1, (),
        ),
        (
            "sentinel-logprob", "vllm-project/vllm#48585", "engine", "-9999 where the log-prob was not finite",
            _log_prob(-9999.0), "exchange_logprob_values", 1, (),
        ),
        (
            "infinite-logprob", "NVIDIA-NeMo/RL#2962", "engine", "a log-prob of minus infinity", _log_prob(-math.inf),
            "exchange_logprob_values", 1, (),
        ),
        (
            "overflowing-ratio", "PrimeIntellect-ai/prime-rl#2972", "engine", "log-prob -91: the ratio is infinite",
            _log_prob(-91.0), "logprob_low", 1, (),
        ),
        (
            "prompt-encoded-again", "huggingface/trl#5224", "router", "ids are decoded and encoded to fewer on the way",
            _fewer_prompt_tokens, "exchange_output_order", 1, ("prompt_tokens",),
        ),
        (
            "logprobs-shifted", "statistics 7", "engine", "each log-prob stands one token too early",
            _output(_shift_log_probs), "exchange_rollout_log_probs_length", 1, (),
        ),
        (
            "wrong-count", "sgl-project/sglang#11048", "router", "completion_tokens counts other tokens than came",
            _output(lambda body: body["meta_info"].update(completion_tokens=len(body["output_ids"]) + 1)),
            "exchange_rollout_log_probs_length", 1, ("response_length",),
        ),
        (
            "stream-cut", "vllm-project/vllm#47933", "engine", "a closed stream ends without a finish reason",
            _output(lambda body: body["meta_info"].pop("finish_reason")), "exchange_finish_reason", 1,
            ("finish_reason", "status"),
        ),
        (
            "partial-lost-in-stream", "sgl-project/sglang#11673", "engine", "an abort takes back what was streamed",
            _last_view(_lose_all), "exchange_views_grow", 1, (),
        ),
        (
            "stream-restarted", "radixark/miles#1334", "router", "a stream is asked for again, and other tokens go on",
            _last_view(lambda body: body["output_ids"].__setitem__(0, FIRST_WORD)), "exchange_views_grow", 1,
            ("exchange_rollout_log_probs_length",),
        ),
        (
            "stream-ends-unfinished", "vllm-project/vllm#47933", "engine", "a stream is done, but an output is not",
            _last_view(lambda body: body["meta_info"].update(finish_reason=None)), "exchange_finish_reason", 1,
            ("finish_reason", "status"),
        ),
        (
            "reason-left-out-on-abort", "InternLM/xtuner#1755", "engine", "an abort has no finish reason and no text",
            _output(lambda body: (_resize([])(body), body["meta_info"].update(finish_reason=None))),
            "exchange_finish_reason", 1, ("finish_reason", "status", "exchange_empty_output"),
        ),
        (
            "reason-always-null", "sgl-project/sglang#4550", "engine", "the finish reason is null in every output",
            lambda scene: [body["meta_info"].update(finish_reason=None) for body in scene.exchanges[0].response],
            "exchange_finish_reason", 1, (),
        ),
        (
            "reason-unknown", "vllm-project/vllm#47933", "engine", "a finish reason that no consumer knows",
            _meta(finish_reason={"type": "error"}), "exchange_finish_reason", 1, ("finish_reason", "status"),
        ),
        (
            "partial-lost", "sgl-project/sglang#11673", "engine", "aborted while retracted: the partial output is gone",
            _output(_lose_partial), "exchange_rollout_log_probs_length", 1, ("response_length",
            "exchange_version_spans"),
        ),
        (
            "abort-without-message", "sgl-project/sglang#36876", "engine", "an abort does not say why",
            _output(_abort), "exchange_abort_shape", 1, (),
        ),
        (
            "stop-for-length", "NovaSky-AI/SkyRL#81", "engine", "a response cut at its cap says stop",
            _meta("length", finish_reason={"type": "stop", "matched": STOP}), "exchange_finish_stop", 1,
            ("finish_stop",),
        ),
        (
            "stop-without-match", "NovaSky-AI/SkyRL#81", "engine", "stopped, but on nothing", _meta(
            "length", finish_reason={"type": "stop", "matched": None}), "exchange_finish_stop", 1, ("finish_stop",),
        ),
        (
            "length-too-early", "NovaSky-AI/SkyRL#81", "engine", "finished by length before the cap",
            _output(_cut, "length"), "exchange_finish_length", 1, ("finish_length",),
        ),
        (
            "runs-past-cap", "statistics 7", "engine", "the cap is not applied", _output(_append, "length"),
            "exchange_finish_length", 1, (),
        ),
        (
            "cap-dropped", "statistics 7", "router", "the cap of the request never reaches the engine",
            _params({"max_new_tokens": CAP // 2}), "exchange_finish_length", 1, ("finish_length",),
        ),
        (
            "runs-past-stop", "statistics 7", "engine", "tokens follow a stop token", _output(_append, "stop"),
            "exchange_finish_stop", 1, (),
        ),
        (
            "stop-string-left", "sgl-project/sglang 0.5.23", "engine", "the stop string stands in the trimmed text",
            in_turn(_params({"stop": ["END"]}), _output(_stop_string_left, "stop")), "exchange_finish_stop", 1, (),
        ),
        (
            "empty-output", "vllm-project/vllm#47933", "engine", "no token, and no reason for that",
            _output(lambda body: (_resize([])(body), body["meta_info"].update(
                finish_reason={"type": "stop", "matched": "x"}))),
            "exchange_empty_output", 1, ("exchange_finish_stop", "finish_stop"),
        ),
        (
            "cached-above-prompt", "sgl-project/sglang#5525", "engine", "more cached tokens than prompt tokens",
            _cached, "exchange_cached_tokens", 1, ("cached_tokens",),
        ),
        (
            "version-straddled", "areal-project/AReaL#1569", "engine", "asked for at v0, answered by v1",
            _newer_version, "exchange_one_weight_version", 1, ("weight_version", "exchange_version_spans"),
        ),
        (
            "version-gap", "vllm-project/vllm#54443", "engine", "spans of weight versions leave tokens out",
            _output(lambda body: body["meta_info"]["weight_versions"][0].update(start=1)),
            "exchange_version_spans", 1, (),
        ),
        (
            "prompt-logprobs-of-others", "sgl-project/sglang#26555", "engine", "prompt log-probs name other ids",
            _prompt_log_probs_of_others, "exchange_prompt_logprobs", 1, (),
        ),
    )
)  # fmt: skip
