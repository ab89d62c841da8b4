"""A `/generate` server that answers by seed, and what the checkouts of hosts need to be imported."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis  # noqa: F401 (its plugin would import it in the summary, while a host's threads still parse)
import pytest
from aiohttp import ClientSession, web
from host_rollouts import as_queued, routed_experts

REWARD_MODULE = "host_test_reward"


class SeededServer:
    """An engine and its router in one: what it answers is a function of prompt and seed, in whatever way it is asked.

    Without a seed, the k-th answer to a prompt takes k. Requests that `holds` names wait until they are aborted, when
    samples in `queued_slots` were still in the engine's queue. What it says of itself is `info`, and
    `changes` plants what is wrong in its items. With `upstream` it is the router alone, and an engine
    there answers.
    """

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.requests: list[dict[str, Any]] = []
        self.received: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.refuse: Callable[[dict[str, Any]], tuple[int, Any] | None] = lambda body: None
        self.holds: Callable[[dict[str, Any]], bool] = lambda body: False
        self.changes: Callable[[dict[str, Any]], None] = lambda item: None
        self.queued_slots: frozenset[int] = frozenset()
        self.upstream: str | None = None
        self.most_in_flight = 0
        self._in_flight = 0
        self._asked: dict[str, int] = {}
        self._number = 0
        self._aborting_until = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _serve(self) -> None:
        self._aborted = asyncio.Event()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/server_info", self._info)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _workers(self, request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": f"http://127.0.0.1:{self.port}"}]})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.23", **self.info})

    async def _loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]})

    async def _abort(self, request: web.Request) -> web.Response:
        self._aborted.set()
        self._aborting_until = self._loop.time() + 0.3
        await asyncio.sleep(0.05)
        self._aborted.clear()
        return web.json_response("")

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.received.append(time.time())
        self.headers.append(dict(request.headers))
        if refused := self.refuse(body):
            return web.json_response(refused[1], status=refused[0])
        if self.upstream:
            return await self._forward(body)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        aborted = False
        if self.holds(body):
            if self._loop.time() > self._aborting_until:
                await self._aborted.wait()
            aborted = True
        else:
            await asyncio.sleep(0.005)
        self._in_flight -= 1
        return web.json_response(self._answer(body, aborted))

    async def _forward(self, body: dict[str, Any]) -> web.Response:
        async with ClientSession() as session, session.post(f"{self.upstream}/generate", json=body) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")

    def _answer(self, body: dict[str, Any], aborted: bool) -> Any:
        prompt = body.get("input_ids", body.get("text"))
        is_list = isinstance(prompt, list) and not isinstance(prompt[0], int)
        prompts = prompt if is_list else [prompt]
        params = body["sampling_params"]
        n = params.get("n", 1) if isinstance(params, dict) else 1
        each = params if isinstance(params, list) else [params] * len(prompts)
        items = [
            self._item(one, own, slot, aborted) for one, own in zip(prompts, each, strict=True) for slot in range(n)
        ]
        if aborted:
            for slot in self.queued_slots & set(range(len(items))):
                as_queued(items[slot])
        for item in items:
            if body.get("return_routed_experts"):
                item["meta_info"]["routed_experts"] = routed_experts(len(prompt), item["output_ids"])
            self.changes(item)
        return items if is_list or n > 1 else items[0]

    def _item(self, prompt: Any, params: dict[str, Any], slot: int, aborted: bool) -> dict[str, Any]:
        key = str(prompt)
        seed = params.get("sampling_seed")
        if seed is None:
            seed, slot = self._asked.get(key, 0), 0
            self._asked[key] = seed + 1
        rng = random.Random(f"{key} {seed + slot}")
        self._number += 1
        budget = params["max_new_tokens"]
        length = 1 if aborted else min(rng.randint(2, 9), budget)
        ids = [rng.randrange(97, 123) for _ in range(length)]
        reason = {"type": "length", "length": budget} if length == budget else {"type": "stop", "matched": ids[-1]}
        meta = {
            "id": f"{self._number:032x}",
            "finish_reason": {"type": "abort", "message": "Aborted"} if aborted else reason,
            "prompt_tokens": len(prompt),
            "cached_tokens": 0,
            "completion_tokens": length,
            "weight_version": "w1",
            "e2e_latency": 0.25,
            "output_token_logprobs": [[-rng.random(), token, None] for token in ids],
        }
        return {"text": bytes(ids).decode(), "output_ids": ids, "meta_info": meta}


@pytest.fixture
def server() -> Iterator[SeededServer]:
    one = SeededServer()
    one.start()
    yield one
    one.stop()


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with a byte-level tokenizer and nothing else."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(["<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    return folder


async def _reward(args: Any, sample: Any, **kwargs: Any) -> Any:
    """Share of vowels; a list where the group is scored together."""
    if isinstance(sample, list):
        return [await _reward(args, one) for one in sample]
    return sum(letter in "aeiou" for letter in sample.response) / max(1, len(sample.response))


async def _hook(args: Any, sample: Any, *, rollout_id: int | None, evaluation: bool) -> Any:
    sample.metadata["hooked"] = sample.metadata.get("hooked", 0) + 1
    return sample


async def _custom_generate(args: Any, sample: Any, sampling_params: Any) -> Any:
    sample.tokens, sample.response, sample.response_length = [1, 97], "a", 1
    sample.rollout_log_probs, sample.loss_mask = [-0.5], [1]
    sample.status = type(sample.status).COMPLETED
    return sample


def _keep(args: Any, group: list[Any], **kwargs: Any) -> bool:
    """Whether a dynamic filter keeps a group: all but one prompt's."""
    return bool(group[0].prompt != "two")


@pytest.fixture(autouse=True)
def reward_module() -> Iterator[types.ModuleType]:
    """The functions that hosts load by their dotted names."""
    module = types.ModuleType(REWARD_MODULE)
    module.reward, module.hook, module.custom_generate = _reward, _hook, _custom_generate  # type: ignore[attr-defined]
    module.keep = _keep  # type: ignore[attr-defined]
    sys.modules[REWARD_MODULE] = module
    yield module
    del sys.modules[REWARD_MODULE]


def import_host(variable: str, name: str, needs: tuple[str, ...]) -> Any:
    """The host's module out of the checkout that an environment variable names, or a skip that says what is missing."""
    checkout = os.environ.get(variable)
    if not checkout:
        pytest.skip(f"{variable} names no checkout")
    if missing := [one for one in needs if importlib.util.find_spec(one) is None]:
        pytest.skip(f"{variable}: its code needs {missing}")
    if checkout not in sys.path:
        sys.path.append(checkout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


class DataSource:
    """Groups of n samples a prompt, handed out in order; keeps what is given back, and hands that out first."""

    def __init__(
        self, sample_class: Any, prompts: list[str], n: int, images: Callable[[str], list[Any]] | None = None
    ) -> None:
        self.given_back: list[list[Any]] = []
        self._groups = [
            [
                sample_class(
                    group_index=group,
                    index=group * n + slot,
                    prompt=prompt,
                    **({"multimodal_inputs": {"images": images(prompt)}} if images else {}),
                )
                for slot in range(n)
            ]
            for group, prompt in enumerate(prompts)
        ]

    def get_samples(self, count: int) -> list[list[Any]]:
        returned, self.given_back = self.given_back[:count], self.given_back[count:]
        fresh, self._groups = self._groups[: count - len(returned)], self._groups[count - len(returned) :]
        return [*returned, *fresh]

    def add_samples(self, groups: list[list[Any]]) -> None:
        self.given_back.extend(groups)


@pytest.fixture
def data_source() -> type[DataSource]:
    return DataSource


@pytest.fixture
def host_importer() -> Callable[..., Any]:
    return import_host


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from parity.trainer.policy import build_policy, save_policy

    return save_policy(build_policy(seed=0), tmp_path_factory.mktemp("policy") / "checkpoint")


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.slow])],
)
def engine(
    request: pytest.FixtureRequest, policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """What an engine of its own process is called, and its URL."""
    from parity.engines import open_engine
    from parity.errors import EngineError

    if not os.environ.get(request.module.CHECKOUT):
        pytest.skip(f"{request.module.CHECKOUT} names no checkout")
    try:
        one = open_engine(request.param, policy, tmp_path_factory.mktemp("log"))
    except EngineError as error:
        pytest.skip(str(error))
    yield request.param, one.url
    one.stop()
