"""What a test made, beside what its engine was asked: nothing that failed is left out in silence."""

from __future__ import annotations

import pytest

from parity.contract_checks import Rules
from parity.pytest_plugin.judging import contract_findings
from parity.records.exchanges import Exchange
from parity.records.samples import Sample

RESPONSES = ([1, 2], [3, 4])


def asked(prompt: list[int]) -> dict[str, object]:
    return {
        "input_ids": prompt,
        "sampling_params": {"n": 2, "max_new_tokens": 2, "temperature": 1.0},
        "return_logprob": True,
    }


def answered(prompt: list[int]) -> Exchange:
    items = [
        {
            "text": "ab",
            "output_ids": ids,
            "meta_info": {
                "id": f"{prompt}-{slot}",
                "finish_reason": {"type": "length", "length": 2},
                "prompt_tokens": len(prompt),
                "completion_tokens": 2,
                "cached_tokens": 0,
                "weight_version": "0",
                "output_token_logprobs": [[-1.0, token, None] for token in ids],
            },
        }
        for slot, ids in enumerate(RESPONSES)
    ]
    return Exchange(request=asked(prompt), status=200, response=items)


def failed(prompt: list[int]) -> Exchange:
    return Exchange(request=asked(prompt), status=502, response={"error": "the engine does not answer"})


def samples(prompt: list[int]) -> list[Sample]:
    return [
        Sample(0, slot, 0, prompt, ids, [-1.0, -1.0], "ab", "length", weight_versions=["0"])
        for slot, ids in enumerate(RESPONSES)
    ]


@pytest.mark.parametrize(
    ("exchanges", "lost"),
    [
        ([answered([5, 6])], False),
        ([failed([5, 6]), answered([5, 6])], False),  # asked again
        ([answered([5, 6]), failed([7, 8])], True),
    ],
)
def test_a_group_that_failed_and_was_left_out_is_found(exchanges: list[Exchange], lost: bool) -> None:
    findings = contract_findings(samples([5, 6]), exchanges, Rules(group_size=2), None)
    assert [one.check for one in findings if one.fails] == ["requests_accounted"] * lost
