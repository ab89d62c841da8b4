"""Why a request is refused, in the words of SGLang 0.5.23."""

from __future__ import annotations


class RequestRefused(Exception):
    """The request gets this status and body."""

    def __init__(self, body: object, status: int = 400) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def refused(message: str) -> RequestRefused:
    """A refusal because of values that make no sense."""
    return RequestRefused({"error": {"message": message}})


def check_length(tokens: int, context_length: int) -> None:
    """Refuses a prompt that leaves no room for an answer."""
    if tokens >= context_length:
        raise refused(
            f"The input ({tokens} tokens) is longer than the model's context length ({context_length} tokens)."
        )


def unexpected(value: object) -> str:
    """What a value is, for a refusal."""
    # The words of serde's `Unexpected`, which the engine's errors use.
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "sequence" if isinstance(value, list) else "map"


def expect(good: bool, value: object, expected: str) -> None:
    """Refuses a body with a value of another type than is expected, unless it is `good`."""
    if not good:
        raise RequestRefused({"error": f"invalid type: {unexpected(value)}, expected {expected}"})


def is_integer(value: object) -> bool:
    """Whether a value of JSON is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
