"""ClearML's own SDK, offline and against a stand-in of its server: what goes in comes out, whatever the server does."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clearml_server import clearml_server

from parity.metrics import Curve
from parity.report.document import Report
from parity.report.trackers import clearml
from parity.sources.registry import read_runs

pytest.importorskip("clearml")

RUN, OTHER, COMPARISON = "mine: per-sample-seed0", "mine: native-seed0", "mine: native against per-sample"


def refused(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def opened(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """A session's task, events and file names; NaN in the events is an error, as for a server."""
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("metrics.jsonl").splitlines()
        events = [event for line in lines for event in json.loads(line, parse_constant=refused)]
        return json.loads(archive.read("task.json")), events, archive.namelist()


def same_curves(report: Report, run: str, source: Path) -> None:
    """A source holds every value of a run at its step."""
    (read,) = read_runs(str(source))
    expected = report.curves[run]
    assert set(read.curves) == set(expected)
    assert (read.zero_may_be_nan, read.skipped) == (False, ())
    for metric, curve in expected.items():
        assert read.curves[metric].steps.tolist() == curve.steps.tolist()
        np.testing.assert_array_equal(read.curves[metric].values, curve.values, err_msg=metric)


def finite(curve: Curve) -> dict[int, float]:
    values = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
    return {step: value for step, value in values if math.isfinite(value)}


def test_why_a_report_stays_offline(tmp_path: Path) -> None:
    configuration = tmp_path / "clearml.conf"
    said = clearml.offline_reason({"CLEARML_CONFIG_FILE": str(configuration)})
    assert str(configuration) in said
    configuration.write_text("api {}")
    assert clearml.offline_reason({"CLEARML_CONFIG_FILE": str(configuration)}) == ""
    assert clearml.offline_reason({"CLEARML_API_ACCESS_KEY": "key"}) == ""
    assert "CLEARML_OFFLINE_MODE" in clearml.offline_reason(
        {"CLEARML_API_ACCESS_KEY": "key", "CLEARML_OFFLINE_MODE": "1"}
    )


@pytest.mark.slow
async def test_without_a_configuration_every_run_is_a_zip_that_reads_back_and_can_be_imported(
    odd_report: Report, files: Path, tmp_path: Path
) -> None:
    lines = list(clearml.publish(odd_report, files))
    assert "not uploaded, because there is no" in lines[0]
    zips = sorted((files / "clearml").glob("*.zip"))
    assert all(any(str(path) in line for line in lines) for path in zips)
    first, second, comparison = zips
    same_curves(odd_report, "per-sample-seed0", first)
    same_curves(odd_report, "native-seed0", second)

    task, events, _ = opened(first)
    assert (task["name"], task["project_name"]) == (RUN, "parity")
    assert {"per-sample", "twin", "completed"} <= set(task["tags"])
    assert not (task.get("script") or {}).get("diff", "").strip()  # no source
    assert {event["metric"] for event in events} >= {"rollout", "train", "perf"}  # titles end at the first slash

    task, events, names = opened(comparison)
    assert "PARITY" in task["tags"]
    assert task["comment"].startswith("PARITY: native equals per-sample")
    assert {"report.html", "report.md", "report.json", "junit.xml", "curves-twin.png"} <= {
        Path(name).name for name in names
    }
    plots = {(event["metric"], event["variant"]): event["plot_str"] for event in events if event["type"] == "plot"}
    assert {("tables", name) for name in ("eight metrics", "ladder", "cost", "findings")} <= plots.keys()
    gradient = json.loads(plots["curves, twin", "train/grad_norm"], parse_constant=refused)
    assert [trace["name"] for trace in gradient["data"]] == ["per-sample-seed0", "native-seed0"]
    assert gradient["data"][0]["y"][9:11] == [None, None]

    assert lines[-1] == "ClearML: upload each with: clearml-task --import-offline-session ZIP"
    async with clearml_server() as server:
        configuration = tmp_path / "clearml.conf"
        configuration.write_text(server.configuration())
        environment = {**os.environ, "CLEARML_CONFIG_FILE": str(configuration)}
        command = [sys.executable, "-m", "clearml.cli.task", "--import-offline-session", str(first)]
        await asyncio.to_thread(subprocess.run, command, env=environment, check=True, capture_output=True)
        arrived = server.scalars(server.named(RUN)[0])
    for metric, curve in odd_report.curves["per-sample-seed0"].items():
        assert arrived[metric] == finite(curve)


async def published(report: Report, files: Path) -> list[str]:
    return await asyncio.to_thread(lambda: list(clearml.publish(report, files)))


@pytest.mark.slow
async def test_a_server_gets_every_scalar_at_its_step_however_often_a_report_is_published(
    odd_report: Report, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clearml_server() as server:
        configuration = tmp_path / "clearml.conf"
        configuration.write_text(server.configuration())
        monkeypatch.setenv("CLEARML_CONFIG_FILE", str(configuration))
        lines = await published(odd_report, files)
        await published(odd_report, files)
        for run in ("per-sample-seed0", "native-seed0"):
            tasks = server.named(f"mine: {run}")
            assert len(tasks) == 2
            for task in tasks:
                arrived = server.scalars(task)
                assert task["status"] == "completed"
                for metric, curve in odd_report.curves[run].items():
                    assert arrived[metric] == finite(curve)
                assert arrived["not finite/train/grad_norm"] == {9: 0.0, 10: 1.0}
        comparison = server.named(COMPARISON)[0]
        ids = ",".join(server.named(f"mine: {run}")[0]["id"] for run in ("per-sample-seed0", "native-seed0"))
        assert f"/compare-tasks;ids={ids}/" in comparison["comment"]
        assert any(line.startswith("ClearML: compare the runs: ") and ids in line for line in lines)
        assert "PARITY" in comparison["tags"]
        assert {"report.html", "report.json"} <= {Path(name).name for name in server.uploads}
        assert not any((task.get("script") or {}).get("diff", "").strip() for task in server.tasks.values())
    assert not (files / "clearml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["forgets", "hangs"])
async def test_what_a_dying_server_did_not_get_is_offline_and_said(
    how: str, odd_report: Report, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearml, "PATIENCE", 30.0)
    async with clearml_server(dies_at=OTHER, how=how) as server:
        configuration = tmp_path / "clearml.conf"
        configuration.write_text(server.configuration())
        monkeypatch.setenv("CLEARML_CONFIG_FILE", str(configuration))
        lines = await published(odd_report, files)
        assert server.scalars(server.named(RUN)[0])
    assert any(line.startswith(f"ClearML: {RUN}: http") for line in lines)
    assert any("2 tasks are offline and not uploaded, because" in line for line in lines)
    other, comparison = sorted((files / "clearml").glob("*.zip"))
    same_curves(odd_report, "native-seed0", other)
    assert opened(comparison)[0]["name"] == COMPARISON


@pytest.mark.slow
def test_a_server_that_is_not_there_leaves_zips(
    odd_report: Report, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    hosts = {name: address for name in ("api_server", "web_server", "files_server")}
    configuration = tmp_path / "clearml.conf"
    configuration.write_text(
        json.dumps({"api": {**hosts, "credentials": {"access_key": "key", "secret_key": "secret"}}})
    )
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(configuration))
    lines = list(clearml.publish(odd_report, files))
    assert any(f"because ConnectionError: {address} does not answer" in line for line in lines)
    assert len(list((files / "clearml").glob("*.zip"))) == 3
