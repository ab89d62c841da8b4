"""An engine that somebody else runs: asked for samples, and otherwise left alone."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from parity.engines.client import DEFAULT_WAITS, EngineClient, Waits
from parity.engines.vllm import VllmClient
from parity.errors import MASK, EngineError, EngineUnavailable, UsageError

RECOVERY_SECONDS = 60.0
"""How long a deployment may take to be healthy again, as after a restart of its own."""


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """A deployment at a URL that was given.

    With `control`, its weights may be updated and its requests aborted. An update names a checkpoint directory of this
    machine, so the deployment must see the same file system. `speaks` is how it is spoken to.
    """

    url: str
    engine_id: str
    control: bool
    speaks: type[EngineClient] = EngineClient

    def client(self, waits: Waits = DEFAULT_WAITS) -> EngineClient:
        """A client for it; its control endpoints are refused unless `control`."""
        api_key = os.environ.get("PARITY_API_KEY", "")
        return self.speaks(self.url, self.engine_id, control=self.control, waits=waits, api_key=api_key)

    def alive(self) -> bool:
        """True: whoever runs it knows; `client().health()` asks."""
        return True

    def revive(self) -> tuple[str, ...]:
        """Nothing, once it answers; to restart it is not ours to do.

        Raises:
            EngineError: It does not answer within `RECOVERY_SECONDS`.
        """
        until = time.monotonic() + RECOVERY_SECONDS
        while not asyncio.run(self._answers()):
            if time.monotonic() >= until:
                raise EngineError(
                    f"engine {self.engine_id} was not healthy for {RECOVERY_SECONDS:.0f} s, and only whoever runs it "
                    f"can restart it: {self.url}"
                )
            time.sleep(1)
        return ()

    async def _answers(self) -> bool:
        async with self.client() as client:
            return await client.health()

    def stop(self) -> None:
        """Leaves it running."""


def remote_engine(url: str, *, control: bool) -> RemoteEngine:
    """The engine at `url`, named after its host and port, which is not asked anything yet.

    Raises:
        UsageError: It is no http or https URL of a server.
    """
    parts = urlsplit(url)
    if parts.netloc.startswith(f"{MASK}@"):
        raise UsageError(f"{url}: its password was not written down; give --engine with it again")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or not _port_is_sound(parts):
        raise UsageError(f"{url!r} is no engine: expected http://HOST:PORT")
    return RemoteEngine(url.rstrip("/"), parts.netloc.rpartition("@")[2], control)


async def recognised(engine: RemoteEngine) -> RemoteEngine:
    """The engine with how it is spoken to, SGLang's way where it answers in several.

    Raises:
        EngineError: It does not answer, or neither as SGLang nor as vLLM does.
    """
    refusals: list[str] = []
    for speaks in (EngineClient, VllmClient):
        spoken_to = replace(engine, speaks=speaks)
        async with spoken_to.client() as client:
            try:
                if "vllm_config" not in await client.server_info():
                    return spoken_to
            except EngineUnavailable:
                raise
            except EngineError as refusal:
                refusals.append(str(refusal))
    raise EngineError(f"{engine.url} is neither SGLang nor vLLM:", *refusals)


def _port_is_sound(parts: SplitResult) -> bool:
    """Whether the port is absent or a number below 65536; `urllib` looks at it only when it is read."""
    try:
        return parts.port != 0
    except ValueError:
        return False
