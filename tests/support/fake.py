"""A fake of SGLang's `/generate`: a callable says what one sample is, and this makes an answer and a server of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Output = dict[str, Any]
Sampler = Callable[[Any, dict[str, Any], int], Output]
"""From a prompt, its sampling parameters and the place in a request of n to an output."""


def output(
    name: str,
    triples: Sequence[tuple[float, int]],
    finish: Mapping[str, Any],
    prompt_tokens: int,
    *,
    text: str = "",
    version: str = "default",
    **meta: Any,
) -> Output:
    """One sample in SGLang's form; `triples` are log-prob and id of its tokens."""
    return {
        "text": text,
        "output_ids": [token for _, token in triples],
        "meta_info": {
            "id": name,
            "finish_reason": dict(finish),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(triples),
            "cached_tokens": 0,
            "weight_version": version,
            "output_token_logprobs": [[log_prob, token, None] for log_prob, token in triples],
            **meta,
        },
    }


def answer(payload: Mapping[str, Any], sampler: Sampler) -> list[Output] | Output:
    """Samples of every prompt, prompt after prompt: an object for one prompt and one sample, and a list otherwise."""
    prompt, given = payload.get("text", payload.get("input_ids")), payload["sampling_params"]
    is_list = isinstance(prompt, list) and isinstance(prompt[0], (str, list))
    prompts: list[Any] = prompt if is_list and isinstance(prompt, list) else [prompt]
    params = given if isinstance(given, list) else [given] * len(prompts)
    outputs = [
        sampler(one, of_prompt, slot)
        for one, of_prompt in zip(prompts, params, strict=True)
        for slot in range(of_prompt.get("n", 1))
    ]
    return outputs if is_list or len(outputs) > 1 else outputs[0]


@contextmanager
def serving(*applications: web.Application) -> Iterator[list[str]]:
    """The URLs of applications on loopback ports, served by one thread of their own."""
    loop = asyncio.new_event_loop()
    runners = [web.AppRunner(app, access_log=None, shutdown_timeout=1) for app in applications]

    async def start(runner: web.AppRunner) -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield [asyncio.run_coroutine_threadsafe(start(runner), loop).result() for runner in runners]
    finally:
        for runner in runners:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
