"""What token ids stand for, where a tokenizer lies beside a run's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.records.store import read_json

MOST = 400_000
"""Token ids from here on have no text."""

BYTES = 64_000_000
"""A larger file is no tokenizer that is read."""


def token_texts(directory: Path) -> list[str | None]:
    """By token id, its text as the tokenizer writes it (a byte-level one writes a space as Ġ); empty without one.

    Raises:
        InputError: The file cannot be read, or is no JSON.
    """
    path = min(directory.glob("runs/*/checkpoints/*/tokenizer.json"), default=None)
    if path is None or path.stat().st_size > BYTES:
        return []
    known = {number: text for text, number in _entries(read_json(path)) if _is_token(text, number)}
    return [known.get(number) for number in range(max(known, default=-1) + 1)]


def _entries(tokenizer: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Texts and ids of the vocabulary, and then of the tokens added to it."""
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary.items()
    if isinstance(added, list):
        yield from ((item.get("content"), item.get("id")) for item in added if isinstance(item, dict))


def _is_token(text: Any, number: Any) -> bool:
    return isinstance(text, str) and type(number) is int and 0 <= number < MOST
