"""Answers as samples, so that the rules over groups hold for recorded exchanges too."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from parity.evidence.contract.streams import settled
from parity.evidence.contract.wire import WireOutput, ints_of, outputs_of
from parity.records.exchanges import Exchange
from parity.records.samples import STATUS_OF_FINISH_REASON, Sample


def samples_of(exchanges: Iterable[Exchange]) -> Iterator[Sample]:
    """The outputs of answered requests as samples, in the order received.

    A group is what the exchange says it is; where it does not say, the outputs of one request for one prompt are one,
    and get group indices in the order met. Slots count a group's outputs. Only what the wire itself holds is filled in.
    """
    numbers: dict[Any, int] = {}
    slots: Counter[Any] = Counter()
    for number, exchange in enumerate(exchanges):
        if exchange.status != 200:
            continue
        for output in outputs_of(settled(exchange), ""):
            stated = exchange.group_index
            key = (number, repr(output.prompt)) if stated is None else (exchange.rollout_id, stated)
            group_index = numbers.setdefault(key, len(numbers)) if stated is None else stated
            yield _sample(output, group_index, slots[key])
            slots[key] += 1


def _sample(output: WireOutput, group_index: int, slot: int) -> Sample:
    exchange, params, meta = output.exchange, output.params, output.meta
    reason = output.finish.get("type")
    triples = output.triples
    version = meta.get("weight_version")
    text = output.body.get("text")
    return Sample(
        group_index,
        slot,
        rollout_id=exchange.rollout_id,
        prompt_ids=ints_of(output.prompt),
        output_ids=output.ids,
        logprobs=None if triples is None else list(map(_logprob, map(itemgetter(0), triples))),
        text=text if isinstance(text, str) else None,
        finish_reason=None if reason is None else str(reason),
        status=STATUS_OF_FINISH_REASON.get(str(reason)),
        response_length=_whole(meta.get("completion_tokens")),
        max_new_tokens=_whole(params.get("max_new_tokens")),
        weight_versions=None if version is None else [str(version)],
        temperature=_float(params.get("temperature")),
        top_p=_float(params.get("top_p")),
        top_k=_whole(params.get("top_k")),
        prompt_tokens=_whole(meta.get("prompt_tokens")),
        cached_tokens=_whole(meta.get("cached_tokens")),
        arm=exchange.arm,
        engine_id=exchange.engine_id,
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _logprob(value: Any) -> float:
    number = _float(value)
    return math.nan if number is None else number
