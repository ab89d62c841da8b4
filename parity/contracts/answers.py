"""Answers as samples, so that the rules over groups hold for recorded exchanges too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from parity.contracts.wire import Output, outputs_of
from parity.exchanges import Exchange
from parity.samples import STATUS_OF_FINISH_REASON, Sample


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
        for output in outputs_of(exchange, ""):
            stated = exchange.group_index
            key = (number, repr(output.prompt)) if stated is None else (exchange.rollout_id, stated)
            group_index = numbers.setdefault(key, len(numbers)) if stated is None else stated
            yield _sample(output, group_index, slots[key])
            slots[key] += 1


def _sample(output: Output, group_index: int, slot: int) -> Sample:
    exchange, params, meta = output.exchange, output.params, output.meta
    reason = output.finish.get("type")
    triples = output.triples
    aligned = triples is not None and all(isinstance(item, list) and item for item in triples)
    version = meta.get("weight_version")
    text = output.body.get("text")
    return Sample(
        group_index,
        slot,
        rollout_id=exchange.rollout_id,
        prompt_ids=output.prompt if isinstance(output.prompt, list) else None,
        output_ids=output.ids,
        logprobs=[item[0] for item in triples] if triples is not None and aligned else None,
        text=text if isinstance(text, str) else None,
        finish_reason=None if reason is None else str(reason),
        status=STATUS_OF_FINISH_REASON.get(str(reason)),
        response_length=meta.get("completion_tokens"),
        max_new_tokens=params.get("max_new_tokens"),
        weight_versions=None if version is None else [str(version)],
        temperature=params.get("temperature"),
        top_p=params.get("top_p"),
        top_k=params.get("top_k"),
        prompt_tokens=meta.get("prompt_tokens"),
        cached_tokens=meta.get("cached_tokens"),
        arm=exchange.arm,
        engine_id=exchange.engine_id,
    )
