"""Runs of arms that differ in their engine: each is given the weights, told apart in every record, and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_experiment import SMALL, Here

from parity.records.store import RunStore

pytestmark = pytest.mark.slow

CONTROL = """
[arms.stock]

[arms.small-batches]
way = "native"
workers = 2
options = ["--max-running-requests", "3"]

[arms.halves]
way = "native"
chunk = 2
"""
FAULT = """
[arms.stock]

[arms.rounded]
options = ["--fault", "int8-weights"]
"""


def test_three_arms_on_two_engines_are_twins(parity_here: Here, tmp_path: Path) -> None:
    pytest.importorskip("sglang_router", reason="needs the package sglang-router")
    (tmp_path / "arms.toml").write_text(CONTROL)
    out = tmp_path / "out"
    twin = ("--design", "twin", "--twin-steps", 2, *SMALL)
    run = parity_here("run", "--arms", tmp_path / "arms.toml", *twin, "--out", out)
    assert run.returncode == 0, run
    report = json.loads((out / "report" / "report.json").read_text())
    assert [(one["experiment"], one["verdict"]) for one in report["comparisons"]] == [
        ("small-batches", "PARITY"),
        ("halves", "PARITY"),
    ]
    weights = [[one for one in of["findings"] if one["check"] == "weights_equal"] for of in report["comparisons"]]
    assert [[one["status"] for one in found] for found in weights] == [["pass"], []]  # halves shares stock's engine
    served = {}
    for arm, requests in (("stock", 16), ("small-batches", 4), ("halves", 8)):
        store = RunStore(out / "runs" / f"{arm}-seed0")
        assert set(store.rollout(1).strings("arm")) == {arm}
        served[arm] = {exchange.engine_id for exchange in store.exchanges(1)}
        assert len(list(store.exchanges(1))) == requests
    assert served == {
        "stock": {"stock-0"},
        "small-batches": {"small-batches-0", "small-batches-1"},
        "halves": {"stock-0"},
    }
    experiment = json.loads((out / "experiment.json").read_text())
    assert list(experiment["arms"]) == ["stock", "small-batches", "halves"]
    assert experiment["engine_determinism"]["alike"]["holds"] is True


def test_engines_that_part_are_no_twins_and_what_parts_them_is_named(parity_here: Here, tmp_path: Path) -> None:
    (tmp_path / "arms.toml").write_text(FAULT)
    asked = ("run", "--arms", tmp_path / "arms.toml", "--seeds", 1, "--steps", 1, *SMALL)
    refused = parity_here(*asked, "--design", "twin", "--out", tmp_path / "twin")
    assert refused.returncode == 2
    assert "the engines answer a seed differently" in refused.errors
    assert "parts at token" in refused.errors
    out = tmp_path / "out"
    run = parity_here(*asked, "--out", out)
    assert run.returncode == 1, run
    assert json.loads((out / "experiment.json").read_text())["designs"] == ["probe", "paired"]
    findings = json.loads((out / "report" / "report.json").read_text())["findings"]
    failing = [one for one in findings if one["check"] == "weights_equal" and one["status"] == "fail"]
    assert [one["where"].get("rollout_id") for one in failing] == [None, 0]
    store = RunStore(out / "runs" / "probe-seed1")
    for rollout in (store.rollout(0), store.compared.rollout(0)):
        for sample in rollout.samples():
            assert sample.engine_id == f"{sample.arm}-0"
