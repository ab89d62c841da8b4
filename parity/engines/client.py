"""Speaks to one engine over HTTP: SGLang's native API, its control endpoints included."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import orjson

from parity.errors import EngineError, EngineUnavailable, UsageError
from rollout_patch import Capabilities, RequestFailed

MAX_RESPONSE_BYTES = 1 << 30
GENERATE_TIMEOUT = aiohttp.ClientTimeout(total=1800, sock_connect=10)
CONTROL_TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=10)
DRAIN_SECONDS = 60
_UNAVAILABLE = (502, 503, 504)
IS_ROUTER = "router_manager"
"""What sglang-router says of itself at `/get_server_info`, and no engine does."""


class EngineClient:
    """One HTTP session with one engine; an async context manager.

    Args:
        url: The base URL, without a slash at the end.
        engine_id: The name that exchanges and samples carry.
        control: Whether the endpoints that change the engine (weights, cache, abort, pause) may be used.
    """

    def __init__(self, url: str, engine_id: str, *, control: bool = True) -> None:
        self.url = url
        self.engine_id = engine_id
        self._control_allowed = control
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> EngineClient:
        # How many requests run at once is the caller's business, so the pool sets no limit. SGLang's server closes a
        # connection that was idle for 5 s; after a training step it may just be doing so, and a request would be lost.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=1))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def generate(self, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """Posts one `/generate` request; returns the decoded body of a 200. It is not sent twice.

        Raises:
            RequestFailed: Any other status, with the body (decoded where it is JSON); a 200 whose body is no JSON, with
                its text; no answer (status None), with the reason.
        """
        try:
            status, body = await self._request("POST", "/generate", payload, GENERATE_TIMEOUT, headers)
        except EngineUnavailable as error:
            raise RequestFailed(None, str(error)) from error
        try:
            decoded = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestFailed(status, body.decode(errors="replace")) from error
        if status != 200:
            raise RequestFailed(status, decoded)
        return decoded

    def served_by(self, output_id: str | None) -> str:
        """The name of the engine that gave an output, by the output's id."""
        return self.engine_id

    async def update_weights(self, path: Path, version: str) -> None:
        """Loads a checkpoint of the same shape from a directory that the engine can read, and labels it `version`.

        Waits until no request runs first: SGLang answers 400 to an update whose cache it could not flush, although the
        weights are then new.

        Raises:
            EngineError: The engine refused, and keeps the old weights; or it reports another version afterwards.
            EngineUnavailable: No answer.
        """
        await self.flush_cache()
        body = {"model_path": str(path.absolute()), "weight_version": version}
        answer = await self._control("/update_weights_from_disk", body)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise EngineError(f"{self._place('/update_weights_from_disk')}: {path}: {_message(answer)}")
        reported = (await self.model_info()).get("weight_version")
        if reported != version:
            raise EngineError(
                f"{self._place('/model_info')}: weight_version is {reported!r} after an update to {version!r}"
            )

    async def flush_cache(self) -> None:
        """Waits until no request runs, and empties the prefix cache.

        Raises:
            EngineError: Requests still ran after `DRAIN_SECONDS`.
            EngineUnavailable: No answer.
        """
        await self._control(f"/flush_cache?timeout={DRAIN_SECONDS}")

    async def abort_all(self) -> None:
        """Aborts every request, running or queued; each is answered with what it has so far.

        Raises:
            EngineError: The engine refused, or gave no answer (EngineUnavailable).
        """
        await self._control("/abort_request", {"abort_all": True})

    async def pause(self) -> None:
        """Aborts what runs, and keeps new requests waiting until `continue_`.

        Raises:
            EngineError: The engine refused, or gave no answer (EngineUnavailable).
        """
        await self._control("/pause_generation", {})

    async def continue_(self) -> None:
        """Ends a pause.

        Raises:
            EngineError: The engine refused, or gave no answer (EngineUnavailable).
        """
        await self._control("/continue_generation", {})

    async def health(self) -> bool:
        """Whether `/health` answers 200."""
        try:
            status, _ = await self._request("GET", "/health", None, CONTROL_TIMEOUT)
        except EngineUnavailable:
            return False
        return status == 200

    async def model_info(self) -> dict[str, Any]:
        """What `/model_info` says: `model_path`, `weight_version` and more.

        Raises:
            EngineError: It is no JSON object, or there is no answer (EngineUnavailable).
        """
        return await self._info("model_info")

    async def server_info(self) -> dict[str, Any]:
        """What `/server_info` says: `version` and the settings of the engine.

        A router says nothing of its workers there, so what the first worker that answers says is added.

        Raises:
            EngineError: It is no JSON object, or there is no answer (EngineUnavailable).
        """
        info = await self._info("server_info")
        return {**await self._first_worker(), **info} if IS_ROUTER in info else info

    async def capabilities(self) -> Capabilities:
        """What the engine can promise, by its own `/server_info`.

        The embedded engine announces `deterministic` and `seed_per_slot`. SGLang honours `sampling_seed` only with
        `--enable-deterministic-inference`, and the n samples of one request then share one seed. A sglang-router takes
        lists of token ids, and no other list.

        Raises:
            EngineError: As `server_info`.
        """
        info = await self.server_info()
        seeded = info.get("deterministic") is True or info.get("enable_deterministic_inference") is True
        direct = IS_ROUTER not in info
        return Capabilities(
            seeded=seeded,
            seed_per_slot=seeded and info.get("seed_per_slot") is True,
            text_lists=direct,
            sampling_params_lists=direct,
        )

    async def _first_worker(self) -> dict[str, Any]:
        """What the first of a router's workers that can be reached from here says of itself; empty where none can."""
        _, body = await self._request("GET", "/workers", None, CONTROL_TIMEOUT)
        answer = _decode(body)
        workers = answer.get("workers") if isinstance(answer, dict) else None
        for worker in workers if isinstance(workers, list) else []:
            url = worker.get("url") if isinstance(worker, dict) else None
            if isinstance(url, str):
                with suppress(EngineError):
                    async with EngineClient(url, self.engine_id, control=False) as client:
                        return await client._info("server_info")
        return {}

    async def _info(self, name: str) -> dict[str, Any]:
        """The object that `/<name>` answers; releases before SGLang 0.5.6, and the router, only know `/get_<name>`."""
        status, body = await self._request("GET", f"/{name}", None, CONTROL_TIMEOUT)
        if status == 404:
            name = f"get_{name}"
            status, body = await self._request("GET", f"/{name}", None, CONTROL_TIMEOUT)
        info = _decode(body)
        if status != 200 or not isinstance(info, dict):
            raise self._refused(f"/{name}", status, info)
        return info

    async def _control(self, endpoint: str, payload: Mapping[str, Any] | None = None) -> Any:
        """Posts to a control endpoint; returns the answer, decoded where it is JSON."""
        if not self._control_allowed:
            raise UsageError(
                f"{self._place(endpoint)} changes an engine that somebody else runs, which was not allowed"
            )
        status, body = await self._request("POST", endpoint, payload, CONTROL_TIMEOUT)
        answer = _decode(body)
        if status != 200:
            raise self._refused(endpoint, status, answer)
        return answer

    async def _request(
        self,
        method: str,
        endpoint: str,
        payload: Mapping[str, Any] | None,
        timeout: aiohttp.ClientTimeout,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """One request, with a bound on the answer's size: status and body. Raises EngineUnavailable for no answer."""
        if self._session is None:
            raise RuntimeError("EngineClient is an async context manager: use it in `async with`")
        data = None if payload is None else orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY)
        sent = {**({} if data is None else {"Content-Type": "application/json"}), **(headers or {})}
        try:
            async with self._session.request(
                method, self.url + endpoint, data=data, headers=sent, timeout=timeout
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise EngineUnavailable(
                            f"{self._place(endpoint)}: the answer is larger than {MAX_RESPONSE_BYTES} bytes"
                        )
                return response.status, bytes(body)
        except asyncio.TimeoutError as error:
            raise EngineUnavailable(f"{self._place(endpoint)}: no answer within {timeout.total} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"{self._place(endpoint)}: {type(error).__name__}: {error}") from error

    def _refused(self, endpoint: str, status: int, answer: Any) -> EngineError:
        kind = EngineUnavailable if status in _UNAVAILABLE else EngineError
        return kind(f"{self._place(endpoint)}: status {status}: {_message(answer)}")

    def _place(self, endpoint: str) -> str:
        return f"engine {self.engine_id}, {self.url}{endpoint}"


def _decode(body: bytes) -> Any:
    """The body as JSON where it is JSON, else as text."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="replace")


def _message(answer: Any) -> str:
    """The part of an answer that says what went wrong, in any of the shapes that SGLang uses."""
    for name in ("error", "message", "detail"):
        if isinstance(answer, dict) and name in answer:
            answer = answer[name]
    return str(answer).strip()[:1000]
