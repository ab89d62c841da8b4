"""Twins are equal bit for bit or located at their first difference; one recording gives every arm the same samples."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.replaying import replaying_post
from parity.errors import InputError
from parity.evidence.replay.twins import COMPARED, compare_twins
from parity.findings import Finding, Level, Severity, Status, Verdict, judge
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import SAMPLE_FIELDS, Rollout, Sample
from parity.trainer.group_sender import SampleAdapter
from rollout_patch import ARMS, generate_group

DATA = Path(__file__).parents[2] / "data"
Build = Callable[..., list[Sample]]
Record = Callable[[Sequence[Sample]], list[Exchange]]

METRICS = [
    {"step": step, "train/loss": 0.25 / (step + 1), "train/grad_norm": 1.5, "perf/rollout_time": 0.1}
    for step in range(3)
]


def twins(baseline: list[Sample], experiment: list[Sample], *metrics: Sequence[dict[str, Any]]) -> list[Finding]:
    sides = metrics or (METRICS, METRICS)
    return compare_twins(Rollout.from_samples(baseline), Rollout.from_samples(experiment), *sides)


def failed(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status is Status.FAIL]


@pytest.fixture
def pair(valid_samples: Build) -> tuple[list[Sample], list[Sample]]:
    """Both arms of a twin: they differ in what is the arm's own."""
    baseline = valid_samples(steps=3, arm="per-sample")
    experiment = copy.deepcopy(baseline)
    for sample in experiment:
        sample.arm, sample.engine_id, sample.cached_tokens = "native", "engine-1", 0
        sample.weight_versions = [f"other-{version}" for version in sample.weight_versions or ()]
        sample.extra = {"id": sample.index}
    return baseline, experiment


def test_twins_that_differ_in_what_is_the_arms_own_are_equal(pair: tuple[list[Sample], list[Sample]]) -> None:
    findings = twins(*pair)
    assert failed(findings) == []
    assert {finding.level for finding in findings} == {Level.REPLAY}
    counts = {finding.check: finding.evidence["checked"] for finding in findings if finding.status is Status.PASS}
    assert counts["twin_samples"] == counts["twin_output_ids"] == counts["twin_advantage"] == 48
    assert counts["twin_train/loss"] == counts["twin_train/grad_norm"] == 3
    assert not any("perf" in check for check in counts)
    assert [f.check for f in findings if f.status is Status.NOT_COMPARED] == ["twin_media_sha256"]


def test_order_of_rows_is_no_difference(pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    assert failed(twins(baseline, experiment[::-1])) == []


def test_every_field_of_a_sample_is_compared_or_named_as_the_arms_own() -> None:
    own = {"arm", "engine_id", "cached_tokens", "extra"}
    places = {"rollout_id", "group_index", "index"}
    assert set(COMPARED) | own | places == set(SAMPLE_FIELDS)


@pytest.mark.parametrize("field", COMPARED)
def test_a_difference_in_any_field_is_located(field: str, pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    for sample in baseline + experiment:
        sample.media_sha256 = ["a"]
    victim = experiment[2 * 16 + 1 * 4 + 3]
    value = getattr(victim, field)
    changed: Any = value + 1 if isinstance(value, (int, float)) else "other"
    setattr(victim, field, [*value[:-1], *value[:1], *value[:1]] if isinstance(value, list) else changed)
    found = failed(twins(baseline, experiment))
    assert [finding.check for finding in found] == [f"twin_{field}"]
    assert found[0].where.to_json() == {"rollout_id": 2, "group_index": 1, "index": 3, "field": field}
    assert found[0].expected != found[0].observed


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 47), st.sampled_from(["reward", "text", "logprobs"])), min_size=1, max_size=6))
def test_the_first_finding_is_the_first_difference(changes: list[tuple[int, str]]) -> None:
    baseline = [
        Sample(group, slot, rollout_id=step, text="a", logprobs=[-1.0, -2.0], reward=0.0)
        for step, group, slot in itertools.product(range(3), range(4), range(4))
    ]
    experiment = copy.deepcopy(baseline)
    new = {"reward": 1.0, "text": "b", "logprobs": [-1.0, -2.5]}
    for row, field in changes:
        setattr(experiment[row], field, new[field])
    first = failed(twins(baseline, experiment))[0].where
    causes = ["logprobs", "text", "reward"]
    row, field = min(changes, key=lambda change: (change[0], causes.index(change[1])))
    assert (first.rollout_id, first.group_index, first.index, first.field) == (row // 16, row % 16 // 4, row % 4, field)


def test_the_smallest_difference_of_a_float_counts(pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    baseline[5].reward, experiment[5].reward = 0.0, -0.0
    assert [finding.check for finding in failed(twins(baseline, experiment))] == ["twin_reward"]
    experiment[5].reward = 0.0
    logprobs = experiment[9].logprobs
    assert logprobs
    logprobs[0] = math.nextafter(logprobs[0], 0.0)
    found = failed(twins(baseline, experiment))
    assert [finding.check for finding in found] == ["twin_logprobs"]
    assert (found[0].expected, found[0].observed) == ((baseline[9].logprobs or [])[0], logprobs[0])


def test_a_field_that_one_arm_lacks_differs(pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    experiment[0].advantage = None
    assert failed(twins(baseline, experiment))[0].observed is None


def test_two_outputs_exchanged_after_scoring_are_located_and_decide(pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    first, second = experiment[16 + 8 + 1], experiment[16 + 8 + 2]
    for name in ("output_ids", "logprobs", "text", "finish_reason", "loss_mask", "response_length", "status"):
        ours, theirs = getattr(first, name), getattr(second, name)
        setattr(first, name, theirs)
        setattr(second, name, ours)
    findings = twins(baseline, experiment)
    assert findings[0].where.to_json() == {"rollout_id": 1, "group_index": 2, "index": 1, "field": "output_ids"}
    judgement = judge(findings)
    assert judgement.verdict is Verdict.DIFFERENT
    assert any("step 1, group 2, slot 1" in reason for reason in judgement.reasons)


def test_samples_of_one_arm_alone_are_found_and_the_rest_is_compared(pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    findings = twins(baseline, experiment[:-1])
    assert [finding.check for finding in failed(findings)] == ["twin_samples"]
    assert failed(findings)[0].where.index == 3
    doubled = failed(twins(baseline, [*experiment, experiment[0]]))
    assert [finding.check for finding in doubled] == ["twin_samples"]


def test_weights_that_were_not_updated_are_found_whatever_their_label(pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    for sample in experiment:
        sample.weight_versions = ["stale"]
    found = failed(twins(baseline, experiment))
    assert [finding.check for finding in found] == ["twin_weight_versions"]
    assert found[0].where.rollout_id == 1


def test_metrics_differ_after_samples_of_their_step(pair: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = pair
    other = copy.deepcopy(METRICS)
    other[1]["train/loss"] = math.nextafter(0.125, 1)
    other[1]["perf/rollout_time"] = 9.0
    found = failed(twins(baseline, experiment, METRICS, other))
    assert [finding.check for finding in found] == ["twin_train/loss"]
    assert found[0].where.to_json() == {"rollout_id": 1, "field": "train/loss"}
    experiment[20].reward = 5.0
    assert [f.check for f in failed(twins(baseline, experiment, METRICS, other))] == ["twin_reward", "twin_train/loss"]


@pytest.mark.parametrize("other", [METRICS[:2], [{**row, "train/loss": math.nan} for row in METRICS]])
def test_a_missing_step_or_a_nan_never_passes(
    other: list[dict[str, Any]], pair: tuple[list[Sample], list[Sample]]
) -> None:
    assert "twin_train/loss" in {finding.check for finding in failed(twins(*pair, METRICS, other))}
    assert "twin_train/loss" in {finding.check for finding in failed(twins(*pair, other, METRICS))}


def test_a_nan_in_both_arms_is_no_equality(pair: tuple[list[Sample], list[Sample]]) -> None:
    both = [{"step": 0, "train/loss": math.nan}]
    assert [finding.check for finding in failed(twins(*pair, both, both))] == ["twin_train/loss"]


def test_metrics_with_a_step_twice_are_refused(pair: tuple[list[Sample], list[Sample]]) -> None:
    with pytest.raises(InputError, match=r"baseline, record 1: .*'step'.* 0"):
        twins(*pair, [{"step": 0}, {"step": 0}], METRICS)


def test_nothing_against_nothing_is_not_equal() -> None:
    assert {finding.status for finding in twins([], [], [], [])} == {Status.NOT_COMPARED}
    assert all(finding.severity is Severity.ERROR for finding in twins([], [], [], []))


def questions(answered: list[Sample]) -> list[list[Sample]]:
    """The groups as they were before they were answered."""
    asked = [
        Sample(
            sample.group_index,
            sample.index,
            rollout_id=sample.rollout_id,
            prompt_ids=sample.prompt_ids,
            max_new_tokens=sample.max_new_tokens,
            temperature=1.0,
        )
        for sample in answered
    ]
    return [
        list(group) for _, group in itertools.groupby(asked, lambda sample: (sample.rollout_id, sample.group_index))
    ]


@pytest.mark.parametrize("recorded_by", ARMS)
async def test_one_recording_gives_every_arm_the_same_samples(
    recorded_by: str, valid_samples: Build, valid_exchanges: Record
) -> None:
    original = valid_samples(steps=2, arm=recorded_by)
    exchanges = valid_exchanges(original)
    sides = {}
    for arm in ARMS:
        groups = questions(original)
        post = replaying_post(exchanges)
        for group in groups:
            report = await generate_group(arm, group, adapter=SampleAdapter(), post=post)
            assert report.arm_used == arm
        sides[arm] = [sample for group in groups for sample in group]
    for sample, source in zip(sides["native"], original, strict=True):
        assert (sample.output_ids, sample.logprobs, sample.text) == (source.output_ids, source.logprobs, source.text)
    for arm in ARMS[1:]:
        assert failed(twins(sides[ARMS[0]], sides[arm])) == []


async def test_recorded_answers_of_the_real_engine_come_back_in_every_form() -> None:
    exchanges = {
        exchange.extra["case"]: exchange for exchange in read_exchanges(DATA / "sglang-0.5.23-cpu.exchanges.jsonl")
    }
    double = exchanges["batched-2x-native-3"]
    first, second = double.request["input_ids"]
    outputs = double.response
    post = replaying_post([double])
    assert await post({"input_ids": second, "sampling_params": {"n": 1}}, {}) == outputs[3]
    assert await post({"input_ids": first, "sampling_params": {"n": 2}}, {}) == outputs[:2]
    assert await post({"input_ids": [second, first, second], "sampling_params": {}}, {}) == [
        outputs[4],
        outputs[2],
        outputs[5],
    ]
    with pytest.raises(InputError, match=r"0 .* 1 "):
        await post({"input_ids": first, "sampling_params": {}}, {})


async def test_prompts_with_different_images_are_different_prompts() -> None:
    def exchange(image: str, text: str) -> Exchange:
        output = {"text": text, "meta_info": {}}
        request = {"text": "a<image>", "image_data": [[image]], "sampling_params": {"n": 2}}
        return Exchange(request, 200, [output, output])

    post = replaying_post([exchange("A", "cat"), exchange("B", "dog")])
    single = {"text": "a<image>", "image_data": ["B"], "sampling_params": {}}
    assert (await post(single, {}))["text"] == "dog"
    both = {"text": ["a<image>"] * 2, "image_data": [["B"], ["A"]], "sampling_params": {}}
    assert [output["text"] for output in await post(both, {})] == ["dog", "cat"]


def test_a_recording_with_an_output_too_few_is_refused(valid_samples: Build, valid_exchanges: Record) -> None:
    exchange = valid_exchanges(valid_samples(groups=1))[0]
    exchange.response.pop()
    with pytest.raises(InputError, match=r"step 0, group 0: field 'response' .*3 .*1 .*4"):
        replaying_post([exchange])
