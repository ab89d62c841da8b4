"""Who answers: the embedded engine, the real SGLang or vLLM, several of one behind its real router, or a URL."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from parity.engines import installed, sglang, vllm
from parity.engines.checkpoints import ties_head, with_head
from parity.engines.client import EngineClient
from parity.engines.fleet import Fleet
from parity.engines.process import OWN_IMPORTS, Engine, EngineProcess, Progress
from parity.engines.remote import RemoteEngine, recognised, remote_engine
from parity.engines.router import check_router
from parity.errors import UsageError

__all__ = [
    "Engine",
    "EngineClient",
    "EngineProcess",
    "Fleet",
    "RemoteEngine",
    "check_fleet",
    "open_engine",
]

EMBEDDED_START_TIMEOUT = 300.0


def open_engine(
    spec: str,
    model_path: Path,
    log_dir: Path,
    *,
    control: bool = False,
    progress: Progress | None = None,
    workers: int = 1,
    router: str | None = None,
    name: str = "",
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> EngineProcess | Fleet | RemoteEngine:
    """Starts an engine and blocks until it is healthy; or refers to one that somebody else runs.

    Args:
        spec: `embedded`, `sglang`, `vllm`, or the URL of a deployment.
        model_path: The Hugging Face checkpoint to serve; not looked at for a URL.
        log_dir: Where the engine's log is appended to.
        control: Whether the control endpoints of a deployment at a URL may be used; an engine started here is always
            under control.
        progress: Told about the start about once a second: seconds so far, last line of the log.
        workers: How many engines to start; several get a router.
        router: The router's policy; by default `round_robin` for several workers, and no router for one.
        name: What engines started here are called, with their number; by default `spec`.
        options: Added to the command that starts an engine.
        environment: Added to the variables of an engine that is started; an empty value removes one.

    Raises:
        UsageError: `spec` is none of these, or there can be no such router.
        EngineError: The engine did not come up, and the message ends with its log; or what answers at the URL is none.
    """
    policy = check_fleet(spec, workers, router)
    if "://" in spec:
        return asyncio.run(recognised(remote_engine(spec, control=control)))
    processes = [
        _process(spec, f"{name or spec}-{index}", model_path, log_dir, progress, options, environment or {})
        for index in range(workers)
    ]
    engine = processes[0] if policy is None else Fleet(processes, policy, log_dir, progress, name)
    engine.start()
    return engine


def check_fleet(spec: str, workers: int, router: str | None) -> str | None:
    """The policy of the router in front of so many workers; None where there is to be no router.

    Raises:
        UsageError: There can be no such workers or router.
    """
    if "://" in spec and (workers != 1 or router is not None):
        raise UsageError(f"workers and a router are for engines started here; {spec} is a deployment as it is")
    if spec == "vllm" and (workers != 1 or router is not None):
        raise UsageError(
            "parity starts no router in front of vLLM: start vllm-router, and give its URL to sample, bench or check"
        )
    return check_router(workers, router)


def import_path() -> str:
    """The ``PYTHONPATH`` by which a child finds this package where it is not installed."""
    root = str(Path(__file__).parents[2])
    given = os.environ.get("PYTHONPATH", "")
    return given if "site-packages" in root else os.pathsep.join(filter(None, [root, given]))


def _process(
    spec: str,
    engine_id: str,
    model_path: Path,
    log_dir: Path,
    progress: Progress | None,
    options: Sequence[str],
    environment: Mapping[str, str],
) -> EngineProcess:
    """One engine, not started yet."""
    if spec == "embedded":
        return EngineProcess(
            engine_id,
            lambda port: [
                *(sys.executable, "-m", "parity.engines.embedded"),
                *("--model-path", str(model_path), "--host", "127.0.0.1", "--port", str(port)),
                *options,
            ],
            environment={
                **OWN_IMPORTS,
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": import_path(),
                "PARITY_API_KEY": "",
                **environment,
            },
            log_dir=log_dir,
            start_timeout=EMBEDDED_START_TIMEOUT,
            progress=progress,
        )
    if real := _REAL.get(spec):
        python = installed.find_python(spec)
        if spec == "vllm" and ties_head(model_path):
            model_path = with_head(model_path, log_dir / f"{engine_id}-checkpoint")
        return EngineProcess(
            engine_id,
            lambda port: [*real.command(python, model_path, port), *options],
            environment={**real.ENVIRONMENT, **environment},
            log_dir=log_dir,
            start_timeout=installed.START_TIMEOUT,
            progress=progress,
            speaks=real.CLIENT,
        )
    raise UsageError(f"no engine {spec!r}: expected embedded, {', '.join(_REAL)} or a URL")


_REAL = {"sglang": sglang, "vllm": vllm}
