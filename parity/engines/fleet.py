"""Several workers behind the real router, as one engine: asked through the router, controlled worker by worker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from parity.engines import router
from parity.engines.client import DEFAULT_WAITS, EngineClient, Waits
from parity.engines.process import HOST, EngineProcess, Progress, reserve_port
from parity.errors import EngineError
from parity.records.exchanges import output_ids
from rollout_patch import Capabilities

ROUTER_ID = "router"
"""The name of the whole: what exchanges and samples carry whose worker is not known."""


class Fleet:
    """Workers that serve one checkpoint, and a router in front of them.

    Starting and stopping block: a coroutine calls them through `asyncio.to_thread`.

    Args:
        workers: Not started yet.
        policy: One of `router.policies()`.
        log_dir: Where the router's log is appended to.
        progress: Told about the router's start about once a second.
        name: Tells the router from that of other engines.
    """

    def __init__(
        self,
        workers: Sequence[EngineProcess],
        policy: str,
        log_dir: Path,
        progress: Progress | None = None,
        name: str = "",
    ) -> None:
        self.workers = tuple(workers)
        self.engine_id = f"{name}-{ROUTER_ID}" if name else ROUTER_ID
        self._reservation = reserve_port()
        metrics_port = int(self._reservation.getsockname()[1])
        self.metrics_url = f"http://{HOST}:{metrics_port}/metrics"
        urls = [worker.url for worker in self.workers]
        self.router = EngineProcess(
            self.engine_id,
            lambda port: router.command(policy, urls, port, metrics_port),
            environment=router.ENVIRONMENT,
            log_dir=log_dir,
            start_timeout=router.START_TIMEOUT,
            progress=progress,
            healthy=lambda port: router.ready(port, len(urls)),
        )

    @property
    def url(self) -> str:
        """The router's base URL, without a slash at the end."""
        return self.router.url

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, waits: Waits = DEFAULT_WAITS) -> FleetClient:
        """A client that asks through the router, and controls every worker."""
        return FleetClient(self, waits)

    def start(self) -> None:
        """Starts all workers at once, then the router; blocks until it has them all.

        Raises:
            EngineError: One did not come up; nothing is left running.
        """
        try:
            for worker in self.workers:
                worker.launch()
            for worker in self.workers:
                worker.wait_until_healthy()
            self.router.start()
        except BaseException:
            self.stop()
            raise

    def beside(self, policy: str, log_dir: Path, progress: Progress | None = None) -> Fleet:
        """The same workers behind a router more, of another policy, which is started; blocks until it has them all.

        Raises:
            EngineError: The router did not come up.
        """
        other = Fleet(self.workers, policy, log_dir, progress)
        try:
            other.router.start()
        except BaseException:
            other._reservation.close()
            raise
        return other

    def alive(self) -> bool:
        """Whether the router's process and every worker's run."""
        return all(part.alive() for part in (*self.workers, self.router))

    def revive(self) -> tuple[str, ...]:
        """Restarts those of the workers and the router that died or do not answer; their names.

        Raises:
            EngineError: One did not come up again.
        """
        return tuple(name for part in (*self.workers, self.router) for name in part.revive())

    def stop(self) -> None:
        """Ends the router and all workers, and everything they started; may be called more than once."""
        parts = (self.router, *self.workers)
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(EngineProcess.stop, parts))
        self._reservation.close()


class FleetClient(EngineClient):
    """Asks for samples through the router, and sends what changes an engine to every worker.

    Which worker gave an answer is known from the router's log.
    """

    def __init__(self, fleet: Fleet, waits: Waits) -> None:
        super().__init__(fleet.url, fleet.engine_id, waits=waits, alive=fleet.alive)
        self._clients = [worker.client(waits) for worker in fleet.workers]
        self.dialect = self._clients[0].dialect
        self._names = {worker.url: worker.engine_id for worker in fleet.workers}
        self._log = router.RouterLog(fleet.router.log_path)
        self._served: dict[str, str] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> FleetClient:
        await super().__aenter__()
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        await super().__aexit__(kind, error, trace)

    async def generate(self, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """As `EngineClient.generate`, through the router."""
        request_id = uuid.uuid4().hex
        answer = await super().generate(payload, {**(headers or {}), router.REQUEST_ID: request_id})
        if worker := self._names.get(self._log.worker(request_id) or ""):
            self._served.update(dict.fromkeys(output_ids(answer), worker))
        return answer

    def served_by(self, output_id: str | None) -> str:
        """The worker that gave an output since the last update of weights; the router's name where it is not known."""
        return self._served.get(output_id or "", self.engine_id)

    async def update_weights(self, path: Path, version: str) -> None:
        """Loads a checkpoint into every worker, once no request runs on any, so that no group mixes versions.

        Raises:
            EngineError: A worker refused, or gave no answer (EngineUnavailable); others may have the new weights.
        """
        self._served.clear()
        self.weights = None
        await self.flush_cache()
        await self._every(lambda worker: worker.update_weights(path, version))
        self.weights = version

    async def flush_cache(self) -> None:
        """As `EngineClient.flush_cache`, on every worker."""
        await self._every(lambda worker: worker.flush_cache())

    async def abort_all(self) -> None:
        """As `EngineClient.abort_all`, on every worker; the router has no such endpoint."""
        await self._every(lambda worker: worker.abort_all())

    async def pause(self) -> None:
        """As `EngineClient.pause`, on every worker."""
        await self._every(lambda worker: worker.pause())

    async def continue_(self) -> None:
        """As `EngineClient.continue_`, on every worker."""
        await self._every(lambda worker: worker.continue_())

    async def health(self) -> bool:
        """Whether the router and every worker answer 200 at `/health`."""
        return await super().health() and all(await self._every(lambda worker: worker.health()))

    async def model_info(self) -> dict[str, Any]:
        """As `EngineClient.model_info`, of the first worker.

        Raises:
            EngineError: Workers have weights of different versions; or as `EngineClient.model_info`.
        """
        every: list[dict[str, Any]] = await self._every(lambda worker: worker.model_info())
        reported = [info.get("weight_version") for info in every]
        if len(set(reported)) > 1:
            raise EngineError(f"{self.url}: its workers have weights of different versions: {reported}")
        return every[0]

    async def server_info(self) -> dict[str, Any]:
        """As `EngineClient.server_info`, of the first worker: all are started alike."""
        return await self._clients[0].server_info()

    async def capabilities(self) -> Capabilities:
        """What every worker can promise, and the router takes."""
        every: list[Capabilities] = await self._every(lambda worker: worker.capabilities())
        return replace(
            every[0],
            seeded=all(one.seeded for one in every),
            seed_per_slot=all(one.seed_per_slot for one in every),
            text_lists=False,
            sampling_params_lists=False,
        )

    async def _every(self, call: Callable[[EngineClient], Awaitable[Any]]) -> list[Any]:
        """What every worker answers, in order; raises the first error once all are through."""
        answers = await asyncio.gather(*(call(worker) for worker in self._clients), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers
