"""Lies about requests with n > 1, as engines and routers have told them."""

from __future__ import annotations

from typing import Any

Output = dict[str, Any]
OF_THE_RESPONSE = ("text", "output_ids")
OF_THE_META = ("finish_reason", "completion_tokens", "output_token_logprobs")


def is_native(payload: dict[str, Any]) -> bool:
    params = payload["sampling_params"]
    return isinstance(params, dict) and params.get("n", 1) > 1


def clone(first: Output, second: Output) -> None:
    """The second output becomes the first, under its own id."""
    second.update({name: first[name] for name in OF_THE_RESPONSE})
    second["meta_info"].update({name: first["meta_info"][name] for name in OF_THE_META})


def one_cloned_pair(payload: dict[str, Any], outputs: list[Output]) -> None:
    if is_native(payload):
        clone(outputs[1], outputs[2])


def cloned_half(payload: dict[str, Any], outputs: list[Output]) -> None:
    for output in outputs[1 : len(outputs) // 2] if is_native(payload) else ():
        clone(outputs[0], output)


def log_probs_of_the_next_token(payload: dict[str, Any], outputs: list[Output]) -> None:
    """Token ids stay, so that nothing but scoring the tokens again can tell."""
    for output in outputs if is_native(payload) else ():
        triples = output["meta_info"]["output_token_logprobs"]
        values = [row[0] for row in triples]
        for row, value in zip(triples, [*values[1:], values[0]] if values else [], strict=True):
            row[0] = value


def other_temperature(payload: dict[str, Any]) -> None:
    if is_native(payload):
        payload["sampling_params"]["temperature"] = 0.7


def sooner_end(payload: dict[str, Any]) -> None:
    """For the toy engine: shorter responses."""
    if is_native(payload):
        payload["sampling_params"]["chance"] = 0.3
