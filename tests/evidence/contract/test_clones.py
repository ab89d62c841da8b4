"""Clones are told from honest repeats by what the log-probs allow, at any entropy and any number of groups."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from parity.contract_checks import Rules, check_samples
from parity.findings import Status
from parity.records.samples import Rollout, Sample

Build = Callable[..., list[Sample]]


def clones(samples: list[Sample], rules: Rules) -> set[str]:
    """Which of the two checks finds clones."""
    findings = check_samples(Rollout.from_samples(samples), rules)
    return {f.check for f in findings if f.status is Status.FAIL and f.check in ("clones", "clone_prefixes")}


def copy_output(source: Sample, target: Sample) -> None:
    for name in ("output_ids", "logprobs", "text", "finish_reason", "status", "loss_mask", "response_length"):
        setattr(target, name, getattr(source, name))


def grouped(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    for key in dict.fromkeys((sample.rollout_id, sample.group_index) for sample in samples):
        yield [sample for sample in samples if (sample.rollout_id, sample.group_index) == key]


def test_eight_copies_are_clones_in_one_group(valid_samples: Build) -> None:
    samples = valid_samples(groups=1, n=8)
    assert clones(samples, Rules()) == set()
    longest = max(samples, key=lambda sample: len(sample.output_ids or ()))
    for sample in samples:
        copy_output(longest, sample)
    assert "clones" in clones(samples, Rules())


def test_one_copied_pair_is_found_in_its_group_though_a_sibling_is_likely_to_be_repeated() -> None:
    """What counts is how likely the sibling that was repeated is, not how likely any is."""

    def group(*outputs: list[int]) -> list[Sample]:
        likely = {(5,): -0.4}
        return [
            Sample(0, slot, output_ids=ids, logprobs=[likely.get(tuple(ids), -4.0)] * len(ids), temperature=1.0)
            for slot, ids in enumerate(outputs)
        ]

    long, other = list(range(3, 23)), list(range(4, 24))
    assert clones(group([5], long, other, long), Rules()) == {"clones"}
    assert clones(group([5], long, other, [5]), Rules()) == set()


def test_the_evidence_of_one_repeat_is_the_likelihood_ratio() -> None:
    """Of two samples, the second copies the first with probability q: the ratio is q / P + 1 - q, averaged over q."""
    samples = [Sample(0, slot, output_ids=[5, 6], logprobs=[-3.0, -4.0], temperature=1.0) for slot in range(2)]
    found = [f for f in check_samples(Rollout.from_samples(samples), Rules()) if f.check == "clones"]
    rates = (0.00001, 0.001, 0.01, 0.1, 0.5, 0.99)
    mean = sum(q * math.exp(7.0) + 1 - q for q in rates) / len(rates)
    assert found[0].evidence["log_evidence"] == pytest.approx(math.log(mean))
    assert found[0].evidence["repeats"] == 1


def test_a_sample_that_repeats_none_of_its_siblings_speaks_against_copying() -> None:
    outputs = [[5, 6], [8, 9], [5, 6]]
    samples = [Sample(0, k, output_ids=ids, logprobs=[-3.0, -4.0], temperature=1.0) for k, ids in enumerate(outputs)]
    found = [f for f in check_samples(Rollout.from_samples(samples), Rules()) if f.check == "clones"]
    rates = (0.00001, 0.001, 0.01, 0.1, 0.5, 0.99)
    mean = sum((1 - q) * (q / 2 * math.exp(7.0) + 1 - q) for q in rates) / len(rates)
    assert found[0].evidence["log_evidence"] == pytest.approx(math.log(mean))


def test_one_copied_pair_in_a_hundred_groups_is_found(valid_samples: Build) -> None:
    samples = valid_samples(groups=100, n=8)
    assert clones(samples, Rules()) == set()
    group = samples[400:408]
    longest = max(group, key=lambda sample: len(sample.output_ids or ()))
    copy_output(longest, next(sample for sample in group if sample is not longest))
    findings = check_samples(Rollout.from_samples(samples), Rules())
    found = [finding for finding in findings if finding.check == "clones" and finding.status is Status.FAIL]
    assert [finding.where.group_index for finding in found] == [50]


def test_a_shared_prefix_is_found_where_the_rest_differs(valid_samples: Build) -> None:
    samples = valid_samples(seed=2, groups=8, n=8)
    first, second = next(
        long[:2] for group in grouped(samples) if len(long := [s for s in group if len(s.output_ids or ()) > 34]) > 1
    )
    assert first.output_ids and second.output_ids and first.logprobs and second.logprobs
    second.output_ids[:32], second.logprobs[:32] = first.output_ids[:32], first.logprobs[:32]
    assert clones(samples, Rules()) == {"clone_prefixes"}


@pytest.mark.parametrize("words", [1, 2, 3])
def test_a_collapsed_policy_repeats_itself_without_clones(words: int, valid_samples: Build) -> None:
    """Few words make hundreds of honest repeats; copying one sample in ten on top is found in these too."""
    samples = valid_samples(groups=60, n=8, cap=6, words=words)
    assert clones(samples, Rules()) == set()
    if words == 1:
        return
    rng = random.Random(0)
    for group in grouped(samples):
        for sample in group[1:]:
            if rng.random() < 0.5:
                copy_output(group[0], sample)
    assert "clones" in clones(samples, Rules())


def test_no_false_alarm_in_many_runs_of_a_policy_with_many_repeats(valid_samples: Build) -> None:
    alarms = [seed for seed in range(40) if clones(valid_samples(seed, groups=8, n=8, cap=4, words=2), Rules())]
    assert alarms == []


def test_greedy_one_token_and_certain_answers_are_no_clones() -> None:
    def group(ids: list[int], logprob: float, temperature: float, top_k: int = -1) -> list[Sample]:
        return [
            Sample(0, slot, output_ids=ids, logprobs=[logprob] * len(ids), temperature=temperature, top_k=top_k)
            for slot in range(8)
        ]

    long = list(range(3, 60))
    assert clones(group(long, -4.0, 1.0), Rules()) == {"clones", "clone_prefixes"}
    assert clones(group(long, -4.0, 0.0), Rules()) == set()
    assert clones(group(long, -4.0, 1.0, top_k=1), Rules()) == set()
    assert clones(group([5], -0.4, 1.0), Rules()) == set()
    assert clones(group(long, 0.0, 1.0), Rules()) == set()


def test_a_truncated_distribution_makes_repeats_likelier(valid_samples: Build) -> None:
    """Top-p renormalises: with 0.5, a token of log-prob log 0.5 may have been certain."""
    samples = [
        Sample(0, slot, output_ids=[5] * 40, logprobs=[-0.69] * 40, temperature=1.0, top_p=0.5) for slot in range(8)
    ]
    assert clones(samples, Rules()) == set()
    for sample in samples:
        sample.top_p = 1.0
    assert "clones" in clones(samples, Rules())


def test_without_log_probs_or_temperature_clones_are_not_compared() -> None:
    samples = [Sample(0, slot, output_ids=[5, 6, 7]) for slot in range(2)]
    findings = [f for f in check_samples(Rollout.from_samples(samples), Rules()) if f.check == "clones"]
    assert [(f.status, f.evidence["not_compared"]) for f in findings] == [(Status.NOT_COMPARED, 2)]


@pytest.mark.parametrize(
    ("top_k", "vocab_size", "compared"),
    [(None, None, True), (-1, None, True), (0, None, True), (50, None, False), (50, 51, False), (50, 50, True)],
)
def test_top_k_sampling_draws_from_probabilities_that_are_not_known(
    top_k: int | None, vocab_size: int | None, compared: bool
) -> None:
    samples = [
        Sample(0, slot, output_ids=[5, 6, 7 + slot], logprobs=[-3.0] * 3, temperature=1.0, top_k=top_k)
        for slot in range(4)
    ]
    found = check_samples(Rollout.from_samples(samples), Rules(vocab_size=vocab_size))
    (status,) = {finding.status for finding in found if finding.check == "clones"}
    assert status is (Status.PASS if compared else Status.NOT_COMPARED)
