"""A host's samples: kept as they were, copied, and what one of them asks for and is answered."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

from rollout_patch.hosts.meeting import Asked
from rollout_patch.requests import SampleRequest
from rollout_patch.responses import UNSENT, Output

_SHARED = ("prompt", "multimodal_inputs", "multimodal_train_inputs")
"""Fields that generation replaces and never changes in place, so that a copy may have the same objects."""
_ATOMS = (int, float, str, bytes, bool, type(None))


def copy_of(sample: Any) -> Any:
    """A sample of its own with the same content; what generation never changes in place is shared."""
    twin = copy.copy(sample)
    vars(twin).update(attributes_of(sample))
    return twin


def attributes_of(sample: Any) -> dict[str, Any]:
    """All attributes, those beyond the fields included, as a later change in place does not reach them."""
    return {name: value if name in _SHARED else _copied(value) for name, value in vars(sample).items()}


def restore(sample: Any, attributes: Mapping[str, Any]) -> None:
    """All attributes as they were, and none that came since."""
    vars(sample).clear()
    vars(sample).update(attributes)


def _copied(value: Any) -> Any:
    """A copy of containers and records; what cannot be copied, such as a lock, is shared."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        return value.copy() if all(type(one) in _ATOMS for one in value[:1]) else [_copied(one) for one in value]
    if kind is dict:
        return {key: _copied(one) for key, one in value.items()}
    if is_dataclass(value) and hasattr(value, "__dict__"):
        twin = copy.copy(value)
        vars(twin).update({name: _copied(one) for name, one in vars(value).items()})
        return twin
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever a user's object raises that is not made to be copied
        return value


class Seats:
    """Lets the slots of a group take part in `generate_group`: what each asked, and what it is answered.

    Args:
        group: The host's samples, in slot order.
        asked: What the host's code hands to `post`, by slot.
    """

    def __init__(self, group: Sequence[Any], asked: Mapping[int, Asked]) -> None:
        self.answers: dict[int, Any] = {}
        self._group = group
        self._asked = asked

    def request(self, slot: int) -> SampleRequest:
        """The payload, taken apart."""
        asked = self._asked[slot]
        payload = asked.payload
        media = {name: list(items) for name, items in payload.items() if name.endswith("_data")}
        parts = {"sampling_params", "input_ids", "text", *media}
        ids = payload.get("input_ids")
        return SampleRequest(
            sampling_params=payload["sampling_params"],
            input_ids=None if ids is None else list(ids),
            text=payload.get("text"),
            media=media,
            resumed=self._group[slot].response_length > 0,
            options={name: value for name, value in payload.items() if name not in parts},
            headers=asked.headers,
        )

    def apply(self, slot: int, output: Output) -> None:
        """Keeps the sample's answer for the host's code, which writes it into the sample."""
        self.answers[slot] = answer_of(output)

    def snapshot(self, slot: int) -> None:
        """Nothing: no sample is changed here."""

    def restore(self, slot: int, snapshot: object) -> None:
        """Forgets the answer."""
        self.answers.pop(slot, None)


def answer_of(output: Output) -> dict[str, Any]:
    """An output as the answer to a request for it alone; what the engine did not send is not there.

    One that was never sent is answered as the engine answers what it aborts in its queue.
    """
    meta = dict(output.meta_info)
    if output.id == UNSENT:
        meta |= {"id": "", "completion_tokens": 0, "output_token_logprobs": []}
    answer = {"text": output.text, "output_ids": list(output.output_ids), "meta_info": meta}
    return {name: value for name, value in answer.items() if value is not None}


@contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Gives modules other attributes for the time of a block."""
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
