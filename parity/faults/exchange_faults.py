"""Faults of engines and routers: what a request is answered with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from parity.faults.clean import CAP, FIRST_WORD, MEDIUM, SIZE, STOP
from parity.faults.edits import Plant, in_turn
from parity.faults.scenes import Scene

Body = dict[str, Any]


def respond(change: Callable[[list[Body]], Any]) -> Plant:
    """Changes the response of the first exchange."""

    def plant(scene: Scene) -> None:
        scene.exchanges[0] = replace(scene.exchanges[0], response=change(scene.exchanges[0].response))

    return plant


def _request(**changes: Any) -> Plant:
    """Changes the first request, but not its response."""

    def plant(scene: Scene) -> None:
        scene.exchanges[0] = replace(scene.exchanges[0], request={**scene.exchanges[0].request, **changes})

    return plant


def _params(**changes: Any) -> Plant:
    """Changes the sampling parameters of the first request."""
    return lambda scene: _request(sampling_params={**scene.exchanges[0].request["sampling_params"], **changes})(scene)


def _fail(status: int, text: str) -> Plant:
    """The first request fails."""

    def plant(scene: Scene) -> None:
        scene.exchanges[0] = replace(scene.exchanges[0], status=status, response={"error": {"message": text}})

    return plant


def _outputs(change: Callable[[Body], object]) -> Plant:
    """Changes every output of the first exchange."""
    return lambda scene: [change(body) for body in scene.exchanges[0].response]


def _output(change: Callable[[Body], object], finish: str | None = None) -> Plant:
    """Changes one output of the first exchange: the last with more than three tokens and this finish reason."""

    def plant(scene: Scene) -> None:
        outputs = scene.exchanges[0].response
        ended = [body for body in outputs if finish in (None, body["meta_info"]["finish_reason"]["type"])]
        change([body for body in ended if len(body["output_ids"]) > 3][-1])

    return plant


def _set(finish: str | None = None, **changes: Any) -> Plant:
    """Sets fields of one output's meta_info."""
    return _output(lambda body: body["meta_info"].update(changes), finish)


def _log_prob(value: Any) -> Plant:
    """Replaces one log-prob."""
    return _output(lambda body: body["meta_info"]["output_token_logprobs"][1].__setitem__(0, value))


def _resize(body: Body, ids: list[int], **finish: Any) -> None:
    """Gives an output other tokens, and the log-probs, count and version spans that follow."""
    meta = body["meta_info"]
    log_probs = [entry[0] for entry in meta["output_token_logprobs"]] + [-1.0] * len(ids)
    body.update(output_ids=ids, text=" ".join(map(str, ids)))
    meta.update(
        output_token_logprobs=[[p, token, None] for p, token in zip(log_probs, ids, strict=False)],
        completion_tokens=len(ids),
        weight_versions=[{**meta["weight_versions"][0], "end": len(ids)}],
        **finish,
    )


def _cut(body: Body) -> None:
    _resize(body, body["output_ids"][:-1])


def _append(body: Body) -> None:
    _resize(body, [*body["output_ids"], FIRST_WORD, FIRST_WORD + 1])


def _batch(change: Plant) -> Plant:
    """Merges the first two requests into one, a list of two prompts with n, before the change."""

    def merge(scene: Scene) -> None:
        first, second = scene.exchanges[:2]
        request = {**first.request, "input_ids": [first.request["input_ids"], second.request["input_ids"]]}
        response = [*first.response, *second.response]
        scene.exchanges[:2] = [replace(first, request=request, response=response, group_index=None)]

    return in_turn(merge, change)


def _with_id(body: Body, name: str) -> Body:
    return {**body, "meta_info": {**body["meta_info"], "id": name}}


def _copies(outputs: list[Body], count: int) -> list[Body]:
    """The first so many outputs are copies of the longest."""
    longest = max(outputs, key=lambda body: len(body["output_ids"]))
    copied = [_with_id(longest, f"copy-{k}") for k in range(count)]
    return [*copied, *[body for body in outputs if body is not longest][: SIZE - count]]


def _single_requests_alike(scene: Scene) -> None:
    """The first group is requested sample by sample with a seed each, and every response is the same."""
    first = scene.exchanges[0]
    params = {key: value for key, value in first.request["sampling_params"].items() if key != "n"}
    scene.exchanges[:1] = [
        replace(
            first,
            request={**first.request, "sampling_params": {**params, "sampling_seed": 42 + number}},
            response=body,
            arm="per-sample",
        )
        for number, body in enumerate(_copies(first.response, SIZE))
    ]


def _shift_log_probs(body: Body) -> None:
    triples = body["meta_info"]["output_token_logprobs"]
    triples.append(triples.pop(0))


def _pad_tail(body: Body) -> None:
    for triple in body["meta_info"]["output_token_logprobs"][-3:]:
        triple[0] = 0.0


def _drop_top(scene: Scene) -> None:
    """Top log-probs are requested for the prompt too; a router keeps only those of the output."""
    _request(top_logprobs_num=2, logprob_start_len=0)(scene)
    prompt = scene.exchanges[0].request["input_ids"]
    for body in scene.exchanges[0].response:
        pairs = [[-1.0, FIRST_WORD, None], [-2.0, FIRST_WORD + 1, None]]
        body["meta_info"]["output_top_logprobs"] = [pairs] * len(body["output_ids"])
        body["meta_info"]["input_token_logprobs"] = [[None, prompt[0], None], *([-1.0, t, None] for t in prompt[1:])]


def _prompt_log_probs_of_others(scene: Scene) -> None:
    _request(logprob_start_len=0)(scene)
    ids = scene.exchanges[0].request["input_ids"]
    for body in scene.exchanges[0].response:
        body["meta_info"]["input_token_logprobs"] = [[-1.0, token, None] for token in reversed(ids)]


def _leave_stop_string(body: Body) -> None:
    body["text"] += " END"
    body["meta_info"]["finish_reason"] = {"type": "stop", "matched": "END"}


def _lose_partial(body: Body) -> None:
    """The tokens are lost, but the count is still that of the partial output."""
    body.update(output_ids=[], text="")
    body["meta_info"].update(finish_reason=_QUEUED, output_token_logprobs=[])


def show_image(tokens: int, more: int) -> Plant:
    """The first prompt begins with an image of so many tokens, and is counted with `more` other tokens."""

    def plant(scene: Scene) -> None:
        ids = [MEDIUM, *scene.exchanges[0].request["input_ids"]]
        _request(input_ids=ids, image_data=[["a"]])(scene)
        _outputs(
            lambda body: body["meta_info"].update(prompt_tokens=len(ids) - 1 + tokens + more, image_tokens=tokens)
        )(scene)

    return plant


def stream(scene: Scene) -> None:
    """The first response comes as a stream: every output in three views, and the end."""
    _request(stream=True)(scene)
    outputs = scene.exchanges[0].response
    views = [_view(index, body, part) for part in (1, 2, 3) for index, body in enumerate(outputs)]
    respond(lambda _: [*views, "[DONE]"])(scene)


def _view(index: int, body: Body, part: int) -> Body:
    """The first third of an output, two thirds, or all of it."""
    view = deepcopy(body) | {"index": index}
    if part < 3:
        _resize(view, body["output_ids"][: len(body["output_ids"]) * part // 3], finish_reason=None)
    return view


def _last_view(change: Callable[[Body], object]) -> Plant:
    """Changes the last view of the longest output of a stream."""

    def plant(scene: Scene) -> None:
        stream(scene)
        change(max(scene.exchanges[0].response[-SIZE - 1 : -1], key=lambda body: len(body["output_ids"])))

    return plant


def _cache_too_much(body: Body) -> None:
    body["meta_info"]["cached_tokens"] = body["meta_info"]["prompt_tokens"] + 1


_QUEUED = {"type": "abort", "message": "aborted in the waiting queue"}
_NO_N = {"max_new_tokens": CAP, "temperature": 1.0}

PLANTS: Mapping[str, Plant] = {
    "lone-object": respond(lambda outputs: outputs[0]),
    "wrapped-list": respond(lambda outputs: {"outputs": outputs}),
    "siblings-overwritten": respond(lambda outputs: [{**outputs[-1], "index": SIZE - 1}]),
    "late-child-lost": respond(lambda outputs: outputs[:-1]),
    "expanded-twice": respond(
        lambda outputs: [_with_id(body, f"{k}-{copy}") for k, body in enumerate(outputs) for copy in range(2)]
    ),
    "indices-restart": _batch(
        respond(lambda outputs: [{**body, "index": place % SIZE} for place, body in enumerate(outputs)])
    ),
    "indices-all-zero": respond(lambda outputs: [{**body, "index": 0} for body in outputs]),
    "finish-order": _batch(respond(lambda outputs: outputs[SIZE:] + outputs[:SIZE])),
    "sample-major": _batch(respond(lambda o: [o[k + slot] for slot in range(SIZE) for k in (0, SIZE)])),
    "shared-id": respond(lambda outputs: [_with_id(body, "r") for body in outputs]),
    "media-with-n-refused": _fail(400, "parallel sampling (n > 1) is not supported with multimodal fields"),
    "nan-in-json": _fail(500, "Out of range float values are not JSON compliant"),
    "list-not-expanded": _batch(_request(sampling_params=[{"n": SIZE, **_NO_N}])),
    "flat-media": _batch(_request(image_data=["a", "b", "c"])),
    "second-image-dropped": lambda scene: _request(
        image_data=["a", "b"], input_ids=[MEDIUM, *scene.exchanges[0].request["input_ids"][1:]]
    )(scene),
    "image-prompt-encoded-again": show_image(tokens=4, more=2),
    "n-beside-params": in_turn(_request(n=SIZE, sampling_params=_NO_N), respond(lambda outputs: outputs[0])),
    "n-zero-answered": in_turn(_params(n=0), respond(lambda outputs: outputs[0])),
    "all-clones": respond(lambda outputs: _copies(outputs, SIZE)),
    "seed-ignored": _single_requests_alike,
    "half-clones": respond(lambda outputs: _copies(outputs, 4)),
    "stop-cut-from-ids": _output(lambda body: body["output_ids"].pop(), "stop"),
    "stop-dropped": _output(_cut, "stop"),
    "text-encoded-again": _output(lambda body: body["output_ids"].insert(0, FIRST_WORD)),
    "zero-filled-tail": _output(_pad_tail),
    "logprobs-left-out": _output(lambda body: body["meta_info"].pop("output_token_logprobs")),
    "one-logprob-only": _output(lambda body: body["meta_info"]["output_token_logprobs"].__delitem__(slice(1, None))),
    "alternatives-dropped": _drop_top,
    "meta-stripped": _output(lambda body: body.pop("meta_info")),
    "alternatives-in-triple": _output(
        lambda body: body["meta_info"]["output_token_logprobs"][0].__setitem__(2, [[-0.1, 5]])
    ),
    "null-logprob": _log_prob(None),
    "positive-logprob": _log_prob(0.5),
    "sentinel-logprob": _log_prob(-9999.0),
    "infinite-logprob": _log_prob(-math.inf),
    "overflowing-ratio": _log_prob(-91.0),
    "prompt-encoded-again": _outputs(lambda body: body["meta_info"].update(prompt_tokens=1, cached_tokens=0)),
    "logprobs-shifted": _output(_shift_log_probs),
    "wrong-count": _output(lambda body: body["meta_info"].update(completion_tokens=len(body["output_ids"]) + 1)),
    "stream-cut": _output(lambda body: body["meta_info"].pop("finish_reason")),
    "partial-lost-in-stream": _last_view(lambda body: _resize(body, [], finish_reason=_QUEUED)),
    "stream-restarted": _last_view(lambda body: body["output_ids"].__setitem__(0, FIRST_WORD)),
    "stream-ends-unfinished": _last_view(lambda body: body["meta_info"].update(finish_reason=None)),
    "reason-left-out-on-abort": _output(lambda body: _resize(body, [], finish_reason=None)),
    "reason-always-null": _outputs(lambda body: body["meta_info"].update(finish_reason=None)),
    "reason-unknown": _set(finish_reason={"type": "error"}),
    "partial-lost": _output(_lose_partial),
    "abort-without-message": _set(finish_reason={"type": "abort"}),
    "stop-for-length": _set("length", finish_reason={"type": "stop", "matched": STOP}),
    "stop-without-match": _set("length", finish_reason={"type": "stop", "matched": None}),
    "length-too-early": _output(_cut, "length"),
    "runs-past-cap": _output(_append, "length"),
    "cap-dropped": _params(max_new_tokens=CAP // 2),
    "runs-past-stop": _output(_append, "stop"),
    "stop-string-left": in_turn(_params(stop=["END"]), _output(_leave_stop_string, "stop")),
    "empty-output": _output(lambda body: _resize(body, [], finish_reason={"type": "stop", "matched": "x"})),
    "cached-above-prompt": lambda scene: _cache_too_much(scene.exchanges[0].response[1]),
    "version-straddled": _outputs(lambda body: body["meta_info"].update(weight_version="v1", weight_versions=[])),
    "version-gap": _output(lambda body: body["meta_info"]["weight_versions"][0].update(start=1)),
    "prompt-logprobs-of-others": _prompt_log_probs_of_others,
}
"""By name, what plants each fault in a scene of exchanges."""
