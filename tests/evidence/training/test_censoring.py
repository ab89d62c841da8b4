"""Runs cut off: exact answers of other libraries, and a planted imbalance beside the control that passes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from parity.evidence.training.censoring import COMPLETE, Ending, censoring_finding, log_rank, worst_case_finding
from parity.findings import Status
from parity.stats import collapse_rates


def arm(name: str, *kinds: tuple[str, int]) -> list[Ending]:
    return [Ending(f"{name}{k}", kind, step) for k, (kind, step) in enumerate(kinds)]


WHOLE = (COMPLETE, 199)


def test_all_complete_passes() -> None:
    found = censoring_finding(arm("b", WHOLE, WHOLE), arm("e", WHOLE, WHOLE))
    assert found.status is Status.PASS
    assert found.evidence["table"] == {"baseline": {"complete": 2}, "experiment": {"complete": 2}}


def test_three_killed_of_three_against_none_is_open_and_one_is_not_shown() -> None:
    baseline = arm("b", WHOLE, WHOLE, WHOLE)
    lost = censoring_finding(baseline, arm("e", ("oom", 60), ("oom", 80), ("502", 30)))
    assert lost.status is Status.INCONCLUSIVE
    assert lost.evidence["p_rate"] == pytest.approx(1 / 32, abs=1e-6)
    assert lost.evidence["table"]["experiment"] == {"oom": 2, "502": 1}
    one = censoring_finding(baseline, arm("e", ("oom", 60), WHOLE, WHOLE))
    assert one.status is Status.PASS
    assert one.evidence["p_rate"] > 0.05


def test_the_log_rank_p_is_that_of_scipy() -> None:
    baseline = arm("b", ("oom", 50), ("oom", 90), WHOLE, WHOLE)
    experiment = arm("e", ("oom", 10), ("oom", 20), ("oom", 40), WHOLE)
    samples = [
        stats.CensoredData(
            uncensored=[one.last_step for one in endings if one.censored],
            right=[one.last_step for one in endings if not one.censored],
        )
        for endings in (baseline, experiment)
    ]
    expected = stats.logrank(samples[0], samples[1]).pvalue
    assert log_rank(baseline, experiment) == pytest.approx(expected)
    assert log_rank(arm("b", WHOLE), arm("e", WHOLE)) is None


def test_the_worst_case_counts_runs_cut_off_as_collapsed() -> None:
    baseline = arm("b", WHOLE, WHOLE, WHOLE)
    cut = arm("e", ("oom", 60), ("oom", 80), ("killed", 30))
    (open_,) = worst_case_finding(baseline, cut, {})
    assert open_.status is Status.INCONCLUSIVE
    assert open_.evidence["p_harm"] == pytest.approx(collapse_rates((3, 3), (0, 3)).p_harm)
    (survives,) = worst_case_finding(baseline, arm("e", ("oom", 60), WHOLE, WHOLE), {})
    assert survives.status is Status.PASS
    assert worst_case_finding(baseline, arm("e", WHOLE, WHOLE), {}) == []
    assert worst_case_finding(baseline, arm("e", ("oom", 60), WHOLE), {"e0": 40}) == []


@pytest.mark.parametrize(
    ("experiment", "baseline", "chance"),
    [
        ((1, 1), (0, 1), 0.905),
        ((1, 2), (0, 2), 0.861),
        ((1, 3), (0, 3), 0.845),
        ((2, 3), (0, 3), 0.961),
        ((3, 3), (0, 3), 0.996),
        ((5, 10), (0, 10), 0.997),
        ((5, 10), (1, 10), 0.977),
    ],
)
def test_the_posterior_under_jeffreys_prior(
    experiment: tuple[int, int], baseline: tuple[int, int], chance: float
) -> None:
    probability = collapse_rates(experiment, baseline).probability
    assert probability == pytest.approx(chance, abs=1.5e-3)  # published values were drawn at random
    first, second = (stats.beta(k + 0.5, n - k + 0.5) for k, n in (experiment, baseline))
    exact = integrate.quad(lambda angle: second.cdf(np.sin(angle) ** 2) * _density(first, angle), 0, np.pi / 2)[0]
    assert probability == pytest.approx(exact, abs=1e-4)


def _density(law: stats.rv_continuous, angle: float) -> float:
    """The density of asin(sqrt(x)), which has no pole at the ends."""
    return float(law.pdf(np.sin(angle) ** 2) * np.sin(2 * angle)) if 0 < angle < np.pi / 2 else 0.0
