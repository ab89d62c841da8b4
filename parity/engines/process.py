"""An engine as a child process: started, waited for, restarted and ended; nothing is left however parity ends."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil

from parity.engines import supervisor
from parity.engines.client import DEFAULT_WAITS, EngineClient, Waits
from parity.errors import EngineError

HOST = "127.0.0.1"
LOG_TAIL_LINES = 20
LAUNCHED = "== "
"""Begins the line that stands in the log before what a launch of the engine writes."""

OWN_IMPORTS = {"PYTHONSAFEPATH": "1"}
"""Environment of a Python that runs a module: it imports nothing from the folder where the command was called."""

Progress = Callable[[float, str], None]
"""Called while an engine starts, with the seconds so far and the last line that it wrote, if any."""


class Engine(Protocol):
    """Something that answers `/generate` at `url`, be it started here or somebody else's."""

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""

    @property
    def engine_id(self) -> str:
        """The name that exchanges and samples carry."""

    def client(self, waits: Waits = DEFAULT_WAITS) -> EngineClient:
        """A client for it, which may touch what the user allowed and waits as it is told."""

    def alive(self) -> bool:
        """Whether it is up, as far as can be told without asking it."""

    def revive(self) -> tuple[str, ...]:
        """Starts again, at the same URL, what died or does not answer; blocks until it is healthy, and names it."""

    def stop(self) -> None:
        """Ends it; may be called more than once."""


class EngineProcess:
    """An engine run as a child process on a loopback port.

    Starting and stopping block: a coroutine calls them through `asyncio.to_thread`.

    Args:
        engine_id: The name in samples, and the stem of the log file.
        command: The command line for a given port.
        environment: Added to this process's environment; an empty value removes a variable.
        log_dir: Where `<engine_id>.log` is appended to.
        start_timeout: Seconds until it must be healthy.
        progress: Told about the start about once a second.
        healthy: Asks what answers at a port; by default whether `/health` answers 200.
        speaks: How it is spoken to.
    """

    def __init__(
        self,
        engine_id: str,
        command: Callable[[int], list[str]],
        *,
        environment: Mapping[str, str],
        log_dir: Path,
        start_timeout: float,
        progress: Progress | None = None,
        healthy: Callable[[int], bool] | None = None,
        speaks: type[EngineClient] = EngineClient,
    ) -> None:
        self.engine_id = engine_id
        self._speaks = speaks
        self.log_path = log_dir / f"{engine_id}.log"
        self._command = command
        self._environment = {k: v for k, v in {**os.environ, **environment}.items() if v}
        self._start_timeout = start_timeout
        self._progress = progress
        self._is_healthy = healthy or _answers_health
        self._reservation = reserve_port()
        self._launched_at = 0.0
        self._port = int(self._reservation.getsockname()[1])
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._engine: psutil.Process | None = None

    @property
    def port(self) -> int:
        """The port, the same over restarts."""
        return self._port

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The engine's process id; None when it was not started."""
        return self._engine.pid if self._engine else None

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, waits: Waits = DEFAULT_WAITS) -> EngineClient:
        """A client for it, allowed to use every endpoint."""
        return self._speaks(self.url, self.engine_id, waits=waits, alive=self.alive)

    def start(self) -> None:
        """Starts the engine, and ends it before if it runs; blocks until it is healthy.

        It gets the same port and the checkpoint it was first started with.

        Raises:
            EngineError: It ended, or was not healthy in time; the message ends with the end of its log, and nothing is
                left running.
        """
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Starts the engine, and does not wait for it."""
        self._end()
        if self._reservation.fileno() < 0:
            self._reservation = reserve_port(self.port)
        command = self._command(self.port)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            log.write(f"{LAUNCHED}{at} {' '.join(command)}\n".encode())
            log.flush()
            self._supervisor = subprocess.Popen(
                [sys.executable, supervisor.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        self._launched_at = time.monotonic()

    def wait_until_healthy(self) -> None:
        """Blocks until a launched engine is healthy.

        Raises:
            EngineError: As `start`.
        """
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def alive(self) -> bool:
        """Whether the engine's process runs; it may still be starting or hang."""
        with suppress(psutil.NoSuchProcess):
            return self._engine is not None and self._engine.status() != psutil.STATUS_ZOMBIE
        return False

    def stop(self) -> None:
        """Ends the engine and everything it started; returns when all of it is gone. May be called more than once."""
        self._end()
        self._reservation.close()

    def _end(self) -> None:
        if self._supervisor is None:
            return
        assert self._supervisor.stdin and self._supervisor.stdout
        self._supervisor.stdin.close()
        self._supervisor.wait()
        self._supervisor.stdout.close()
        self._supervisor = self._engine = None

    def healthy(self) -> bool:
        """Whether the engine runs and says that it is well."""
        return self.alive() and self._is_healthy(self.port)

    def revive(self) -> tuple[str, ...]:
        """Restarts the engine unless it is healthy; its name where it was restarted.

        Raises:
            EngineError: As `start`.
        """
        if self.healthy():
            return ()
        self.start()
        return (self.engine_id,)

    def _wait(self) -> None:
        parent = self._supervisor  # kept, since another thread may stop the engine meanwhile
        assert parent and parent.stdout
        started = self._launched_at
        reported = time.monotonic()
        with suppress(ValueError, psutil.NoSuchProcess):
            self._engine = psutil.Process(int(parent.stdout.readline()))
        while not self._is_healthy(self.port):
            now = time.monotonic()
            code = parent.poll()
            if code is not None or not self.alive():
                code = parent.wait()
                raise self._error(
                    f"ended with {_describe_exit(code)} after {now - started:.1f} s, before it was healthy"
                )
            if now - started > self._start_timeout:
                raise self._error(f"was not healthy after {self._start_timeout:.0f} s")
            if self._progress and now - reported >= 1:
                reported = now
                line = next(iter(self.log_tail(1)), "")
                self._progress(now - started, "" if line.startswith(LAUNCHED) else line)
            time.sleep(0.1)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> list[str]:
        """The last lines of the log that are not empty."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 16384))
            text = log.read().decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def _error(self, what: str) -> EngineError:
        tail = [line[:300] for line in self.log_tail()]
        return EngineError(f"engine {self.engine_id} {what}; the end of {self.log_path}:", *tail)


def reserve_port(port: int = 0) -> socket.socket:
    """A socket bound to a loopback port, a free one for 0, but not listening.

    It keeps the kernel from giving the port to somebody else while the engine starts or restarts; the engine itself can
    still bind it, since it sets SO_REUSEADDR, as every asyncio and uvicorn server does.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((HOST, port))
    return reservation


def _answers_health(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _describe_exit(code: int) -> str:
    """A supervisor's exit code in words."""
    try:
        return f"signal {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
