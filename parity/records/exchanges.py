"""Exchanges: one HTTP request that asks for samples and what came back, as sent and as received.

The words are those of SGLang's native API. A response is a JSON object for one prompt with n = 1, and a list otherwise,
prompt-major: for prompts p1, p2 and n = 2 the order is p1 p1 p2 p2 (`tokenizer_manager.py` of SGLang 0.5.23). What was
said in vLLM's dialect is read in these words, and kept beside as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.errors import InputError
from parity.records.json_lines import read_lines
from parity.records.vllm_wire import ignored, is_vllm, request_in_common, response_in_common

MEDIA_FIELDS = ("image_data", "video_data", "audio_data")
"""Fields of a request that hold media."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer.

    Times are seconds since the epoch. `status` is the HTTP status, or 0 when the connection gave none; `response` is
    then the error's text. `attempt` counts from 1. `rollout_id` and `group_index` say which prompt group was asked for.
    `as_said` is request and response as they were on the wire, where the dialect is not SGLang's, and `ignored` what
    the engine drops of the request's sampling parameters without a word.
    """

    request: Mapping[str, Any]
    status: int
    response: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    engine_id: str | None = None
    sent_at: float | None = None
    received_at: float | None = None
    attempt: int = 1
    rollout_id: int | None = None
    group_index: int | None = None
    arm: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    as_said: tuple[Mapping[str, Any], Any] | None = None
    ignored: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.as_said is not None or not is_vllm(self.request):
            return
        said = self.request, self.response
        common = {
            "as_said": said,
            "ignored": ignored(self.request),
            "request": request_in_common(self.request),
            "response": response_in_common(*said) if self.status == 200 else self.response,
        }
        for name, value in common.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_json(cls, row: object, place: str) -> Exchange:
        """An exchange from one decoded line; fields it does not know go to `extra`.

        Raises:
            InputError: The line is no object, lacks `request`, `status` or `response`, or one of its fields has the
            wrong type.
        """
        if not isinstance(row, dict):
            raise InputError(f"{place}: an exchange is a JSON object, not {type(row).__name__}")
        missing = [name for name in ("request", "status", "response") if name not in row]
        if missing:
            raise InputError(f"{place}: an exchange needs request, status and response; {missing} missing")
        for name, kinds in _FIELD_TYPES.items():
            value = row.get(name)
            if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
                raise InputError(f"{place}: field {name!r} is {type(value).__name__}: {str(value)[:80]!r}")
        known = {name: row[name] for name in _FIELD_TYPES | {"response": object} if row.get(name) is not None}
        known.setdefault("response", None)
        extra = {name: value for name, value in row.items() if name not in _FIELD_TYPES and name != "response"}
        return cls(**known, extra=extra)

    def to_json(self) -> dict[str, Any]:
        """The exchange as one line of ``*.exchanges.jsonl`` holds it."""
        row = {name: getattr(self, name) for name in _FIELD_TYPES if getattr(self, name) is not None}
        request, response = self.as_said or (self.request, self.response)
        return {**row, "request": request, "response": response, **self.extra}

    @property
    def n(self) -> int:
        """Samples asked for each prompt, by the first sampling parameters; 1 where the request says nothing."""
        params = self.request.get("sampling_params") or {}
        first = params[0] if isinstance(params, list) and params else params
        n = first.get("n", 1) if isinstance(first, dict) else 1
        return n if isinstance(n, int) and not isinstance(n, bool) else 1

    @property
    def prompts(self) -> list[Any]:
        """The prompts asked for, each a text or a list of token ids."""
        text, ids = self.request.get("text"), self.request.get("input_ids")
        if ids is None:
            return text if isinstance(text, list) else [text]
        return ids if isinstance(ids, list) and ids and isinstance(ids[0], list) else [ids]

    @property
    def is_batch(self) -> bool:
        """Whether the request is a list of prompts, even of one."""
        prompt = self.request.get("text") if self.request.get("input_ids") is None else self.request["input_ids"]
        return prompt is self.prompts

    @property
    def outputs(self) -> list[Any]:
        """The response's items, one a sample, as received; an object counts as a list of one."""
        return self.response if isinstance(self.response, list) else [self.response]


_FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "request": dict,
    "status": int,
    "headers": dict,
    "url": str,
    "engine_id": str,
    "sent_at": (int, float),
    "received_at": (int, float),
    "attempt": int,
    "rollout_id": int,
    "group_index": int,
    "arm": str,
}


def output_ids(answer: Any) -> list[str]:
    """The ids of an answer's outputs, in either dialect; vLLM's are the answer's own and the choice's number."""
    if isinstance(answer, dict) and isinstance(choices := answer.get("choices"), list):
        name = answer.get("request_id", answer.get("id"))
        indices = [choice.get("index") for choice in choices if isinstance(choice, dict)]
        return [f"{name}-{index}" for index in indices] if isinstance(name, str) else []
    items = answer if isinstance(answer, list) else [answer]
    metas = [item.get("meta_info") for item in items if isinstance(item, dict)]
    ids = [meta.get("id") for meta in metas if isinstance(meta, dict)]
    return [name for name in ids if isinstance(name, str)]


def output_id(answer: Any) -> str | None:
    """The id of an answer's first output; None where it has none."""
    return next(iter(output_ids(answer)), None)


def read_exchanges(path: Path) -> Iterator[Exchange]:
    """The exchanges of a ``*.exchanges.jsonl``, plain or compressed, one at a time.

    Raises:
        InputError: The file cannot be opened, or a line is no exchange; the message names file and line.
    """
    return (Exchange.from_json(row, place) for place, row in read_lines(path))


def prompt_key(exchange: Exchange, number: int) -> str:
    """Names one prompt of a request by its ids or text and the content of its media, whichever way those are nested."""
    media = []
    for name in MEDIA_FIELDS:
        given = exchange.request.get(name)
        if isinstance(given, list) and given and (exchange.is_batch or isinstance(given[0], list)):
            given = given[number] if number < len(given) else None
        media.append(_named_by_content(given if isinstance(given, list) or given is None else [given]))
    return repr((exchange.prompts[number], [item or [] for item in media]))


_NAMED = "sha256:"


def _named_by_content(media: Any) -> Any:
    """Media in any nesting, each replaced by ``sha256:`` and its digest; what a recorder named already stays."""
    if media is None or (isinstance(media, str) and media.startswith(_NAMED)):
        return media
    if isinstance(media, list):
        return [_named_by_content(item) for item in media]
    return _NAMED + _digest(media)


def _digest(item: Any) -> str:
    """The digest that `rollout_patch.recorder` writes for a medium, for what JSON can hold."""
    if isinstance(item, str):
        content = item.encode("utf-8", "surrogatepass")
    elif isinstance(item, dict):
        content = "".join(sorted(_digest(key) + _digest(value) for key, value in item.items())).encode()
    elif isinstance(item, list):
        content = "".join(map(_digest, item)).encode()
    else:
        content = repr(item).encode()
    return hashlib.sha256(f"{type(item).__qualname__}:{len(content)}:".encode() + content).hexdigest()
