"""What looks like a fault but is valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parity.faults.clean import CAP, FIRST_WORD, SIZE, STOP, clean_exchanges, groups_of, output_of, step_metrics
from parity.faults.edits import Plant, abort, assign, copy_output, normalise, rewrite, set_all
from parity.faults.exchange_faults import show_image, stream
from parity.faults.scenes import Scene
from parity.records.exchanges import Exchange
from parity.records.samples import Sample


def _consistent(change: Plant) -> Plant:
    """A change of samples that advantages, responses, the twin and the metrics follow."""

    def plant(scene: Scene) -> None:
        change(scene)
        normalise(scene.samples)
        for exchange, group in zip(scene.exchanges, groups_of(scene.samples), strict=True):
            exchange.response[:] = map(output_of, group)
        scene.baseline = [replace(sample, arm="per-sample") for sample in scene.samples]
        scene.baseline_exchanges = clean_exchanges(scene.baseline)
        scene.records, scene.baseline_records = step_metrics(scene.samples), step_metrics(scene.samples)

    return plant


def _stopped(sample: Sample, ids: list[int]) -> None:
    rewrite(sample, ids)
    sample.finish_reason, sample.status = "stop", "completed"


def _answer_alike(scene: Scene) -> None:
    for sample in scene.samples:
        _stopped(sample, [FIRST_WORD + k for k in range(5)] + [STOP])


def _greedy(scene: Scene) -> None:
    _answer_alike(scene)
    assign(scene.samples, temperature=0.0)
    for exchange in scene.exchanges:
        exchange.request["sampling_params"]["temperature"] = 0.0


def _certain(scene: Scene) -> None:
    _answer_alike(scene)
    assign(scene.samples, logprobs=[0.0] * 6)


def _one_token(scene: Scene) -> None:
    for group in groups_of(scene.samples):
        for sample in group[:4]:
            _stopped(sample, [STOP])
            sample.logprobs = [-0.5]


def _forced_tokens(scene: Scene) -> None:
    for sample in scene.samples:
        assert sample.logprobs is not None
        sample.logprobs[0] = sample.logprobs[-1] = 0.0


def _constant_rewards(scene: Scene) -> None:
    scene.rules = replace(scene.rules, reward=lambda sample: 0.0)
    assign(scene.samples, reward=0.0)


def _honest_repeat(scene: Scene) -> None:
    first, second = scene.group()[:2]
    _stopped(first, [FIRST_WORD, STOP])
    first.logprobs = [-0.3, -0.4]
    copy_output(first, second)


def _end_at_cap(scene: Scene) -> None:
    for number, sample in enumerate(scene.group()[:2]):
        _stopped(sample, [FIRST_WORD + (7 * k + number) % 100 for k in range(CAP - 1)] + [STOP])
    assign(scene.group()[:1], finish_reason="length", status="truncated")


def _aborted(scene: Scene) -> None:
    """Two samples are aborted, in both arms, and the responses say so."""
    bodies = [dict(body) for body in scene.exchanges[0].response]
    for sample, twin, body in zip(scene.group()[:2], scene.baseline, bodies, strict=False):
        abort(sample)
        abort(twin)
        body["meta_info"] = {**body["meta_info"], "finish_reason": {"type": "abort", "message": "Abort by the user."}}
    normalise(scene.samples)
    scene.exchanges[0] = replace(scene.exchanges[0], response=bodies)


def _retry(scene: Scene) -> None:
    first = scene.exchanges[0]
    scene.exchanges[:1] = [replace(first, status=502, response="bad gateway"), replace(first, attempt=2)]


def _add_token_texts(scene: Scene) -> None:
    for exchange in scene.exchanges:
        for body in exchange.response:
            for triple in body["meta_info"]["output_token_logprobs"]:
                triple[2] = "x"


def _abort_in_queue(scene: Scene) -> None:
    body = scene.exchanges[0].response[1]
    meta = body["meta_info"]
    body.update(output_ids=[], text="")
    meta.update(finish_reason={"type": "abort", "message": "Abort in waiting queue"}, output_token_logprobs=[])
    meta.update(completion_tokens=0, weight_versions=[{**meta["weight_versions"][0], "end": 0}])


def _declare_partial(scene: Scene) -> None:
    scene.rules = replace(scene.rules, partial_versions=True)
    assign(scene.group()[:2], weight_versions=["v0", "v1"])


def _with_params(exchange: Exchange, **params: Any) -> Exchange:
    merged = {**exchange.request["sampling_params"], **params}
    return replace(exchange, request={**exchange.request, "sampling_params": merged})


def _send_seeds(scene: Scene) -> None:
    """Single requests carry one seed each; a native request carries its first, which the engine counts on from."""
    scene.baseline_exchanges = [
        _with_params(exchange, sampling_seed=sample.sampling_seed)
        for exchange, sample in zip(scene.baseline_exchanges, scene.baseline, strict=True)
    ]
    scene.exchanges = [
        _with_params(exchange, sampling_seed=group[0].sampling_seed)
        for exchange, group in zip(scene.exchanges, groups_of(scene.samples), strict=True)
    ]


def _groups_of_one(scene: Scene) -> None:
    scene.samples = [sample for sample in scene.samples if sample.index == 0]
    scene.baseline = [sample for sample in scene.baseline if sample.index == 0]
    scene.exchanges = [
        replace(_with_params(exchange, n=1), response=exchange.response[0]) for exchange in scene.exchanges
    ]
    scene.baseline_exchanges = scene.baseline_exchanges[::SIZE]
    scene.rules = replace(scene.rules, group_size=1)
    assign(scene.samples, advantage=0.0)


PLANTS: Mapping[str, Plant] = {
    "none": lambda scene: None,
    "sound-image": show_image(tokens=4, more=0),
    "sound-stream": stream,
    "greedy-clones": _consistent(_greedy),
    "one-token-answers": _consistent(_one_token),
    "certain-policy": _consistent(_certain),
    "honest-repeat": _consistent(_honest_repeat),
    "forced-tokens": _consistent(_forced_tokens),
    "constant-rewards": _consistent(_constant_rewards),
    "end-at-cap": _consistent(_end_at_cap),
    "aborted-restored": _aborted,
    "aborted-in-queue": _abort_in_queue,
    "retry-recorded": _retry,
    "texts-in-triples": _add_token_texts,
    "declared-partial": _declare_partial,
    "seeds-in-requests": _send_seeds,
    "texts-not-kept": set_all(text=None),
    "group-of-one": _groups_of_one,
}
"""By name, what makes each control, save those of curves; `none` changes nothing."""
