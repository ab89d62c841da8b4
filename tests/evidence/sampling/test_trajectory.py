"""Evidence from inside runs: error rates whatever order a host records groups in, and what a known prompt saves."""

from __future__ import annotations

import numpy as np
import pytest

from parity.evidence.sampling.trajectory import DrawnGroup, Trajectory
from parity.findings import Verdict

ARMS = ("per-sample", "native")
REWARD, LENGTH = "rollout/raw_reward", "rollout/response_len/mean"
PROMPTS, SIZE = 256, 8


def switchback(
    rng: np.random.Generator,
    steps: int,
    groups: int,
    shift: float = 0.0,
    speed: float = 1.0,
    margins: dict[str, float] | None = None,
    known: bool = True,
) -> Trajectory:
    """A switchback whose groups are recorded as they finish; longer responses, which earn less, take longer."""
    chances = rng.beta(0.4, 0.4, PROMPTS)
    trajectory = Trajectory("switchback", ARMS, margins or {REWARD: 0.05, LENGTH: 0.05})
    for step in range(steps):
        prompts = rng.permutation(PROMPTS)[:groups]
        native = rng.random(groups) < 0.5
        rewards = rng.binomial(SIZE, np.clip(chances[prompts] + shift * native, 0, 1)) / SIZE
        lengths = np.clip(0.5 - 0.3 * rewards + rng.normal(0, 0.05, groups), 0, 1)
        seconds = lengths * np.where(native, speed, 1.0)
        trajectory = trajectory.update(
            DrawnGroup(
                step,
                int(index),
                "switchback",
                ARMS[int(native[index])],
                {REWARD: float(rewards[index]), LENGTH: float(lengths[index])},
                {REWARD: 1.0, LENGTH: 1024.0},
                prompts[index].tobytes() if known else None,
            )
            for index in np.argsort(seconds)
        )
    return trajectory


@pytest.mark.parametrize("speed", [1.0, 0.6])
def test_arms_of_unequal_speed_that_sample_alike_are_not_called_different(speed: float) -> None:
    rng = np.random.default_rng(1)
    verdicts = [switchback(rng, 6, 64, speed=speed).verdict for _ in range(25)]
    assert verdicts.count(Verdict.DIFFERENT) <= 2


def test_the_order_of_groups_inside_a_step_does_not_matter() -> None:
    faster, slower = (switchback(np.random.default_rng(2), 5, 64, speed=speed) for speed in (0.5, 2.0))
    assert faster.largest == slower.largest
    for name in (REWARD, LENGTH):
        assert faster.means[name].inside.log_e == pytest.approx(slower.means[name].inside.log_e)


def test_a_difference_beyond_the_margin_is_found_in_a_switchback() -> None:
    found = switchback(np.random.default_rng(3), 20, 64, shift=-0.15)
    assert found.verdicts[REWARD] is Verdict.DIFFERENT
    assert found.means[REWARD].estimate == pytest.approx(-0.1, abs=0.06), "what is left of it at the ends of the range"


def test_what_a_prompt_gave_in_earlier_epochs_saves_groups_and_moves_no_verdict() -> None:
    rng = np.random.default_rng(4)
    known, unknown = (
        [switchback(rng, 16, 64, known=known).means[REWARD].deviation for _ in range(2)] for known in (True, False)
    )
    assert max(known) < 0.75 * min(unknown)


@pytest.mark.parametrize("shift", [0.0, 0.06])
def test_a_switchback_keeps_its_error_rates_at_the_margin(shift: float) -> None:
    rng = np.random.default_rng(5)
    verdicts = []
    for _ in range(20):
        margins = {REWARD: 0.05 if shift else 0.1}
        verdicts.append(switchback(rng, 14, 64, shift=shift, margins=margins).verdicts[REWARD])
    if shift:
        # The shift is cut at rewards of 1, to about the margin.
        assert verdicts.count(Verdict.PARITY) <= 3
    else:
        assert verdicts.count(Verdict.DIFFERENT) <= 3
        assert verdicts.count(Verdict.PARITY) >= 16


def test_relative_margins_of_lengths_can_be_shown() -> None:
    trajectory = switchback(np.random.default_rng(6), 10, 64, margins={LENGTH: 0.1})
    length = trajectory.means[LENGTH]
    assert length.allowed == pytest.approx(0.1 * length.baseline_mean)
    assert trajectory.verdicts[LENGTH] is Verdict.PARITY
