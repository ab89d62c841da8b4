"""Logs and events that the hosts' own code writes, read back to the metrics of the samples it was given."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.sources.curves.recorded_runs import RecordedRun
from parity.sources.registry import read_runs

pytestmark = pytest.mark.hosts
SCRIPT = Path(__file__).parents[2] / "support" / "host_log.py"


def log_of(host: str, directory: Path) -> RecordedRun:
    checkout = os.environ.get(f"{host.upper()}_CHECKOUT")
    if not checkout:
        pytest.skip(f"{host.upper()}_CHECKOUT names no checkout of {host}")
    command = [sys.executable, str(SCRIPT), host, checkout, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    (directory / "run.log").write_text(f"{done.stdout}\n{done.stderr}")
    return read_runs(str(directory / "run.log"))[0]


@pytest.mark.parametrize("host", ["slime", "miles"])
def test_the_log_of_a_host(host: str, tmp_path: Path) -> None:
    run = log_of(host, tmp_path)
    # Four samples of 2, 3, 4 and 5 tokens at step 0, one token more each at step 1, the first one truncated.
    assert run.curves["rollout/response_len/mean"].values.tolist() == [3.5, 4.5]
    assert run.curves["rollout/truncated_ratio"].values.tolist() == [0.25, 0.25]
    assert run.curves["perf/rollout_time"].values.tolist() == [4.0, 4.0]
    assert all(math.isnan(value) for value in run.curves["rollout/odd"].values)
    assert not run.skipped
    if host == "miles":
        (events,) = read_runs(str(tmp_path / "main.jsonl"))
        shared = events.curves.keys() & run.curves.keys()
        assert len(shared) > 10
        for metric in shared - {"rollout/odd"}:
            assert events.curves[metric].values == pytest.approx(run.curves[metric].values)
