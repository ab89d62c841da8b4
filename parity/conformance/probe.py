"""What a case works with: an engine under test that is asked, and expectations that hold or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import orjson

from parity.engines.client import IS_ROUTER, EngineClient
from parity.errors import EngineError
from parity.records.exchanges import Exchange
from rollout_patch import RequestFailed

PROMPT: Sequence[int] = range(5, 16)
"""11 token ids that every vocabulary has."""
SHORT, MIDDLE = range(5, 10), range(7, 15)
TEXT = "Hello world"
TOKENS = 12

IMAGE_TEXTS = {"qwen2_5_vl": ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>")}
"""What stands for an image in a prompt of text, and the token in it that is the image's, by the type of the model."""

T = TypeVar("T")
Output = dict[str, Any]


class Broken(Exception):
    """An expectation of a case does not hold."""

    def __init__(self, field: str, expected: Any, observed: Any, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.expected = expected
        self.observed = observed
        self.message = message


class NotCompared(Exception):
    """The engine lacks what a case needs; the message says what."""


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One case of the suite.

    Attributes:
        name: Its stable name.
        rule: What it holds the engine to, in one sentence.
        run: Asks the engine; raises `Broken` or `NotCompared`.
        control: Whether it needs endpoints that change the engine: weights, cache, aborts, pauses.
        destructive: Whether it sends what is known to end some servers.
        exempt: Checks of `parity.contract_checks` that its requests break on purpose.
        partial_versions: Whether one answer may span a weight update.
    """

    name: str
    rule: str
    run: Callable[[Probe], Awaitable[None]]
    control: bool = False
    destructive: bool = False
    exempt: frozenset[str] = frozenset()
    partial_versions: bool = False


def case_of(run: Callable[[Probe], Awaitable[None]], **flags: Any) -> ConformanceCase:
    """The case that a function is: its name, and its docstring as the rule."""
    return ConformanceCase(run.__name__, (run.__doc__ or "").rstrip("."), run, **flags)


@dataclass(frozen=True, slots=True)
class About:
    """What the engine says of itself; `None` for what it does not say.

    `context_length` and `vocab_size` are in tokens, `max_running` in sequences. `sglang` is the version, where the
    engine is the real SGLang. `image_text` stands for an image in a text, where the engine takes images and its model
    is known, and `image_pad` is the token in it that becomes the image's.
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
    image_text: str | None = None
    image_pad: str | None = None


async def call(
    session: aiohttp.ClientSession, method: str, url: str, body: Mapping[str, Any] | None = None
) -> tuple[int, Any]:
    """Calls an endpoint: status, and the answer, decoded where it is JSON.

    Raises:
        EngineError: There is no answer.
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
    """Reads what the engine says of itself.

    Raises:
        EngineError: It says nothing that could be read.
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
    prompt = prompt if texts else _lists(prompt)
    body = {"text" if texts else "input_ids": prompt, "sampling_params": sampling, "return_logprob": True, **fields}
    body["sampling_params"] = {name: value for name, value in sampling.items() if value is not None}
    return {name: value for name, value in body.items() if value is not None}


def _lists(prompt: Any) -> Any:
    return [_lists(item) for item in prompt] if isinstance(prompt, (range, list, tuple)) else prompt


@dataclass
class Probe:
    """The engine as one case sees it; keeps every exchange of the case."""

    client: EngineClient
    session: aiohttp.ClientSession
    about: About
    exchanges: list[Exchange] = field(default_factory=list)

    async def send(self, body: Mapping[str, Any]) -> Exchange:
        """Sends one `/generate` request; status 0 stands for no answer."""
        if "text" in body and not self.about.takes_text:
            raise NotCompared("the engine runs without a tokenizer and takes no text")
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
        if exchange.status != 200:
            said = str(exchange.response)[:300]
            raise Broken("status", 200, exchange.status, f"answered with status {exchange.status}: {said}")
        for place, item in enumerate(exchange.outputs):
            if not isinstance(item, dict) or not isinstance(item.get("meta_info"), dict):
                what = sorted(item) if isinstance(item, dict) else type(item).__name__
                raise Broken("response", "objects with meta_info", what, f"output {place} holds {what}")
        return exchange.outputs

    async def ask(self, prompt: object, params: Mapping[str, Any] | None = None, **fields: Any) -> list[Output]:
        """As `outputs`, of `request`."""
        return await self.outputs(request(prompt, params, **fields))

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Posts to an endpoint: status, and the answer, decoded where it is JSON."""
        return await call(self.session, "POST", self.client.url + path, body or {})

    async def look(self, path: str) -> tuple[int, Any]:
        """Gets an endpoint: status, and the answer, decoded where it is JSON."""
        return await call(self.session, "GET", self.client.url + path)

    async def alive(self) -> None:
        """Expects that the engine still answers."""
        outputs = await self.ask(SHORT, {"max_new_tokens": 1})
        expect("output_ids", lengths(outputs), [1], "a request sent afterwards")

    def room(self, prompt_tokens: int, at_most: int) -> int:
        """Tokens that may follow a prompt, `at_most` where the context is not known to be smaller."""
        context = self.about.context_length
        return at_most if context is None else min(at_most, context - prompt_tokens - 1)


def expect(field: str, observed: Any, expected: Any, what: str) -> None:
    """Raises `Broken` unless both are equal."""
    if observed != expected:
        raise Broken(field, expected, observed, f"{what}: {_short(observed)} instead of {_short(expected)}")


def require(field: str, holds: bool, expected: Any, observed: Any, what: str) -> None:
    """Raises `Broken` unless `holds`."""
    if not holds:
        raise Broken(field, expected, observed, f"{what}: {_short(observed)}")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."


def lengths(outputs: Sequence[Output]) -> list[int]:
    """Tokens of each output."""
    return [len(ids_of(output)) for output in outputs]


def ids_of(output: Output) -> list[int]:
    """The output ids; raises `Broken` where they are no list."""
    ids = output.get("output_ids")
    if not isinstance(ids, list):
        raise Broken("output_ids", "a list of ids", type(ids).__name__, f"output_ids came as {_short(ids)}")
    return ids


def triples_of(output: Output, name: str = "output_token_logprobs") -> list[list[Any]]:
    """Log-prob, id and text of each token; raises `Broken` where they are none."""
    rows = output["meta_info"].get(name)
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) >= 2 for row in rows):
        raise Broken(name, "[log-prob, id, text] a token", _short(rows), f"{name} came as {_short(rows)}")
    return rows


def finishes(outputs: Sequence[Output]) -> list[Any]:
    """The type of each output's finish reason."""
    reasons = [output["meta_info"].get("finish_reason") for output in outputs]
    return [reason.get("type") if isinstance(reason, dict) else reason for reason in reasons]


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """All results in order; when one fails, the others are ended before its error is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
