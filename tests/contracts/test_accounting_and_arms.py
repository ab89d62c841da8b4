"""Requests account for samples, and both arms for each other; every planted loss, copy and change is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from parity.contract_checks import check_accounting, check_arms
from parity.exchanges import Exchange
from parity.findings import Finding, Status
from parity.samples import Rollout, Sample

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
    assert {finding.evidence["checked"] for finding in findings} == {8}


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


@pytest.mark.parametrize(("arm", "found"), [("native", {"slots": [1, 2], "unused": 0}), ("per-sample", None)])
def test_exchanged_outputs_are_found_where_one_request_fixes_their_order(
    arm: str, found: dict[str, object] | None, valid_samples: Build, valid_exchanges: Record
) -> None:
    samples = valid_samples(arm=arm)
    exchanges = valid_exchanges(samples)
    samples[5].index, samples[6].index = 2, 1
    failed = account(samples, exchanges)
    assert (failed["samples_received"].observed if found else failed) == (found or {})


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
