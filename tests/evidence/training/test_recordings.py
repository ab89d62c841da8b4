"""What recordings hold besides curves: each oddity planted, and the sound recording beside it passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.evidence.training.recordings import odd_zeros, recording_findings, without_odd_zeros
from parity.findings import Finding, Severity, Status
from parity.metrics import Curve, RunCurves


def run(name: str, seed: int, steps: int = 60, **changed: np.ndarray) -> dict[str, Curve]:
    rng = np.random.default_rng(seed)
    values = {"rollout/raw_reward": np.linspace(0.3, 0.8, steps) + rng.normal(0, 0.02, steps)}
    values["train/grad_norm"] = rng.lognormal(0, 0.3, steps)
    values |= {metric.replace("__", "/"): series for metric, series in changed.items()}
    return {metric: Curve(name, metric, np.arange(len(series)), series) for metric, series in values.items()}


def found(baseline: list[RunCurves], experiment: list[RunCurves]) -> dict[str, Finding]:
    findings = recording_findings(baseline, experiment)
    assert {finding.severity for finding in findings} == {Severity.WARNING}
    return {finding.check: finding for finding in findings}


def test_sound_recordings_pass_in_all() -> None:
    findings = found([run("b0", 0), run("b1", 1)], [run("e0", 2), run("e1", 3)])
    assert {finding.status for finding in findings.values()} == {Status.PASS}
    assert set(findings) == {"steps_rewound", "run_lengths", "metrics_recorded", "runs_distinct", "odd_zeros"}


@pytest.mark.parametrize("first", [20, 0])
def test_a_run_that_went_back_is_named(first: int) -> None:
    odd = run("e0", 2)
    odd["train/grad_norm"] = replace(odd["train/grad_norm"], rewound=tuple(range(first, 30)))
    finding = found([run("b0", 0)], [odd])["steps_rewound"]
    assert finding.status is Status.FAIL
    assert (finding.where.run, finding.where.rollout_id) == ("e0", first)
    assert finding.evidence["steps"] == list(range(first, 30))


def test_unequal_lengths_are_a_table_of_ranges() -> None:
    finding = found([run("b0", 0), run("b1", 1)], [run("e0", 2), run("e1", 3, steps=25)])["run_lengths"]
    assert finding.evidence["ranges"] == {"24": [2, 2], "59": [2, 1]}


def test_a_metric_of_one_arm_is_named_with_its_counts() -> None:
    lone = run("e0", 2, train__kl=np.ones(60))
    finding = found([run("b0", 0)], [lone])["metrics_recorded"]
    assert finding.status is Status.NOT_COMPARED
    assert finding.evidence["recorded"] == {"train/kl": [0, 1]}


def test_a_copy_under_another_name_is_one_run() -> None:
    findings = found([run("b0", 0), run("b1", 1)], [run("e0", 0), run("e1", 3)])
    assert findings["runs_distinct"].status is Status.INCONCLUSIVE
    assert findings["runs_distinct"].evidence["copies"] == [["b0", "e0"]]


def part(curves: dict[str, Curve], name: str, steps: slice, kept: slice = slice(None)) -> dict[str, Curve]:
    return {
        metric: Curve(name, metric, curves[metric].steps[steps], curves[metric].values[steps])
        for metric in list(curves)[kept]
    }


def rounded(curves: dict[str, Curve], name: str) -> dict[str, Curve]:
    """As a tracker of single precision holds it."""
    return {
        metric: replace(one, run=name, values=one.values.astype("f4").astype("f8")) for metric, one in curves.items()
    }


@pytest.mark.parametrize(
    "again",
    [
        part(run("b0", 0), "e0", slice(0, 40)),
        part(run("b0", 0), "e0", slice(20, None, 2)),
        part(run("b0", 0), "e0", slice(None), slice(1)),
        rounded(run("b0", 0), "e0"),
    ],
    ids=["its beginning", "some steps", "one metric", "single precision"],
)
def test_a_part_of_a_run_is_that_run_wherever_it_is_given(again: dict[str, Curve]) -> None:
    others = [run("b1", 1), run("e1", 3)]
    for arms in (
        ([run("b0", 0), again], others, []),
        ([run("b0", 0)], [again], others),
        ([run("b0", 0)], others, [again]),
    ):
        copies = next(one for one in recording_findings(*arms) if one.check == "runs_distinct")
        assert copies.status is Status.INCONCLUSIVE
        assert copies.evidence["copies"] == [["b0", "e0"]]


def test_runs_that_share_a_schedule_or_their_beginning_are_several() -> None:
    schedule = np.linspace(1e-6, 0, 60)
    first, second = (run(name, seed, train__lr=schedule) for name, seed in (("b0", 0), ("e0", 2)))
    for metric, curve in second.items():
        curve.values[:20] = first[metric].values[:20]
    assert found([first], [second])["runs_distinct"].status is Status.PASS


def test_a_zero_that_was_nan_is_found_and_read_as_nan() -> None:
    curves = run("e0", 2)
    curves["rollout/raw_reward"].values[17] = 0.0
    finding = found([run("b0", 0)], [curves])["odd_zeros"]
    assert finding.status is Status.FAIL
    assert (finding.where.run, finding.where.rollout_id, finding.where.field) == ("e0", 17, "rollout/raw_reward")
    read = without_odd_zeros(curves)["rollout/raw_reward"].values
    assert np.flatnonzero(np.isnan(read)).tolist() == [17]


def test_zeros_that_belong_to_a_metric_stay() -> None:
    rng = np.random.default_rng(0)
    shares = rng.binomial(64, 0.02, 200) / 64
    rewards = np.clip(rng.normal(0.02, 0.03, 200), 0, None)
    assert (shares == 0).any() and (rewards == 0).any()
    for values in (shares, rewards, np.zeros(50), np.where(np.arange(50) < 25, 0.0, 1.0)):
        assert not odd_zeros(Curve("r", "m", np.arange(len(values)), values)).any()


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=60))
def test_only_exact_zeros_are_ever_odd(values: list[float]) -> None:
    series = np.array(values)
    odd = odd_zeros(Curve("r", "m", np.arange(len(series)), series))
    assert odd.shape == series.shape
    assert (series[odd] == 0).all()
