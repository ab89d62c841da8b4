"""The real sglang-router in front of workers that were started here: its policies, command line and readiness.

Every flag was tried against sglang-router 0.3.2.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from parity.engines.process import HOST, OWN_IMPORTS
from parity.errors import UsageError, install_hint, without_secrets
from parity.records.arms import ArmsAsked, Deployment

REQUEST_ID = "X-Request-ID"
ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which the policy `manual` keeps requests on one engine."""
DEFAULT_POLICY = "round_robin"
START_TIMEOUT = 120.0

ENVIRONMENT = {
    **OWN_IMPORTS,
    "HF_HUB_OFFLINE": "1",
    # One line a request says to which worker it goes; what it logs of each request otherwise is left out.
    "RUST_LOG": "warn,smg=info,smg::request=warn,smg::response=warn,smg::workflow=warn,smg::observability=debug",
}

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SENT = re.compile(r'request_id="([^"]+)".*Sending request url=(\S+)')


def policies() -> tuple[str, ...]:
    """The policies of the sglang-router that is installed.

    Raises:
        UsageError: None is installed.
    """
    if importlib.util.find_spec("sglang_router") is None:
        raise UsageError(f"a router needs the package sglang-router: {install_hint('router')}")
    from sglang_router.router_args import RouterArgs

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    (choices,) = (action.choices for action in parser._actions if "--policy" in action.option_strings)
    return tuple(choices or ())


def check_router(workers: int, policy: str | None) -> str | None:
    """The policy for so many workers; None where one worker needs no router.

    Raises:
        UsageError: There is no such policy, no router installed, or no worker.
    """
    if workers < 1:
        raise UsageError(f"--workers is {workers}: an engine has at least one")
    if workers == 1 and policy is None:
        return None
    policy = policy or DEFAULT_POLICY
    known = policies()
    if policy not in known:
        raise UsageError(f"no router policy {policy!r}: the sglang-router installed has {', '.join(known)}")
    return policy


def command(policy: str, workers: Sequence[str], port: int, metrics_port: int) -> list[str]:
    """The command line of a router on loopback ports, in front of workers at URLs.

    A request is sent once, to one worker, whatever became of that worker before: what fails is seen, counted and sent
    again by whoever asked. So the router's own retries, circuit breaker (open for 60 s after 10 failures, the worker's
    restart included) and health checks (once in 60 s) are off.
    """
    return [
        *(sys.executable, "-m", "sglang_router.launch_router"),
        *("--host", HOST, "--port", str(port)),
        *("--prometheus-host", HOST, "--prometheus-port", str(metrics_port)),
        *("--policy", policy),
        *("--disable-retries", "--disable-circuit-breaker", "--disable-health-check"),
        *("--worker-urls", *workers),
    ]


def ready(port: int, workers: int) -> bool:
    """Whether the router at a port has all its workers; it calls itself healthy before it has any."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=10)) as connection:
        try:
            connection.request("GET", "/readiness")
            answer = connection.getresponse()
            return answer.status == 200 and json.loads(answer.read()).get("healthy_workers") == workers
        except (OSError, http.client.HTTPException, ValueError):
            return False


class RouterLog:
    """Which worker each request went to, by what the router logs; its answers do not say.

    Args:
        path: The router's log, as it is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size
        self._workers: dict[str, str] = {}

    def worker(self, request_id: str) -> str | None:
        """The URL of the worker that a request was sent to; None where the log does not say. Can be asked once."""
        if request_id not in self._workers:
            self._workers.update(self._new())
        return self._workers.pop(request_id, None)

    def _new(self) -> Iterator[tuple[str, str]]:
        """Request ids and URLs of the lines that were added, whole ones only; none of a log that was taken away."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._read)
                lines, newline, _ = log.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._read += len(lines) + len(newline)
        for line in lines.decode(errors="replace").splitlines():
            if found := _SENT.search(_COLOURS.sub("", line)):
                yield found[1], found[2]


def engine_words(deployment: Deployment) -> str:
    """The engine, what it was started with, its workers and its router, as a report names them."""
    workers, router = deployment.workers, deployment.router
    words = without_secrets(" ".join([deployment.engine, *deployment.options]))
    if workers == 1 and not router:
        return words
    return f"{words} ({workers} worker{'s' * (workers > 1)} behind sglang-router, {router or DEFAULT_POLICY})"


def engines_words(asked: ArmsAsked) -> str:
    """The engines of all arms, each with its first arm where there are several."""
    deployments = asked.deployments
    words = {deployment: engine_words(deployment) for deployment in deployments}
    if len(deployments) == 1:
        return next(iter(words.values()))
    return "; ".join(
        words[deployment] if words[deployment] == arm else f"{arm}: {words[deployment]}"
        for deployment, arm in deployments.items()
    )
