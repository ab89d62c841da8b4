"""True and false where an exchange has a number: Python takes them for 1 and 0, and no rule may."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from parity.contract_checks import Rules, check_exchanges
from parity.findings import Status
from parity.records.exchanges import Exchange

ROW: dict[str, Any] = {
    "request": {
        "input_ids": [5],
        "sampling_params": {"max_new_tokens": 1, "temperature": 1, "top_p": 1, "min_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "stream": False,
    },
    "status": 200,
    "response": {
        "index": 0,
        "text": "a",
        "output_ids": [1],
        "meta_info": {
            "id": "one",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": 1,
            "completion_tokens": 1,
            "cached_tokens": 0,
            "weight_versions": [{"version": "v", "start": 0, "end": 1}],
            "output_token_logprobs": [[0, 1, None]],
            "input_token_logprobs": [[None, 5, None]],
        },
    },
}
"""An answer of one token, whose every number is 0 or 1: a truth value is equal to it."""


def broken(row: dict[str, Any]) -> dict[str, str | None]:
    findings = check_exchanges([Exchange.from_json(row, "here")], Rules(context_length=9))
    return {one.check: one.where.field for one in findings if one.status is Status.FAIL}


def test_numbers_and_honest_truth_values_pass() -> None:
    assert broken(ROW) == {}


def _params(row: dict[str, Any]) -> Any:
    return row["request"]["sampling_params"]


def _meta(row: dict[str, Any]) -> Any:
    return row["response"]["meta_info"]


@pytest.mark.parametrize(
    ("part", "key", "check"),
    [
        (_params, "temperature", "exchange_request_honoured"),
        (_params, "max_new_tokens", "exchange_request_honoured"),
        (_params, "min_new_tokens", "exchange_request_honoured"),
        (lambda row: row["response"], "index", "exchange_output_order"),
        (lambda row: row["response"]["output_ids"], 0, "exchange_response_shape"),
        (_meta, "prompt_tokens", "exchange_output_order"),
        (_meta, "completion_tokens", "exchange_rollout_log_probs_length"),
        (_meta, "cached_tokens", "exchange_cached_tokens"),
        (lambda row: _meta(row)["finish_reason"], "length", "exchange_finish_length"),
        (lambda row: _meta(row)["weight_versions"][0], "end", "exchange_version_spans"),
        (lambda row: _meta(row)["weight_versions"][0], "start", "exchange_version_spans"),
        (lambda row: _meta(row)["output_token_logprobs"][0], 0, "exchange_logprob_values"),
        (lambda row: _meta(row)["output_token_logprobs"][0], 1, "exchange_rollout_log_probs_length"),
        (lambda row: _meta(row)["input_token_logprobs"][0], 1, "exchange_prompt_logprobs"),
    ],
)
def test_a_truth_value_for_a_number_is_found(part: Callable[[Any], Any], key: str | int, check: str) -> None:
    row = deepcopy(ROW)
    if check == "exchange_prompt_logprobs":
        row["request"]["input_ids"] = [1]
    part(row)[key] = bool(part(row)[key])
    assert check in broken(row)
