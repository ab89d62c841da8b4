"""What a case works with: an engine under test that it sends requests to, and expectations of the responses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import aiohttp
import orjson

from parity.engines.client import IS_ROUTER, EngineClient
from parity.engines.vllm import OWNER, VllmClient
from parity.errors import EngineError
from parity.findings import Message
from parity.records.exchanges import Exchange
from rollout_patch import RequestFailed

PROMPT = list(range(5, 16))
"""11 token ids that every vocabulary has."""
SHORT, MIDDLE = list(range(5, 10)), list(range(7, 15))
TEXT = "Hello world"
TOKENS = 12
"""Tokens that a request asks for unless it says otherwise."""
GREEDY = {"temperature": 0.0}

IMAGE_TEXTS = {"qwen2_5_vl": ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>")}
"""What stands for an image in a prompt of text, and the token in it that is the image's, by the type of the model."""

T = TypeVar("T")
Output = dict[str, Any]


class Broken(Exception):
    """An expectation of a case does not hold: the field, both values, and a message."""

    def __init__(self, field: str, expected: Any, observed: Any, message: Message) -> None:
        super().__init__(message)
        self.field, self.expected, self.observed, self.message = field, expected, observed, message


class NotCompared(Exception):
    """The engine lacks what a case needs; the message says what."""

    def __init__(self, template: str, **values: object) -> None:
        self.message = Message(template, **values)
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One case of the suite.

    Attributes:
        name: Its stable name.
        rule: The rule that it holds the engine to, in one sentence.
        run: Sends requests; raises `Broken` or `NotCompared`.
        control: Whether it needs endpoints that change the engine: weights, cache, aborts, pauses.
        destructive: Whether it sends what is known to end some servers.
        exempt: Checks of `parity.contract_checks` that its requests break on purpose.
        partial_versions: Whether one response may span a weight update.
    """

    name: str
    rule: str
    run: Callable[[Probe], Awaitable[None]]
    control: bool = False
    destructive: bool = False
    exempt: frozenset[str] = frozenset()
    partial_versions: bool = False


Run = Callable[["Probe"], Awaitable[None]]


class Cases(list[ConformanceCase]):
    """The cases of one module, in order."""

    def case(self, **flags: Any) -> Callable[[Run], Run]:
        """Adds the case that a function is: its name, and its docstring as the rule."""

        def add(run: Run) -> Run:
            self.append(ConformanceCase(run.__name__, (run.__doc__ or "").rstrip("."), run, **flags))
            return run

        return add

    def table(self, run: Callable[..., Awaitable[None]], rows: Sequence[Sequence[Any]], **flags: Any) -> None:
        """Adds a case for each row: its name, its rule, and the arguments of the function that runs it."""
        for name, rule, *arguments in rows:
            self.append(ConformanceCase(name, rule, partial(run, *arguments), **flags))


@dataclass(frozen=True, slots=True)
class About:
    """What the engine reports of itself; `None` for what it does not report.

    `context_length` and `vocab_size` are in tokens, `max_running` in sequences. `sglang` is the version of a real
    SGLang. `image_text` stands for an image in a prompt of text, if the engine takes images and its model is known;
    `image_pad` is the token in it that becomes the image's. `vllm` is the version of a vLLM, or the one that the
    embedded engine answers as, and `settings` how it was started, as far as it says.
    """

    context_length: int | None = None
    vocab_size: int | None = None
    max_running: int | None = None
    deterministic: bool = False
    seed_per_slot: bool = False
    takes_text: bool = True
    sglang: str | None = None
    prefix_cache: bool = True
    router: bool = False
    vllm: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    image_text: str | None = None
    image_pad: str | None = None


async def call(
    session: aiohttp.ClientSession, method: str, url: str, body: Mapping[str, Any] | None = None
) -> tuple[int, Any]:
    """Calls an endpoint: its status and its response, decoded if it is JSON.

    Raises:
        EngineError: There is no response.
    """
    try:
        async with session.request(method, url, json=body) as response:
            status, content = response.status, await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise EngineError(f"{url}: {type(error).__name__}: {error}") from error
    try:
        return status, orjson.loads(content)
    except orjson.JSONDecodeError:
        return status, content.decode(errors="replace")


async def about(client: EngineClient, session: aiohttp.ClientSession) -> About:
    """Reads what the engine reports of itself.

    Raises:
        EngineError: None of it can be read.
    """
    info, can = await client.server_info(), await client.capabilities()
    _, models = await call(session, "GET", f"{client.url}/v1/models")
    _, model = await call(session, "GET", f"{client.url}/model_info")
    sees = isinstance(model, dict) and model.get("has_image_understanding") is True
    image_text, image_pad = IMAGE_TEXTS.get(str(model.get("model_type")), (None, None)) if sees else (None, None)
    sources = [
        info,
        _first(info.get("internal_states")),
        _first(models.get("data") if isinstance(models, dict) else None),
    ]

    def number(*names: str) -> int | None:
        values = [source.get(name) for name in names for source in sources]
        return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)

    # the name of a setting that SGLang alone has
    real = "disable_radix_cache" in info and isinstance(info.get("version"), str)
    if isinstance(client, VllmClient):
        model = await client.model_info()
        return About(
            context_length=model["context_length"],
            max_running=number("max_num_seqs"),
            deterministic=True,
            seed_per_slot=True,
            vllm="0.32.0" if model["owned_by"] == OWNER else str(info["version"]),
            settings=info,
            router=bool(await client.workers()),
        )
    return About(
        # SGLang's own setting is null where the checkpoint decides
        context_length=number("context_length", "max_model_len"),
        vocab_size=number("vocab_size"),
        max_running=number("effective_max_running_requests_per_dp", "max_running_requests"),
        deterministic=can.seeded,
        seed_per_slot=can.seed_per_slot,
        takes_text=info.get("skip_tokenizer_init") is not True,
        sglang=info["version"] if real else None,
        prefix_cache=info.get("disable_radix_cache") is not True,
        router=IS_ROUTER in info,
        image_text=image_text,
        image_pad=image_pad,
    )


def _first(items: Any) -> dict[str, Any]:
    """The first of a list of objects, or an empty one."""
    return items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}


def request(prompt: object, params: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A `/generate` body for a text, token ids, or a list of either: `TOKENS` tokens each, with log-probs.

    `params` and `fields` are added; where they are `None`, the default is taken out.
    """
    sampling = {"max_new_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True, **(params or {})}
    texts = isinstance(prompt, str) or (isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str))
    body = {"text" if texts else "input_ids": prompt, "sampling_params": sampling, "return_logprob": True, **fields}
    body["sampling_params"] = {name: value for name, value in sampling.items() if value is not None}
    return {name: value for name, value in body.items() if value is not None}


def small_request(client: EngineClient) -> dict[str, Any]:
    """A body that asks for one token."""
    if client.dialect.name == "vllm":
        return {"token_ids": SHORT, "sampling_params": {"max_tokens": 1, "logprobs": 0}}
    return request(SHORT, {"max_new_tokens": 1})


@dataclass
class Probe:
    """The engine as one case sees it; it keeps every exchange of the case."""

    client: EngineClient
    session: aiohttp.ClientSession
    about: About
    exchanges: list[Exchange] = field(default_factory=list)

    async def send(self, body: Mapping[str, Any]) -> Exchange:
        """Sends one `/generate` request; status 0 stands for no response."""
        if "text" in body and not self.about.takes_text:
            raise NotCompared("the engine has no tokenizer and takes no text")
        try:
            status, response = 200, await self.client.generate(body)
        except RequestFailed as error:
            status, response = error.status or 0, error.body
        exchange = Exchange(body, status, response, engine_id=self.client.engine_id)
        self.exchanges.append(exchange)
        return exchange

    async def outputs(self, body: Mapping[str, Any]) -> list[Output]:
        """Sends a request that must be answered with 200; its outputs in the order received."""
        exchange = await self.send(body)
        expect("status", exchange.status, 200, "status of the response {response}", response=short(exchange.response))
        for place, item in enumerate(exchange.outputs):
            sound = isinstance(item, dict) and isinstance(item.get("meta_info"), dict)
            require("response", sound, "objects with meta_info", item, "output {place} without meta_info", place=place)
        return exchange.outputs

    async def ask(self, prompt: object, params: Mapping[str, Any] | None = None, **fields: Any) -> list[Output]:
        """The outputs of `request`."""
        return await self.outputs(request(prompt, params, **fields))

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Posts to an endpoint: its status and its response, decoded if it is JSON."""
        return await call(self.session, "POST", self.client.url + path, body or {})

    async def get(self, path: str) -> tuple[int, Any]:
        """Gets an endpoint: its status and its response, decoded if it is JSON."""
        return await call(self.session, "GET", self.client.url + path)

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Posts to an endpoint, which must answer with 200."""
        status, response = await self.post(path, body)
        expect("status", status, 200, "status of {path}, with response {response}", path=path, response=short(response))

    async def alive(self) -> None:
        """Expects that the engine still answers."""
        outputs = await self.outputs(small_request(self.client))
        expect("output_ids", lengths(outputs), [1], "tokens of a request sent afterwards")

    def room(self, prompt_tokens: int, at_most: int) -> int:
        """Tokens that may follow a prompt, `at_most` where the context is not known to be smaller."""
        context = self.about.context_length
        return at_most if context is None else min(at_most, context - prompt_tokens - 1)


def expect(field: str, observed: Any, expected: Any, what: str, /, **values: object) -> None:
    """Raises `Broken` unless both are equal; `what` is the template that names them, `values` those of its places."""
    if observed != expected:
        named = Message(what, **values)
        shown = {"what": named, "observed": short(observed), "expected": short(expected)}
        raise Broken(field, expected, observed, Message("{what}: {observed} instead of {expected}", **shown))


def require(field: str, holds: bool, expected: Any, observed: Any, what: str, **values: object) -> None:
    """Raises `Broken` unless `holds`; `what` and `values` as in `expect`."""
    if not holds:
        named = Message(what, **values)
        raise Broken(field, expected, observed, Message("{what}: {observed}", what=named, observed=short(observed)))


def short(value: Any) -> str:
    """A value as text of at most 160 characters."""
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."


def lengths(outputs: Sequence[Output]) -> list[int]:
    """Tokens of each output."""
    return [len(ids_of(output)) for output in outputs]


def ids_of(output: Output) -> list[int]:
    """The output ids; raises `Broken` unless they are a list."""
    ids = output.get("output_ids")
    require("output_ids", isinstance(ids, list), "a list of ids", ids, "output_ids")
    return list(ids or ())


def triples_of(output: Output, name: str = "output_token_logprobs") -> list[list[Any]]:
    """Log-prob, id and text of each token; raises `Broken` unless they are a list of such."""
    rows = output["meta_info"].get(name)
    sound = isinstance(rows, list) and all(isinstance(row, list) and len(row) >= 2 for row in rows)
    require(name, sound, "[log-prob, id, text] for each token", rows, "entries of {name}", name=name)
    return list(rows or ())


def log_probs_of(output: Output, name: str = "output_token_logprobs") -> list[Any]:
    """The log-prob of each token."""
    return [row[0] for row in triples_of(output, name)]


def tokens_of(outputs: Sequence[Output]) -> list[Any]:
    """Ids and log-probs of each output."""
    return [(ids_of(output), log_probs_of(output)) for output in outputs]


def meta_of(outputs: Sequence[Output], name: str) -> list[Any]:
    """One field of each output's meta_info."""
    return [output["meta_info"].get(name) for output in outputs]


def finishes(outputs: Sequence[Output]) -> list[Any]:
    """The type of each output's finish reason."""
    reasons = meta_of(outputs, "finish_reason")
    return [reason.get("type") if isinstance(reason, dict) else reason for reason in reasons]


def new_id() -> str:
    """A request id that was never used."""
    return uuid.uuid4().hex


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """All results in order; if one fails, the others are cancelled before its error is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
