"""A recording in place of an engine, so that both arms get the same responses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from parity.errors import InputError
from parity.findings import quantity, short_repr
from parity.records.exchanges import Exchange, prompt_key
from rollout_patch import Post


def replaying_post(exchanges: Iterable[Exchange]) -> Post:
    """A `post` that answers any arm's requests from one recording, so that both arms get the same responses.

    Outputs are kept by prompt, in the order of rollout, group and the time of sending, whatever form they were recorded
    in, and given out in that order, each once, in the form that the request asks for: an object for one prompt with n =
    1, else a list, prompt-major. Requests for one prompt are answered in the order of their arrival, so the samples of
    a group must be asked for in the order of their slots.

    Args:
        exchanges: A recording; only what was answered with status 200 is used.

    Raises:
        InputError: (when called) the recording has no outputs left for a prompt.
    """
    outputs = _outputs_by_prompt(exchanges)

    async def post(payload: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        request = Exchange(payload, 200, None)
        n, prompts = max(request.n, 1), request.prompts
        keys = [prompt_key(request, number) for number in range(len(prompts))]
        for key in dict.fromkeys(keys):
            wanted, left = n * keys.count(key), len(outputs.get(key, ()))
            if left < wanted:
                raise InputError(
                    f"the recording has {quantity(left, 'outputs')} left for prompt {short_repr(key)}, "
                    f"{wanted} asked for"
                )
        answers = [outputs[key].popleft() for key in keys for _ in range(n)]
        return answers if request.is_batch or n > 1 else answers[0]

    return post


def _outputs_by_prompt(exchanges: Iterable[Exchange]) -> dict[str, deque[Any]]:
    answered = [exchange for exchange in exchanges if exchange.status == 200]
    answered.sort(key=lambda item: (item.rollout_id or 0, item.group_index or 0, item.sent_at or 0.0))
    outputs: dict[str, deque[Any]] = {}
    for exchange in answered:
        n, received = max(exchange.n, 1), exchange.outputs
        if len(received) != n * len(exchange.prompts):
            asked = f"{quantity(len(exchange.prompts), 'prompts')} with n = {n}"
            place = f"recorded exchange of step {exchange.rollout_id}, group {exchange.group_index}"
            raise InputError(f"{place}: field 'response' holds {quantity(len(received), 'outputs')} for {asked}")
        for slot, output in enumerate(received):
            if isinstance(output, dict):
                output = {name: value for name, value in output.items() if name != "index"}  # given out elsewhere
            outputs.setdefault(prompt_key(exchange, slot // n), deque()).append(output)
    return outputs
