"""Who answers /generate: the embedded engine, the real SGLang, or a deployment somebody else runs."""

from __future__ import annotations

import sys
from pathlib import Path

from parity.engine import sglang
from parity.engine.client import EngineClient
from parity.engine.process import Engine, EngineProcess, Progress
from parity.engine.remote import RemoteEngine, remote_engine
from parity.errors import UsageError

__all__ = ["Engine", "EngineClient", "EngineProcess", "RemoteEngine", "open_engine"]

EMBEDDED_START_TIMEOUT = 300.0


def open_engine(
    spec: str, model_path: Path, log_dir: Path, *, control: bool = False, progress: Progress | None = None
) -> EngineProcess | RemoteEngine:
    """Starts an engine and blocks until it is healthy; or refers to one that somebody else runs.

    Args:
        spec: `embedded`, `sglang`, or the URL of a deployment.
        model_path: The Hugging Face checkpoint to serve; not looked at for a URL.
        log_dir: Where the engine's log is appended to.
        control: Whether the control endpoints of a deployment at a URL may be used; an engine started here is always
            under control.
        progress: Told about the start about once a second: seconds so far, last line of the log.

    Raises:
        UsageError: `spec` is none of these.
        EngineError: The engine did not come up; the message ends with its log.
    """
    if "://" in spec:
        return remote_engine(spec, control=control)
    if spec == "embedded":
        engine = EngineProcess(
            "embedded-0",
            lambda port: [
                *(sys.executable, "-m", "parity.engine.embedded"),
                *("--model-path", str(model_path), "--host", "127.0.0.1", "--port", str(port)),
            ],
            environment={"PYTHONUNBUFFERED": "1"},
            log_dir=log_dir,
            start_timeout=EMBEDDED_START_TIMEOUT,
            progress=progress,
        )
    elif spec == "sglang":
        python = sglang.find_python()
        engine = EngineProcess(
            "sglang-0",
            lambda port: sglang.command(python, model_path, port),
            environment=sglang.ENVIRONMENT,
            log_dir=log_dir,
            start_timeout=sglang.START_TIMEOUT,
            progress=progress,
        )
    else:
        raise UsageError(f"no engine {spec!r}: expected embedded, sglang or a URL")
    engine.start()
    return engine
