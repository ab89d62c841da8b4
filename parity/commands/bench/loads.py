"""What each engine served: requests and decode tokens, out of access logs and Prometheus counters.

Access logs are uvicorn's, as SGLang and vLLM write them. Counters are SGLang's own (with `--enable-metrics`), vLLM's,
the embedded engine's, and sglang-router's, which counts requests by worker.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from parity.errors import EngineUnavailable, InputError, NotRecognised
from parity.records.bench import Load

MAX_TEXT = 64 << 20
"""Most bytes of a page of counters."""
MAX_LINE = 64 << 10
"""Most bytes of a line of an access log; a longer one is read in parts."""

_ACCESS = re.compile(
    rb'"(?:POST|PUT) (?:https?://[^/ ]+)?(?:/inference/v1)?/(?:generate|v1/completions)(?:\?[^ ]*)?'
    rb' HTTP/[0-9.]+" ([0-9]{3})\b'
)
_ANY_ACCESS = re.compile(rb'"[A-Z]+ [^ "]+ HTTP/[0-9.]+" [0-9]{3}\b')
_COUNTERS = frozenset(
    {"sglang:num_http_requests_total", "sglang:generation_tokens_total"}
    | {"vllm:request_params_n_count", "vllm:generation_tokens_total"}
)
"""Requests and decode tokens; vLLM counts a request that has a result once, whatever its n."""
Loads = Mapping[str, Load]
"""By engine."""

Source = Callable[[], Awaitable[Loads]]
"""Reads counters as they are now."""


def read_counters(text: str, name: str) -> dict[str, Load]:
    """The loads in a page of Prometheus counters: of one engine, called `name`, or of the workers behind a router.

    Raises:
        NotRecognised: It holds no counter of an engine or a router.
        InputError: A line is no sample of a counter, or a value is no count.
    """
    from prometheus_client.parser import text_string_to_metric_families  # only a benchmark needs it

    engine: dict[str, float] = defaultdict(float)
    workers: dict[str, float] = defaultdict(float)
    lines = [
        line.strip() for line in text.splitlines() if line.startswith(("sglang:", "sglang_", "vllm:", "smg_worker_"))
    ]
    try:
        samples = [sample for family in text_string_to_metric_families("\n".join(lines)) for sample in family.samples]
    except ValueError as error:
        raise InputError(f"{name}: no samples of counters: {error}") from error
    for metric, labels, value, *_ in samples:
        metric = metric.replace("sglang_", "sglang:")
        if metric in ("smg_worker_health", "smg_worker_cb_outcomes_total") and "worker" in labels:
            workers[labels["worker"]] += 0.0 if metric == "smg_worker_health" else _count(value, name, metric)
        elif metric in _COUNTERS or (metric == "sglang:http_requests_total" and labels.get("endpoint") == "/generate"):
            engine["decode_tokens" if "tokens" in metric else "requests"] += _count(value, name, metric)
    if workers:
        # A router lists its workers in another order at each reading.
        return {engine_name(worker): Load(requests) for worker, requests in sorted(workers.items())}
    if engine or "\nsglang" in f"\n{text}" or "\nvllm:" in f"\n{text}":
        return {name: Load(engine.get("requests"), engine.get("decode_tokens"))}
    raise NotRecognised(f"{name}: no counter of SGLang, vLLM or a router")


def _count(value: float, name: str, metric: str) -> float:
    if not 0 <= value < 2**63:
        raise InputError(f"{name}, {metric}: {value} is no count")
    return value


def engine_name(url: str) -> str:
    """What an engine is called by its URL: host and port."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url
    except ValueError:  # brackets that hold no address
        return url


def metrics_source(url: str, name: str | None = None, names: Mapping[str, str] | None = None) -> Source:
    """Counters at a URL; `/metrics` is added to one without a path.

    Args:
        url: Of an engine or a router.
        name: What that engine is called; host and port by default.
        names: What the workers of a router are called, by host and port.
    """
    called = name or engine_name(url)
    address = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/metrics"

    async def read() -> Loads:
        loads = read_counters(await _get(address), called)
        return {(names or {}).get(engine, engine): load for engine, load in loads.items()}

    return read


async def _get(address: str) -> str:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            session.get(address) as response,
        ):
            if response.status != 200:
                raise InputError(f"{address}: status {response.status}, no counters")
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > MAX_TEXT:
                    raise InputError(f"{address}: more than {MAX_TEXT} bytes")
            return body.decode(errors="replace")
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        raise EngineUnavailable(f"{address}: {type(error).__name__}: {error}") from error


class AccessLog:
    """Requests to `/generate` in an access log that grows, however answered: each call reads what was added."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._path, self._name = path, name or path.stem
        self._offset = self._count = 0
        self._inode: int | None = None

    async def __call__(self) -> Loads:
        """The count so far.

        Raises:
            InputError: The log is gone, or is not the one that was read before: what it held meanwhile is not known.
        """
        try:
            with self._path.open("rb") as file:
                now = os.fstat(file.fileno())
                if now.st_size < self._offset or self._inode not in (None, now.st_ino):
                    raise InputError(f"{self._path}: was cut or replaced while its requests were counted")
                self._inode = now.st_ino
                file.seek(self._offset)
                while (line := file.readline(MAX_LINE)).endswith(b"\n") or len(line) == MAX_LINE:
                    self._offset += len(line)  # a last line without its end is still being written
                    self._count += _ACCESS.search(line) is not None
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read: {error.strerror}") from error
        return {self._name: Load(float(self._count))}


def open_sources(places: Sequence[str]) -> list[Source]:
    """The sources that a user names; files are called by their names alone where these differ, else by their paths.

    Raises:
        InputError: As `open_source`.
    """
    files = dict.fromkeys(place for place in places if "://" not in place)
    stems = Counter(Path(place).stem for place in files)
    names = {place: Path(place).stem if stems[Path(place).stem] == 1 else place for place in files}
    return [open_source(place, names.get(place)) for place in dict.fromkeys(places)]


def open_source(place: str, name: str | None = None) -> Source:
    """The source that a user names: a URL with counters, a page of them in a file, or an access log.

    Args:
        place: A URL or a path.
        name: What the engine is called; by default host and port, or the file's name without its ending.

    Raises:
        InputError: The file is none of these, or cannot be read.
    """
    if "://" in place:
        try:
            return metrics_source(place, name)
        except ValueError as error:
            raise InputError(f"{place}: no URL: {error}") from error
    path = Path(place)
    try:
        with path.open("rb") as file:
            head = file.read(1 << 20)
    except OSError as error:
        raise InputError(f"{place}: cannot be read: {error.strerror}") from error
    if _ANY_ACCESS.search(head):
        return AccessLog(path, name)

    async def read() -> Loads:
        return read_counters(path.read_text(errors="replace"), name or path.stem)

    if path.stat().st_size > MAX_TEXT:
        raise NotRecognised(f"{place}: neither an access log nor a page of Prometheus counters")
    read_counters(path.read_text(errors="replace"), name or path.stem)
    return read


async def read_loads(sources: Iterable[Source]) -> dict[str, Load]:
    """All sources at once; of an engine that several name, the first that knows a number gives it."""
    merged: dict[str, Load] = {}
    for source in sources:
        for engine, load in (await source()).items():
            known = merged.get(engine, Load())
            merged[engine] = Load(
                load.requests if known.requests is None else known.requests,
                load.decode_tokens if known.decode_tokens is None else known.decode_tokens,
            )
    return merged


def growth(before: Loads, after: Loads) -> dict[str, Load]:
    """What was served between two readings; a counter that fell, as of an engine that was restarted, is not known."""
    nothing = Load(0.0, 0.0)
    return {
        engine: Load(
            _grown(before.get(engine, nothing).requests, load.requests),
            _grown(before.get(engine, nothing).decode_tokens, load.decode_tokens),
        )
        for engine, load in after.items()
    }


def _grown(before: float | None, after: float | None) -> float | None:
    first = before or 0.0  # a counter with labels appears with its first count
    return None if after is None or after < first else after - first
