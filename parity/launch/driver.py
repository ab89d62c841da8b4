"""Starts the runs of a launch, watches them, starts them again by the stated policy, and writes down what happened.

All state is on disk: a driver that was killed, or left with Ctrl-C, goes on with the jobs as it finds them.
"""

from __future__ import annotations

import shlex
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from parity.errors import EngineUnavailable, InputError, UsageError
from parity.launch import snapshot
from parity.launch.file import LaunchFile, RunPlan, plan_runs
from parity.launch.jobs import Backend, JobState
from parity.metrics import RunCurves
from parity.records.provenance import commit
from parity.records.store import RunStore, create_experiment, exclusive, read_experiment, run_store
from parity.sources.registry import read_runs

SOONEST, POLL_SECONDS = 0.05, 2.0
"""Seconds between two looks at the runs: just after something has moved, and at most."""
ENDED = ("completed", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class Launched:
    """One run as it stands.

    Attributes:
        plan: What was asked for.
        status: ``waiting``, ``running``, or one of `ENDED`.
        attempt: How often it was started.
        job: The job's id, empty before the first start.
        step: The last step that its curves have; `None` while they have none.
        moved_at: When the job started or the last step came, in seconds since the epoch.
        started_at: When the job started, and `started_from` the step that its curves had then.
        message: Why it ended as it did.
        curves: What its curves are so far.
    """

    plan: RunPlan
    status: str = "waiting"
    attempt: int = 0
    job: str = ""
    step: int | None = None
    moved_at: float = 0.0
    started_at: float = 0.0
    started_from: int | None = None
    message: str = ""
    curves: RunCurves = field(default_factory=dict, compare=False, repr=False)

    @property
    def steps_per_hour(self) -> float | None:
        """How fast the job makes steps; `None` before its first one."""
        made = _made(self.step) - _made(self.started_from)
        seconds = self.moved_at - self.started_at
        return 3600 * made / seconds if made > 0 and seconds > 0 else None


def _made(step: int | None) -> int:
    return 0 if step is None else step + 1


@dataclass(frozen=True, slots=True)
class Watcher:
    """What a front end is told: `table` after each look at all runs, `note` for everything worth a line."""

    table: Callable[[Sequence[Launched]], None] = field(default=lambda runs: None)
    note: Callable[[str], None] = field(default=lambda text: None)


def launched_runs(launch: LaunchFile, out: Path) -> list[Launched]:
    """Every run as it stands on disk, in the order of their start.

    Raises:
        InputError: A file of a run cannot be read.
    """
    return [_read(plan, run_store(out, plan.name)) for plan in plan_runs(launch, out)]


def _read(plan: RunPlan, store: RunStore) -> Launched:
    outcome = store.outcome()
    curves = curves_so_far(plan.curves)
    launched = Launched(plan, step=last_step(curves), curves=curves)
    if not outcome:
        return launched
    return replace(
        launched,
        status=str(outcome["status"]),
        attempt=int(outcome.get("attempt", 0)),
        job=str(outcome.get("job", "")),
        moved_at=float(outcome.get("moved_at", 0.0)),
        started_at=float(outcome.get("started_at", 0.0)),
        started_from=outcome.get("started_from"),
        message=str(outcome.get("message", "")),
    )


def curves_so_far(source: str) -> RunCurves:
    """What a run's curves are so far; none where there are none yet, or none that can be read yet."""
    try:
        state = Path(source).stat()
    except OSError:
        state = None
    if state is None or not stat.S_ISREG(state.st_mode):
        return _read_curves(source)
    return _read_again(source, state.st_size, state.st_mtime_ns)


def _read_curves(source: str) -> RunCurves:
    try:
        return {name: curve for run in read_runs(source) for name, curve in run.curves.items()}
    except (InputError, UsageError):
        return {}


@lru_cache(maxsize=256)
def _read_again(source: str, size: int, changed: int) -> RunCurves:
    """A file is read anew only once it has changed: there may be many runs, and looks are frequent."""
    return _read_curves(source)


def last_step(curves: RunCurves) -> int | None:
    """The last step that curves have; `None` for none."""
    return max((int(curve.steps[-1]) for curve in curves.values() if len(curve.steps)), default=None)


def drive(
    launch: LaunchFile,
    out: Path,
    backend: Backend,
    watcher: Watcher,
    *,
    poll_seconds: float = POLL_SECONDS,
    enough: Callable[[Sequence[Launched]], str] = lambda runs: "",
) -> list[Launched]:
    """Starts, or goes on with, all runs until each has ended.

    Args:
        launch: What to run.
        out: The launch's directory.
        backend: Where jobs run.
        watcher: Told how the runs stand.
        poll_seconds: The most seconds between two looks; fewer after something has moved.
        enough: Asked after each look whether the evidence decides already, and why; empty while it does not.

    Raises:
        UsageError: The directory holds another launch, or another process drives it.
    """
    with exclusive(out):
        _describe(launch, out)
        runs = launched_runs(launch, out)
        wait = SOONEST
        while True:
            before = [(run.status, run.step) for run in runs]
            runs = [_look(launch, run, backend, watcher) if run.status == "running" else run for run in runs]
            running = sum(run.status == "running" for run in runs)
            for at, run in enumerate(runs):
                if run.status == "waiting" and running < launch.place.at_once:
                    runs[at] = _start(launch, run, backend, watcher)
                    running += 1
            watcher.table(runs)
            if all(run.status in ENDED for run in runs):
                return runs
            if reason := enough(runs):
                watcher.note(f"all runs are stopped: {reason}")
                return [_stop(run, backend, reason) for run in runs]
            moved = before != [(run.status, run.step) for run in runs]
            wait = SOONEST if moved else min(1.5 * wait, poll_seconds)
            time.sleep(wait)


def stop(launch: LaunchFile, out: Path, backend: Backend) -> list[Launched]:
    """Ends the jobs of all runs that have not ended, and returns these runs.

    Raises:
        UsageError: A driver is at work on this directory.
    """
    with exclusive(out):
        return [
            _stop(run, backend, "stopped by --stop") for run in launched_runs(launch, out) if run.status not in ENDED
        ]


def _describe(launch: LaunchFile, out: Path) -> None:
    """Writes what is asked for, or holds it against what the directory says."""
    if not (out / "experiment.json").exists():
        baseline, experiment, *_ = launch.arms
        create_experiment(
            out,
            {
                "format": 1,
                "kind": "launch",
                "baseline": baseline,
                "experiment": experiment,
                "seeds": list(launch.seeds),
                "margins": launch.margins,
                "commit": commit(Path.cwd()),
                "launch": msgspec.to_builtins(launch),
                "created_at": time.time(),
            },
        )
        return
    try:
        before = msgspec.convert(read_experiment(out).get("launch"), LaunchFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{out} holds another experiment ({error}): choose another --out") from error
    changed = [name for name in LaunchFile.__struct_fields__ if getattr(before, name) != getattr(launch, name)]
    if changed:
        raise UsageError(f"{out} was launched with other {', '.join(changed)}: choose another --out for a new launch")


def _start(launch: LaunchFile, run: Launched, backend: Backend, watcher: Watcher) -> Launched:
    """Starts the next attempt of a run, which waits on where no job can be started just now."""
    store = RunStore(run.plan.directory)
    store.create()
    attempt = run.attempt + 1
    began = time.time()
    command = run.plan.command if attempt == 1 else run.plan.again
    try:
        job = backend.start(run.plan, _with_snapshot(launch, run.plan, command, attempt), attempt)
    except EngineUnavailable as error:
        watcher.note(f"{run.plan.name}: {error}; tried again in a moment")
        return run
    store.append_event(
        "start" if attempt == 1 else "restart",
        began,
        attempt=attempt,
        job=job,
        command=command,
    )
    watcher.note(f"{run.plan.name}: attempt {attempt} started as job {job.partition(':')[0]}")
    started = replace(run, status="running", attempt=attempt, job=job, message="")
    return _write(replace(started, moved_at=began, started_at=began, started_from=run.step))


def _with_snapshot(launch: LaunchFile, plan: RunPlan, command: str, attempt: int) -> str:
    """The command after one that writes what the job starts with, and that cannot stop it."""
    source = Path(snapshot.__file__).read_text("utf-8")
    return (
        f"{shlex.join(['python3', '-c', source, str(plan.setup(attempt)), *(launch.code or ['.'])])} || true\n{command}"
    )


def _write(run: Launched) -> Launched:
    """Writes how a run stands, and returns it."""
    RunStore(run.plan.directory).write_outcome(
        {
            "design": "launched",
            "arm": run.plan.arm,
            "seed": run.plan.seed,
            "status": run.status,
            "attempt": run.attempt,
            "job": run.job,
            "moved_at": run.moved_at,
            "started_at": run.started_at,
            "started_from": run.started_from,
            "message": run.message,
        }
    )
    return run


def _look(launch: LaunchFile, run: Launched, backend: Backend, watcher: Watcher) -> Launched:
    """Looks at a running job: it goes on, has ended well, or has failed and is started again or given up."""
    try:
        return _judged(launch, run, backend, watcher)
    except EngineUnavailable as error:
        watcher.note(f"{run.plan.name}: {error}; asked again in a moment")
        return run


def _judged(launch: LaunchFile, run: Launched, backend: Backend, watcher: Watcher) -> Launched:
    status = backend.status(run.job)
    curves = curves_so_far(run.plan.curves)
    step, run = last_step(curves), replace(run, curves=curves)
    if step is not None and (run.step is None or step > run.step):
        run = _write(replace(run, step=step, moved_at=time.time()))
    if status.state is JobState.SUCCEEDED:
        return _end(run, "completed", "", watcher)
    if status.state is JobState.PENDING:
        return replace(run, moved_at=time.time())  # whoever waits for a place does not hang
    quiet_minutes = (time.time() - run.moved_at) / 60
    if status.state is JobState.RUNNING:
        if quiet_minutes <= launch.restart.hang_minutes:
            return run
        return _failed(launch, run, f"no step for {quiet_minutes:.3g} minutes", backend, watcher)
    return _failed(launch, run, status.message, backend, watcher)


def _failed(launch: LaunchFile, run: Launched, reason: str, backend: Backend, watcher: Watcher) -> Launched:
    """A failed attempt: the next one by the policy, or the end."""
    backend.stop(run.job)  # what a job left behind would write beside the next attempt
    store = RunStore(run.plan.directory)
    store.append_event("retry", time.time(), attempt=run.attempt, message=reason, **_at(run))
    policy = launch.restart
    if policy.policy == "never" or run.attempt >= policy.attempts:
        return _end(run, "failed", f"attempt {run.attempt} of {policy.attempts}: {reason}", watcher)
    watcher.note(f"{run.plan.name}: {reason}; restarts from {policy.policy}")
    if policy.policy == "zero":
        aside = run.plan.directory.with_name(f".{run.plan.name}.attempt-{run.attempt}")
        events = (run.plan.directory / "events.jsonl").read_bytes()
        run.plan.directory.rename(aside)
        store.create()
        (run.plan.directory / "events.jsonl").write_bytes(events)
        run = replace(run, step=None, curves={})
    return _write(replace(run, status="waiting"))


def _at(run: Launched) -> dict[str, int]:
    return {} if run.step is None else {"step": run.step}


def _end(run: Launched, status: str, message: str, watcher: Watcher) -> Launched:
    event = "end" if status == "completed" else "abort"
    RunStore(run.plan.directory).append_event(event, time.time(), message=message, **_at(run))
    watcher.note(f"{run.plan.name}: {status}{f': {message}' if message else ''}")
    return _write(replace(run, status=status, message=message))


def _stop(run: Launched, backend: Backend, reason: str) -> Launched:
    """Ends a run's job where it has one; a run that has ended stays as it is."""
    if run.status in ENDED:
        return run
    if run.status == "running":
        backend.stop(run.job)
    RunStore(run.plan.directory).create()
    return _end(run, "stopped", reason, Watcher())
