"""Runs one engine, and ends it with everything it started when the pipe on standard input closes.

Started by `parity.engines.process`, as a script of its own and with few imports so that it is small and up at once. The
pipe's other end is held by parity: the kernel closes it however parity ends, `kill -9` included. The supervisor is the
reaper of all its descendants (Linux `prctl(2)`, PR_SET_CHILD_SUBREAPER), so that none of them can escape by changing
its session or losing its parent.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 2.0

_libc = ctypes.CDLL(None, use_errno=True)


def reap() -> dict[int, int]:
    """Collects descendants that have ended: exit codes (negative for a signal) by process id.

    Raises:
        ChildProcessError: There are no descendants any more.
    """
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if codes:
                return codes
            raise
        if pid == 0:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)


def end_descendants(grace: float) -> None:
    """Asks every descendant to end, kills those still there after `grace` seconds, and returns when none is left."""
    deadline = time.monotonic() + grace
    send(signal.SIGTERM if grace else signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            reap()
            if time.monotonic() >= deadline:
                send(signal.SIGKILL)
            time.sleep(0.02)


def send(number: signal.Signals) -> None:
    """Sends a signal to every descendant."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def wait(engine: int, parent: int) -> int | None:
    """Waits until the engine has ended (its exit code), or the parent has ended or asks for the end (None)."""
    engine_handle = os.pidfd_open(engine)
    while True:
        ready, _, _ = select.select([sys.stdin, engine_handle], [], [], 1.0)
        if engine_handle in ready:
            code = reap().get(engine)
            if code is not None:
                return code
        # A process forked by parity may hold the pipe open, so the parent is looked at as well.
        if sys.stdin in ready or os.getppid() != parent:
            return None


def main(command: list[str]) -> int:
    """Runs `command` to its end or the parent's; returns its exit code, 128 + number for a signal, 0 if ended here."""
    parent = os.getppid()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    grace = GRACE_SECONDS
    try:
        engine = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        print(engine.pid, flush=True)
        code = engine.returncode = wait(engine.pid, parent)
        if code is None:
            return 0
        grace = 0.0
        return code if code >= 0 else 128 - code
    finally:
        end_descendants(grace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
