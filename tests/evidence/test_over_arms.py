"""Several arms against one baseline: statements are corrected for their number, and false ones stay rare in all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parity.evidence.over_arms import over_arms
from parity.evidence.sampling.means import Mean, mean_finding
from parity.findings import Finding, Level, Message, Status
from parity.metrics import RunCurves, curves_of_run
from parity.stats import training_findings

EVIDENCE = "trajectory_evidence"


def finding(
    status: Status, check: str = "sampling_marginal", level: Level = Level.SAMPLING, **evidence: Any
) -> Finding:
    return Finding(check, level, status, Message("found"), evidence=evidence)


def statuses(findings: dict[str, list[Finding]]) -> dict[str, list[Status]]:
    return {arm: [one.status for one in over_arms(findings)[arm]] for arm in findings}


def test_one_arm_is_left_as_it_is() -> None:
    found = [finding(Status.FAIL, log_e_corrected=float(np.log(20)))]
    assert over_arms({"a": found}) == {"a": found}
    assert over_arms({}) == {}


@pytest.mark.parametrize(("e_value", "status"), [(59.0, Status.INCONCLUSIVE), (61.0, Status.FAIL)])
def test_a_difference_among_three_arms_takes_an_e_value_of_60(e_value: float, status: Status) -> None:
    passing = [finding(Status.PASS, log_e_corrected=0.0, log_e_parity=9.0)]
    found = {"a": [finding(Status.FAIL, log_e_corrected=float(np.log(e_value)))], "b": passing, "c": passing}
    assert statuses(found) == {"a": [status], "b": [Status.PASS], "c": [Status.PASS]}


@pytest.mark.parametrize(("e_value", "status"), [(39.0, Status.INCONCLUSIVE), (41.0, Status.PASS)])
def test_parity_of_two_arms_takes_an_e_value_of_40(e_value: float, status: Status) -> None:
    one = finding(Status.PASS, log_e_corrected=0.0, log_e_parity=float(np.log(e_value)))
    assert statuses({"a": [one], "b": []})["a"] == [status]


def test_what_is_only_looked_for_and_what_is_exact_stay() -> None:
    looked_for = finding(Status.PASS, "sampling_spread", log_e_corrected=0.0, log_e_parity=0.5)
    exact = finding(Status.FAIL, "output_count", Level.CONTRACT, failed=1)
    assert statuses({"a": [looked_for, exact], "b": []})["a"] == [Status.PASS, Status.FAIL]


def test_the_sum_of_a_mixed_run_follows_its_metrics() -> None:
    open_now = finding(Status.FAIL, "trajectory_difference", log_e_corrected=float(np.log(25)))
    summed = finding(Status.FAIL, EVIDENCE, largest_log_e=float(np.log(25)))
    assert statuses({"a": [open_now, summed], "b": []})["a"] == [Status.INCONCLUSIVE, Status.INCONCLUSIVE]


def test_p_values_of_all_arms_are_corrected_by_holm() -> None:
    def differs(p: float) -> Finding:
        return finding(Status.FAIL, "training_parity", Level.TRAINING, p_difference=p)

    # Holm at 5 %: .012 * 4, then .017 * 3 is above 5 %, and so is all that follows.
    found = {"a": [differs(0.012), differs(0.017)], "b": [differs(0.02), differs(0.03)]}
    assert statuses(found) == {"a": [Status.FAIL, Status.INCONCLUSIVE], "b": [Status.INCONCLUSIVE] * 2}


def test_an_arm_is_alike_only_by_its_largest_p() -> None:
    def alike(p: float) -> Finding:
        return finding(Status.PASS, "training_parity", Level.TRAINING, p_equivalence=p)

    found = {"a": [alike(0.001), alike(0.03)], "b": [alike(0.002), alike(0.01)]}
    assert statuses(found) == {"a": [Status.PASS, Status.PASS], "b": [Status.PASS, Status.PASS]}
    found = {"a": [alike(0.001), alike(0.03)], "b": [alike(0.002), alike(0.04)]}
    assert statuses(found) == {arm: [Status.PASS, Status.INCONCLUSIVE] for arm in "ab"}


ARMS = ("a", "b", "c", "d", "e")


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "wrong"), [(0.0, Status.FAIL), (0.1, Status.PASS)])
def test_watched_arms_rarely_have_a_wrong_statement_among_them(shift: float, wrong: Status) -> None:
    """Equal arms, or all of them exactly at their margin, against one baseline that they share, after every 30 groups.

    In 100 experiments, 12 or more wrong ones have a chance below 1 % where it is 5 % in each.
    """
    rng = np.random.default_rng(20)
    false = 0
    for _ in range(100):
        baseline = rng.binomial(8, 0.4, 300) / 8
        found = {}
        for arm in ARMS:
            mean, largest = Mean(0.1), 0.0
            for block in np.split(np.stack([baseline, rng.binomial(8, 0.4 + shift, 300) / 8], axis=1), 10):
                mean = mean.update(block[:, 0], block[:, 1])
                largest = max(largest, float(mean.difference.log_e))
            found[arm] = [mean_finding("m", "reward", mean, largest, 1)]
        false += any(one.status is wrong for of_arm in over_arms(found).values() for one in of_arm)
    assert false <= 11


@pytest.mark.slow
def test_five_arms_of_runs_that_train_alike_are_rarely_called_different() -> None:
    """Three runs an arm, one baseline shared; a tight margin makes every difference one that matters."""
    rng = np.random.default_rng(21)

    def runs(name: str) -> list[RunCurves]:
        return [
            curves_of_run(f"{name}-{seed}", [{"step": step, "rollout/raw_reward": level} for step in range(30)])
            for seed, level in enumerate(rng.normal(0.5, 0.1, 3))
        ]

    alone = together = 0
    for _ in range(200):
        baseline = runs("base")
        found = {arm: training_findings(baseline, runs(arm), {"rollout/raw_reward": 1e-6}) for arm in ARMS}
        alone += any(one.fails for of_arm in found.values() for one in of_arm)
        together += any(one.fails for of_arm in over_arms(found).values() for one in of_arm)
    assert together <= 17  # 18 or more have a chance below 1 % where it is 5 % in each
    assert alone > together
