"""Two recordings brought together by their prompts, whatever their numbers, and all that is left out is counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from parity.errors import InputError
from parity.evidence.sampling.matched import Matched, match_prompts
from parity.findings import Status
from parity.records.samples import Rollout, Sample

Build = Callable[..., list[Sample]]
ARMS = ("before", "after")


def matched(baseline: list[Sample], experiment: list[Sample]) -> Matched:
    rollouts = Rollout.from_samples(baseline), Rollout.from_samples(experiment)
    return match_prompts(rollouts, ARMS, np.random.default_rng(0))


def statuses(result: Matched) -> dict[str, Status]:
    return {str(finding.where.field): finding.status for finding in result.findings}


def renumbered(samples: list[Sample], seed: int) -> list[Sample]:
    """The same samples as another recording has them: in other order, under other numbers."""
    rng = random.Random(seed)
    names = {name: number for number, name in enumerate(rng.sample(range(1000), 100))}
    groups = {sample.group_index for sample in samples}
    new = dict(zip(sorted(groups), rng.sample(sorted(names), len(groups)), strict=True))
    changed = [replace(one, group_index=new[one.group_index], rollout_id=new[one.group_index] % 3) for one in samples]
    rng.shuffle(changed)
    return changed


def test_groups_meet_by_prompt_whatever_their_numbers_and_order(valid_samples: Build) -> None:
    samples = valid_samples(groups=12)
    result = matched(samples, renumbered(samples, 1))
    first, second = (list(rollout.samples()) for rollout in result.rollouts)
    assert [(one.group_index, one.index) for one in first] == [
        (group, slot) for group in range(12) for slot in range(4)
    ]
    assert [one.output_ids for one in first] == [one.output_ids for one in second]
    assert statuses(result) == {"prompts": Status.PASS, "weights": Status.PASS}


def test_prompts_without_ids_meet_by_their_text(valid_samples: Build) -> None:
    texts = [replace(one, prompt_ids=None) for one in valid_samples(groups=6)]
    result = matched(valid_samples(groups=6), texts)
    assert len(result.rollouts[0]) == len(result.rollouts[1]) == 24
    assert "texts" in result.findings[0].message
    with pytest.raises(InputError, match="after, sample 0: neither prompt_ids"):
        matched(valid_samples(), [replace(one, prompt_ids=None, extra={}) for one in valid_samples()])


def test_what_has_no_partner_is_counted(valid_samples: Build) -> None:
    samples = valid_samples(groups=8)
    cut = [one for one in samples if one.group_index >= 2 and not (one.group_index == 2 and one.index == 0)]
    result = matched(samples, cut)
    assert len(result.rollouts[0]) == 5 * 4
    left = {finding.where.field: finding.evidence for finding in result.findings if "left_out" in finding.evidence}
    assert left["groups of before"]["left_out"] == 3
    assert (left["groups of after"]["left_out"], left["groups of after"]["small"]) == (1, 1)
    assert statuses(result)["groups of after"] is Status.NOT_COMPARED


def test_a_prompt_drawn_twice_is_paired_as_often_as_both_have_it(valid_samples: Build) -> None:
    samples = valid_samples(groups=3)
    twice = samples + [replace(one, group_index=one.group_index + 10) for one in samples[:4]]
    assert len(matched(twice, samples).rollouts[0]) == 12
    assert len(matched(twice, twice).rollouts[0]) == 16


def test_larger_groups_lose_samples_at_random_and_not_the_last(valid_samples: Build) -> None:
    large, small = valid_samples(groups=40, n=8), valid_samples(groups=40, n=8)
    result = matched(large, [one for one in small if one.index < 4])
    assert result.size == 4
    kept = {tuple(one.output_ids or ()) for one in result.rollouts[0].samples()}
    slots = [one.index for one in large if tuple(one.output_ids or ()) in kept]
    assert 2.5 < np.mean(slots) < 4.5  # 3.5 wanted, with a standard error of 0.18


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        (lambda one: ["v0"], Status.PASS),
        (lambda one: ["other"], Status.NOT_COMPARED),
        (lambda one: None, Status.NOT_COMPARED),
        (lambda one: [f"v{one.group_index}"], Status.INCONCLUSIVE),
    ],
    ids=["equal", "other", "unknown", "changing"],
)
def test_equal_weights_are_seen_or_said_not_to_be(
    valid_samples: Build, versions: Callable[[Sample], list[str] | None], status: Status
) -> None:
    after = [replace(one, weight_versions=versions(one)) for one in valid_samples()]
    assert statuses(matched(valid_samples(), after))["weights"] is status


def test_other_images_are_another_prompt(valid_samples: Build) -> None:
    other = [replace(one, media_sha256=["a" * 64]) for one in valid_samples()]
    with pytest.raises(InputError, match="no prompt of before"):
        matched(valid_samples(), other)
