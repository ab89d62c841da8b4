"""Power by simulation of the code that decides: all metrics together, and the shares that its rows state."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import UsageError
from parity.evidence.sampling.power import Stream, power_row, simulate_groups

RNG = np.random.default_rng
SLACK = 3 * (0.05 * 0.95 / 200) ** 0.5


def test_equal_arms_end_in_parity_and_those_at_the_margin_hardly_ever() -> None:
    equal, half, apart, beyond = (
        simulate_groups([Stream(0.185, 0.03, 1.0, effect)], 2048, RNG(1), 200) for effect in (0.0, 0.015, 0.03, 0.08)
    )
    assert equal.parity.mean() > 0.95 and equal.different.mean() <= 0.05
    assert half.parity.mean() >= 0.8 and half.different.mean() <= 0.05, "the others need more than 2,048 groups"
    assert apart.parity.mean() <= 0.05 + SLACK
    assert beyond.different.mean() == 1.0
    assert equal.needed() == pytest.approx(1.45 * 326, rel=0.1), "a set number of groups takes 326"
    row = power_row(equal, 0.0, True)
    assert (row.groups, row.watched) == (2048, True)
    assert row.parity + row.different + row.inconclusive == pytest.approx(1)


def test_a_set_number_of_groups_is_looked_at_once() -> None:
    early, enough, apart = (
        simulate_groups([Stream(0.185, 0.03, 1.0, effect)], groups, RNG(4), 200, fixed=True)
        for groups, effect in ((128, 0.0), (344, 0.0), (344, 0.03))
    )
    assert early.parity.mean() < 0.1
    assert enough.parity.mean() == pytest.approx(0.8, abs=0.07), "326 groups of a t-test"
    assert apart.parity.mean() <= 0.05 + SLACK
    assert set(enough.groups) == {344}


def test_more_metrics_take_more_groups_and_a_floor_is_kept() -> None:
    stream = Stream(0.185, 0.05, 1.0)
    one, five = (simulate_groups([stream] * count, 2048, RNG(2), 150).needed() for count in (1, 5))
    assert one is not None and five is not None and one < five
    assert simulate_groups([stream], 2048, RNG(2), 20, fewest=256).needed() == 256


def test_what_no_sampling_reaches_is_no_number() -> None:
    assert simulate_groups([Stream(0.5, 0.01, 1.0)], 64, RNG(3), 10).needed() is None
    for wrong in ((0.0, 0.1, 1.0), (0.1, 0.0, 1.0), (0.1, 0.1, 0.0)):
        with pytest.raises(UsageError):
            Stream(*wrong)
