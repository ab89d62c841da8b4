"""The Jobs API of a real Ray cluster, whose head node is killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launch_files import launch_file

from parity.errors import EngineUnavailable
from parity.launch import Launched, Watcher, drive, open_backend, read_launch_file

pytest.importorskip("ray.job_submission", reason="Ray is not installed: pip install 'rollout-parity[ray]'")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def cluster(dashboard: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A head node of its own process group, up once its Jobs API answers."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--port={free_port()}", f"--dashboard-port={dashboard}", "--include-dashboard=true"]
    command += ["--disable-usage-stats", f"--temp-dir={folder}"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with (folder.parent / "ray.log").open("ab") as log:
        head = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield head
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def driven(path: Path, notes: list[str]) -> dict[str, Launched]:
    launch = read_launch_file(path)
    deadline = time.monotonic() + 120
    while True:
        try:
            backend = open_backend(launch.place)
            break
        except EngineUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
    runs = drive(launch, path.parent / "out", backend, Watcher(note=notes.append), poll_seconds=0.5)
    return {run.plan.arm: run for run in runs}


@pytest.fixture
def address(tmp_path, monkeypatch) -> Iterator[tuple[int, Path]]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    folder = Path("/tmp") / f"ray-{os.getpid()}-{free_port()}"  # Ray's sockets have no room for a longer path
    folder.mkdir()
    yield free_port(), folder


def place(dashboard: int) -> str:
    return f'[place]\nkind = "ray"\naddress = "http://127.0.0.1:{dashboard}"\nat_once = 2\n[restart]\nhang_minutes = 5'


def test_a_command_runs_in_bash_as_on_this_machine(tmp_path, address):
    dashboard, folder = address
    path = launch_file(tmp_path, more=place(dashboard))
    path.write_text(
        path.read_text().replace("command = '", "command = 'set -o pipefail; words=(a b); [[ ${words[1]} == b ]] && ")
    )
    with cluster(dashboard, folder):
        runs = driven(path, [])
    assert {(run.status, run.attempt) for run in runs.values()} == {("completed", 1)}


def test_a_job_that_fails_is_submitted_again(tmp_path, address):
    dashboard, folder = address
    with cluster(dashboard, folder):
        runs = driven(launch_file(tmp_path, "--fail-at 3", more=place(dashboard)), notes := [])
    assert {(run.status, run.step) for run in runs.values()} == {("completed", 5)}
    assert (runs["native"].attempt, runs["stock"].attempt) == (2, 1)
    assert any("out of memory" in note for note in notes)


def test_jobs_that_a_restarted_head_node_does_not_know_start_again(tmp_path, address):
    dashboard, folder = address
    path = launch_file(tmp_path, "--hang-at 2", "--hang-at 2", more=place(dashboard))
    launch = read_launch_file(path)

    def both_hang(runs: list[Launched]) -> str:
        return "hang" if all(run.step == 1 for run in runs) else ""

    class LeftAlone(Exception):
        """Ends the driver as kill -9 would: its jobs are not asked to end."""

    def leave(runs) -> str:
        if both_hang(runs):
            raise LeftAlone
        return ""

    with cluster(dashboard, folder):
        deadline = time.monotonic() + 120
        while True:
            try:
                backend = open_backend(launch.place)
                break
            except EngineUnavailable:
                assert time.monotonic() < deadline
                time.sleep(1)
        with pytest.raises(LeftAlone):
            drive(launch, tmp_path / "out", backend, Watcher(), poll_seconds=0.5, enough=leave)
    with cluster(dashboard, folder):
        runs = driven(path, notes := [])
    assert {(run.status, run.step, run.attempt) for run in runs.values()} == {("completed", 5, 2)}
    assert any("does not know this job" in note for note in notes)
