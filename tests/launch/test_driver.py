"""Real processes: a stand-in trainer that fails, hangs and is killed, and drivers that are killed themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from launch_files import launch_file

from parity.errors import UsageError
from parity.launch import Launched, Watcher, drive, launched_runs, open_backend, read_launch_file, stop
from parity.records.store import run_store


def driven(path: Path, out: Path, watcher: Watcher = Watcher()) -> dict[str, Launched]:  # noqa: B008 - frozen
    launch = read_launch_file(path)
    runs = drive(launch, out, open_backend(launch.place), watcher, poll_seconds=0.05)
    return {run.plan.arm: run for run in runs}


def events(run: Launched) -> list[str]:
    return [event["event"] for event in run_store(run.plan.directory.parents[1], run.plan.name).events()]


def test_every_run_comes_to_its_end(tmp_path):
    out = tmp_path / "out"
    runs = driven(launch_file(tmp_path), out)
    assert {(run.status, run.step, run.attempt) for run in runs.values()} == {("completed", 5, 1)}
    assert events(runs["native"]) == ["start", "end"]


def test_as_many_runs_at_once_as_asked_for_and_no_more(tmp_path):
    at_once: list[int] = []
    watcher = Watcher(table=lambda runs: at_once.append(sum(run.status == "running" for run in runs)))
    path = launch_file(tmp_path, "--seconds 0.03", "--seconds 0.03", "[1, 2]", "[place]\nat_once = 2")
    driven(path, tmp_path / "out", watcher)
    assert max(at_once) == 2


@pytest.mark.parametrize("fault", ["--fail-at 3", "--kill-at 3"])
def test_a_run_that_dies_starts_from_zero_and_its_curve_is_whole(tmp_path, fault):
    runs = driven(launch_file(tmp_path, fault), tmp_path / "out")
    assert (runs["native"].status, runs["native"].attempt, runs["stock"].attempt) == ("completed", 2, 1)
    lines = (runs["native"].plan.directory / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6
    aside = runs["native"].plan.directory.with_name(".native-seed1.attempt-1")
    assert len((aside / "metrics.jsonl").read_text().splitlines()) == 3
    assert events(runs["native"]) == ["start", "retry", "restart", "end"]


def test_a_job_that_the_kernel_kills_for_memory_is_named_so_and_starts_again(tmp_path):
    notes: list[str] = []
    runs = driven(launch_file(tmp_path, "--oom-at 3"), tmp_path / "out", Watcher(note=notes.append))
    assert (runs["native"].status, runs["native"].attempt) == ("completed", 2)
    assert any("exit code 137 (SIGKILL" in note for note in notes)


def test_what_a_failed_job_printed_last_is_in_the_report(tmp_path):
    path = launch_file(tmp_path, "--fail-at 3 --always", more='[restart]\npolicy = "never"')
    native = driven(path, tmp_path / "out")["native"]
    assert native.message.endswith("exit code 1: out of memory")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_ends_the_command_and_once_there_is_room_the_same_command_goes_on(small_disk, tmp_path):
    path = launch_file(tmp_path, "--pad 200000")
    driver = subprocess.run([sys.executable, "-c", DRIVER, str(path), str(small_disk)], capture_output=True, text=True)
    assert driver.returncode and "No space left" in driver.stderr
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    runs = driven(path, small_disk)
    assert {run.status for run in runs.values()} == {"completed"}
    assert (runs["stock"].attempt, runs["native"].attempt) == (1, 2)


def test_a_run_that_dies_goes_on_from_its_checkpoint(tmp_path):
    more = '[restart]\npolicy = "checkpoint"\narguments = ["--resume"]'
    runs = driven(launch_file(tmp_path, "--fail-at 3", more=more), tmp_path / "out")
    assert runs["native"].attempt == 2
    assert len((runs["native"].plan.directory / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_run_that_makes_no_step_is_ended_and_started_again(tmp_path):
    runs = driven(launch_file(tmp_path, "--hang-at 3", more="[restart]\nhang_minutes = 0.03"), tmp_path / "out")
    assert (runs["native"].status, runs["native"].attempt) == ("completed", 2)
    assert not [one for one in psutil.Process().children(recursive=True) if "--hang-at" in one.cmdline()]


def test_a_run_that_fails_each_time_is_given_up_with_how_far_it_came(tmp_path):
    path = launch_file(tmp_path, "--fail-at 3 --always", more="[restart]\nattempts = 2")
    runs = driven(path, tmp_path / "out")
    native = runs["native"]
    assert (native.status, native.attempt, native.step) == ("failed", 2, 2)
    assert "exit code 1" in native.message
    assert runs["stock"].status == "completed"


def test_evidence_that_suffices_ends_all_jobs(tmp_path):
    launch = read_launch_file(launch_file(tmp_path, "--seconds 30", "--seconds 30", more="[place]\nat_once = 2"))
    backend = open_backend(launch.place)
    runs = drive(launch, tmp_path / "out", backend, Watcher(), poll_seconds=0.05, enough=lambda runs: "decided")
    assert {run.status for run in runs} == {"stopped"}
    assert not [one for one in psutil.Process().children(recursive=True) if "--seconds" in one.cmdline()]


DRIVER = """
import sys
from pathlib import Path
from parity.launch import Watcher, drive, open_backend, read_launch_file
launch = read_launch_file(Path(sys.argv[1]))
drive(launch, Path(sys.argv[2]), open_backend(launch.place), Watcher(), poll_seconds=0.05)
"""


def test_a_driver_that_is_killed_leaves_its_jobs_and_another_one_goes_on_with_them(tmp_path):
    path, out = launch_file(tmp_path, "--seconds 0.2", "--seconds 0.2", more="[place]\nat_once = 2"), tmp_path / "out"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(path), str(out)])
    launch = read_launch_file(path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if all(run.status == "running" and run.step is not None for run in launched_runs(launch, out)):
            break
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    runs = driven(path, out)
    assert {(run.status, run.step, run.attempt) for run in runs.values()} == {("completed", 5, 1)}


def test_stopping_ends_the_jobs_and_what_is_stopped_is_not_started_again(tmp_path):
    path, out = launch_file(tmp_path, "--seconds 30", "--seconds 30"), tmp_path / "out"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(path), str(out)])
    launch = read_launch_file(path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(run.job for run in launched_runs(launch, out)):
        time.sleep(0.05)
    with pytest.raises(UsageError, match="another process"):
        stop(launch, out, open_backend(launch.place))
    driver.kill()
    driver.wait()
    assert {run.status for run in stop(launch, out, open_backend(launch.place))} == {"stopped"}
    assert {run.status for run in driven(path, out).values()} == {"stopped"}


def test_another_launch_is_not_mixed_into_a_directory(tmp_path):
    out = tmp_path / "out"
    driven(launch_file(tmp_path), out)
    with pytest.raises(UsageError, match="seeds"):
        driven(launch_file(tmp_path, seeds="[1, 2]"), out)
