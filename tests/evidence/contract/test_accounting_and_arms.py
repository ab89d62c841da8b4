"""Requests account for samples, and both arms for each other; every planted loss, copy and change is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from parity.contract_checks import (
    Rules,
    check_accounting,
    check_arms,
    check_exchanges,
    check_recording,
    check_samples,
)
from parity.findings import Finding, Status
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample

Build = Callable[..., list[Sample]]
Record = Callable[[Sequence[Sample]], list[Exchange]]


def failing(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in reversed(findings) if finding.status is Status.FAIL}


def account(samples: list[Sample], exchanges: list[Exchange], chunk: int | None = None) -> dict[str, Finding]:
    return failing(check_accounting(Rollout.from_samples(samples), exchanges, chunk))


@pytest.mark.parametrize("arm", ["native", "batched", "per-sample"])
def test_every_arm_accounts_for_its_samples(arm: str, valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples(steps=2, arm=arm)
    findings = check_accounting(Rollout.from_samples(samples), valid_exchanges(samples))
    assert {finding.status for finding in findings} == {Status.PASS}
    assert {finding.check: finding.evidence["checked"] for finding in findings} == {
        "requests_accounted": 8,
        "params_sent": 8,
        "samples_received": 8,
        "texts_received": 32,
        "mask_complete": 32,
        "groups_answered": 8,
    }


def test_a_request_too_many_or_too_few_is_found(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples(arm="per-sample")
    exchanges = valid_exchanges(samples)
    lost = account(samples, exchanges[:5] + exchanges[6:])
    assert lost["requests_accounted"].where.group_index == 1
    assert lost["requests_accounted"].observed == {"per-sample": 3, "failed": 0, "repeated": 0}
    assert lost["samples_received"].observed == {"slots": [1], "unused": 0}
    orphan = account(samples, [*exchanges, exchanges[5]])
    assert set(orphan) == {"requests_accounted", "samples_received"}
    assert orphan["samples_received"].observed == {"slots": [], "unused": 1}


def test_the_arm_is_that_of_the_exchanges_and_of_the_samples_where_these_say_nothing(
    valid_samples: Build, valid_exchanges: Record
) -> None:
    samples = valid_samples(arm="per-sample")
    exchanges = valid_exchanges(samples)
    for sample in samples:
        sample.arm = "native"
    assert account(samples, exchanges) == {}
    lost = account(samples, [exchange for exchange in exchanges if exchange.group_index != 1])
    assert (lost["requests_accounted"].expected, lost["requests_accounted"].observed) == ({"native": 1}, None)
    mixed = [replace(exchanges[0], arm="native"), *exchanges[1:]]
    assert account(samples, mixed)["requests_accounted"].observed == {
        "native": 1,
        "per-sample": 3,
        "failed": 0,
        "repeated": 0,
    }


def test_a_failed_attempt_that_was_repeated_is_accounted_for(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples()
    exchanges = valid_exchanges(samples)
    failed = replace(exchanges[1], status=502, response="bad gateway")
    again = replace(exchanges[1], attempt=2)
    assert account(samples, [exchanges[0], failed, again, *exchanges[2:]]) == {}
    unexplained = account(samples, [exchanges[0], again, *exchanges[2:]])
    assert set(unexplained) == {"requests_accounted"}


def test_a_group_in_chunks_takes_a_request_each(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples(groups=1, n=5)
    halves = [valid_exchanges(samples[:3])[0], valid_exchanges(samples[3:])[0]]
    assert account(samples, halves, chunk=3) == {}
    assert set(account(samples, halves)) == {"requests_accounted"}


def test_a_changed_an_invented_and_a_doubled_sample_are_found(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples(groups=2)
    exchanges = valid_exchanges(samples)
    victim = samples[6]
    assert victim.output_ids and victim.logprobs
    victim.logprobs[0] -= 1e-9
    assert account(samples, exchanges)["samples_received"].observed == {"slots": [2], "unused": 1}
    victim.output_ids, victim.logprobs = samples[7].output_ids, samples[7].logprobs
    victim.finish_reason = samples[7].finish_reason
    assert account(samples, exchanges)["samples_received"].observed == {"slots": [3], "unused": 1}


def test_what_trainers_keep_of_an_output_suffices_to_find_it(valid_samples: Build, valid_exchanges: Record) -> None:
    """Train dumps hold log-probs of 32 bits and no finish reason."""
    samples = valid_samples(groups=2)
    exchanges = valid_exchanges(samples)
    for sample in samples:
        sample.finish_reason = None
        sample.logprobs = [float(np.float32(value)) for value in sample.logprobs or ()]
    found = account(samples, exchanges)
    assert found.keys().isdisjoint({"samples_received", "texts_received"})
    assert samples[6].logprobs
    samples[6].logprobs[0] = float(np.float32(samples[6].logprobs[0] - 1e-4))
    assert account(samples, exchanges)["samples_received"].observed == {"slots": [2], "unused": 1}


def test_a_changed_finish_reason_is_found(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples(groups=2)
    exchanges = valid_exchanges(samples)
    samples[6].finish_reason = "length" if samples[6].finish_reason == "stop" else "stop"
    assert account(samples, exchanges)["samples_received"].observed == {"slots": [2], "unused": 1}


@pytest.mark.parametrize(("arm", "found"), [("native", {"slots": [1, 2], "unused": 0}), ("per-sample", None)])
def test_exchanged_outputs_are_found_where_one_request_fixes_their_order(
    arm: str, found: dict[str, object] | None, valid_samples: Build, valid_exchanges: Record
) -> None:
    samples = valid_samples(arm=arm)
    exchanges = valid_exchanges(samples)
    samples[5].index, samples[6].index = 2, 1
    failed = account(samples, exchanges)
    assert (failed["samples_received"].observed if found else failed) == (found or {})


def test_a_text_of_a_sibling_is_found_where_the_exchange_has_texts(
    valid_samples: Build, valid_exchanges: Record
) -> None:
    samples = valid_samples()
    exchanges = valid_exchanges(samples)
    samples[5].text, samples[6].text = samples[6].text, samples[5].text
    failed = account(samples, exchanges)
    assert set(failed) == {"texts_received"}
    found = failed["texts_received"]
    assert (found.where.group_index, found.where.index, found.evidence["failed"]) == (1, 1, 2)
    for body in exchanges[1].response:
        del body["text"]
    findings = check_accounting(Rollout.from_samples(samples), exchanges)
    assert failing(findings) == {}
    assert {f.check: f.evidence["not_compared"] for f in findings}["texts_received"] == 4


def test_siblings_with_the_same_tokens_may_have_either_text(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples(groups=1, arm="per-sample")
    for name in ("output_ids", "logprobs", "finish_reason", "loss_mask", "response_length"):
        setattr(samples[1], name, getattr(samples[0], name))
    samples[0].text, samples[1].text = "a", "b"
    exchanges = valid_exchanges(samples)
    samples[0].text, samples[1].text = "b", "a"
    assert account(samples, exchanges) == {}
    samples[0].text = samples[2].text
    assert set(account(samples, exchanges)) == {"texts_received"}


@pytest.mark.parametrize("arm", ["native", "batched", "per-sample"])
@pytest.mark.parametrize(("name", "value"), [("temperature", 0.7), ("max_new_tokens", 20), ("max_new_tokens", 80)])
def test_a_request_with_other_sampling_parameters_than_its_samples_name_is_found(
    arm: str, name: str, value: float, valid_samples: Build, valid_exchanges: Record
) -> None:
    samples = valid_samples(arm=arm)
    exchanges = valid_exchanges(samples)
    wrong = next(place for place, exchange in enumerate(exchanges) if exchange.group_index == 2)
    params = {**exchanges[wrong].request["sampling_params"], name: value}
    exchanges[wrong] = replace(exchanges[wrong], request={**exchanges[wrong].request, "sampling_params": params})
    failed = account(samples, exchanges)
    if arm == "per-sample" and value == 20:  # a smaller cap continues a response; the other arm's request tells
        assert failed == {}
        return
    assert set(failed) == {"params_sent"}
    assert failed["params_sent"].where.group_index == 2
    assert value in failed["params_sent"].expected


@pytest.mark.parametrize(
    ("mask", "fails"),
    [([0, 1, 1], True), ([1, 1, 0], True), ([1, 1, 1], False), ([0, 0, 0], False), ([2, 1, 0], False)],
)
def test_a_token_of_one_answer_that_is_not_trained_on_is_found(
    mask: list[int], fails: bool, valid_samples: Build, valid_exchanges: Record
) -> None:
    """A mask of zeros and one of other values are breaches of another rule."""
    samples = valid_samples()
    samples[6].output_ids, samples[6].logprobs = [5, 6, 7], [-5.0, -5.0, -5.0]
    exchanges = valid_exchanges(samples)
    samples[6].loss_mask = mask
    failed = account(samples, exchanges)
    assert set(failed) == ({"mask_complete"} if fails else set())
    if fails:
        found = failed["mask_complete"]
        assert (found.where.group_index, found.where.index) == (1, 2)
        assert (found.expected, found.observed) == (3, 2)


def test_a_mask_over_several_turns_may_leave_tokens_out(valid_samples: Build, valid_exchanges: Record) -> None:
    """What a tool said stands between two answers: no answer alone is the sample."""
    samples = valid_samples()
    exchanges = valid_exchanges(samples)
    samples[6].output_ids = [*(samples[6].output_ids or ()), 9, 9, 5]
    samples[6].logprobs = [*(samples[6].logprobs or ()), 0.0, 0.0, -5.0]
    samples[6].loss_mask = [*(samples[6].loss_mask or ()), 0, 0, 1]
    assert set(account(samples, exchanges)) == {"samples_received"}


def test_an_aborted_answer_may_be_left_out_of_training(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples()
    exchanges = valid_exchanges(samples)
    samples[6].status = "aborted"
    samples[6].loss_mask = [0, *(samples[6].loss_mask or ())[1:]]
    assert account(samples, exchanges) == {}


def test_a_stream_of_parts_and_exchanges_gives_what_the_checks_give_one_by_one(
    valid_samples: Build, valid_exchanges: Record
) -> None:
    samples = valid_samples(steps=2, groups=5)
    exchanges = valid_exchanges(samples)
    samples[17].text, samples[3].logprobs, samples[30].temperature = "another", None, 0.5
    exchanges[4].response.pop()
    rules = Rules(group_size=4, temperature=1.0)
    whole = Rollout.from_samples(samples)
    separate = [
        *check_samples(whole, rules),
        *check_exchanges(exchanges, rules),
        *check_accounting(whole, exchanges),
    ]
    for size in (1, 7, 100):
        parts = [Rollout.from_samples(samples[start : start + size]) for start in range(0, len(samples), size)]
        assert check_recording(parts, iter(exchanges), rules) == separate
    assert [f.status for f in check_recording([], [], rules)].count(Status.FAIL) == 0


def test_a_group_asked_for_and_lost_is_found(valid_samples: Build, valid_exchanges: Record) -> None:
    samples = valid_samples()
    lost = account([sample for sample in samples if sample.group_index != 2], valid_exchanges(samples))
    assert lost["groups_answered"].where.group_index == 2
    assert set(lost) == {"groups_answered"}


def test_without_exchanges_requests_are_not_compared(valid_samples: Build) -> None:
    findings = check_accounting(Rollout.from_samples(valid_samples()), [])
    assert {finding.status for finding in findings} == {Status.NOT_COMPARED}


def both(baseline: list[Sample], experiment: list[Sample]) -> dict[str, Finding]:
    return failing(check_arms(Rollout.from_samples(baseline), Rollout.from_samples(experiment)))


@pytest.fixture
def arms(valid_samples: Build) -> tuple[list[Sample], list[Sample]]:
    """Two arms that were asked for the same and sampled differently."""
    baseline, experiment = valid_samples(0, arm="per-sample"), valid_samples(1)
    for ours, theirs in zip(baseline, experiment, strict=True):
        theirs.prompt_ids = ours.prompt_ids
    return baseline, experiment


def test_arms_that_were_asked_for_the_same_pass(arms: tuple[list[Sample], list[Sample]]) -> None:
    assert both(*arms) == {}


def test_what_only_one_arm_was_asked_for_is_found(arms: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = arms
    missing = both(baseline, [sample for sample in experiment if sample.group_index != 3])
    assert missing["arms_same_groups"].where.group_index == 3
    short = both(baseline, experiment[:-1])
    assert (short["arms_output_count"].expected, short["arms_output_count"].observed) == (4, 3)


def test_another_prompt_cap_image_or_temperature_is_found(arms: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = arms
    group = [sample for sample in experiment if sample.group_index == 2]
    for field, value, check in [
        ("prompt_ids", [9, 9], "arms_same_prompts"),
        ("max_new_tokens", 20, "arms_same_params"),
        ("temperature", 0.9, "arms_same_params"),
    ]:
        before = getattr(group[0], field)
        for sample in group:
            setattr(sample, field, value)
        found = both(baseline, experiment)
        assert set(found) == {check}
        assert found[check].where.group_index == 2
        for sample in group:
            setattr(sample, field, before)
    for sample in baseline + experiment:
        sample.media_sha256 = [f"a{sample.group_index}"]
    assert both(baseline, experiment) == {}
    group[0].media_sha256 = ["b"]
    found = both(baseline, experiment)
    assert set(found) == {"arms_same_media"}
    assert (found["arms_same_media"].expected, found["arms_same_media"].observed) == (["a2"], ["b"])
    shorter = [sample for sample in baseline if sample.group_index > 0]
    assert both(shorter, experiment)["arms_same_media"].expected == ["a2"]


def test_a_field_or_an_abort_in_one_arm_alone_is_found(arms: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = arms
    experiment[3].logprobs = None
    assert both(baseline, experiment)["arms_fields_present"].where.field == "logprobs"
    baseline[3].finish_reason, baseline[3].status = "abort", "aborted"
    assert "arms_finish_reasons" in both(baseline, experiment)


def test_each_rule_over_both_arms_counts_its_groups(arms: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = arms
    for sample in experiment:
        if sample.group_index == 2:
            sample.prompt_ids = [9, 9]
    found = both(baseline, experiment)["arms_same_prompts"]
    assert (found.evidence["checked"], found.evidence["failed"], found.evidence["not_compared"]) == (4, 1, 0)


def test_an_arm_without_samples_or_finish_reasons_is_not_compared(arms: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = arms
    for sample in baseline + experiment:
        sample.finish_reason = None
    reasons = {f.check: f for f in check_arms(*map(Rollout.from_samples, arms))}["arms_finish_reasons"]
    assert (reasons.status, reasons.evidence["checked"], reasons.evidence["not_compared"]) == (
        Status.NOT_COMPARED,
        0,
        1,
    )
    nothing = check_arms(Rollout.from_samples(baseline), Rollout.from_samples([]))
    fields = {f.check: f for f in nothing}["arms_fields_present"]
    assert (fields.status, fields.evidence["checked"], fields.evidence["not_compared"]) == (Status.NOT_COMPARED, 0, 1)


def test_finish_reasons_that_one_arm_alone_records_are_compared(arms: tuple[list[Sample], list[Sample]]) -> None:
    baseline, experiment = arms
    for sample in experiment:
        sample.finish_reason = None
    assert "arms_finish_reasons" in both(baseline, experiment)
    assert "arms_finish_reasons" in both(experiment, baseline)


@pytest.mark.parametrize("lacks", ["baseline", "experiment"])
def test_a_lost_group_is_one_of_all_that_either_arm_has(lacks: str, arms: tuple[list[Sample], list[Sample]]) -> None:
    sides = {"baseline": arms[0], "experiment": arms[1]}
    groups = len({sample.group_index for sample in arms[0]})
    sides[lacks] = [sample for sample in sides[lacks] if sample.group_index != 3]
    found = both(sides["baseline"], sides["experiment"])["arms_same_groups"]
    assert (found.evidence["checked"], found.evidence["failed"]) == (groups, 1)
    assert found.where.group_index == 3
    assert found.observed == next(arm for arm in sides if arm != lacks)
