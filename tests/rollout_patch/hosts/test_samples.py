"""A host's samples are kept and copied whole, whatever is in them, and answered with what the engine sent."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollout_patch import Output
from rollout_patch.hosts.meeting import Asked
from rollout_patch.hosts.samples import Seats, answer_of, attributes_of, copy_of, replaced, restore
from rollout_patch.responses import unsent_output


@dataclass
class Counts:
    cached: int = 0


@dataclass
class HostSample:
    prompt: Any = "a"
    tokens: list[int] = field(default_factory=lambda: [1, 2])
    response_length: int = 0
    metadata: dict[str, Any] = field(default_factory=lambda: {"nested": [{"deep": [1]}]})
    counts: Counts = field(default_factory=Counts)


def spoil(sample: HostSample) -> None:
    """Changes a sample in place, as a host's code may."""
    sample.tokens.append(3)
    sample.metadata["nested"][0]["deep"].append(2)
    sample.counts.cached += 5
    sample.extra = "left over"  # type: ignore[attr-defined]


def test_a_restored_sample_is_what_it_was_in_every_nested_value() -> None:
    sample = HostSample()
    before = attributes_of(sample)
    spoil(sample)
    restore(sample, before)
    assert vars(sample) == vars(HostSample())


def test_a_copy_shares_nothing_that_changes() -> None:
    sample = HostSample()
    spoil(copy_of(sample))
    assert vars(sample) == vars(HostSample())


def test_what_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()
    sample = HostSample(metadata={"lock": lock, "module": threading, "list": [lock]})
    twin = copy_of(sample)
    assert twin.metadata == sample.metadata
    assert twin.metadata is not sample.metadata and twin.metadata["list"] is not sample.metadata["list"]


def test_a_payload_is_taken_apart() -> None:
    payload = {
        "input_ids": (1, 2),
        "sampling_params": {"max_new_tokens": 5},
        "return_logprob": True,
        "image_data": ["x"],
    }
    samples = [HostSample(), HostSample(response_length=2)]
    seats = Seats(samples, {1: Asked("http://engine/generate", payload, {"key": "k"})})
    asked = seats.request(1)
    assert (asked.input_ids, asked.sampling_params, asked.headers) == ([1, 2], {"max_new_tokens": 5}, {"key": "k"})
    assert (asked.options, asked.media, asked.resumed) == ({"return_logprob": True}, {"image_data": ["x"]}, True)


def test_an_answer_has_what_the_engine_sent_and_no_more() -> None:
    meta = {"id": "a", "finish_reason": {"type": "stop"}}
    output = Output("xy", [8, 9], [-0.5, -0.5], "stop", None, 2, 0, "w1", "a", meta)
    assert answer_of(output) == {"text": "xy", "output_ids": [8, 9], "meta_info": meta}
    untold = Output(None, [8, 9], None, "stop", None, 2, 0, "w1", "a", meta)
    assert "text" not in answer_of(untold)


def test_what_was_never_sent_is_answered_as_what_the_engine_aborts_in_its_queue(recorded: dict[str, Any]) -> None:
    answer = answer_of(unsent_output())
    items = recorded["abort-mixed-queue-n8"]["response"]
    queued = next(item for item in items if not item["output_ids"])
    assert (answer["text"], answer["output_ids"]) == (queued["text"], queued["output_ids"]) == ("", [])
    assert answer["meta_info"]["finish_reason"]["type"] == queued["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"].keys() <= queued["meta_info"].keys()
    for name in ("completion_tokens", "output_token_logprobs"):
        assert answer["meta_info"][name] == queued["meta_info"][name]


def test_replaced_attributes_come_back_after_an_error() -> None:
    sample = HostSample()
    with pytest.raises(KeyError), replaced((sample, "prompt", None)):
        assert sample.prompt is None
        raise KeyError
    assert sample.prompt == "a"
