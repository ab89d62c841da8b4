"""Log-probs that an engine gives to the tokens of prompts, asked for as its dialect has it."""

from __future__ import annotations

import asyncio
from typing import Any

from parity.engines.client import EngineClient
from parity.errors import ExchangeError

Scored = list[tuple[float | None, int]]
"""(log-prob, token) of each token of a prompt; the first one has no log-prob."""


async def score(client: EngineClient, prompts: list[list[int]], start: int) -> list[Scored]:
    """The tokens of each prompt from `start` on, at temperature 1 and without truncation.

    Raises:
        ExchangeError: The answer holds no log-probs of these tokens.
        RequestFailed: The engine refuses or does not answer.
    """
    if not prompts:
        return []
    if client.dialect.name == "vllm":
        answers = await asyncio.gather(*(client.generate(_vllm_payload(prompt)) for prompt in prompts))
        return [_vllm_rows(*pair, start) for pair in zip(answers, prompts, strict=True)]
    params = {"max_new_tokens": 0, "temperature": 0}
    payload = {"input_ids": prompts, "sampling_params": params, "return_logprob": True, "logprob_start_len": start}
    answer = await client.generate(payload)
    if not isinstance(answer, list) or len(answer) != len(prompts):
        raise ExchangeError(f"{len(prompts)} prompts were answered with {str(answer)[:80]}")
    return list(map(_triples, answer))


async def prompt_ids(client: EngineClient, text: str) -> list[int]:
    """The token ids that the engine makes of a text.

    Raises:
        ExchangeError: The answer does not say.
        RequestFailed: The engine refuses or does not answer.
    """
    if client.dialect.name == "vllm":
        answer = await client.generate({"prompt": text, "max_tokens": 1, "return_token_ids": True})
        try:
            return list(map(int, answer["choices"][0]["prompt_token_ids"]))
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise ExchangeError(f"no prompt_token_ids ({type(error).__name__}) in {str(answer)[:80]}") from error
    payload = {"text": text, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0}
    return [token for _, token in _triples(await client.generate(payload))]


def _triples(answer: Any) -> Scored:
    try:
        return [(row[0], int(row[1])) for row in answer["meta_info"]["input_token_logprobs"]]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise ExchangeError(f"no input_token_logprobs ({type(error).__name__}) in {str(answer)[:80]}") from error


def _vllm_payload(prompt: list[int]) -> dict[str, Any]:
    return {"token_ids": prompt, "sampling_params": {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}}


def _vllm_rows(answer: Any, prompt: list[int], start: int) -> Scored:
    try:
        rows = zip(answer["prompt_logprobs"], prompt, strict=True)
        (_, first), *others = list(rows)[start:]
        return [(None, first), *((float(row[str(token)]["logprob"]), token) for row, token in others)]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise ExchangeError(f"no prompt_logprobs ({type(error).__name__}) in {str(answer)[:80]}") from error
