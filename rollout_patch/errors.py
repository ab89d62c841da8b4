"""What can go wrong while a group is generated.

PatchError
├── RequestFailed       the host's `post` got no answer, or one whose status is not 200
├── RequestAborted      the host's `post` was told to stop before there was any output
├── ResponseRefused     a 200 whose body breaks the protocol; no sample was touched
│   └── OneSampleOnly   it holds one sample where several were asked for
└── UnsupportedHost     a host whose functions have another signature than the known ones
"""

from __future__ import annotations

from typing import Any


class PatchError(Exception):
    """Base of every error that this package raises on purpose."""


class RequestFailed(PatchError):
    """A request not answered with 200: raised by the host's `post`, and by `generate_group` when it gives up.

    Attributes:
        status: The HTTP status, or `None` when there was no answer (refused, cut, timed out).
        body: The decoded body, or the text of the error.
    """

    def __init__(self, status: int | None, body: Any) -> None:
        super().__init__(f"{'no answer' if status is None else f'HTTP {status}'}: {str(body)[:500]}")
        self.status = status
        self.body = body


class RequestAborted(PatchError):
    """Raised by the host's `post` when the host stopped generation before the engine made any output."""


class ResponseRefused(PatchError):
    """A 200 whose body breaks the protocol; the message names the slot, the field and the values."""


class OneSampleOnly(ResponseRefused):
    """A 200 with one sample where several were asked for, as behind a router that drops `n`."""


class UnsupportedHost(PatchError):
    """A host whose functions have another signature than the known ones; the message names what was found."""
