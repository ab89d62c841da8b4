"""The Jobs API of a real Ray cluster, whose head node is killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from host_forms import write_lines
from launch_files import launch_file

from parity.commands.check import check_paths
from parity.contract_checks import Rules
from parity.errors import EngineUnavailable
from parity.launch import Backend, Launched, LaunchFile, Watcher, drive, open_backend, read_launch_file

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


def opened(launch: LaunchFile) -> Backend:
    """The cluster's Jobs API, once it answers."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return open_backend(launch.place)
        except EngineUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def driven(path: Path, notes: list[str]) -> dict[str, Launched]:
    launch = read_launch_file(path)
    backend = opened(launch)
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


def test_files_are_checked_as_tasks_of_the_cluster_with_the_same_result(tmp_path, monkeypatch, valid_samples):
    import ray

    for step in range(3):
        rows = [replace(sample, rollout_id=step).to_json() for sample in valid_samples(seed=step, groups=4, n=4)]
        if step == 1:
            rows[2]["logprobs"] = rows[2]["logprobs"][1:]
        write_lines(tmp_path / "dumps" / f"{step}.samples.jsonl", rows)
    folder = Path("/tmp") / f"ray-{os.getpid()}-{free_port()}"
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    try:
        by_ray = check_paths([tmp_path / "dumps"], Rules(), ray="local").to_json()
    finally:
        ray.shutdown()
    assert by_ray == check_paths([tmp_path / "dumps"], Rules(), processes=1).to_json()
    assert [one["where"]["rollout_id"] for one in by_ray["findings"] if one["status"] == "fail"] == [1]


class Answering502(BaseHTTPRequestHandler):
    """Hands requests on to a dashboard, but every third, as a proxy does whose server is busy."""

    dashboard = 0
    seen = 0

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        Answering502.seen += 1
        status, content = 502, b"Bad Gateway"
        if Answering502.seen % 3:
            url = f"http://127.0.0.1:{self.dashboard}{self.path}"
            headers = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
            request = urllib.request.Request(url, body or None, headers, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    status, content = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _hand_on

    def log_message(self, *args: object) -> None:
        pass


def test_a_dashboard_that_answers_502_at_times_is_asked_again(tmp_path, address):
    dashboard, folder = address
    Answering502.dashboard = dashboard
    with cluster(dashboard, folder), ThreadingHTTPServer(("127.0.0.1", 0), Answering502) as proxy:
        opened(read_launch_file(launch_file(tmp_path, more=place(dashboard))))
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        runs = driven(launch_file(tmp_path, "--seconds 0.5", more=place(proxy.server_port)), notes := [])
        proxy.shutdown()
        thread.join()
    assert {(run.status, run.step, run.attempt) for run in runs.values()} == {("completed", 5, 1)}
    assert any("502" in note for note in notes)


def test_a_job_whose_node_is_lost_waits_for_another_one_and_starts_again(tmp_path, address, monkeypatch):
    """A cluster of several nodes on this machine; the one that the job runs on is killed, and another one joins."""
    import ray
    from ray.cluster_utils import Cluster

    dashboard, folder = address
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    (folder / "ray").mkdir()
    head = {"num_cpus": 1, "include_dashboard": True, "dashboard_port": dashboard, "dashboard_host": "127.0.0.1"}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        worker = nodes.add_node(num_cpus=1, resources={"trainer": 2})
        where = f"{place(dashboard)}\nattempts = 2\n".replace("at_once = 2", "at_once = 2\nresources = {trainer = 1}")
        path = launch_file(tmp_path, "--hang-at 2", "--hang-at 2", more=where)
        launch = read_launch_file(path)
        lost: list[Launched] = []
        joined: list[object] = []

        def lose_the_node(runs: Sequence[Launched]) -> str:
            if not lost and all(run.step == 1 for run in runs):
                lost.extend(runs)
                nodes.remove_node(worker, allow_graceful=False)
            elif lost and not joined and all(run.attempt == 2 for run in runs):
                joined.append(nodes.add_node(num_cpus=1, resources={"trainer": 2}))
            return ""

        backend = opened(launch)
        notes: list[str] = []
        watcher = Watcher(note=notes.append)
        runs = drive(launch, tmp_path / "out", backend, watcher, poll_seconds=0.5, enough=lose_the_node)
        assert joined
        assert {(run.status, run.step, run.attempt) for run in runs} == {("completed", 5, 2)}
    finally:
        nodes.shutdown()
        ray.shutdown()


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
        backend = opened(launch)
        with pytest.raises(LeftAlone):
            drive(launch, tmp_path / "out", backend, Watcher(), poll_seconds=0.5, enough=leave)
    with cluster(dashboard, folder):
        runs = driven(path, notes := [])
    assert {(run.status, run.step, run.attempt) for run in runs.values()} == {("completed", 5, 2)}
    assert any("does not know this job" in note for note in notes)
