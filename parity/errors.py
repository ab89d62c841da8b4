"""Every error this package raises, and texts of others made safe to show: without secrets or control characters.

A failed check is data (`parity.findings.Finding`), never an exception: these are for input that cannot be read,
commands that cannot be carried out and engines that do not answer. Each message names the file, the record, the field
and the numbers.

    ParityError
    ├── UsageError              the command cannot be carried out as asked                        exit 2
    ├── InputError              a file or record cannot be read or is not what it claims to be     exit 2
    │   ├── ExchangeError       a request or response is not of a shape that the protocol has
    │   ├── OverBudget          reading a file or answer would take more memory than is allowed
    │   ├── NotRecognised       a file is in no format that is read
    │   └── CutOff              a file's last line breaks off, as of a process that was killed or still writes
    ├── EngineError             the engine failed to start, died, or refused a control request     exit 2
    │   └── EngineUnavailable   no answer: connection refused or cut, 502, 503, 504, time-out (worth a restart)
    └── TrainingError           a training step produced a value that training cannot go on from   exit by verdict
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

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


class ParityError(Exception):
    """Base of every error that this package raises on purpose.

    Args:
        message: One sentence; what it quotes can neither forge a line of its own nor hold a secret.
        details: Further lines, each under it.
    """

    def __init__(self, message: object, *details: object) -> None:
        super().__init__(message, *details)

    def __str__(self) -> str:
        return "\n  ".join(map(shown, self.args))


class UsageError(ParityError):
    """The command cannot be carried out as asked; the message says what to do instead."""


class InputError(ParityError):
    """A file or record cannot be read; the message names the file, the record and the field."""


class ExchangeError(InputError):
    """A `/generate` request or response is of no shape that the protocol has."""


class NotRecognised(InputError):
    """A file is in no format that is read; it may be sound, and of something else."""


class OverBudget(InputError):
    """Reading it would take more memory than is allowed; the message says what allows more."""


class CutOff(InputError):
    """A file's last line breaks off, as of a process that was killed or still writes."""


class EngineError(ParityError):
    """The engine failed to start, died, or refused a control request."""


class EngineUnavailable(EngineError):
    """The engine gave no answer (refused, cut, 502, 503, 504, time-out): it may be restarted and asked again."""


class TrainingError(ParityError):
    """A training step produced a value that training cannot go on from, such as a NaN loss."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question with the nearest of some names, to append to a message; empty where none is near."""
    alike = get_close_matches(name, list(names), 1, 0.6)
    return f"; did you mean {alike[0]}?" if alike else ""


def install_hint(extra: str) -> str:
    """How to install what an extra of this package brings; the package itself is on no index."""
    return f"pip install '.[{extra}]' in a checkout of rollout-parity"


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
