"""Findings on sampling: each planted fault is found under its own name, and the control beside it passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from parity.errors import InputError, UsageError
from parity.findings import Finding, Level, Status
from parity.records.margins import SAMPLING
from parity.records.samples import Rollout, Sample
from parity.stats import sampling_findings

GROUPS, SIZE = 256, 8
WIDE = {"reward": 0.1, "response_length": 0.1, "negative_log_likelihood": 0.1, "truncated": 0.1, "constant_reward": 0.2}


def draw_arm(rng: np.random.Generator, groups: int = GROUPS) -> list[Sample]:
    """Samples of prompts whose difficulty and length depend on the prompt alone: both arms draw from one law."""
    prompts = np.random.default_rng(99)
    difficulty, scale = prompts.beta(0.6, 0.6, groups), prompts.lognormal(2.5, 0.5, groups)
    samples = []
    for group in range(groups):
        for index in range(SIZE):
            length = int(np.clip(scale[group] * rng.lognormal(0, 0.35), 1, 40))
            samples.append(
                Sample(
                    group_index=group,
                    index=index,
                    rollout_id=0,
                    output_ids=rng.integers(0, 50, length).tolist(),
                    logprobs=rng.normal(-0.5, 0.1, length).tolist(),
                    finish_reason="length" if length == 40 else "stop",
                    reward=float(rng.random() < difficulty[group]),
                )
            )
    return samples


def compare(
    change: Callable[[list[Sample]], object] = lambda samples: None,
    groups: int = GROUPS,
    margins: Mapping[str, float] = WIDE,
) -> dict[tuple[str, str | None], Finding]:
    rng = np.random.default_rng(11)
    baseline, experiment = draw_arm(rng, groups), draw_arm(rng, groups)
    change(experiment)
    arms = Rollout.from_samples(baseline), Rollout.from_samples(experiment)
    found = sampling_findings(*arms, margins, np.random.default_rng(0), permutations=599)
    assert all(finding.level is Level.SAMPLING for finding in found)
    return {(finding.check, finding.where.field): finding for finding in found}


def failed(found: dict[tuple[str, str | None], Finding]) -> set[tuple[str, str | None]]:
    return {name for name, finding in found.items() if finding.status is Status.FAIL}


def test_two_draws_from_one_law_pass_every_test() -> None:
    found = compare()
    assert {finding.status for finding in found.values()} == {Status.PASS}
    assert {check for check, _ in found} == {
        "sampling_marginal",
        "sampling_shape",
        "sampling_independence",
        "sampling_slot",
        "sampling_spread",
    }
    json.dumps([finding.to_json() for finding in found.values()], allow_nan=False)


def test_clones_are_dependence_and_no_shift() -> None:
    def clone_one_pair_in_eight_groups(samples: list[Sample]) -> None:
        for group in range(0, GROUPS, 8):
            first, second = samples[group * SIZE : group * SIZE + 2]
            second.output_ids, second.logprobs = list(first.output_ids), list(first.logprobs)

    assert failed(compare(clone_one_pair_in_eight_groups)) == {
        ("sampling_independence", "output_ids"),
        ("sampling_independence", "output_ids_prefix"),
    }


def test_a_shared_beginning_is_found_where_whole_responses_differ() -> None:
    def share_the_beginning(samples: list[Sample]) -> None:
        for group in range(0, GROUPS, 4):
            first, second = samples[group * SIZE], samples[group * SIZE + 1]
            first.output_ids, second.output_ids = [1] * 32 + [2], [1] * 32 + [3]
            first.logprobs = second.logprobs = [-0.5] * 33

    found = failed(compare(share_the_beginning))
    assert ("sampling_independence", "output_ids_prefix") in found
    assert ("sampling_independence", "output_ids") not in found


def test_a_temperature_that_was_not_applied_is_a_shift_of_likelihood() -> None:
    def sharpen(samples: list[Sample]) -> None:
        for sample in samples:
            sample.logprobs = [value * 0.8 for value in sample.logprobs]

    found = failed(compare(sharpen))
    assert ("sampling_marginal", "negative_log_likelihood") in found
    assert all(metric == "negative_log_likelihood" for _, metric in found)


def test_a_shifted_reward_is_a_shift_and_no_dependence() -> None:
    def punish(samples: list[Sample]) -> None:
        for sample in samples:
            sample.reward -= 0.2

    found = compare(punish)
    assert ("sampling_marginal", "reward") in failed(found)
    assert found["sampling_independence", "reward"].status is Status.PASS
    assert found["sampling_independence", "output_ids"].status is Status.PASS


def test_a_favoured_slot_is_found_as_such() -> None:
    def favour_the_first_slot(samples: list[Sample]) -> None:
        for sample in samples[::SIZE]:
            sample.reward = 1.0

    assert ("sampling_slot", "reward") in failed(compare(favour_the_first_slot))


def test_few_groups_are_inconclusive_and_say_how_many_it_takes() -> None:
    found = compare(groups=16, margins=SAMPLING)
    independence, marginal = found["sampling_independence", "output_ids"], found["sampling_marginal", "reward"]
    assert (independence.status, marginal.status) == (Status.INCONCLUSIVE,) * 2
    assert "256" in independence.message
    assert marginal.evidence["groups_needed"] > 16
    assert str(marginal.evidence["groups_needed"]) in marginal.message


def test_what_one_sample_lacks_is_not_compared() -> None:
    def lose_a_reward(samples: list[Sample]) -> None:
        samples[5].reward = None

    found = compare(lose_a_reward)
    assert found["sampling_marginal", "reward"].status is Status.NOT_COMPARED
    assert found["sampling_marginal", "response_length"].status is Status.PASS


def test_arms_that_are_not_of_the_same_groups_are_refused() -> None:
    samples = draw_arm(np.random.default_rng(0), 4)
    whole, rng = Rollout.from_samples(samples), np.random.default_rng(0)
    with pytest.raises(InputError, match="7 to 8"):
        sampling_findings(whole, Rollout.from_samples(samples[1:]), SAMPLING, rng)
    with pytest.raises(InputError, match="in one arm only"):
        sampling_findings(whole, Rollout.from_samples(samples[SIZE:]), SAMPLING, rng)
    samples[1].index = 0
    with pytest.raises(InputError, match="more than once"):
        sampling_findings(whole, Rollout.from_samples(samples), SAMPLING, rng)
    with pytest.raises(InputError):
        sampling_findings(Rollout.from_samples([]), whole, SAMPLING, rng)


def test_an_unknown_metric_is_refused() -> None:
    whole = Rollout.from_samples(draw_arm(np.random.default_rng(0), 2))
    with pytest.raises(UsageError, match="beauty"):
        sampling_findings(whole, whole, {"beauty": 1.0}, np.random.default_rng(0))


def test_the_order_of_samples_does_not_matter() -> None:
    def shuffle(samples: list[Sample]) -> None:
        order = np.random.default_rng(1).permutation(len(samples))
        samples[:] = [samples[row] for row in order]

    straight, shuffled = compare(groups=32), compare(shuffle, groups=32)
    assert {name: finding.observed for name, finding in shuffled.items()} == pytest.approx(
        {name: finding.observed for name, finding in straight.items()}
    )
