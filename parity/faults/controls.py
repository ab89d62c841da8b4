"""What looks like a fault and is none: no check may fail on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.faults.clean import CAP, FIRST_WORD, SIZE, STOP, clean_exchanges, groups_of, output_of, step_metrics
from parity.faults.curves import each_run, scale
from parity.faults.edits import abort, copy_output, normalise, rewrite, show_image
from parity.faults.scenes import DRAWS, ROLLOUT, RUNS, TRACKER, TWIN, WIRE, Control, Runs, Scene
from parity.faults.wire import stream
from parity.records.exchanges import Exchange
from parity.records.samples import Sample


def _bring_in_line(scene: Scene) -> None:
    """Advantages, answers, the twin and records follow the samples."""
    normalise(scene.samples)
    for exchange, group in zip(scene.exchanges, groups_of(scene.samples), strict=True):
        exchange.response[:] = map(output_of, group)
    scene.baseline = [replace(sample, arm="per-sample") for sample in scene.samples]
    scene.baseline_exchanges = clean_exchanges(scene.baseline)
    scene.records = step_metrics(scene.samples)
    scene.baseline_records = step_metrics(scene.samples)


def _same(scene: Scene, ids: list[int], **fields: Any) -> None:
    """All samples hold one response."""
    for sample in scene.samples:
        rewrite(sample, list(ids))
        stopped = ids[-1] == STOP
        sample.finish_reason, sample.status = ("stop", "completed") if stopped else ("length", "truncated")
        for name, value in fields.items():
            setattr(sample, name, value)
    _bring_in_line(scene)


def _greedy(scene: Scene) -> None:
    _same(scene, [FIRST_WORD + k for k in range(5)] + [STOP], temperature=0.0)
    for exchange in scene.exchanges:
        exchange.request["sampling_params"]["temperature"] = 0.0


def _one_token(scene: Scene) -> None:
    """Half of the samples of each group end at once."""
    for group in groups_of(scene.samples):
        for sample in group[:4]:
            rewrite(sample, [STOP])
            sample.finish_reason, sample.status = "stop", "completed"
            sample.logprobs = [-0.5]
    _bring_in_line(scene)


def _certain(scene: Scene) -> None:
    """A collapsed policy gives one response with probability 1, forced tokens with log-prob 0 among it."""
    _same(scene, [FIRST_WORD + k for k in range(5)] + [STOP])
    for sample in scene.samples:
        sample.logprobs = [0.0] * 6
    _bring_in_line(scene)


def _forced_token(scene: Scene) -> None:
    """A grammar forces single tokens, whose log-prob is exactly 0, the last one too."""
    for sample in scene.samples:
        assert sample.logprobs is not None
        sample.logprobs[0] = sample.logprobs[-1] = 0.0
    _bring_in_line(scene)


def _collapsed(scene: Scene) -> None:
    """Rewards of a group are all equal, so that all advantages are 0."""
    for sample in scene.samples:
        ids = sample.output_ids or []
        if sample.reward and len(ids) > 1:
            rewrite(sample, [FIRST_WORD, *ids] if sample.finish_reason == "stop" and len(ids) < CAP else ids)
    scene.rules = replace(scene.rules, reward=lambda sample: 0.0)
    for sample in scene.samples:
        sample.reward = 0.0
    _bring_in_line(scene)


def _restored(scene: Scene) -> None:
    """Aborted samples go back as they were: no tokens, no reward, no answer that counts."""
    for sample in scene.group()[:2]:
        abort(sample)
    normalise(scene.samples)
    scene.exchanges[0] = replace(scene.exchanges[0], response=_answers_with_aborts(scene))
    for here, there in zip(scene.samples, scene.baseline, strict=True):
        if here.status == "aborted":
            abort(there)


def _answers_with_aborts(scene: Scene) -> list[dict[str, Any]]:
    finished = [dict(body) for body in scene.exchanges[0].response]
    for body in finished[:2]:
        finish = {"type": "abort", "message": "Abort by the user."}
        body["meta_info"] = {**body["meta_info"], "finish_reason": finish}
    return finished


def _end_at_cap(scene: Scene) -> None:
    """A response's end is its last token and falls on the cap: length or stop, both true."""
    for number, sample in enumerate(scene.group()[:2]):
        rewrite(sample, [FIRST_WORD + (7 * k + number) % 100 for k in range(CAP - 1)] + [STOP])
        sample.finish_reason = ("length", "stop")[number]
        sample.status = ("truncated", "completed")[number]
    _bring_in_line(scene)


def _retried(scene: Scene) -> None:
    """A request fails, is recorded, and is answered at its second attempt."""
    first = scene.exchanges[0]
    scene.exchanges[:1] = [replace(first, status=502, response="bad gateway"), replace(first, attempt=2)]


def _texts_in_triples(scene: Scene) -> None:
    """Log-probs come with the tokens' texts."""
    for exchange in scene.exchanges:
        for body in exchange.response:
            for triple in body["meta_info"]["output_token_logprobs"]:
                triple[2] = "x"


def _aborted_in_queue(scene: Scene) -> None:
    """A request aborted before it ran has no tokens, and says why."""
    body = scene.exchanges[0].response[1]
    meta = body["meta_info"]
    body.update(output_ids=[], text="")
    meta.update(finish_reason={"type": "abort", "message": "Abort in waiting queue"}, output_token_logprobs=[])
    meta.update(completion_tokens=0, weight_versions=[{**meta["weight_versions"][0], "end": 0}])


def _honest_repeat(scene: Scene) -> None:
    """Two siblings agree on a response that the policy gives every other time."""
    first, second = scene.group()[:2]
    rewrite(first, [FIRST_WORD, STOP])
    first.finish_reason, first.status, first.logprobs = "stop", "completed", [-0.3, -0.4]
    copy_output(first, second)
    _bring_in_line(scene)


def _declared_partial(scene: Scene) -> None:
    """Partial rollout is declared: a response continued after an update has two weight versions."""
    scene.rules = replace(scene.rules, partial_versions=True)
    for sample in scene.group()[:2]:
        sample.weight_versions = ["v0", "v1"]


def _seeds_in_requests(scene: Scene) -> None:
    """Single requests carry a seed each, the native one the first of them, which the engine counts on from."""
    scene.baseline_exchanges = [
        _seeded(exchange, sample) for exchange, sample in zip(scene.baseline_exchanges, scene.baseline, strict=True)
    ]
    scene.exchanges = [
        _seeded(exchange, group[0]) for exchange, group in zip(scene.exchanges, groups_of(scene.samples), strict=True)
    ]


def _seeded(exchange: Exchange, sample: Sample) -> Exchange:
    params = {**exchange.request["sampling_params"], "sampling_seed": sample.sampling_seed}
    return replace(exchange, request={**exchange.request, "sampling_params": params})


def _without_texts(scene: Scene) -> None:
    """A host keeps no texts in one arm and all in the other."""
    for sample in scene.samples:
        sample.text = None


def _one_of_group(scene: Scene) -> None:
    """A group of one has no baseline: its advantage is 0, and finite."""
    scene.samples = [sample for sample in scene.samples if sample.index == 0]
    scene.baseline = [sample for sample in scene.baseline if sample.index == 0]
    scene.exchanges = [_single(exchange) for exchange in scene.exchanges]
    scene.baseline_exchanges = scene.baseline_exchanges[::SIZE]
    scene.rules = replace(scene.rules, group_size=1)
    for sample in scene.samples:
        sample.advantage = 0.0


def _single(exchange: Exchange) -> Exchange:
    params = {**exchange.request["sampling_params"], "n": 1}
    return replace(exchange, request={**exchange.request, "sampling_params": params}, response=exchange.response[0])


def _both_collapse(runs: Runs) -> None:
    change = scale("rollout/raw_reward", 0.05, 30)
    for records in (*runs.baseline, *runs.experiment):
        change(records)


def _fewer_requests(runs: Runs) -> None:
    each_run(scale("perf/requests", 1 / 8))(runs)


def _logged_rarely(runs: Runs) -> None:
    """A metric of an evaluation is logged every tenth step."""
    for records in (*runs.baseline, *runs.experiment):
        for record in records[::10]:
            record["eval/reward"] = 0.5


def _as_it_is(scene: Any) -> None:
    """Nothing is changed."""


def _counted(runs: Runs) -> None:
    """Groups of zero deviation are counted where there are some: by value, so at some steps, or all but one."""
    for number, records in enumerate((*runs.baseline, *runs.experiment)):
        for step, record in enumerate(records):
            if (step + number) % 3:
                record["rollout/zero_std/count_1.0"] = 1.0
            if (step * step + number) % 7 < 2:
                record["diagnostics/overlong"] = 1.0
            if step != 10 + number:
                record["rollout/zero_std/count_0.0"] = 2.0


CONTROLS = (
    Control("sound-wire", "sound answers", WIRE, _as_it_is),
    Control("sound-image", "a prompt that grows by the tokens of its image", WIRE, show_image(tokens=4, more=0)),
    Control("sound-rollout", "a sound rollout with media", ROLLOUT, _as_it_is),
    Control("sound-twin", "a sound twin", TWIN, _as_it_is),
    Control("sound-records", "metrics of the samples", TRACKER, _as_it_is),
    Control("sound-draws", "two arms that draw alike", DRAWS, _as_it_is, 64),
    Control("sound-runs", "two arms that train alike", RUNS, _as_it_is, 3),
    Control("greedy-clones", "greedy decoding answers alike eight times", ROLLOUT, _greedy),
    Control("one-token-answers", "half of the answers are the end alone", ROLLOUT, _one_token),
    Control("certain-policy", "a collapsed policy answers alike with probability 1", ROLLOUT, _certain),
    Control("honest-repeat", "two siblings agree on a likely answer", ROLLOUT, _honest_repeat),
    Control("forced-tokens", "forced tokens have log-prob 0", ROLLOUT, _forced_token),
    Control("constant-rewards", "legal groups of zero deviation: advantages are 0", ROLLOUT, _collapsed),
    Control("aborted-restored", "aborted samples without reward, out of the mean, in both arms", ROLLOUT, _restored),
    Control("sound-stream", "an answer in views that grow", WIRE, stream),
    Control("aborted-in-queue", "an abort without tokens that says why", WIRE, _aborted_in_queue),
    Control("end-at-cap", "the end falls on the cap: length and stop are both true", ROLLOUT, _end_at_cap),
    Control("retry-recorded", "a failed attempt, recorded, then answered", ROLLOUT, _retried),
    Control("texts-in-triples", "log-probs with the tokens' texts", WIRE, _texts_in_triples),
    Control("declared-partial", "two weight versions where partial rollout is declared", ROLLOUT, _declared_partial),
    Control("seeds-in-requests", "a seed a request, and the first of them for a group", ROLLOUT, _seeds_in_requests),
    Control("texts-not-kept", "samples without texts", ROLLOUT, _without_texts),
    Control("group-of-one", "a group of one with advantage 0", ROLLOUT, _one_of_group),
    Control("collapse-in-both", "both arms collapse", RUNS, _both_collapse, 3),
    Control("fewer-requests", "an eighth of the requests", RUNS, _fewer_requests, 3),
    Control("logged-rarely", "a metric logged every tenth step", RUNS, _logged_rarely, 3),
    Control("counted-when-it-happens", "metrics that are logged when something happens", RUNS, _counted, 3),
)
