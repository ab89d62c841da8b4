"""Every rule over samples: the planted fault is found at its place, and the sound rollout beside it passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.contract_checks import CHECKS, Rules, check_batches, check_samples, summarise
from parity.faults.clean import RULES, clean_prompts, clean_rollout, clean_samples
from parity.findings import Finding, Level, Severity, Status
from parity.records.samples import Rollout, Sample

Build = Callable[..., list[Sample]]


def checked(samples: list[Sample], rules: Rules) -> list[Finding]:
    return check_samples(Rollout.from_samples(samples), rules)


def failing(findings: list[Finding]) -> dict[str, list[Finding]]:
    failed: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.status is Status.FAIL:
            failed.setdefault(finding.check, []).append(finding)
    return failed


def test_a_sound_rollout_passes_every_check(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(steps=2, groups=6)
    for sample in samples:
        sample.media_sha256 = []
    findings = checked(samples, rules)
    not_applicable = {finding.check for finding in findings if finding.status is not Status.PASS}
    assert not_applicable == {"clones_elsewhere", "text_clones", "token_arrays", "trainer_engine_gap"}
    assert {finding.level for finding in findings} == {Level.CONTRACT}
    compared = [finding for finding in findings if finding.check not in not_applicable | {"clone_prefixes"}]
    assert all(finding.evidence["checked"] in (12, 48) for finding in compared)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.sampled_from([1, 5, 40]))
def test_no_sound_rollout_fails(seed: int, steps: int, groups: int, n: int, cap: int) -> None:
    from_fixture = BUILD["samples"]
    samples = from_fixture(seed, steps, groups, n, cap=cap)
    assert failing(checked(samples, replace(BUILD["rules"], group_size=n))) == {}


BUILD: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _builders(valid_samples: Build, rules: Rules) -> None:
    BUILD.update(samples=valid_samples, rules=rules)


def at(samples: list[Sample], group: int, slot: int) -> Sample:
    return next(sample for sample in samples if (sample.group_index, sample.index) == (group, slot))


def set_field(name: str, value: Any) -> Callable[[Sample], None]:
    return lambda sample: setattr(sample, name, value)


def shorten(name: str) -> Callable[[Sample], None]:
    return lambda sample: setattr(sample, name, getattr(sample, name)[:-1])


def entry(name: str, value: Any, place: int = 0) -> Callable[[Sample], None]:
    def plant(sample: Sample) -> None:
        getattr(sample, name)[place] = value

    return plant


def run_past_stop(sample: Sample) -> None:
    assert sample.output_ids
    sample.output_ids[0] = 2


# Beside the table of parity.faults, whose faults tests/faults/test_faults.py holds to their check and place.
PLANTED: list[tuple[str, str, Callable[[Sample], None]]] = [
    ("group_prompt", "another prompt", lambda sample: sample.prompt_ids.reverse()),  # type: ignore[union-attr]
    ("group_media", "another image", set_field("media_sha256", ["b"])),
    ("group_media", "the image dropped", set_field("media_sha256", None)),
    ("group_params", "another top_p", set_field("top_p", 0.9)),
    ("weight_version", "a response across an update", set_field("weight_versions", ["v0", "v1"])),
    ("seed_distinct", "the seed of slot 0", set_field("sampling_seed", 16)),
    ("response_length", "a stale length", set_field("response_length", 3)),
    ("rollout_log_probs_length", "the last log-prob dropped", shorten("logprobs")),
    ("logprob_values", "NaN", entry("logprobs", math.nan)),
    ("logprob_values", "null", entry("logprobs", None)),
    ("logprob_values", "minus infinity", entry("logprobs", -math.inf)),
    ("logprob_values", "positive", entry("logprobs", 0.5)),
    ("logprob_low", "e^-91", entry("logprobs", -91.0)),
    ("token_ids", "a negative id", entry("output_ids", -1)),
    ("token_ids", "no id", entry("output_ids", None)),
    ("media_placeholders", "an image without placeholder", set_field("media_sha256", ["a", "b"])),
    ("finish_reason", "an unknown reason", set_field("finish_reason", "eos")),
    ("finish_stop", "an end token dropped from a stop", entry("output_ids", 7, -1)),
    ("finish_stop", "tokens after a stop token", run_past_stop),
    ("status", "a status that disagrees", set_field("status", "truncated")),
    ("status", "an unknown status", set_field("status", "done")),
    ("reward_missing", "no reward", set_field("reward", None)),
    (
        "reward_recomputed",
        "another answer's reward",
        lambda sample: setattr(sample, "reward", 1 - (sample.reward or 0)),
    ),
    ("advantage_recomputed", "an advantage of another group", set_field("advantage", 0.3)),
    ("advantage_recomputed", "a NaN advantage", set_field("advantage", math.nan)),
    ("advantage_recomputed", "no advantage", set_field("advantage", None)),
]
EFFECTS = {
    "no reward": {"advantage_recomputed"},
    "another answer's reward": {"advantage_recomputed"},
    "the seed of slot 0": {"seed_reuse"},
    "an image without placeholder": {"group_media"},
}
"""What else a fault makes wrong: every other check must stay silent."""


@pytest.mark.parametrize(("check", "fault", "plant"), PLANTED, ids=[f"{name}: {what}" for name, what, _ in PLANTED])
def test_a_planted_fault_is_found_at_its_place(check: str, fault: str, plant: Callable[[Sample], None]) -> None:
    rng = np.random.default_rng(3)
    samples = clean_samples(clean_rollout(rng, clean_prompts(rng, 4, media=True)))
    assert failing(checked(samples, RULES)) == {}
    victim = next(
        s
        for s in samples
        if s.group_index == 2 and s.index > 0 and s.finish_reason == "stop" and len(s.output_ids or ()) > 3
    )
    plant(victim)
    failed = failing(checked(samples, RULES))
    assert check in failed
    assert set(failed) <= {check} | EFFECTS.get(fault, set())
    places = [(f.where.rollout_id, f.where.group_index, f.where.index) for f in failed[check]]
    assert (0, 2, victim.index) in places
    assert all(f.expected != f.observed and f.where.field for f in failed[check])


def test_lost_doubled_and_misnumbered_samples_are_found(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples()
    lost = failing(checked([s for s in samples if (s.group_index, s.index) != (1, 3)], rules))
    assert (lost["output_count"][0].where.group_index, lost["output_count"][0].observed) == (1, 3)
    doubled = failing(checked([*samples, samples[5]], rules))
    assert doubled["output_count"][0].observed == 5
    assert doubled["slot_index"][0].observed == [0, 1, 1, 2, 3]
    at(samples, 3, 2).index = 3
    misnumbered = failing(checked(samples, rules))
    assert misnumbered["slot_index"][0].observed == [0, 1, 3, 3]
    assert "output_count" not in misnumbered


def test_one_group_index_for_the_whole_batch_and_one_for_each_sample_are_found(
    valid_samples: Build, rules: Rules
) -> None:
    samples = valid_samples()
    for number, sample in enumerate(samples):
        sample.group_index, sample.index = 0, number
    assert failing(checked(samples, rules))["output_count"][0].observed == 16
    for number, sample in enumerate(samples):
        sample.group_index, sample.index = number, 0
    assert failing(checked(samples, rules))["output_count"][0].observed == 1


def test_prompts_repeated_blockwise_are_found_and_row_order_warns(valid_samples: Build, rules: Rules) -> None:
    samples = sorted(valid_samples(), key=lambda sample: (sample.index, sample.group_index))
    findings = checked(samples, rules)
    assert {f.severity for f in findings if f.status is Status.FAIL and f.check == "row_order"} == {Severity.WARNING}
    assert set(failing(findings)) == {"row_order"}
    for number, sample in enumerate(samples):
        sample.group_index, sample.index = divmod(number, 4)
    assert "group_prompt" in failing(checked(samples, rules))


def test_groups_of_equal_prompts_stay_two_groups(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples()
    for sample in samples:
        sample.prompt_ids, sample.prompt_tokens, sample.cached_tokens = [5, 6, 7], 3, 0
    assert failing(checked(samples, rules)) == {}


def test_length_must_be_the_cap_and_stop_may_fall_on_it(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(seed=1)
    at_cap = (
        next(sample for sample in samples if sample.response_length == 40)
        if any(sample.response_length == 40 for sample in samples)
        else samples[0]
    )
    for tokens, reason, wrong in [
        (40, "length", False),
        (39, "length", True),
        (41, "length", True),
        (40, "stop", False),
    ]:
        ids = [5] * (tokens - 1) + [2]
        at_cap.output_ids, at_cap.logprobs, at_cap.loss_mask = ids, [-3.0] * tokens, [1] * tokens
        at_cap.response_length, at_cap.finish_reason = tokens, reason
        at_cap.status = {"length": "truncated", "stop": "completed"}[reason]
        failed = failing(checked(samples, replace(rules, reward=None, advantage=None)))
        assert ("finish_length" in failed) is wrong, (tokens, reason)
        assert set(failed) <= {"finish_length"}


def test_a_response_that_the_context_cut_short_is_sound(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(cap=8, groups=1)
    for sample in samples:
        sample.prompt_ids, sample.prompt_tokens, sample.cached_tokens = [5] * 60, 60, 0
        sample.output_ids, sample.logprobs, sample.loss_mask = [7, 8, 9, 10 + sample.index], [-3.0] * 4, [1] * 4
        sample.response_length, sample.finish_reason, sample.status = 4, "length", "truncated"
    rules = replace(rules, reward=None, advantage=None)
    assert failing(checked(samples, rules)) == {}
    assert set(failing(checked(samples, replace(rules, context_length=65)))) == {"finish_length"}
    assert set(failing(checked(samples, replace(rules, context_length=63)))) == {"finish_length", "context"}


def abort(sample: Sample) -> None:
    sample.finish_reason, sample.status, sample.reward, sample.advantage = "abort", "aborted", None, None


def test_an_aborted_sample_stays_out_of_the_mean_and_carries_nothing(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(groups=1, n=4)
    gone = samples[2]
    gone.output_ids, gone.logprobs, gone.loss_mask, gone.response_length, gone.text = [], [], [], 0, ""
    abort(gone)
    others = [sample for sample in samples if sample is not gone]
    for sample, reward, advantage in zip(others, (1.0, 0.0, 0.0), (2 / 3, -1 / 3, -1 / 3), strict=True):
        sample.reward, sample.advantage = reward, advantage / (math.sqrt(1 / 3) + 1e-6)
    rules = replace(rules, reward=None)
    assert failing(checked(samples, rules)) == {}
    gone.reward = 0.0
    assert set(failing(checked(samples, rules))) == {"reward_missing"}
    gone.reward, gone.advantage = None, -0.5
    assert set(failing(checked(samples, rules))) == {"advantage_recomputed"}
    gone.advantage = 0.0
    assert failing(checked(samples, rules)) == {}
    for sample, advantage in zip(others, (1.5, -0.5, -0.5), strict=True):
        sample.advantage = advantage
    assert set(failing(checked(samples, rules))) == {"advantage_recomputed"}


@pytest.mark.parametrize(
    ("formula", "ddof", "high", "low"),
    [
        ("grpo", 1, 1.207612, -0.724567),
        ("grpo", 0, 1.290992, -0.774595),
        ("grpo_no_std", 1, 0.625, -0.375),
        ("rloo", 1, 5 / 7, -3 / 7),
    ],
)
def test_known_advantages_of_a_group(formula: Any, ddof: int, high: float, low: float) -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    samples = [Sample(0, slot, reward=reward, advantage=high if reward else low) for slot, reward in enumerate(rewards)]
    right = Rules(advantage=formula, ddof=ddof)
    assert failing(checked(samples, right)) == {}
    for other in (
        Rules(advantage="rloo"),
        Rules(advantage="grpo"),
        Rules(advantage="grpo", ddof=0),
        Rules(advantage="grpo_no_std"),
    ):
        same = (other.advantage, other.advantage != "grpo" or other.ddof) == (formula, formula != "grpo" or ddof)
        assert ("advantage_recomputed" in failing(checked(samples, other))) is not same


def test_constant_rewards_and_groups_of_one_have_advantage_zero() -> None:
    uneven = [(0, 0), (1, 3), (2, 5)]
    samples = [Sample(g, i, reward=0.1, advantage=0.0) for g, n in uneven for i in range(n or 1)]
    for formula in ("grpo", "grpo_no_std", "rloo"):
        assert failing(checked(samples, Rules(advantage=formula))) == {}  # type: ignore[arg-type]
    # one whole-batch group in place of sizes 4, 3, 4 gave -1.0909 to rewards that are equal inside each
    samples[2].advantage = -1.0909
    assert "advantage_recomputed" in failing(checked(samples, Rules(advantage="grpo")))


@pytest.mark.parametrize("field", ["weight_versions"])
def test_declared_partial_rollouts_may_span_an_update(field: str, valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples()
    samples[1].weight_versions = ["v0", "v1"]
    assert set(failing(checked(samples, rules))) == {"weight_version"}
    assert failing(checked(samples, replace(rules, partial_versions=True))) == {}
    stale = valid_samples(steps=2)
    for sample in stale:
        sample.weight_versions = ["v0"]
    assert len({f.where.rollout_id for f in failing(checked(stale, rules))["weight_version"]} - {1}) == 0


def test_seeds_reused_by_another_group_of_a_rollout_warn(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(steps=2)
    for sample in samples:
        sample.sampling_seed = sample.index
    failed = failing(checked(samples, rules))
    assert set(failed) == {"seed_reuse"}
    assert not any(finding.fails for finding in failed["seed_reuse"])


def test_filled_up_log_probs_warn_and_one_certain_token_does_not(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(seed=5)
    long = next(sample for sample in samples if len(sample.logprobs or ()) > 6)
    assert long.logprobs
    long.logprobs[-1] = 0.0
    assert failing(checked(samples, rules)) == {}
    long.logprobs[-3:] = [0.0, 0.0, 0.0]
    assert set(failing(checked(samples, rules))) == {"logprob_tail"}


@pytest.mark.parametrize(("zeros", "warns"), [(1, False), (2, True), (5, True)])
def test_two_exact_zeros_at_the_end_are_a_tail(zeros: int, warns: bool) -> None:
    sample = Sample(0, 0, output_ids=[5] * 9, logprobs=[-1.0] * (9 - zeros) + [0.0] * zeros, temperature=1.0)
    found = {f.check: f for f in checked([sample], Rules()) if f.status is Status.FAIL}
    assert ("logprob_tail" in found) is warns
    if warns:
        assert (found["logprob_tail"].observed, found["logprob_tail"].severity) == (zeros, Severity.WARNING)


@pytest.mark.parametrize(("bad", "vocab_size"), [(-1, None), (-1, 10), (10, 10), (11, 10)])
def test_ids_that_are_none_are_counted_and_zero_is_one(bad: int, vocab_size: int | None) -> None:
    samples = [Sample(0, 0, output_ids=[0, 9, 3]), Sample(0, 1, output_ids=[bad, 0, bad])]
    (finding,) = (f for f in checked(samples, Rules(vocab_size=vocab_size)) if f.check == "token_ids")
    assert (finding.status, finding.where.index, finding.observed) == (Status.FAIL, 1, 2)
    assert (finding.expected, finding.evidence["failed"]) == ("0 <= id < 10" if vocab_size else "0 <= id", 1)


@pytest.mark.parametrize("field", ["temperature", "max_new_tokens"])
def test_either_parameter_alone_is_held_to_its_group(field: str) -> None:
    samples = [Sample(0, 0, **{field: 1}), Sample(0, 1, **{field: 2})]  # type: ignore[arg-type]
    (finding,) = (f for f in checked(samples, Rules()) if f.check == "group_params" and f.status is Status.FAIL)
    assert (finding.where.index, finding.evidence["checked"]) == (1, 2)
    assert (finding.where.field, finding.expected, finding.observed) == (field, 1, 2)


@pytest.mark.parametrize(
    ("given", "check"), [({"cached_tokens": 3}, "cached_tokens"), ({"output_ids": [5]}, "context")]
)
def test_half_of_what_a_rule_needs_is_not_compared(given: dict[str, Any], check: str) -> None:
    (finding,) = (f for f in checked([Sample(0, 0, **given)], Rules(context_length=9)) if f.check == check)
    assert (finding.status, finding.evidence["not_compared"]) == (Status.NOT_COMPARED, 1)


def test_a_missing_advantage_is_shown_as_none_beside_the_one_that_follows() -> None:
    samples = [Sample(0, 0, reward=1.0, advantage=0.5), Sample(0, 1, reward=0.0)]
    found = failing(checked(samples, Rules(advantage="grpo_no_std")))["advantage_recomputed"]
    assert [(f.where.index, f.expected, f.observed) for f in found] == [(1, -0.5, None)]


@pytest.mark.parametrize("advantage", [1.0, 0.5])
def test_leaving_one_out_of_two_leaves_the_other(advantage: float) -> None:
    samples = [Sample(0, 0, reward=1.0, advantage=advantage), Sample(0, 1, reward=0.0, advantage=-advantage)]
    assert bool(failing(checked(samples, Rules(advantage="rloo")))) is (advantage != 1.0)


def test_a_length_that_one_sample_alone_has_was_dropped_from_the_others() -> None:
    samples = [Sample(0, slot, output_ids=[5, 6]) for slot in range(3)]
    samples[1].logprobs = [-1.0, -1.0]
    found = failing(checked(samples, Rules()))["rollout_log_probs_length"]
    assert [(f.where.index, f.observed) for f in found] == [(0, None), (2, None)]
    other = [replace(sample, rollout_id=1, logprobs=None) for sample in samples]
    assert len(failing(checked([*samples, *other], Rules()))["rollout_log_probs_length"]) == 2


def test_expanded_and_single_placeholders_count_one_medium_a_run(rules: Rules) -> None:
    def findings(prompt: list[int], media: list[str]) -> dict[str, list[Finding]]:
        return failing(checked([Sample(0, 0, prompt_ids=prompt, media_sha256=media)], replace(rules, group_size=1)))

    assert findings([5, 199, 6], ["a"]) == {}
    assert findings([5, 199, 199, 199, 6, 199, 199], ["a", "b"]) == {}
    assert set(findings([5, 199, 6], ["a", "b"])) == {"media_placeholders"}
    assert set(findings([5, 199, 6], [])) == {"media_placeholders"}


NOT_APPLICABLE = {"text_clones", "token_arrays", "generated_placeholders"}
"""Checks about what these samples do not have: texts alone, lists beside the tokens, media."""


def test_what_is_missing_is_said_not_to_be_compared() -> None:
    findings = checked([Sample(0, 0), Sample(0, 1)], Rules())
    assert {f.check for f in findings if f.status is Status.PASS} <= {"slot_index", "row_order", "encoded_media"}
    assert {f.status for f in findings} == {Status.PASS, Status.NOT_COMPARED}
    assert all(
        f.evidence["not_compared"] > 0
        for f in findings
        if f.status is Status.NOT_COMPARED and not f.check.startswith("clone") and f.check not in NOT_APPLICABLE
    )
    nothing = checked([], Rules(group_size=4))
    assert {f.status for f in nothing} == {Status.NOT_COMPARED}


def test_the_first_cases_are_shown_and_all_are_counted(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(groups=20)
    for sample in samples:
        sample.response_length = 0
    findings = failing(checked(samples, rules))["response_length"]
    assert len(findings) == 5
    assert {f.evidence["failed"] for f in findings} == {80}
    assert findings[0].message.count("80") == 2
    assert summarise(findings) == {"response_length": {"checked": 80, "failed": 80, "not_compared": 0}}


def test_parts_of_a_stream_give_the_findings_of_the_whole(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(groups=9)
    samples[17].reward = 0.5
    samples[3].logprobs = None
    whole = checked(samples, rules)
    for size in (1, 3, 7, 100):
        parts = [Rollout.from_samples(samples[start : start + size]) for start in range(0, len(samples), size)]
        assert check_batches(parts, rules) == whole


def test_every_check_has_a_name_of_its_own_and_a_sentence() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(len(check.rule.split()) > 3 for check in CHECKS)


def in_turns(sample: Sample, *turns: list[int], closed: bool = False) -> None:
    """Makes a response of turns, an answer of three masked tokens after each but the last (after it too if closed)."""
    answer = [50, 2, 51]
    ids, mask = list[int](), list[int]()
    for number, turn in enumerate(turns):
        ids, mask = [*ids, *turn], [*mask, *[1] * len(turn)]
        if closed or number + 1 < len(turns):
            ids, mask = [*ids, *answer], [*mask, 0, 0, 0]
    sample.output_ids, sample.loss_mask, sample.response_length = ids, mask, len(ids)
    sample.logprobs = [-2.0 * kept for kept in mask]


TURN = [*range(20, 55), 2]


@pytest.mark.parametrize("closed", [False, True])
def test_turns_end_on_stop_tokens_and_have_a_cap_each(closed: bool, valid_samples: Build, rules: Rules) -> None:
    scored = replace(rules, reward=None)
    for where in range(16):
        samples = valid_samples(seed=3)
        samples[where].finish_reason, samples[where].status = "stop", "completed"
        in_turns(samples[where], TURN, [30, 2], closed=closed)
        assert failing(checked(samples, scored)) == {}
        in_turns(samples[where], [*TURN[:-2], 2, 9], [30, 2], closed=closed)
        assert set(failing(checked(samples, scored))) == {"finish_stop"}
        in_turns(samples[where], TURN, [30, 31], closed=closed)
        assert set(failing(checked(samples, scored))) == {"finish_stop"}
        in_turns(samples[where], [*range(20, 60), 2], [30, 2], closed=closed)
        assert set(failing(checked(samples, scored))) == {"finish_length"}


def test_only_a_turns_own_mask_excuses_what_stands_after_a_stop_token(valid_samples: Build, rules: Rules) -> None:
    """Tokens of earlier weights, masked at the front in partial rollout, are part of the one turn."""
    samples = valid_samples(seed=3)
    victim = next(sample for sample in samples if sample.index and sample.finish_reason == "stop")
    in_turns(victim, [*range(20, 62), 2])
    assert victim.loss_mask
    victim.loss_mask[:10] = [0] * 10
    assert set(failing(checked(samples, replace(rules, reward=None)))) == {"finish_length"}


def test_what_a_host_removes_is_masked_whole(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(seed=3)
    for sample in samples[4:8]:
        sample.loss_mask = [0] * len(sample.output_ids or ())
    assert set(failing(checked(samples, rules))) == {"loss_mask_values"}
    for sample in samples[4:8]:
        sample.extra = {"remove_sample": True}
    assert failing(checked(samples, rules)) == {}
    samples[7].extra = {"remove_sample": False}
    assert set(failing(checked(samples, rules))) == {"loss_mask_values"}


def test_a_rollout_without_statuses_trains_on_something(valid_samples: Build, rules: Rules) -> None:
    samples = valid_samples(seed=3)
    for number, sample in enumerate(samples):
        sample.status = sample.finish_reason = None
        sample.loss_mask = [int(number >= 4)] * len(sample.output_ids or ())
    assert failing(checked(samples, rules)) == {}
    for sample in samples:
        sample.loss_mask = [0] * len(sample.output_ids or ())
    assert set(failing(checked(samples, rules))) == {"loss_mask_values"}


@pytest.mark.parametrize(("reward", "fails"), [(0.0, False), (None, False), (math.nan, True)])
def test_what_failed_needs_no_finish_reason_and_may_be_scored(
    reward: float | None, fails: bool, valid_samples: Build, rules: Rules
) -> None:
    samples = valid_samples(seed=3)
    failed = next(sample for sample in samples if sample.index == 1)
    failed.status, failed.finish_reason, failed.reward, failed.advantage = "failed", None, reward, None
    for sample in samples:
        sample.advantage = None
    found = failing(checked(samples, replace(rules, reward=None)))
    assert set(found) == ({"reward_missing"} if fails else set())
    failed.status, failed.reward = "aborted", 0.0
    assert {"reward_missing", "finish_reason"} <= set(failing(checked(samples, replace(rules, reward=None))))


@pytest.mark.parametrize(
    ("field", "check"),
    [
        ("response_length", "response_length"),
        ("logprobs", "rollout_log_probs_length"),
        ("loss_mask", "loss_mask_length"),
    ],
)
def test_only_a_sample_without_tokens_may_lack_what_its_siblings_have(
    field: str, check: str, valid_samples: Build, rules: Rules
) -> None:
    samples = valid_samples(seed=3)
    restored = samples[5]
    restored.output_ids, restored.status, restored.finish_reason, restored.text = [], "aborted", "abort", ""
    restored.reward = restored.advantage = None
    for sample in samples:
        sample.advantage = None
    for value in (None, 0 if field == "response_length" else []):
        restored.response_length, restored.logprobs, restored.loss_mask = 0, [], []
        setattr(restored, field, value)
        assert failing(checked(samples, rules)) == {}
    setattr(restored, field, 1 if field == "response_length" else [0])
    assert check in failing(checked(samples, rules))
