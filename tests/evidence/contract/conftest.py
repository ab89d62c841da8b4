from __future__ import annotations

from collections.abc import Callable

import pytest

from parity.contract_checks import Rules
from parity.records.samples import Sample


@pytest.fixture
def rules(parity_reward: Callable[[Sample], float]) -> Rules:
    """All that a rollout of the builder was asked to be."""
    return Rules(
        group_size=4,
        max_new_tokens=40,
        context_length=64,
        vocab_size=200,
        stop_token_ids=frozenset({2}),
        temperature=1.0,
        reward=parity_reward,
        advantage="grpo",
        weight_versions={step: f"v{step}" for step in range(10)},
        media_placeholders=frozenset({199}),
    )
