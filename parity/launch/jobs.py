"""Where jobs run: process groups on this machine, or the Jobs API of a Ray cluster."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import psutil

from parity.errors import EngineUnavailable, UsageError, shown
from parity.launch import job as job_script
from parity.launch.file import Place, RunPlan

STOP_SECONDS = 10.0
"""How long a job may take to end when it is asked to, before it is killed."""


class JobState(str, Enum):
    """What became of a job."""

    PENDING = "pending"
    """It waits for the cluster's resources."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job, and of one that failed why, as far as it is known."""

    state: JobState
    message: str = ""


class Backend(Protocol):
    """What starts, asks after and ends jobs; a job's id is all it takes to find it again."""

    def start(self, plan: RunPlan, command: str, attempt: int) -> str:
        """Starts a command in a run's directory and returns the job's id; raises EngineUnavailable if it cannot now."""

    def status(self, job: str) -> JobStatus:
        """What became of a job."""

    def stop(self, job: str) -> None:
        """Ends a job with all that it started, and returns when it has; raises EngineUnavailable if it cannot now."""


def open_backend(place: Place) -> Backend:
    """Where jobs run, by a launch file's ``place``.

    Raises:
        UsageError: Ray is asked for and not installed.
        EngineUnavailable: The cluster does not answer.
    """
    return LocalJobs() if place.kind == "local" else RayJobs(place)


class LocalJobs:
    """Jobs as process groups on this machine: each in a session of its own, which outlives the launcher."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, plan: RunPlan, command: str, attempt: int) -> str:
        """Starts a command; its output goes to ``job-<attempt>.log`` in the run's directory."""
        exit_file = plan.directory / f"job-{attempt}.exit"
        exit_file.unlink(missing_ok=True)
        with (plan.directory / f"job-{attempt}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, job_script.__file__, str(exit_file), command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **plan.environment},
                start_new_session=True,
            )
        job = f"{process.pid}:{psutil.Process(process.pid).create_time()}:{exit_file}"
        self._children[job] = process
        return job

    def status(self, job: str) -> JobStatus:
        """What became of a job; one that is gone without an exit code was killed."""
        exit_file = Path(job.split(":", 2)[2])
        if self._runs(job):
            return JobStatus(JobState.RUNNING)
        if not exit_file.exists():
            return JobStatus(JobState.FAILED, "it was killed, and left no exit code")
        code = int(exit_file.read_text())
        if not code:
            return JobStatus(JobState.SUCCEEDED)
        said = _last_line(exit_file.with_suffix(".log"))
        return JobStatus(JobState.FAILED, ": ".join([f"exit code {code}{_meaning(code)}", *said]))

    def stop(self, job: str) -> None:
        """Ends all processes of the job's session, by SIGTERM and after a while by SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + STOP_SECONDS
            for process in _members(job):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            while time.monotonic() < deadline and (self._runs(job) or _members(job)):
                time.sleep(0.05)

    def _runs(self, job: str) -> bool:
        """Whether the job's process is there; another one that has its number by now is not it."""
        if job in self._children:
            return self._children[job].poll() is None
        pid, created, _ = job.split(":", 2)
        try:
            process = psutil.Process(int(pid))
            return process.create_time() == float(created) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def _meaning(code: int) -> str:
    """What an exit code above 128 says: the signal that ended the command."""
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return ""
    return f" ({name}{', as where memory runs out' if name == 'SIGKILL' else ''})"


def _last_line(log: Path) -> list[str]:
    """What a job printed last, which most often says why it failed; nothing where it printed nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [shown(line.strip())[:_LONGEST_LINE] for line in lines if line.strip()][-1:]


_TAIL, _LONGEST_LINE = 8192, 300
"""Bytes of a log's end that are looked at, and characters of its last line that are shown."""


def _members(job: str) -> list[psutil.Process]:
    """What lives of a job's session; a session of another leader that has its number by now is not it."""
    pid, created, _ = job.split(":", 2)
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == int(pid) and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    leader = next((process for process in members if process.pid == int(pid)), None)
    return [] if leader is not None and leader.create_time() != float(created) else members


class RayJobs:
    """Jobs of a Ray cluster, by its Jobs API: each command is an entrypoint, which may be a Ray program itself."""

    def __init__(self, place: Place) -> None:
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError as error:
            raise UsageError('place.kind = "ray" needs Ray: pip install "rollout-parity[ray]"') from error
        self._place = place
        try:
            self._client: Any = JobSubmissionClient(place.address or None)
        except (ConnectionError, RuntimeError) as error:
            raise EngineUnavailable(f"Ray at {place.address or 'the default address'}: {error}") from error

    def start(self, plan: RunPlan, command: str, attempt: int) -> str:
        """Submits a command; resources are those of the launch file's ``place``.

        Raises:
            EngineUnavailable: The cluster takes no job just now.
        """
        place = self._place
        runtime: dict[str, Any] = {"env_vars": dict(plan.environment)}
        if place.working_directory:
            runtime["working_dir"] = place.working_directory
        try:
            submitted: str = self._client.submit_job(
                entrypoint=shlex.join(["bash", "-c", command]),  # Ray's own shell is sh
                submission_id=f"{plan.name}-{attempt}-{os.urandom(4).hex()}",
                runtime_env=runtime,
                entrypoint_num_cpus=place.cpus or None,
                entrypoint_num_gpus=place.gpus or None,
                entrypoint_resources=place.resources or None,
                metadata={"run": plan.name, "attempt": str(attempt)},
            )
        except (ConnectionError, RuntimeError) as error:  # such as: no agent to submit a job to, try again later
            raise EngineUnavailable(f"Ray: {error}") from error
        return submitted

    def status(self, job: str) -> JobStatus:
        """What the cluster says of a job; one that it no longer knows was lost with its head node."""
        try:
            info = self._client.get_job_info(job)
        except RuntimeError as error:
            if _is_unknown(error):
                return JobStatus(JobState.FAILED, "the cluster does not know this job: was its head node restarted?")
            raise EngineUnavailable(f"Ray: {error}") from error
        except ConnectionError as error:
            raise EngineUnavailable(f"Ray: {error}") from error
        status = str(getattr(info.status, "value", info.status))
        if status in ("PENDING", "RUNNING"):
            return JobStatus(JobState(status.lower()))
        if status == "SUCCEEDED":
            return JobStatus(JobState.SUCCEEDED)
        reason, _, log = (info.message or "no message").partition(", last available logs")
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        return JobStatus(JobState.FAILED, f"{status.lower()}: {': '.join([reason, *lines[-1:]])}")

    def stop(self, job: str) -> None:
        """Ends a job; one that has ended, or that the cluster does not know, stays as it is.

        Raises:
            EngineUnavailable: The cluster does not answer, or the job goes on: a further attempt would write beside it.
        """
        try:
            self._client.stop_job(job)
        except (ConnectionError, RuntimeError) as error:
            if _is_unknown(error):
                return
            raise EngineUnavailable(f"Ray: {error}") from error
        deadline = time.monotonic() + STOP_SECONDS
        while self.status(job).state in (JobState.PENDING, JobState.RUNNING):
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"Ray: job {job} goes on {STOP_SECONDS:g} seconds after it was asked to end")
            time.sleep(0.2)


def _is_unknown(error: Exception) -> bool:
    return "does not exist" in str(error) or "404" in str(error)
