"""A twin in which lists stand in for native: equal bit for bit, named for what it is, and no proof of native."""

from __future__ import annotations

import json
from pathlib import Path

from small_experiment import SMALL, Here, curves

from parity.records.store import run_store

NAMES = ("list-twin-per-sample-seed0", "list-twin-batched-seed0")


def test_lists_stand_in_for_native_and_the_report_says_what_that_leaves_open(
    parity_here: Here, at_engine: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arms = ("--baseline", "--experiment", "native", "--design", "list-twin", "--twin-steps", "2")
    done = parity_here("run", *arms, *SMALL, *at_engine, "--out", out)
    assert done.returncode == 3, done
    stores = [run_store(out, name) for name in NAMES]
    assert curves(stores[0]) == curves(stores[1])
    assert [len(list(store.exchanges(0))) for store in stores] == [16, 4]
    for exchange in stores[1].exchanges(0):
        params = exchange.request["sampling_params"]
        assert len({one["sampling_seed"] for one in params}) == 4, "a seed an item"
    experiment = json.loads((out / "experiment.json").read_bytes())
    assert experiment["designs"] == ["list-twin"]
    assert experiment["engine_determinism"]["seed_per_item"]["holds"] is True
    report = json.loads((out / "report" / "report.json").read_bytes())
    assert report["verdict"] == "INCONCLUSIVE"
    (twin,) = [finding for finding in report["findings"] if finding["check"] == "twin"]
    assert (twin["level"], twin["status"]) == ("replay", "inconclusive"), "what is equal is not native"
    samples = [finding for finding in report["findings"] if finding["check"] == "twin_samples"]
    assert [(one["status"], one["evidence"]["checked"]) for one in samples] == [("pass", 32)]
