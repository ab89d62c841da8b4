"""Each finding points to files and rows that an experiment has."""

from __future__ import annotations

import pytest

from parity.findings import Finding, Level, Status, Where
from parity.report.sources import source


@pytest.mark.parametrize(
    ("check", "where", "rows"),
    [
        (
            "reward_recomputed",
            Where("native-seed1", 7, 3, 2, "reward"),
            "runs/native-seed1/rollouts/step-000007.parquet, group 3, slot 2",
        ),
        (
            "exchange_output_count",
            Where("native-seed1", 0, 3),
            "runs/native-seed1/exchanges/step-000000.exchanges.jsonl, group 3",
        ),
        ("twin_train/loss", Where("native-seed0", 3, field="train/loss"), "runs/native-seed0/metrics.jsonl, line 4"),
        ("training_parity", Where(field="rollout/raw_reward"), "runs/*/metrics.jsonl"),
        ("output_count", Where(), "runs/*/rollouts/*"),
        ("output_count", Where("probe-seed1/compared", 2), "runs/probe-seed1/compared/rollouts/step-000002.parquet"),
    ],
)
def test_rows_on_disk(check: str, where: Where, rows: str) -> None:
    assert source(Finding(check, Level.CONTRACT, Status.FAIL, "said", where)) == rows
