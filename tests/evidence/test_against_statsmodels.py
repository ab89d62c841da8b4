"""Tests that are written out here give the numbers of statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.duration.survfunc import survdiff
from statsmodels.stats.proportion import confint_proportions_2indep

from parity.evidence.training.censoring import COMPLETE, Ending, log_rank
from parity.evidence.training.collapse import newcombe_interval


@pytest.mark.parametrize(
    "counts", [((0, 3), (3, 3)), ((1, 4), (2, 7)), ((5, 5), (0, 9)), ((0, 2), (0, 2)), ((17, 40), (3, 11))]
)
def test_newcombes_interval(counts: tuple[tuple[int, int], tuple[int, int]]) -> None:
    (k1, n1), (k2, n2) = counts
    theirs = confint_proportions_2indep(k1, n1, k2, n2, method="newcomb", compare="diff")
    assert newcombe_interval(*counts) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_log_rank_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arms = [
        [Ending(f"{arm}{k}", "oom" if rng.random() < 0.6 else COMPLETE, int(rng.integers(20, 90))) for k in range(9)]
        for arm in ("b", "e")
    ]
    endings = [*arms[0], *arms[1]]
    events = np.array([ending.censored for ending in endings], dtype=int)
    times = np.array([ending.last_step for ending in endings], dtype=float)
    theirs = float(survdiff(times, events, np.repeat([0, 1], 9))[1])
    assert log_rank(*arms) == pytest.approx(theirs, abs=1e-10)
