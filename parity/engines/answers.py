"""Answers that are damaged on their way are asked for again; those of other weights are never samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parity.engines.client import DAMAGED_TRIES, EngineClient
from parity.errors import EngineError
from parity.findings import short_repr
from parity.records.exchanges import Exchange
from rollout_patch import RequestFailed

REQUEST_RETRIES = 20
"""How often one request is sent again before its group fails. At one fault in two, one request in a million fails."""

RETRY_WAIT = 0.5
"""Seconds between two attempts."""


class SteadyPost:
    """Sends requests by a client, and turns an answer that is damaged into one that may be asked for again.

    Damaged is what no sound engine sends: a redirect, a 200 without JSON, other shapes or numbers of outputs than were
    asked for, and outputs of other weights than the client gave the engine. What is still of the wrong shape at the
    last of `DAMAGED_TRIES` is handed on as it is, so that whoever asked names what breaks the protocol.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._damaged: dict[int, tuple[Mapping[str, Any], int]] = {}

    async def __call__(self, payload: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """The answer to one request; the same payload, as an object, is the same request sent again.

        Raises:
            RequestFailed: There is none, or it is damaged: status `None` where it may be asked for again.
            EngineError: The last answer is still of other weights.
        """
        try:
            answer = await self._client.generate(payload, headers)
        except RequestFailed as failure:
            if failure.status is None or failure.status >= 400:
                raise
            raise RequestFailed(None, f"damaged answer, status {failure.status}: {failure.body}") from failure
        exchange = Exchange(payload, 200, answer)  # in one set of words, whatever the dialect
        foreign = self._foreign(exchange)
        damage = foreign or damage_of(exchange)
        if not damage:
            return answer
        tries = self._damaged.get(id(payload), (payload, 0))[1] + 1
        self._damaged[id(payload)] = payload, tries  # with the payload, so that no other one gets its id
        if tries < DAMAGED_TRIES:
            raise RequestFailed(None, f"damaged answer: {damage}")
        if foreign:
            raise EngineError(f"{self._client.url}: {foreign}")
        return answer

    def _foreign(self, exchange: Exchange) -> str:
        """That an output is of other weights than the client gave the engine; empty where it is not."""
        expected = self._client.weights
        if expected is None:
            return ""
        for item in exchange.outputs:
            meta = item.get("meta_info") if isinstance(item, dict) else None
            version = meta.get("weight_version") if isinstance(meta, dict) else None
            if version is not None and version != expected:
                place = f"output {short_repr(meta.get('id') if isinstance(meta, dict) else None)}"
                return (
                    f"{place} is of weights {short_repr(version)}, not of {expected}: another experiment uses this "
                    "engine, or a worker of it missed an update"
                )
        return ""


def damage_of(exchange: Exchange) -> str:
    """What no sound engine answers to a request for single prompts, lists or n; empty where there is nothing."""
    answer, batch = exchange.response, exchange.is_batch
    count = len(exchange.prompts) * max(exchange.n, 1)
    if isinstance(answer, dict) and "meta_info" in answer and count > 1:
        return ""  # one sample for several: an engine that takes no groups, which whoever asked finds out
    if not isinstance(answer, list if batch or count > 1 else dict):
        return f"{type(answer).__name__} for {count} samples"
    items = exchange.outputs
    if len(items) != count:
        return f"{len(items)} outputs for {count} samples"
    return next((f"output {place}: {damage}" for place, item in enumerate(items) if (damage := _item_damage(item))), "")


def _item_damage(item: Any) -> str:
    meta = item.get("meta_info") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(meta, dict):
        return f"{short_repr(item)} is no output"
    ids, logprobs = item.get("output_ids"), meta.get("output_token_logprobs")
    if ids is not None and (not isinstance(ids, list) or not set(map(type, ids)) <= {int}):
        return f"output_ids are a {type(ids).__name__}, not token ids"
    if logprobs is not None and (not isinstance(logprobs, list) or (ids is not None and len(logprobs) != len(ids))):
        return f"output_token_logprobs are not one for each of {len(ids or ())} tokens"
    if not isinstance(meta.get("finish_reason"), dict):
        return f"finish_reason {short_repr(meta.get('finish_reason'))}"
    return ""
