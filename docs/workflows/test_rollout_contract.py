"""Holds the rollouts that a short training run saved to the contract."""

from __future__ import annotations

import os

import pytest

from parity.checking import CheckVerdict, check_sources

GROUP_SIZE = 8
"""Samples of each group, as the run was started."""


@pytest.mark.skipif("ROLLOUT_DUMPS" not in os.environ, reason="ROLLOUT_DUMPS names no saved rollouts")
def test_saved_rollouts_obey_the_contract() -> None:
    """Every rule that could be checked holds, and everything could be read."""
    result = check_sources([os.environ["ROLLOUT_DUMPS"]], group_size=GROUP_SIZE)
    broken = [f"{finding.check}: {finding.message}" for finding in result.findings if finding.fails]
    unread = [f"{one.path}: {one.reason}" for one in result.omissions if one.damaged]
    assert result.verdict is CheckVerdict.PASS, "\n".join(broken + unread) or "nothing could be compared"
