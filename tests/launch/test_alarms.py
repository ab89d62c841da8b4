"""Alarms of runs that go on: what raises one and what does not, where it is kept, and where it is posted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from launch_files import launch_file

from parity.commands.launch import AlarmExit, raise_alarms
from parity.launch import Launched, LaunchFile, plan_runs, read_launch_file
from parity.metrics import Curve
from parity.records.store import RunStore

STEPS = np.arange(60)
STEADY = 0.6 + 0.02 * np.sin(7.0 * STEPS)


def running(tmp_path: Path, minutes: float = 0.0, more: str = "", **metrics: np.ndarray) -> tuple[LaunchFile, Launched]:
    launch = read_launch_file(launch_file(tmp_path, more=more))
    plan = plan_runs(launch, tmp_path / "out")[0]
    RunStore(plan.directory).create()
    names = {"reward": "rollout/raw_reward", "abort": "rollout/finish_reason/abort"}
    names["gap"] = "train/train_rollout_logprob_abs_diff"
    curves = {names[name]: Curve(plan.name, names[name], STEPS, values) for name, values in metrics.items()}
    began = time.time() - 60 * minutes
    return launch, Launched(plan, "running", 1, "job", 59, began, began, curves=curves)


@pytest.mark.parametrize(
    ("minutes", "metrics", "kinds"),
    [
        (0.0, {"reward": STEADY}, []),
        (0.0, {"reward": np.where(STEPS < 35, STEADY, 0.05)}, ["collapse"]),
        (16.0, {"reward": STEADY}, ["stall"]),
        (14.0, {"reward": STEADY}, []),
        (0.0, {"reward": STEADY, "abort": np.full(60, 0.01)}, []),
        (0.0, {"reward": STEADY, "abort": np.where(STEPS < 55, 0.0, 0.4)}, ["aborts"]),
        (0.0, {"reward": STEADY, "gap": np.full(60, 0.02)}, []),
        (0.0, {"reward": STEADY, "gap": np.full(60, 0.5)}, ["gap"]),
        (16.0, {}, ["stall"]),
    ],
)
def test_what_is_an_alarm_and_what_is_not(tmp_path, minutes, metrics, kinds):
    launch, run = running(tmp_path, minutes, **metrics)
    notes: list[str] = []
    raise_alarms(launch, [run], notes.append)
    events = RunStore(run.plan.directory).events()
    assert [event["kind"] for event in events] == kinds
    assert len(notes) == len(kinds)
    raise_alarms(launch, [run], notes.append)
    assert len(notes) == len(kinds)


def test_a_further_attempt_raises_its_own_alarms(tmp_path):
    launch, run = running(tmp_path, 16.0, reward=STEADY)
    notes: list[str] = []
    raise_alarms(launch, [run], notes.append)
    RunStore(run.plan.directory).append_event("restart", time.time(), attempt=2)
    raise_alarms(launch, [run], notes.append)
    assert len(notes) == 2


def test_an_alarm_that_is_to_end_the_command_does_and_others_do_not(tmp_path):
    exits = '[alarms]\nexit = ["collapse"]'
    launch, run = running(tmp_path, 16.0, exits, reward=STEADY)
    raise_alarms(launch, [run], lambda text: None)
    launch, run = running(tmp_path, 0.0, exits, reward=np.where(STEPS < 35, STEADY, 0.05))
    with pytest.raises(AlarmExit, match="collapse"):
        raise_alarms(launch, [run], lambda text: None)


@pytest.fixture
def webhook(monkeypatch) -> Iterator[list[dict[str, object]]]:
    posted: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("PARITY_WEBHOOK", f"http://127.0.0.1:{server.server_port}/")
    yield posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_alarm_is_posted_to_the_webhook(tmp_path, webhook):
    launch, run = running(tmp_path, 16.0, reward=STEADY)
    raise_alarms(launch, [run], lambda text: None)
    assert [(one["run"], one["kind"], one["step"]) for one in webhook] == [(run.plan.name, "stall", 59)]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "file:///etc/passwd"])
def test_a_webhook_that_cannot_be_reached_is_said_and_stops_nothing(tmp_path, monkeypatch, url):
    monkeypatch.setenv("PARITY_WEBHOOK", url)
    launch, run = running(tmp_path, 16.0, reward=STEADY)
    notes: list[str] = []
    raise_alarms(launch, [run], notes.append)
    assert len(notes) == 2 and "PARITY_WEBHOOK" in notes[1]
