"""Answers that came as a stream: views of outputs that grow, of which the last is the answer.

A streamed exchange has `stream` in its request, and in its response the events as received, without or with the closing
``[DONE]``. Text and ids of an event are all there are so far; events of several outputs carry their `index`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from parity.evidence.contract.outcomes import Case, Skip
from parity.evidence.contract.wire import exchange_case, ints_of
from parity.findings import Message, quantity
from parity.records.exchanges import Exchange


def is_stream(exchange: Exchange) -> bool:
    """Whether the response holds the events of a stream."""
    return exchange.request.get("stream") is True and isinstance(exchange.response, list)


def settled(exchange: Exchange) -> Exchange:
    """The exchange with the last view of each output for its answer; one that is no stream stays as it is."""
    if not is_stream(exchange):
        return exchange
    views = _views(exchange)
    last = [views[index][-1] for index in sorted(views)]
    wants_list = exchange.is_batch or exchange.n > 1
    return replace(exchange, response=last if wants_list or len(last) != 1 else last[0])


def views_grow(exchange: Exchange, name: str) -> Iterable[Case] | Skip:
    """What was streamed stays: each view of an output begins with the one before, and its token count never falls."""
    if not is_stream(exchange):
        return Skip.UNCONCERNED
    cases = []
    for index, views in _views(exchange).items():
        held: list[int] = []
        counted = 0
        for view in views:
            meta = view.get("meta_info")
            count = meta.get("completion_tokens") if isinstance(meta, dict) else None
            ids = ints_of(view.get("output_ids")) or []
            if ids[: len(held)] != held:
                message = Message(
                    "a view of output {index} has {tokens}, not going on from the {before} before",
                    index=index,
                    tokens=quantity(len(ids), "tokens"),
                    before=len(held),
                )
                cases.append(exchange_case(exchange, name, "output_ids", held[-8:], ids[-8:], message))
            elif isinstance(count, int) and count < counted:
                message = Message(
                    "a view of output {index} counts {tokens}, the one before it {before}",
                    index=index,
                    tokens=quantity(count, "tokens"),
                    before=counted,
                )
                cases.append(exchange_case(exchange, name, "completion_tokens", counted, count, message))
            held, counted = ids, count if isinstance(count, int) else counted
    return cases


def _views(exchange: Exchange) -> dict[int, list[dict[str, Any]]]:
    """The events of each output, in the order received, by its index."""
    views: dict[int, list[dict[str, Any]]] = {}
    for event in exchange.response:
        if isinstance(event, dict):
            index = event.get("index", 0)
            views.setdefault(index if isinstance(index, int) else -1, []).append(event)
    return views
