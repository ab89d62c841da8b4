"""An engine that answers soundly or in one of many wrong ways, as drawn."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import fake

from rollout_patch import RequestAborted, RequestFailed

BEHAVIOURS = [
    "sound",
    "partial",
    "queued",
    "mixed",
    "few",
    "many",
    "wrong_type",
    "raw_text",
    "no_meta",
    "no_id",
    "unknown_reason",
    "short_logprobs",
    "nan",
    "swapped_ids",
    "duplicate_id",
    "other_version",
    "prompt_count",
    "null_item",
    "400",
    "422",
    "429",
    "500",
    "502",
    "404",
    "cut",
    "timeout",
    "host_abort",
    "bug",
    "mutates",
]


class RandomEngine:
    """Behaves as drawn, one behaviour a request; counts what is in flight and keeps every id it ever gave out."""

    def __init__(self, behaviours: Sequence[str], delays: Sequence[int]) -> None:
        self.behaviours = itertools.cycle(behaviours)
        self.delays = itertools.cycle(delays)
        self.numbers = itertools.count()
        self.in_flight = 0
        self.most_in_flight = 0
        self.given_out: list[str] = []

    async def post(self, payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
        behaviour, delay = next(self.behaviours), next(self.delays)
        count = self.samples_of(payload)
        self.in_flight += count
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for _ in range(delay):
                await asyncio.sleep(0)
        finally:
            self.in_flight -= count
        return self.answer(payload, behaviour)

    @staticmethod
    def samples_of(payload: Mapping[str, Any]) -> int:
        if isinstance(payload["input_ids"][0], list):
            return len(payload["input_ids"])
        return int(payload["sampling_params"].get("n", 1))

    def item(self, prompt_tokens: int) -> dict[str, Any]:
        number = next(self.numbers)
        self.given_out.append(f"id-{number}")
        triples = [(-0.5, number), (-0.25, 7)]
        return fake.output(f"id-{number}", triples, {"type": "stop", "matched": 7}, prompt_tokens, version="w1")

    def answer(self, payload: dict[str, Any], behaviour: str) -> Any:
        if behaviour.isdigit():
            raise RequestFailed(int(behaviour), "status")
        failures = {
            "cut": ConnectionResetError("cut"),
            "timeout": asyncio.TimeoutError(),
            "host_abort": RequestAborted("host"),
            "bug": ZeroDivisionError("host's post"),
        }
        if behaviour in failures:
            raise failures[behaviour]
        ids = payload["input_ids"]
        is_list = isinstance(ids[0], list)
        count = self.samples_of(payload)
        items = [self.item(len(ids[slot]) if is_list else len(ids)) for slot in range(count)]
        self.spoil(items, behaviour)
        if behaviour == "mutates":
            (ids[0] if is_list else ids).append(-1)
            payload["sampling_params"] = None
        whole = items if is_list or count > 1 else items[0]
        return {
            "few": items[1:],
            "many": [*items, self.item(0)],
            "wrong_type": {"items": items},
            "raw_text": "<html>",
        }.get(behaviour, whole)

    def spoil(self, items: list[Any], behaviour: str) -> None:
        last = items[-1]
        meta = last["meta_info"]
        for slot, item in enumerate(items):
            if behaviour == "queued" or (behaviour == "mixed" and slot % 2):
                abort(item, 0)
            elif behaviour in ("partial", "mixed"):
                abort(item, 1)
        if behaviour == "no_meta":
            del last["meta_info"]
        elif behaviour == "no_id":
            del meta["id"]
        elif behaviour == "unknown_reason":
            meta["finish_reason"] = {"type": "eos"}
        elif behaviour == "short_logprobs":
            meta["output_token_logprobs"].pop()
        elif behaviour == "nan":
            meta["output_token_logprobs"][0][0] = float("nan")
        elif behaviour == "swapped_ids":
            last["output_ids"].reverse()
        elif behaviour == "duplicate_id":
            meta["id"] = items[0]["meta_info"]["id"]
        elif behaviour == "other_version":
            meta["weight_version"] = "w2"
        elif behaviour == "prompt_count":
            meta["prompt_tokens"] += 1
        elif behaviour == "null_item":
            items[-1] = None


def abort(item: dict[str, Any], tokens: int) -> None:
    meta = item["meta_info"]
    item["output_ids"] = item["output_ids"][:tokens]
    meta["output_token_logprobs"] = meta["output_token_logprobs"][:tokens]
    meta.update(finish_reason={"type": "abort", "message": "Aborted"}, completion_tokens=tokens)
    if not tokens:
        del meta["prompt_tokens"]
