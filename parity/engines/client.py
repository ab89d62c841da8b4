"""Speaks to one engine over HTTP: SGLang's native API, its control endpoints included; the base of other dialects."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import orjson

from parity.errors import EngineError, EngineUnavailable, InputError, UsageError
from parity.records import budgets
from parity.records.budgets import decode_json
from rollout_patch import Capabilities, RequestFailed
from rollout_patch.dialects import SGLANG, Dialect

CONNECT_SECONDS = 10.0
LOOK_SECONDS = 10.0
"""Within which `/health` and `/metrics` must answer."""
INFO_SECONDS = 30.0
"""Within which `/model_info` and `/server_info` must answer."""
DRAIN_SECONDS = 60
CONTROL_ATTEMPTS = 12
"""How often a control call is made that gets no answer or a passing error; each may be made twice without harm."""
_UNAVAILABLE = (502, 503, 504)
_PASSING = (408, 409, 425, 429, 500, *_UNAVAILABLE)
_GENERATED = re.compile(
    rb"^(?:sglang:|vllm:)?generation_tokens_total(?:\{[^}\n]{0,1000}\})? ([0-9.e+]{1,30})", re.MULTILINE
)
OF_NOTHING = hashlib.sha256().hexdigest()
"""The digest of zero bytes."""
DAMAGED_TRIES = 5
"""How often one request may be answered wrongly until that is no accident any more."""
_INFO_TYPES = {"version": str, "weight_version": str, "deterministic": bool, "seed_per_slot": bool}
"""Types of what is read of `/model_info` and `/server_info`."""
IS_ROUTER = "router_manager"
"""What sglang-router says of itself at `/get_server_info`, and no engine does."""


_log = logging.getLogger("parity.engines")


@dataclass(frozen=True, slots=True)
class Waits:
    """How long an answer is waited for, and who is told.

    Attributes:
        patience: Seconds without an answer, and without a token where the engine counts them, until a request is given
            up.
        notice_after: Seconds until the engine is asked for its health, and `note` is told; again after as many.
        note: Told that there is no answer yet; by default the log, which goes to standard error.
    """

    patience: float = 600.0
    notice_after: float = 60.0
    note: Callable[[str], None] = _log.warning


DEFAULT_WAITS = Waits()


class EngineClient:
    """One HTTP session with one engine; an async context manager.

    Args:
        url: The base URL, without a slash at the end.
        engine_id: The name that exchanges and samples carry.
        control: Whether the endpoints that change the engine (weights, cache, abort, pause) may be used.
        waits: How long an answer is waited for.
        api_key: Sent as ``Authorization: Bearer``; empty sends none.
        alive: Whether the process of an engine that was started here runs; `None` for one that somebody else runs.

    Attributes:
        dialect: How it asks for samples.
        weights: The version that this client gave the weights last.
    """

    dialect: Dialect = SGLANG

    def __init__(
        self,
        url: str,
        engine_id: str,
        *,
        control: bool = True,
        waits: Waits = DEFAULT_WAITS,
        api_key: str = "",
        alive: Callable[[], bool] | None = None,
    ) -> None:
        self.url = url
        self.engine_id = engine_id
        self.weights: str | None = None
        self._waits = waits
        self._alive = alive
        self._key_header = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._control_allowed = control
        self._session: aiohttp.ClientSession | None = None
        self._held = 0
        self._look = _Look()

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
        """Posts one request for samples; returns the decoded body of a 200. It is not sent twice.

        Raises:
            RequestFailed: Any other status, with the body (decoded where it is JSON); a 200 whose body is no JSON, with
                its text; no answer (status None), with the reason.
            EngineUnavailable: No answer, of an engine started here that died or is not healthy.
        """
        try:
            status, body = await self._patiently("POST", self.dialect.path_of(payload), payload, headers)
        except EngineUnavailable as error:
            if self._ours_is_gone():
                raise
            raise RequestFailed(None, str(error)) from error
        try:
            decoded = decode_json(body, "the answer")
        except InputError as error:
            raise RequestFailed(status, body[:_SHOWN_BYTES].decode(errors="replace")) from error
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
        self.weights = None
        await self.flush_cache()
        body = {"model_path": str(path.absolute()), "weight_version": version}
        for _ in range(DAMAGED_TRIES):
            answer = await self._control("/update_weights_from_disk", body, dict)
            if isinstance(answer, dict) and isinstance(answer.get("success"), bool):
                break
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise EngineError(f"{self._place('/update_weights_from_disk')}: {path}: {_message(answer)}")
        reported = (await self.model_info()).get("weight_version")
        if reported != version:
            raise EngineError(
                f"{self._place('/model_info')}: weight_version is {reported!r} after an update to {version!r}"
            )
        self.weights = version

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
            status, _ = await self._request("GET", "/health", None, LOOK_SECONDS)
        except EngineUnavailable:
            return False
        return status == 200

    async def model_info(self) -> dict[str, Any]:
        """What `/model_info` says: `model_path`, `weight_version` and more.

        Raises:
            EngineError: It is no JSON object, or there is no answer (EngineUnavailable).
        """
        return await self._info("model_info")

    async def weight_digests(self) -> dict[str, str]:
        """The digest of each weight by rank and name, where the engine gives them; else nothing.

        One of zero bytes is left out: vLLM on a CPU gives it for every matrix that it has packed.

        Raises:
            EngineUnavailable: No answer.
        """
        for endpoint in ("/weights_checker", "/weight_checker"):
            status, body = await self._again("POST", endpoint, {"action": "checksum"}, object)
            answer = decode(body)
            if status == 200 and isinstance(answer, dict):
                ranks = answer.get("ranks")
                parts = ranks if isinstance(ranks, list) else [answer]
                sums = [part.get("checksums") if isinstance(part, dict) else None for part in parts]
                named = {f"{k}:{name}": str(v) for k, rank in enumerate(sums) for name, v in dict(rank or {}).items()}
                return {name: digest for name, digest in named.items() if digest != OF_NOTHING}
        return {}

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
        _, body = await self._again("GET", "/workers")
        answer = decode(body)
        workers = answer.get("workers") if isinstance(answer, dict) else None
        for worker in workers if isinstance(workers, list) else []:
            url = worker.get("url") if isinstance(worker, dict) else None
            if isinstance(url, str):
                with suppress(EngineError):
                    async with EngineClient(url, self.engine_id, control=False) as client:
                        status, body = await client._request("GET", "/server_info", None, INFO_SECONDS)
                        info = decode(body)
                        if status == 200 and isinstance(info, dict):
                            return info
        return {}

    async def _info(self, name: str) -> dict[str, Any]:
        """The object that `/<name>` answers; releases before SGLang 0.5.6, and the router, only know `/get_<name>`.

        One with a value of another type than engines give it is asked for again, since it may be damaged.
        """
        for _ in range(DAMAGED_TRIES):
            info = await self._info_once(name)
            if all(isinstance(info.get(key, kind()), (kind, type(None))) for key, kind in _INFO_TYPES.items()):
                break
        return info

    async def _info_once(self, name: str) -> dict[str, Any]:
        status, body = await self._again("GET", f"/{name}")
        if status == 404:
            name = f"get_{name}"
            status, body = await self._again("GET", f"/{name}")
        info = decode(body)
        if status != 200 or not isinstance(info, dict):
            raise self._refused(f"/{name}", status, info)
        return info

    async def _control(self, endpoint: str, payload: Mapping[str, Any] | None = None, wanted: type = object) -> Any:
        """Posts to a control endpoint; returns the answer, decoded where it is JSON, of a `wanted` type."""
        if not self._control_allowed:
            raise UsageError(
                f"{self._place(endpoint)} changes an engine that somebody else runs, which was not allowed"
            )
        status, body = await self._again("POST", endpoint, payload, wanted)
        answer = decode(body)
        if status != 200:
            raise self._refused(endpoint, status, answer)
        return answer

    async def _again(
        self, method: str, endpoint: str, payload: Mapping[str, Any] | None = None, wanted: type = dict
    ) -> tuple[int, bytes]:
        """A call that may be made twice: made again, `CONTROL_ATTEMPTS` times in all, until it is answered for good.

        A damaged answer counts as none: a redirect, and one that is not JSON of the `wanted` type.
        """
        for attempt in range(1, CONTROL_ATTEMPTS + 1):
            last = attempt == CONTROL_ATTEMPTS or self._ours_is_gone()
            try:
                if method == "GET":
                    status, body = await self._request(method, endpoint, payload, INFO_SECONDS)
                else:
                    status, body = await self._patiently(method, endpoint, payload)
            except EngineUnavailable:
                if last:
                    raise
            else:
                damaged = status < 400 and (status >= 300 or not isinstance(decode(body), wanted))
                if last or not (damaged or status in _PASSING):
                    return status, body
            await asyncio.sleep(min(0.02 * 2**attempt, 0.5))
        raise AssertionError("the last attempt returns or raises")

    def _ours_is_gone(self) -> bool:
        """Whether the engine was started here and its process is gone, so that only a restart helps."""
        return self._alive is not None and not self._alive()

    async def _patiently(
        self,
        method: str,
        endpoint: str,
        payload: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """One request, that is waited for as `Waits` says; meanwhile the engine is asked for its health.

        Raises:
            EngineUnavailable: There is no answer; it was given up; or an engine started here died or is not healthy at
                two looks.
        """
        waits = self._waits
        request = asyncio.ensure_future(self._request(method, endpoint, payload, None, headers))
        began = signed = time.monotonic()
        sick = tokens = 0
        try:
            while True:
                left = max(signed + waits.patience - time.monotonic(), 0)
                await asyncio.wait({request}, timeout=min(waits.notice_after, left))
                if request.done():
                    return request.result()
                healthy, generated = await self._look_at_engine(endpoint, time.monotonic() - began)
                if generated > tokens:
                    tokens, signed = generated, time.monotonic()
                sick = 0 if healthy else sick + 1
                silent = time.monotonic() - signed
                restart = self._ours_is_gone() or (self._alive is not None and sick > 1)
                if restart or silent >= waits.patience:
                    state = "healthy" if healthy else "not healthy"
                    raise EngineUnavailable(
                        f"{self._place(endpoint)}: no answer and no token for {silent:.0f} s, engine {state}"
                    )
        finally:
            request.cancel()

    async def _look_at_engine(self, endpoint: str, waited: float) -> tuple[bool, int]:
        """Whether it is healthy, and how many tokens it has generated (0 where it does not count); asked once for all.

        All that wait share one look, so that 500 requests ask and say no more than one.
        """
        look, every = self._look, self._waits.notice_after
        async with look.lock:
            if time.monotonic() - look.at >= every / 2:
                look.healthy = await self.health()
                with suppress(EngineUnavailable):
                    _, text = await self._request("GET", "/metrics", None, LOOK_SECONDS)
                    look.tokens = int(sum(map(float, _GENERATED.findall(text))))
                look.at = time.monotonic()
                state = "healthy" if look.healthy else "not healthy"
                self._waits.note(f"{self._place(endpoint)}: no answer for {waited:.0f} s, engine {state}")
        return look.healthy, look.tokens

    async def _request(
        self,
        method: str,
        endpoint: str,
        payload: Mapping[str, Any] | None,
        seconds: float | None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """One request, with a bound on the answer's size: status and body. A redirect is an answer, never followed.

        It is given up after `seconds`; `None` where the caller waits for it by a bound of its own.

        Raises:
            EngineUnavailable: There is no answer, or a larger one than budgets allow.
        """
        if self._session is None:
            raise RuntimeError("EngineClient is an async context manager: use it in `async with`")
        data = None if payload is None else orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY)
        sent = {**self._key_header, **({} if data is None else {"Content-Type": "application/json"}), **(headers or {})}
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        body = bytearray()
        try:
            async with self._session.request(
                method, self.url + endpoint, data=data, headers=sent, timeout=timeout, allow_redirects=False
            ) as response:
                async for chunk in response.content.iter_any():
                    body += chunk
                    self._held += len(chunk)
                    for what, size, limit in (
                        ("the answer", len(body), budgets.answer_bytes()),
                        ("all answers that are being received", self._held, budgets.answers_in_flight()),
                    ):
                        if size > limit:
                            raise EngineUnavailable(
                                f"{self._place(endpoint)}: {budgets.exceeded(what, limit, 'bytes')}"
                            )
                return response.status, bytes(body)
        except asyncio.TimeoutError as error:
            within = CONNECT_SECONDS if seconds is None else seconds
            raise EngineUnavailable(f"{self._place(endpoint)}: no answer within {within:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineUnavailable(f"{self._place(endpoint)}: {type(error).__name__}: {error}") from error
        finally:
            self._held -= len(body)

    def _refused(self, endpoint: str, status: int, answer: Any) -> EngineError:
        kind = EngineUnavailable if status in _UNAVAILABLE else EngineError
        return kind(f"{self._place(endpoint)}: status {status}: {_message(answer)}")

    def _place(self, endpoint: str) -> str:
        return f"engine {self.engine_id}, {self.url}{endpoint}"


@dataclass(slots=True)
class _Look:
    """What the engine's state was when it was looked at last."""

    at: float = -math.inf
    healthy: bool = True
    tokens: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_SHOWN_BYTES = 10_000
"""Bytes of an answer without JSON that are handed on."""


def decode(body: bytes) -> Any:
    """The body as JSON where it is JSON, else as text."""
    try:
        return decode_json(body, "the answer")
    except InputError:
        return body[:_SHOWN_BYTES].decode(errors="replace")


def _message(answer: Any) -> str:
    """The part of an answer that says what went wrong, in any of the shapes that SGLang uses."""
    for name in ("error", "message", "detail"):
        if isinstance(answer, dict) and name in answer:
            answer = answer[name]
    return str(answer).strip()[:1000]
