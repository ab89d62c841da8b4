"""Two engines scored by each other: KL and total variation have their known values, and the bound on rewards holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parity.evidence.sampling.crossed import crossed_findings
from parity.evidence.sampling.rescored import Rescored
from parity.findings import Finding, Status

TOKENS = 6


def laws(tilt: float, seed: int = 0) -> tuple[Any, Any]:
    """Log-probs of two laws over a few tokens: one as drawn, the other with its logits tilted by so much noise."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, TOKENS)
    both = [logits, logits + tilt * rng.normal(0, 1, TOKENS)]
    first, second = (values - np.log(np.exp(values).sum()) for values in both)
    return first, second


def drawn(own: Any, other: Any, seed: int, groups: int, size: int = 8, length: int = 5) -> Rescored:
    """Responses of independent tokens by one law, with the log-probs of both."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice(TOKENS, p=np.exp(own), size=(groups, size * length))
    return Rescored(list(own[tokens]), list(other[tokens]), [[length] * size] * groups)


def both(tilt: float, groups: int = 64, seed: int = 0, **options: Any) -> list[Finding]:
    p, q = laws(tilt)
    arms = drawn(p, q, 2 * seed, groups), drawn(q, p, 2 * seed + 1, groups)
    return crossed_findings(exact(*arms), arms, **{"reward_margin": 0.03, "largest_kl": 0.01, **options})


def exact(*arms: Rescored) -> tuple[Rescored, Rescored]:
    """The same responses, whose engines' own prefill says what they were drawn with."""
    first, second = (Rescored(arm.recorded, arm.recorded, arm.lengths) for arm in arms)
    return first, second


def total_variation(p: Any, q: Any, length: int) -> float:
    """Of responses of independent tokens, by adding up over all of them."""
    first, second = p, q
    for _ in range(length - 1):
        first, second = np.add.outer(first, p), np.add.outer(second, q)
    return float(np.abs(np.exp(first) - np.exp(second)).sum() / 2)


def test_each_direction_has_its_own_kl_and_the_interval_holds_it() -> None:
    p, q = laws(1.0)
    forward, backward = float((np.exp(p) * (p - q)).sum()), float((np.exp(q) * (q - p)).sum())
    assert forward != pytest.approx(backward, rel=0.05)
    covered = np.zeros(2)
    for seed in range(20):
        found = both(1.0, seed=seed)
        for place, wanted in enumerate((forward, backward)):
            low, high = found[place].evidence["k3"]["interval"]
            covered[place] += low <= wanted <= high
    assert (covered >= 17).all()  # 19 of 20 wanted; 16 or fewer have a chance of 0.3 %


def test_the_bound_on_rewards_holds_and_is_near() -> None:
    p, q = laws(0.1)
    wanted = total_variation(p, q, 5)
    bounds = [both(0.1, seed=seed)[2].evidence for seed in range(20)]
    assert np.mean([one["estimate"] for one in bounds]) == pytest.approx(wanted, rel=0.03)
    assert sum(one["largest"] >= wanted for one in bounds) >= 19
    assert np.median([one["largest"] for one in bounds]) < 1.5 * wanted
    wide = both(0.1, reward_range=(-1.0, 3.0))[2].evidence
    assert wide["largest"] == pytest.approx(4 * both(0.1)[2].evidence["largest"])


@pytest.mark.parametrize(
    ("tilt", "expected"),
    [
        (0.0, [Status.PASS, Status.PASS, Status.PASS]),
        (0.02, [Status.PASS, Status.PASS, Status.PASS]),
        (0.1, [Status.PASS, Status.PASS, Status.NOT_COMPARED]),
        (1.0, [Status.FAIL, Status.FAIL, Status.NOT_COMPARED]),
    ],
)
def test_engines_near_each_other_pass_and_far_ones_fail(tilt: float, expected: list[Status]) -> None:
    found = both(tilt)
    assert [finding.status for finding in found] == expected
    assert {finding.check for finding in found} == {"sampling_mismatch"}


def test_equal_engines_let_no_reward_differ() -> None:
    found = both(0.0)[2]
    assert (found.evidence["largest"], found.evidence["total_variation"]) == (0.0, 0.0)


def test_the_smallest_difference_has_a_bound_above_it() -> None:
    found = both(1e-6)[2].evidence
    assert 0 < found["total_variation"] < found["largest"] < 1e-5


def test_a_gap_from_a_place_on_is_told_apart_by_position_and_a_rare_token_by_probability() -> None:
    rng = np.random.default_rng(1)
    own = [np.where(rng.random(80) < 0.5, -0.05, -3.0) for _ in range(16)]
    late = [values - 0.4 * (np.arange(80) % 40 >= 32) for values in own]
    rare = [values - 0.4 * (values < -2) for values in own]
    lengths = [[40, 40]] * 16

    def by_experiment(other: list[Any]) -> Finding:
        arms = Rescored(own, other, lengths), Rescored(own, own, lengths)
        return crossed_findings(exact(*arms), arms, reward_margin=0.03)[0]

    by_place = by_experiment(late)
    places = by_place.evidence["abs by position"]
    assert places["below 32"]["mean"] == 0
    assert places["from 32"]["mean"] == pytest.approx(0.4)
    classes = by_experiment(rare).evidence["abs by probability"]
    assert (classes["from 0.01"]["mean"], classes["from 0.9"]["mean"]) == pytest.approx((0.4, 0.0))


def test_a_token_that_the_other_engine_never_draws_fails() -> None:
    p, q = laws(0.0)
    arms = drawn(p, q, 0, 8), drawn(q, p, 1, 8)
    arms[0].prefilled[3][2] = -np.inf
    found = crossed_findings(exact(*arms), arms, reward_margin=0.03)
    assert [finding.status for finding in found] == [Status.FAIL, Status.PASS, Status.NOT_COMPARED]


def test_nothing_scored_is_not_compared() -> None:
    empty = Rescored([], [], [])
    assert [one.status for one in crossed_findings((empty, empty), (empty, empty), reward_margin=0.03)] == [
        Status.NOT_COMPARED
    ] * 3


def test_an_engine_that_draws_otherwise_than_its_prefill_says_is_not_bound_by_it() -> None:
    p, q = laws(0.1)
    # The experiment draws by q, but its prefill says p, as does the baseline's: only its own draws tell.
    baseline, experiment = drawn(p, p, 0, 64), drawn(q, p, 1, 64)
    found = crossed_findings((baseline, experiment), (baseline, experiment), reward_margin=0.03)
    assert found[0].evidence["abs"]["mean"] == 0
    assert found[2].evidence["largest"] >= total_variation(p, q, 5)
