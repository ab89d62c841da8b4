"""One checkpoint served over a `Scheduler`: requests in, results out, whatever they look like on the wire."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from parity.engines.embedded.model import CheckpointError, Model
from parity.engines.embedded.protocol import (
    Generated,
    GenerateRequest,
    Limits,
    SequenceRequest,
    ids_to_decode,
    parse_generate,
    response_item,
    trim_stop_string,
)
from parity.engines.embedded.refusals import RequestRefused
from parity.engines.embedded.scheduler import Scheduler
from parity.engines.embedded.sequence import Sequence
from parity.errors import InputError


@dataclass(eq=False)
class _Pending:
    """A `/generate` request under way: its latest results by place, and all of them in order if it streams."""

    request: GenerateRequest
    received: float
    done: asyncio.Future[None]
    results: list[Generated | None] = field(default_factory=list)
    changes: asyncio.Queue[tuple[int, Generated]] | None = None
    left: int = 0


class ServedModel:
    """The embedded engine of one checkpoint, inside a running event loop.

    Raises:
        CheckpointError: The checkpoint cannot be served.
    """

    def __init__(self, path: Path, max_running: int = 512) -> None:
        self.path = path
        self.model = Model(path)
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error
        self.limits = Limits(self.model.context_length, self.model.vocabulary_size)
        self.requests = 0
        self._tokenizer_size = len(self.tokenizer)
        self._loop = asyncio.get_running_loop()
        self._lock = _ReadersWriter()
        eos = self.model.config.eos_token_id
        stops = {*(eos if isinstance(eos, list) else [eos]), self.tokenizer.eos_token_id} - {None}
        self._images = _image_reader(path, self.model)
        self._reading = ThreadPoolExecutor(1, "images")
        self.scheduler = Scheduler(self.model, stops, self._stop_text, self._deliver, max_running)

    def stop(self) -> None:
        """Stops generating; what is under way is not answered."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        self.scheduler.stop()

    async def parse(self, body: object) -> GenerateRequest:
        """The sequences a body asks for, or `RequestRefused`; images are read on a thread of their own."""
        if self._images is None or not (isinstance(body, dict) and body.get("image_data")):
            return self._parse(body)
        return await self._loop.run_in_executor(self._reading, self._parse, body)

    def _parse(self, body: object) -> GenerateRequest:
        read_images = None if self._images is None else self._images.of_request()
        return parse_generate(body, self.limits, self._encode, lambda: uuid.uuid4().hex, read_images)

    async def generate(self, request: GenerateRequest) -> list[dict[str, Any]]:
        """Response items, in order.

        Raises:
            RequestRefused: A sequence failed inside the engine.
        """
        async with self.finished(request) as (results, received):
            return self._items(list(zip(request.sequences, results, strict=True)), received)

    @asynccontextmanager
    async def finished(self, request: GenerateRequest) -> AsyncIterator[tuple[list[Generated], float]]:
        """What came of each sequence, and when the request came; no weights are updated inside the block.

        Raises:
            RequestRefused: A sequence failed inside the engine.
        """
        async with self._lock.reading(), self._submitted(request) as pending:
            await pending.done
            results = [result for result in pending.results if result is not None]
            for result in results:
                if status := (result.finish_reason or {}).get("status_code"):
                    raise RequestRefused({"error": {"message": (result.finish_reason or {})["message"]}}, status)
            yield results, pending.received

    async def stream(self, request: GenerateRequest) -> AsyncIterator[dict[str, Any]]:
        """Items as they grow: text and ids are cumulative, and lists carry their `index`."""
        async with self._lock.reading(), self._submitted(request) as pending:
            left = len(request.sequences)
            assert pending.changes is not None
            while left:
                index, result = await pending.changes.get()
                left -= result.finish_reason is not None
                item = self._items([(request.sequences[index], result)], pending.received)[0]
                yield item | {"index": index} if request.is_list else item

    async def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function of the scheduler between two of its turns."""
        return await asyncio.wrap_future(self.scheduler.call(function))

    def idle(self) -> AbstractAsyncContextManager[None]:
        """No request runs inside the block, and those that come wait for its end."""
        return self._lock.writing()

    async def update_weights(self, path: Path, version: str | None, flush: bool) -> tuple[bool, str]:
        """Whether the weights were taken, and what to say; waits for running requests unless the engine is paused."""
        if self.scheduler.paused:
            return await self._update_now(path, version, flush)
        async with self.idle():
            return await self._update_now(path, version, flush)

    async def _update_now(self, path: Path, version: str | None, flush: bool) -> tuple[bool, str]:
        try:
            await self.call(lambda: self.scheduler.update_weights(path, version))
        except CheckpointError as error:
            return False, f"Failed to update weights: {error}"
        self.path = path
        if flush and not await self.call(self.scheduler.flush_cache):
            return False, (
                "Weights were updated, but the cache was not flushed because requests are still running. "
                "Retract or finish them, then call /flush_cache."
            )
        return True, "Succeeded to update model weights." + (
            f" Weight version updated to {version}." if version is not None else ""
        )

    @asynccontextmanager
    async def _submitted(self, request: GenerateRequest) -> AsyncIterator[_Pending]:
        count = len(request.sequences)
        changes: asyncio.Queue[tuple[int, Generated]] | None = asyncio.Queue() if request.stream else None
        pending = _Pending(request, time.time(), self._loop.create_future(), [None] * count, changes, count)
        self.requests += 1
        self.scheduler.submit(
            Sequence(one, owner=pending, index=index, stream=request.stream)
            for index, one in enumerate(request.sequences)
        )
        try:
            yield pending
        finally:
            # The client went away, or one sequence failed: nobody waits for the rest.
            if pending.left:
                self.scheduler.call(lambda: self.scheduler.abort(lambda sequence: sequence.owner is pending))

    def _deliver(self, changed: list[tuple[Sequence, Generated]]) -> None:
        self._loop.call_soon_threadsafe(self._receive, changed)

    def _receive(self, changed: list[tuple[Sequence, Generated]]) -> None:
        for sequence, result in changed:
            pending = sequence.owner
            pending.results[sequence.index] = result
            if pending.changes is not None:
                pending.changes.put_nowait((sequence.index, result))
            if result.finish_reason is not None:
                pending.left -= 1
                if pending.left == 0 and not pending.done.done():
                    pending.done.set_result(None)

    def _items(self, pairs: list[tuple[SequenceRequest, Generated]], received: float) -> list[dict[str, Any]]:
        texts, version, now = self.texts(pairs), self.scheduler.weight_version, time.time()
        return [
            response_item(request, result, text, weight_version=version, latency=now - received, sent_at=now)
            for (request, result), text in zip(pairs, texts, strict=True)
        ]

    def texts(self, pairs: list[tuple[SequenceRequest, Generated]]) -> list[str]:
        """The text of each result, without the stop that matched."""
        texts = [""] * len(pairs)
        for skip in (True, False):
            chosen = [place for place, (request, _) in enumerate(pairs) if request.sampling.skip_special_tokens is skip]
            decoded = self.tokenizer.batch_decode(
                [ids_to_decode(*pairs[place], self._tokenizer_size) for place in chosen], skip_special_tokens=skip
            )
            for place, text in zip(chosen, decoded, strict=True):
                texts[place] = trim_stop_string(*pairs[place], text)
        return texts

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def _stop_text(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode([token if token < self._tokenizer_size else 0 for token in ids])
        return text


def _image_reader(path: Path, model: Model) -> Any:
    if not model.has_vision:
        return None
    from parity.engines.embedded.images import ImageReader  # which needs more of transformers than text does

    try:
        return ImageReader(path, model.whole_config)
    except InputError as error:
        raise CheckpointError(str(error)) from error


class _ReadersWriter:
    """Many requests or one weight update; requests that come while an update waits stand behind it."""

    def __init__(self) -> None:
        self._readers = 0
        self._writers = 0
        self._writing = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            await self._notify()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        self._writers += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._readers and not self._writing)
                self._writing = True
            try:
                yield
            finally:
                self._writing = False
        finally:
            self._writers -= 1
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
