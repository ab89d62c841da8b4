"""A twin in which lists stand in for native: equal bit for bit, named for what it is, and no proof of native."""

from __future__ import annotations

import json
from pathlib import Path

from small_experiment import SMALL, Parity, curves

from parity.records.store import run_store

NAMES = ("list-twin-per-sample-seed0", "list-twin-batched-seed0")


def test_lists_stand_in_for_native_and_the_report_says_what_that_leaves_open(parity: Parity, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arms = ("--baseline", "--experiment", "native", "--design", "list-twin", "--twin-steps", "2")
    process = parity("run", *arms, *SMALL, "--out", out)
    printed, errors = process.communicate(timeout=500)
    assert process.returncode == 3, printed + errors
    stores = [run_store(out, name) for name in NAMES]
    assert curves(stores[0]) == curves(stores[1])
    assert [len(list(store.exchanges(0))) for store in stores] == [16, 4]
    for exchange in stores[1].exchanges(0):
        params = exchange.request["sampling_params"]
        assert len({one["sampling_seed"] for one in params}) == 4, "a seed an item"
    experiment = json.loads((out / "experiment.json").read_bytes())
    assert experiment["designs"] == ["list-twin"]
    assert experiment["engine_determinism"]["seed_per_item"]["holds"] is True
    assert "lists take a seed per item" in errors
    report = (out / "report" / "report.md").read_text()
    assert "native was not asked for once" in report
    assert "Not shown by the list-twin: native's own sampling." in report
    assert "lists take a seed per item" in report
    assert "1 per-sample" in report and "1 batched" in report
