"""Holds rollouts to the contract: those that a short training run saved, and those made of an engine's answers."""

from __future__ import annotations

import os

import pytest
from my_trainer import roll_out  # YOURS: asks the engine for some groups, and saves the samples as training gets them

pytestmark = pytest.mark.parity(group_size=8, required=["output_count"])
"""What is known of all rollouts below, and what must have been checked: a check without its data does not pass."""


@pytest.mark.skipif("ROLLOUT_DUMPS" not in os.environ, reason="ROLLOUT_DUMPS names no saved rollouts")
def test_saved_rollouts_obey_the_contract(parity_check):
    """Every rule that could be checked holds, and everything could be read."""
    parity_check(os.environ["ROLLOUT_DUMPS"])


def test_rollouts_obey_the_contract_and_are_those_of_the_recording(
    parity_engine, parity_checkpoint, parity_check, parity_baseline, tmp_path
):
    """Each sample is an output that was received; and this revision makes of the recorded answers what main made."""
    roll_out(host=parity_engine.host, port=parity_engine.port, tokenizer=parity_checkpoint, save=tmp_path)
    parity_check(tmp_path)
    parity_baseline(tmp_path)
