"""What nobody says is read from the data: rules, the gap of trainer and engine, and numbers that a reader made up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from parity.contract_checks import Rules, check_samples
from parity.findings import Finding, Severity, Status
from parity.records.samples import Rollout, Sample

Build = Callable[..., list[Sample]]
STOP = 2
NOTHING_GIVEN = Rules()


def checked(samples: Sequence[Sample], rules: Rules = NOTHING_GIVEN) -> dict[str, Finding]:
    findings = check_samples(Rollout.from_samples(samples), rules)
    return {f.check: f for f in reversed(findings) if f.status is Status.FAIL and f.severity is Severity.ERROR}


def with_advantages(samples: list[Sample], formula: Callable[[list[float], list[float]], list[float]]) -> list[Sample]:
    """Advantages of a formula of the rewards of a group and of the batch."""
    batch = [sample.reward or 0.0 for sample in samples]
    for start in range(0, len(samples), 4):
        group = samples[start : start + 4]
        for sample, value in zip(group, formula([s.reward or 0.0 for s in group], batch), strict=True):
            sample.advantage = value
    return samples


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def deviation(values: Sequence[float], ddof: int) -> float:
    return (sum((value - mean(values)) ** 2 for value in values) / (len(values) - ddof)) ** 0.5


FORMULAS: dict[str, Callable[[list[float], list[float]], list[float]]] = {
    "mean and deviation": lambda r, batch: [(x - mean(r)) / (deviation(r, 1) + 1e-6) for x in r],
    "deviation with n": lambda r, batch: [(x - mean(r)) / (deviation(r, 0) + 1e-4) for x in r],
    "mean": lambda r, batch: [x - mean(r) for x in r],
    "leave one out": lambda r, batch: [x - (sum(r) - x) / (len(r) - 1) for x in r],
    "deviation of the batch": lambda r, batch: [(x - mean(r)) / (deviation(batch, 1) + 1e-6) for x in r],
    "all of the batch": lambda r, batch: [(x - mean(batch)) / (deviation(batch, 1) + 1e-6) for x in r],
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_advantage_formula_is_read_from_the_groups_that_agree(name: str, valid_samples: Build) -> None:
    samples = with_advantages(valid_samples(seed=2, groups=12), FORMULAS[name])
    findings = check_samples(Rollout.from_samples(samples), NOTHING_GIVEN)
    (found,) = (finding for finding in findings if finding.check == "advantage_recomputed")
    assert (found.status, found.evidence["checked"]) == (Status.PASS, 48)
    assert "inferred" in found.evidence
    mixed = next(s for s in range(0, 48, 4) if len({sample.reward for sample in samples[s : s + 4]}) > 1)
    samples[mixed].advantage, samples[mixed + 4].advantage = 0.123, samples[mixed + 4].advantage
    assert set(checked(samples)) == {"advantage_recomputed"}


def test_rewards_exchanged_in_a_group_are_found_by_the_inferred_formula(valid_samples: Build) -> None:
    samples = valid_samples(groups=24)
    group = next(g for g in range(24) if {s.reward for s in samples[4 * g : 4 * g + 4]} == {0.0, 1.0})
    for sample in samples[4 * group : 4 * group + 4]:
        sample.reward = 1.0 - (sample.reward or 0.0)
    found = checked(samples)
    assert set(found) == {"advantage_recomputed"}
    assert found["advantage_recomputed"].where.group_index == group


def test_a_formula_that_explains_too_few_groups_is_no_guess(valid_samples: Build) -> None:
    rng = random.Random(4)
    samples = with_advantages(valid_samples(groups=12), lambda r, batch: [rng.random() for _ in r])
    (found,) = (
        finding
        for finding in check_samples(Rollout.from_samples(samples), NOTHING_GIVEN)
        if finding.check == "advantage_recomputed"
    )
    assert found.status is Status.NOT_COMPARED
    assert found.evidence["not_compared"] == 48


def test_the_usual_group_size_fails_the_few_that_differ_and_not_many(valid_samples: Build) -> None:
    samples = valid_samples(groups=20)
    found = checked([sample for sample in samples if (sample.group_index, sample.index) != (3, 3)])
    assert (found["output_count"].where.group_index, found["output_count"].expected) == (3, 4)
    uneven = [sample for sample in samples if sample.group_index % 3 or sample.index < 3]
    assert "output_count" not in checked(uneven)


def test_stop_tokens_are_what_ends_responses_and_stands_nowhere_else(valid_samples: Build) -> None:
    samples = valid_samples(groups=12)
    assert checked(samples) == {}
    stopped = [sample for sample in samples if sample.finish_reason == "stop" and len(sample.output_ids or ()) > 4]
    ids = stopped[0].output_ids
    assert ids
    ids[1] = STOP  # and goes on
    assert set(checked(samples)) == {"finish_stop"}
    ids[1] = 5
    ids[-1] = next(iter(stopped[1].output_ids or ()))  # an end that stands amid another response
    assert set(checked(samples)) == {"finish_stop"}
    assert "finish_stop" not in checked(samples, Rules(stop_strings=True))


def test_the_cap_and_the_context_are_where_responses_were_cut(valid_samples: Build) -> None:
    samples = valid_samples(groups=12, cap=8)
    for sample in samples:
        sample.max_new_tokens = None
    assert checked(samples) == {}
    cut = next(sample for sample in samples if sample.finish_reason == "length")
    for name in ("output_ids", "logprobs", "loss_mask"):
        getattr(cut, name).pop()
    cut.response_length = 7
    assert set(checked(samples)) == {"finish_length"}
    of_context = valid_samples(groups=12, cap=40)
    for sample in of_context:
        room = 30 - len(sample.prompt_ids or ())
        if len(sample.output_ids or ()) > room:
            for name in ("output_ids", "logprobs", "loss_mask"):
                setattr(sample, name, getattr(sample, name)[:room])
            sample.response_length, sample.finish_reason, sample.status = room, "length", "truncated"
    assert "finish_length" not in checked(of_context)


# --- trainer and engine, token by token


def with_trainer(samples: list[Sample], gap: Callable[[int], float]) -> list[Sample]:
    """The trainer's log-probs, which differ from the engine's by a function of the token's place."""
    for sample in samples:
        values = sample.logprobs or []
        sample.extra["trainer_logprobs"] = [value + gap(place) for place, value in enumerate(values)]
    return samples


def measured(samples: list[Sample]) -> Finding:
    (found,) = (
        finding
        for finding in check_samples(Rollout.from_samples(samples), NOTHING_GIVEN)
        if finding.check == "trainer_engine_gap"
    )
    return found


def test_the_gap_of_trainer_and_engine_has_its_known_value(valid_samples: Build) -> None:
    found = measured(with_trainer(valid_samples(), lambda place: 0.02 * (-1) ** place))
    assert found.status is Status.PASS
    assert found.evidence["abs"]["mean"] == pytest.approx(0.02)
    k3 = sum(math.exp(d) - 1 - d for d in (0.02, -0.02)) / 2
    assert found.evidence["k3"]["mean"] == pytest.approx(k3, rel=0.05)
    low, high = found.evidence["k1"]["interval"]
    assert low < 0 < high or abs(found.evidence["k1"]["mean"]) < 0.01
    assert found.evidence["beyond_0.1"]["mean"] == 0.0
    assert found.evidence["tokens"] == sum(len(sample.output_ids or ()) for sample in valid_samples())


def test_a_trainer_that_sees_other_log_probs_fails_and_is_told_apart_by_position(valid_samples: Build) -> None:
    found = measured(with_trainer(valid_samples(), lambda place: -2.0 if place >= 32 else 0.0))
    by_position = found.evidence["abs by position"]
    assert (by_position["below 32"]["mean"], by_position["from 32"]["mean"]) == (0.0, 2.0)
    assert found.evidence["beyond_1"]["mean"] == pytest.approx(found.evidence["abs"]["mean"] / 2)
    assert measured(with_trainer(valid_samples(), lambda place: 0.3)).status is Status.FAIL


def test_stale_samples_are_measured_apart_and_masked_tokens_are_not(valid_samples: Build) -> None:
    samples = with_trainer(valid_samples(), lambda place: 0.0)
    for place, sample in enumerate(samples):
        sample.weight_versions = ["v2" if place < 8 else "v10"]
    for sample in samples[:8]:
        sample.extra["trainer_logprobs"] = [value + 0.05 for value in sample.logprobs or []]
    found = measured(samples)
    assert found.evidence["abs of older weights"] == pytest.approx(0.05)
    assert found.evidence["abs of the newest weights"] == pytest.approx(0.0)
    whole = measured(with_trainer(valid_samples(), lambda place: 0.0)).evidence["tokens"]
    masked = with_trainer(valid_samples(), lambda place: 0.0)
    masked[0].loss_mask = [0, *(masked[0].loss_mask or ())[1:]]
    assert measured(masked).evidence["tokens"] == whole - 1


# --- numbers that a reader made up


def test_numbers_that_the_reader_made_up_are_not_compared(valid_samples: Build) -> None:
    rollout = Rollout.from_samples(valid_samples())
    made_up = Rollout(rollout.table.replace_schema_metadata({b"assigned": b"index,order"}))
    for given, status in ((rollout, Status.PASS), (made_up, Status.NOT_COMPARED)):
        found = {finding.check: finding.status for finding in check_samples(given, NOTHING_GIVEN)}
        assert found["slot_index"] is found["row_order"] is status
