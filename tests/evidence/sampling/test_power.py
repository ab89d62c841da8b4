"""Power by simulation of the code that decides: all metrics together, and the shares that its rows state."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import UsageError
from parity.evidence.sampling.power import Stream, power_rows, simulate_groups

RNG = np.random.default_rng


def test_equal_arms_end_in_parity_and_those_at_the_margin_hardly_ever() -> None:
    equal, apart, beyond = (
        simulate_groups([Stream(0.185, 0.03, 1.0, effect)], 2048, RNG(1), 150) for effect in (0.0, 0.03, 0.08)
    )
    assert equal.parity.mean() > 0.95 and equal.different.mean() <= 0.05
    assert apart.parity.mean() <= 0.05
    assert beyond.different.mean() == 1.0
    assert equal.needed() == pytest.approx(420, rel=0.25), "1.2 times what a set number of groups takes, 326"
    assert equal.parity_by(64) == 0.0
    rows = power_rows(equal, 0.0, (256, 1024))
    assert [row.groups for row in rows] == [256, 1024, 2048]
    assert [row.watched for row in rows] == [False, False, True]
    assert all(row.parity + row.different + row.inconclusive == pytest.approx(1) for row in rows)


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
