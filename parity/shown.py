"""Texts of others as they may be shown or written down: without secrets, and without characters that steer a screen."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache

Progress = Callable[[int, int, str], object]
"""Shows how far some work is: called with the parts done, the parts in all, and what is under way."""

MASK = "***"
_SECRET = r"api[-_]?key|access[-_]?key|secret|token|passwd|password|credential|signature"
_SECRET_VARIABLE = re.compile(rf"(?:^|_)(?:KEY|{_SECRET}S?)$", re.IGNORECASE)
_SHORTEST = 8
"""Characters of the shortest value of the environment that is masked: a shorter one is likely to be a plain word."""

_PATTERNS = (
    # The user and password of a URL; a host holds no @, so the last one before the path ends them.
    (re.compile(r"(?<=://)[^\s/?#]+(?=@)"), MASK),
    (re.compile(rf"(?i)((?:[?&]|--)[\w-]*(?:{_SECRET})[=\s]+)[^\s&#'\"]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{8,}"), rf"\1\2{MASK}"),
)
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, marks that turn the direction of writing, and bytes that were no UTF-8."""


def without_secrets(text: str) -> str:
    """A text with `***` for passwords and keys: in URLs, options and headers, and the values of secret variables.

    A variable of the environment is secret by its name, such as ``WANDB_API_KEY`` or ``HF_TOKEN``.
    """
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    secrets = tuple(
        sorted(value for name, value in os.environ.items() if len(value) >= _SHORTEST and _SECRET_VARIABLE.search(name))
    )
    return text if not secrets else _any_of(secrets).sub(MASK, text)


@lru_cache(maxsize=8)
def _any_of(secrets: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(secrets, key=len, reverse=True))))


def printable(text: str) -> str:
    r"""A text on one line, with characters that steer a terminal or a document as escapes: ``\x1b``, ``\n``."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def shown(text: object) -> str:
    """A text as it may be shown and written down: `printable`, and `without_secrets`."""
    return printable(without_secrets(str(text)))
