"""Training in vLLM's dialect, at the embedded engine: equal bit for bit in both arms, and found where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import serve_here
from small_experiment import TWIN, Here, curves, stores


@pytest.fixture(scope="module")
def at_vllm(policy: Path) -> Iterator[tuple[str, ...]]:
    with serve_here(policy, max_running=64, dialect="vllm") as (url, _):
        yield ("--engine", url, "--control")


def test_a_twin_is_equal_bit_for_bit(parity_here: Here, at_vllm: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = parity_here("run", *TWIN, *at_vllm, "--out", out)
    report = json.loads((out / "report" / "report.json").read_bytes())
    assert (ended.returncode, report["verdict"]) == (0, "PARITY"), ended.printed + ended.errors
    first, second = map(curves, stores(out))
    assert first == second
    assert all(0 < row["rollout/raw_reward"] < 1 for row in first)
    paths = {exchange.url for store in stores(out) for exchange in store.exchanges(0)}
    assert paths == {"/inference/v1/generate"}


def test_a_planted_fault_is_found_at_its_step(parity_here: Here, at_vllm: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = parity_here("run", *TWIN, "--plant", "exchanged-outputs@2", *at_vllm, "--out", out)
    report = json.loads((out / "report" / "report.json").read_bytes())
    assert (ended.returncode, report["verdict"]) == (1, "DIFFERENT"), ended.printed + ended.errors
    failing = {finding["check"]: finding["where"] for finding in report["findings"] if finding["status"] == "fail"}
    where = failing["samples_received"]
    assert (where["run"], where["rollout_id"], where["field"]) == ("native-seed0", 2, "output_ids")
