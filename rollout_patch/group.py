"""One group of samples, in one of the three arms: plan → send → validate all → apply all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from rollout_patch.dialects import SGLANG, Dialect, plan_requests
from rollout_patch.eligibility import Capabilities, choose_arm, conditions
from rollout_patch.errors import OneSampleOnly, RequestAborted, RequestFailed
from rollout_patch.logs import log_once, log_seldom, log_way
from rollout_patch.media import Encoder, check_placeholders, encode_media
from rollout_patch.permits import Permits
from rollout_patch.refusals import Refusals
from rollout_patch.requests import ARMS, PlannedRequest, SampleRequest
from rollout_patch.responses import UNSENT, Doubt, Output, check_group, unsent_output
from rollout_patch.responses import refuse as refuse_doubt

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
Post = Callable[[dict[str, Any], Mapping[str, str]], Awaitable[Any]]
"""Sends one payload with its headers; returns the decoded body of a 200, else raises one of `rollout_patch.errors`."""
Recorder = Callable[[dict[str, Any]], None]
"""Takes each exchange as it ends."""

_CANNOT = frozenset({400, 413, 422, 501})
"""Statuses by which an engine or router says that it does not take such a request."""
_TRANSIENT = frozenset({None, 408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may be sent again; `None` is no answer."""


class Adapter(Protocol[S_contra]):
    """How a host's samples take part."""

    def request(self, sample: S_contra) -> SampleRequest:
        """What the sample asks for."""
        ...

    def apply(self, sample: S_contra, output: Output) -> None:
        """Writes an output into the sample; called for all samples of a group or for none."""
        ...

    def snapshot(self, sample: S_contra) -> object:
        """Whatever `restore` needs to undo `request` and `apply`."""
        ...

    def restore(self, sample: S_contra, snapshot: object) -> None:
        """Makes the sample what it was at the snapshot, in every field."""
        ...


@dataclass(frozen=True, slots=True)
class GroupReport:
    """How a group was asked for, and what came back.

    Attributes:
        arm_asked: The arm that was asked for.
        arm_used: The arm that the samples came by.
        reasons: Why not the arm asked for: names out of `CONDITIONS`.
        requests: HTTP requests sent, those sent again included.
        retries: How many of them were sent again.
        outputs: One output a slot; an abort without tokens stands for a slot that was not sent any more.
        asked: What each slot asked for, media as the adapter gave them.
        aborted: The host aborted the group before any token came, and its samples are as they were.
        notes: What else is worth counting: "abort_missed" (the group came back whole although it was aborted in
            flight), "permits_short" (a request held fewer permits than it has samples), "equal_answers" (all samples
            of the group are the same tokens), and "doubts/" with each of `rollout_patch.responses.DOUBTS` that passed.
    """

    arm_asked: str
    arm_used: str
    reasons: tuple[str, ...]
    requests: int
    retries: int
    outputs: tuple[Output, ...] = field(repr=False)
    asked: tuple[SampleRequest, ...] = field(default=(), repr=False)
    aborted: bool = False
    notes: tuple[str, ...] = ()


def _never() -> bool:
    return False


async def generate_group(
    arm: str,
    samples: Sequence[S],
    *,
    adapter: Adapter[S],
    post: Post,
    dialect: Dialect = SGLANG,
    capabilities: Capabilities | None = None,
    retries: int = 0,
    retry_wait: float = 1.0,
    recorder: Recorder | None = None,
    chunk: int | None = None,
    permits: Permits | None = None,
    encoder: Encoder | None = None,
    placeholders: Collection[int | str] = (),
    aborted: Callable[[], bool] = _never,
    circumstances: Collection[str] = (),
    refused: Refusals | None = None,
    strict: bool = True,
) -> GroupReport:
    """Generates the samples of one group and writes them into the host's samples.

    Nothing is written unless every answer of the group is sound. Whatever happens, cancellation included, each sample
    is afterwards either applied whole or exactly as before the call.

    Args:
        arm: The arm asked for, one of `ARMS`; a group that may not go that way falls back by named reason.
        samples: The group's samples, in slot order.
        adapter: How they take part.
        post: The host's way to send a request.
        dialect: How the engine is spoken to.
        capabilities: What the engine does; `None` for what is usual with the dialect.
        retries: How often a request may be sent again after a 5xx, a 408, a 429 or no answer; each time all its samples
            are generated anew, and one answer alone is used.
        retry_wait: Seconds between two attempts.
        recorder: Gets each exchange, as a line of ``*.exchanges.jsonl`` holds it, with the SHA-256 of media in their
            place.
        chunk: Most samples in one request.
        permits: Limits the sequences in flight; a request holds as many as it has samples.
        encoder: Turns media into what the wire carries, once a group; `None` where requests carry them encoded.
        placeholders: What stands for one medium in a prompt, ids or strings; where given, each prompt must have as many
            as media before anything is sent, because the engine drops what has no partner.
        aborted: Says whether the host has aborted generation; asked before each request is sent.
        circumstances: Names of `CONDITIONS` that the host's own flags decide.
        refused: What the engine refused of earlier groups, which it is not asked for a while; what it refuses of this
            one, and takes another way, is added.
        strict: Whether `rollout_patch.responses.DOUBTS` refuse an answer; else they are logged once and noted.

    Raises:
        RequestFailed: The engine refused the group in every arm it may go, or did not answer.
        ResponseRefused: An answer broke the protocol.
        ValueError: The arm or a circumstance is unknown, the group is empty, or placeholders and media do not match.
    """
    if arm not in ARMS:
        raise ValueError(f"arm {arm!r} is none of {ARMS}")
    able = dialect.capabilities if capabilities is None else capabilities
    sender = _Sender(dialect, post, retries, retry_wait, recorder, permits, aborted)
    doubts: dict[str, None] = {}

    def note_doubt(name: str, message: str) -> None:
        doubts[name] = None
        log_once(logging.WARNING, f"trained on all the same, as without the patch ({name}): {message}; said once", name)

    doubt = refuse_doubt if strict else note_doubt
    snapshots = [adapter.snapshot(sample) for sample in samples]
    try:
        asked = [adapter.request(sample) for sample in samples]
        check_placeholders(asked, placeholders, dialect.placeholder_runs)
        names = conditions(asked, able, circumstances, dialect.rules)
        requests = asked if encoder is None else await encode_media(asked, encoder)
        known = Refusals() if refused is None else refused
        sizes = {"batched": chunk, "native": min((size for size in (chunk, able.most_samples) if size), default=None)}
        used, reasons, outputs = await _by_eligible_arm(arm, requests, names, sizes, sender, known, doubt)
        by_host = aborted() or any(output.id == UNSENT for output in outputs)
        nothing_came = by_host and all(output.finish_reason == "abort" and not output.output_ids for output in outputs)
        if nothing_came:
            _restore(adapter, samples, snapshots)
        else:
            for sample, output in zip(samples, outputs, strict=True):
                adapter.apply(sample, output)
    except BaseException:
        _restore(adapter, samples, snapshots)
        raise
    missed = aborted() and all(output.finish_reason != "abort" for output in outputs)
    responses = [output.output_ids for output in outputs]
    held = {
        "abort_missed": missed,
        "permits_short": sender.permits_short,
        "equal_answers": len(responses) > 1 and bool(responses[0]) and all(one == responses[0] for one in responses),
    }
    notes = [*(name for name, holds in held.items() if holds), *(f"doubts/{name}" for name in doubts)]
    log_way(arm, used, reasons)
    return GroupReport(
        arm_asked=arm,
        arm_used=used,
        reasons=reasons,
        requests=sender.requests,
        retries=sender.retried,
        outputs=tuple(outputs),
        asked=tuple(asked),
        aborted=nothing_came,
        notes=tuple(notes),
    )


async def _by_eligible_arm(
    asked: str,
    requests: Sequence[SampleRequest],
    names: tuple[str, ...],
    chunks: Mapping[str, int | None],
    sender: _Sender,
    refused: Refusals,
    doubt: Doubt,
) -> tuple[str, tuple[str, ...], list[Output]]:
    """Sends the group in the first arm that it may go and that the engine takes."""
    media = any(items for request in requests for items in request.media.values())
    names = (*names, *refused.names(media))
    now: list[str] = []
    while True:
        arm, reasons = choose_arm(asked, (*names, *now))
        plan = plan_requests(arm, requests, chunks.get(arm), sender.dialect)
        try:
            answers = await _gather(sender.send(planned, arm) for planned in plan)
            outputs = _read_answers(plan, answers, requests, sender.dialect, doubt)
        except (RequestFailed, OneSampleOnly) as failure:
            status = failure.status if isinstance(failure, RequestFailed) else 200
            if arm == "per-sample" or (isinstance(failure, RequestFailed) and status not in _CANNOT):
                raise
            now.append(f"refused_{arm}")
            line = f"the engine refused a group of {len(requests)} sent {arm}: {failure}; said once"
            log_once(logging.WARNING, line, key=(arm, status))
        else:
            if any(output.id != UNSENT for output in outputs):
                for name in now:
                    refused.add(name, media)
                refused.forget(f"refused_{arm}", media)
            return arm, reasons, outputs


def _read_answers(
    plan: Sequence[PlannedRequest],
    answers: Sequence[Any],
    requests: Sequence[SampleRequest],
    dialect: Dialect,
    doubt: Doubt,
) -> list[Output]:
    """All outputs of a group in slot order, validated; `_UNSENT` answers become aborts without tokens."""
    outputs: list[Output] = []
    sent: list[int] = []
    for planned, answer in zip(plan, answers, strict=True):
        if answer is _UNSENT:
            outputs.extend(unsent_output() for _ in planned.slots)
        else:
            outputs.extend(dialect.read_response(planned, answer, requests, doubt))
            sent.extend(planned.slots)
    check_group([outputs[slot] for slot in sent], [requests[slot] for slot in sent], doubt)
    return outputs


_UNSENT = object()
"""Stands for the answer to a request that the host aborted before it was sent, or before it had any output."""


@dataclass(slots=True)
class _Sender:
    """Sends requests, again where that is allowed, and counts."""

    dialect: Dialect
    post: Post
    retries: int
    retry_wait: float
    recorder: Recorder | None
    permits: Permits | None
    aborted: Callable[[], bool]
    requests: int = 0
    retried: int = 0
    permits_short: bool = False

    async def send(self, planned: PlannedRequest, arm: str) -> Any:
        """The answer to one request, or `_UNSENT`; permits are held from before the first attempt to after the last."""
        count = len(planned.slots)
        async with nullcontext(count) if self.permits is None else self.permits.hold(count) as held:
            self.permits_short |= held < count
            for attempt in range(1, self.retries + 2):
                if self.aborted():
                    return _UNSENT
                try:
                    return await self._send_once(planned, arm, attempt)
                except RequestAborted:
                    return _UNSENT
                except RequestFailed as failure:
                    if attempt > self.retries or failure.status not in _TRANSIENT:
                        raise
                    line = f"attempt {attempt} of {self.retries + 1} failed: {failure}"
                    log_seldom(line, key=("attempt", failure.status))
                await asyncio.sleep(self.retry_wait)
        raise AssertionError("the last attempt returns or raises")

    async def _send_once(self, planned: PlannedRequest, arm: str, attempt: int) -> Any:
        """One attempt, recorded however it ends."""
        self.requests += 1
        self.retried += attempt > 1
        sent_at = time.time()
        status: int | None = None
        response: Any = None
        try:
            response, status = await self.post(planned.payload, planned.headers), 200
        except RequestFailed as failure:
            response, status = failure.body, failure.status
            raise
        except (OSError, asyncio.TimeoutError) as error:
            response = f"{type(error).__name__}: {error}"
            raise RequestFailed(None, response) from error
        except BaseException as error:
            response = f"{type(error).__name__}: {error}"
            raise
        finally:
            if self.recorder is not None:
                self.recorder(
                    {
                        "request": self.dialect.without_media(planned.payload),
                        "url": self.dialect.path_of(planned.payload),
                        "headers": planned.headers,
                        "status": status or 0,
                        "response": response,
                        "sent_at": sent_at,
                        "received_at": time.time(),
                        "attempt": attempt,
                        "arm": arm,
                    }
                )
        return response


async def _gather(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All results in order; after the first failure, or when cancelled, nothing is left running."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _restore(adapter: Adapter[S], samples: Sequence[S], snapshots: Sequence[object]) -> None:
    for sample, snapshot in zip(samples, snapshots, strict=True):
        adapter.restore(sample, snapshot)
