"""Log-probs scored again: those of their own tokens pass, shifted or stale ones do not."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import InputError
from parity.evidence.sampling.rescored import Rescored, rescored_findings
from parity.findings import Finding, Status


def scored(noise: float, seed: int = 0, groups: int = 64, shift: float = 0.0, off_by_one: bool = False) -> Rescored:
    """Groups of 200 tokens whose prefill differs by normal noise of that size, in nats."""
    rng = np.random.default_rng(seed)
    prefilled = [-rng.exponential(0.7, 200) for _ in range(groups)]
    recorded = [values + shift + rng.normal(0, noise, 200) for values in prefilled]
    if off_by_one:
        recorded = [np.roll(values, 1) for values in recorded]
    return Rescored(recorded, prefilled, [[50] * 4] * groups)


def statuses(baseline: Rescored, experiment: Rescored) -> list[Status]:
    found: list[Finding] = rescored_findings(baseline, experiment)
    assert [finding.check for finding in found] == ["sampling_logprobs"] * 3
    return [finding.status for finding in found]


def test_equal_noise_passes_and_rounding_has_no_ratio() -> None:
    assert statuses(scored(0.02), scored(0.02, 1)) == [Status.PASS] * 3
    assert statuses(scored(1e-6), scored(1e-4, 1)) == [Status.PASS] * 3


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        (scored(0.02, 1, off_by_one=True), [Status.PASS, Status.FAIL, Status.FAIL]),
        (scored(0.02, 1, shift=0.05), [Status.PASS, Status.FAIL, Status.FAIL]),
        (scored(0.03, 1), [Status.PASS, Status.PASS, Status.FAIL]),
        (scored(0.02, 1, groups=1, off_by_one=True), [Status.PASS, Status.FAIL, Status.NOT_COMPARED]),
    ],
    ids=["off by one", "shifted", "half as much noise again", "off by one in one group"],
)
def test_log_probs_of_other_tokens_or_weights_fail(experiment: Rescored, expected: list[Status]) -> None:
    assert statuses(scored(0.02, groups=len(experiment.recorded)), experiment) == expected


def test_an_exact_arm_beside_one_that_is_not_fails_unless_another_engine_answers() -> None:
    exact, rounded = scored(0.0), scored(0.01, 1)
    assert statuses(exact, rounded) == [Status.PASS, Status.PASS, Status.FAIL]
    assert [one.status for one in rescored_findings(exact, rounded, one_engine=False)] == [Status.PASS] * 2


def test_nan_fails_and_nothing_is_not_compared() -> None:
    broken = scored(0.02)
    broken.recorded[3][5] = np.nan
    assert statuses(scored(0.02), broken)[1] is Status.FAIL
    empty = Rescored([], [], [])
    assert statuses(empty, empty) == [Status.NOT_COMPARED] * 3


def test_constant_log_probs_have_no_correlation_and_pass_if_equal() -> None:
    constant = Rescored([np.full(50, -1.0)] * 4, [np.full(50, -1.0)] * 4, [[50]] * 4)
    assert statuses(constant, constant) == [Status.PASS] * 3


def test_as_many_of_one_as_of_the_other() -> None:
    with pytest.raises(InputError, match="group 0"):
        Rescored([np.zeros(3)], [np.zeros(2)], [[3]])
    with pytest.raises(InputError, match="4 tokens of responses"):
        Rescored([np.zeros(3)], [np.zeros(3)], [[3, 1]])
