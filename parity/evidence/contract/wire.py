"""Rules over single exchanges: whether the answer is of the shape asked for.

The words are SGLang's (`io_struct.py`, `tokenizer_manager.py` of 0.5.23): an object for one prompt with n = 1, else a
list, prompt-major; token log-probs are triples of log-prob, id and text or null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from parity.evidence.contract.outcomes import Case, Skip
from parity.evidence.contract.placeholders import KNOWN_TEXTS, KNOWN_TOKENS
from parity.evidence.contract.rules import Rules
from parity.findings import Message, Where, quantity
from parity.records.exchanges import MEDIA_FIELDS, Exchange

TOP_LEVEL_MISTAKES = frozenset(
    {"n", "temperature", "top_p", "top_k", "max_new_tokens", "sampling_seed", "stop", "stop_token_ids"}
)
"""Sampling parameters that the engine ignores without a word when they stand beside `sampling_params`."""

NUMBERS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_new_tokens", "min_new_tokens", "sampling_seed"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
)
"""Sampling parameters that are numbers besides n; JSON's true and false are none, though Python counts with them."""

PROMPT_LISTS = (
    "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "rid", "lora_path", *MEDIA_FIELDS,
)  # fmt: skip
"""Fields that, given as a list in a request for a list of prompts, hold one entry for each of them."""


@dataclass(frozen=True, slots=True)
class WireOutput:
    """One output at its place in an answer, with what was asked for it."""

    exchange: Exchange
    name: str
    slot: int
    params: Mapping[str, Any]
    prompt: Sequence[int] | str | None
    body: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        """`meta_info`, or nothing."""
        meta = self.body.get("meta_info")
        return meta if isinstance(meta, dict) else {}

    @property
    def ids(self) -> list[int] | None:
        """`output_ids`, if it is a list of whole numbers."""
        return ints_of(self.body.get("output_ids"))

    @property
    def triples(self) -> list[list[Any]] | None:
        """`output_token_logprobs`, if it is a list of lists of log-prob, id and maybe text."""
        triples = self.meta.get("output_token_logprobs")
        if not isinstance(triples, list) or not set(map(type, triples)) <= {list}:
            return None
        return triples if min(map(len, triples), default=2) >= 2 else None

    @property
    def finish(self) -> Mapping[str, Any]:
        """`finish_reason`, or nothing."""
        finish = self.meta.get("finish_reason")
        return finish if isinstance(finish, dict) else {}

    def case(self, field: str, expected: Any, observed: Any, message: Message) -> Case:
        """A breach in this output."""
        where = Where(None, self.exchange.rollout_id, self.exchange.group_index, self.slot, field)
        named = Message("{name}, output {slot}: {message}", name=self.name, slot=self.slot, message=message)
        return Case(where, expected, observed, named)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value of JSON is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def ints_of(value: Any) -> list[int] | None:
    """The value, if it is a list of whole numbers."""
    return value if isinstance(value, list) and set(map(type, value)) <= {int} else None


def params_of(exchange: Exchange, prompt: int) -> Mapping[str, Any]:
    """The sampling parameters of one prompt of a request."""
    params = exchange.request.get("sampling_params") or {}
    chosen = params[prompt] if isinstance(params, list) and prompt < len(params) else params
    return chosen if isinstance(chosen, dict) else {}


def outputs_of(exchange: Exchange, name: str) -> list[WireOutput]:
    """Every output of an answered request that is an object, in the order received."""
    n, prompts = max(exchange.n, 1), exchange.prompts
    outputs = []
    for slot, body in enumerate(exchange.outputs):
        prompt = min(slot // n, len(prompts) - 1)
        if isinstance(body, dict):
            asked = params_of(exchange, prompt), prompts[prompt]
            outputs.append(WireOutput(exchange, name, slot, *asked, body))
    return outputs


# --- rules over one answered request


def exchange_case(exchange: Exchange, name: str, field: str, expected: Any, observed: Any, message: Message) -> Case:
    """A breach in a whole exchange."""
    where = Where(None, exchange.rollout_id, exchange.group_index, None, field)
    return Case(where, expected, observed, Message("{name}: {message}", name=name, message=message))


def _request_named(exchange: Exchange) -> Message:
    return Message("{prompts} with n = {n}", prompts=quantity(len(exchange.prompts), "prompts"), n=exchange.n)


def response_shape(exchange: Exchange, name: str, rules: Rules) -> Iterator[Case]:
    """One prompt with n = 1 is answered by an object, anything else by a list of objects."""
    wants_list = exchange.is_batch or exchange.n > 1
    wanted, found = "list" if wants_list else "dict", type(exchange.response).__name__
    if wanted != found:
        template = "{request} answered by a {found}, not a {wanted}"
        message = Message(template, request=_request_named(exchange), found=found, wanted=wanted)
        yield exchange_case(exchange, name, "response", wanted, found, message)
        return
    for slot, body in enumerate(exchange.outputs):
        keys = sorted(body) if isinstance(body, dict) else type(body).__name__
        if not isinstance(body, dict) or "meta_info" not in body or not body.keys() & {"text", "output_ids"}:
            message = Message("output {slot} holds {keys}", slot=slot, keys=keys)
            yield exchange_case(exchange, name, "response", ["meta_info", "output_ids", "text"], keys, message)
        elif body.get("output_ids") is not None and ints_of(body["output_ids"]) is None:
            found = str(body["output_ids"])[:60]
            message = Message("output {slot} has ids {ids}", slot=slot, ids=found)
            yield exchange_case(exchange, name, "output_ids", "whole numbers", found, message)


def output_count(exchange: Exchange, name: str, rules: Rules) -> Iterator[Case]:
    """A request for P prompts with n samples each is answered by P * n outputs."""
    wanted, found = len(exchange.prompts) * max(exchange.n, 0), len(exchange.outputs)
    if wanted != found:
        outputs = quantity(found, "outputs")
        message = Message("{request} answered by {outputs}", request=_request_named(exchange), outputs=outputs)
        yield exchange_case(exchange, name, "response", wanted, found, message)


def _prompt_lengths(exchange: Exchange, rules: Rules) -> tuple[list[int], list[Any]] | None:
    """Prompt tokens sent for each output and counted by the engine, those of images left out of both.

    `None` where that can't be told: text, and media whose placeholders or tokens are not known.
    """
    sent: list[int] = []
    seen: list[Any] = []
    n = max(exchange.n, 1)
    with_media = any(exchange.request.get(field) for field in MEDIA_FIELDS)
    images = {item for item in rules.media_placeholders if isinstance(item, int)}
    if len(exchange.outputs) != len(exchange.prompts) * n or (with_media and not images):
        return None
    prompts = [prompt for prompt in exchange.prompts for _ in range(n)]
    for prompt, body in zip(prompts, exchange.outputs, strict=True):
        meta = body.get("meta_info") if isinstance(body, dict) else None
        if not isinstance(prompt, list) or not isinstance(meta, dict):
            return None
        finish = meta.get("finish_reason")
        # SGLang does not count what it aborts in the waiting queue, nor vLLM in a stream where it was not asked to
        uncounted = exchange.as_said is not None or (isinstance(finish, dict) and finish.get("type") == "abort")
        if "prompt_tokens" not in meta and uncounted:
            continue
        counted, grown = meta.get("prompt_tokens"), meta.get("image_tokens")
        if with_media and images.intersection(prompt) and not (is_whole(grown) and is_whole(counted)):
            return None
        sent.append(sum(token not in images for token in prompt) if grown else len(prompt))
        seen.append(counted - grown if grown else counted)
    return sent, seen


def _of_other_prompts(exchange: Exchange) -> list[int]:
    """The slots whose outputs state another prompt than was asked for there; media grow a prompt."""
    if any(exchange.request.get(field) for field in MEDIA_FIELDS):
        return []
    n, prompts = max(exchange.n, 1), exchange.prompts
    return [
        slot
        for slot, body in enumerate(exchange.outputs)
        if isinstance(body, dict)
        and isinstance(stated := body.get("prompt_token_ids"), list)
        and isinstance(sent := prompts[min(slot // n, len(prompts) - 1)], list)
        and stated != sent
    ]


def output_order(exchange: Exchange, name: str, rules: Rules) -> Iterable[Case] | Skip:
    """Outputs stand prompt-major: each counts its prompt's tokens, and a stated index or prompt is its place's."""
    stated = [body.get("index") for body in exchange.outputs if isinstance(body, dict) and "index" in body]
    lengths = _prompt_lengths(exchange, rules)
    if lengths is None and not stated:
        return Skip.MISSING
    others = _of_other_prompts(exchange)

    def cases() -> Iterator[Case]:
        if stated and (stated != list(range(len(exchange.outputs))) or ints_of(stated) is None):
            wanted = list(range(len(exchange.outputs)))
            message = Message("the outputs state indices {stated}", stated=stated)
            yield exchange_case(exchange, name, "index", wanted, stated, message)
        if others:
            message = Message("outputs {slots} are of other prompts than stand at their places", slots=others)
            yield exchange_case(exchange, name, "prompt_token_ids", [], others, message)
        if lengths is not None and (lengths[0] != lengths[1] or ints_of(lengths[1]) is None):
            sent, seen = lengths
            shuffled = sorted(sent) == sorted(item for item in seen if is_whole(item))
            template = (
                "the outputs are in another order than the prompts: {sent} prompt tokens sent, {seen} counted"
                if shuffled
                else "the prompts were changed on the way: {sent} prompt tokens sent, {seen} counted"
            )
            message = Message(template, sent=sent, seen=seen)
            yield exchange_case(exchange, name, "prompt_tokens", sent, seen, message)

    return cases()


def usage_counts(exchange: Exchange, name: str, rules: Rules) -> Iterable[Case] | Skip:
    """What an answer counts as a whole is what its outputs hold; a prompt counts once, whatever n."""
    said = exchange.as_said[1] if exchange.as_said else None
    usage = said.get("usage") if isinstance(said, dict) else None
    if not isinstance(usage, dict):
        return Skip.UNCONCERNED if exchange.as_said is None else Skip.MISSING
    outputs = outputs_of(exchange, name)
    prompts = ints_of([output.meta.get("prompt_tokens") for output in outputs[:: max(exchange.n, 1)]])
    held = {
        "completion_tokens": sum(len(output.ids or ()) for output in outputs),
        "prompt_tokens": None if prompts is None else sum(prompts),
    }
    return [
        exchange_case(
            exchange,
            name,
            field,
            count,
            usage.get(field),
            Message(
                "usage counts {counted} {field}, the outputs hold {held}",
                counted=usage.get(field),
                field=field,
                held=count,
            ),
        )
        for field, count in held.items()
        if count is not None and usage.get(field) != count
    ]


def unique_ids(exchange: Exchange, name: str, seen: set[str]) -> Iterable[Case] | Skip:
    """Every output has an id of its own; `seen` holds those of earlier answers and takes this one's."""
    metas = [body.get("meta_info") for body in exchange.outputs if isinstance(body, dict)]
    ids = [meta.get("id") for meta in metas if isinstance(meta, dict)]
    if not ids or None in ids:
        return Skip.MISSING
    repeated = sorted({str(item) for item in ids if str(item) in seen or ids.count(item) > 1})
    seen.update(map(str, ids))
    message = Message("ids {ids} stand on more than one output", ids=repeated[:3])
    return [exchange_case(exchange, name, "id", "unique ids", repeated[:3], message)] if repeated else []


def one_weight_version(exchange: Exchange, name: str, rules: Rules) -> Iterable[Case] | Skip:
    """All tokens of an answer come from one weight version, unless partial rollout is declared."""
    versions: list[str] = []
    for output in outputs_of(exchange, name):
        spans = output.meta.get("weight_versions")
        if isinstance(spans, list) and spans:
            versions += [str(span.get("version")) for span in spans if isinstance(span, dict)]
        elif output.meta.get("weight_version") is not None:
            versions.append(str(output.meta["weight_version"]))
    if not versions:
        return Skip.MISSING
    trainer = rules.weight_versions.get(exchange.rollout_id) if exchange.rollout_id is not None else None
    found, wanted = sorted(set(versions)), trainer or versions[0]
    wrong = not rules.partial_versions and found != [wanted]
    message = Message("weight versions {found} in one answer, expected {wanted!r} alone", found=found, wanted=wanted)
    return [exchange_case(exchange, name, "weight_version", wanted, found, message)] if wrong else []


def request_honoured(exchange: Exchange, name: str, rules: Rules) -> Iterator[Case]:
    """What was asked was done: parameters where they count, numbers as numbers, n from 1, a placeholder a medium."""
    request = exchange.request
    for key, value in sorted(exchange.ignored.items()):
        message = Message("the engine drops {key!r} = {value}", key=key, value=str(value)[:40])
        yield exchange_case(exchange, name, key, "a parameter that it knows", value, message)
    for key in sorted(TOP_LEVEL_MISTAKES & set(request) - set(exchange.ignored)):
        value = str(request[key])[:40]
        message = Message("{key!r} = {value} beside sampling_params is ignored", key=key, value=value)
        yield exchange_case(exchange, name, key, "inside sampling_params", "top level", message)
    params = request.get("sampling_params") or {}
    for asked in params if isinstance(params, list) else [params]:
        given = asked if isinstance(asked, dict) else {}
        n = given.get("n", 1)
        if not is_whole(n) or n < 1:
            message = Message("n = {n!r} was answered with outputs", n=n)
            yield exchange_case(exchange, name, "n", "a whole number from 1", n, message)
        for key in sorted(key for key in NUMBERS & set(given) if isinstance(given[key], bool)):
            message = Message("{key} = {value} is no number", key=key, value=given[key])
            yield exchange_case(exchange, name, key, "a number", given[key], message)
    for number, prompt in enumerate(exchange.prompts):
        media = _media(exchange, number)
        places = _placeholders(prompt, rules.media_placeholders or _known_in(exchange, prompt, media))
        if media != places and (rules.media_placeholders or places):
            message = Message(
                "prompt {number} has {places}, and its media are {media}: what has no partner is dropped silently",
                number=number,
                places=quantity(places, "placeholders"),
                media=media,
            )
            yield exchange_case(exchange, name, "image_data", media, places, message)


def request_lists(exchange: Exchange, name: str, rules: Rules) -> Iterable[Case] | Skip:
    """What a request for a list of prompts gives as a list has one entry for each prompt."""
    if not exchange.is_batch:
        return Skip.UNCONCERNED
    wanted, prompts = len(exchange.prompts), quantity(len(exchange.prompts), "prompts")
    given = {field: exchange.request.get(field) for field in PROMPT_LISTS}
    return [
        exchange_case(
            exchange,
            name,
            field,
            wanted,
            len(value),
            Message("{count} {field} for {prompts}", count=len(value), field=field, prompts=prompts),
        )
        for field, value in given.items()
        if isinstance(value, list) and len(value) != wanted
    ]


def _media(exchange: Exchange, prompt: int) -> int:
    """Media sent with one prompt: a nested list is one list a prompt, a flat one of a single prompt is its own."""
    count = 0
    for field in MEDIA_FIELDS:
        media = exchange.request.get(field)
        if isinstance(media, list) and media and isinstance(media[0], list):
            count += _given(media[prompt]) if prompt < len(media) else 0
        elif isinstance(media, list):
            count += _given(media[prompt : prompt + 1] if exchange.is_batch else media)
        else:
            count += media is not None
    return count


def _given(media: Any) -> int:
    """The media of a list; one that is null is none."""
    return sum(item is not None for item in media) if isinstance(media, list) else int(media is not None)


def _known_in(exchange: Exchange, prompt: Any, media: int) -> frozenset[int | str]:
    """The placeholders of known model families, for a prompt with images alone; one of video may stand for frames."""
    if not media or any(exchange.request.get(field) for field in MEDIA_FIELDS[1:]):
        return frozenset()
    return frozenset(KNOWN_TEXTS if isinstance(prompt, str) else KNOWN_TOKENS)


def _placeholders(prompt: Any, placeholders: frozenset[int | str]) -> int:
    """Placeholders in one prompt; a run of the same token id is one, expanded."""
    if isinstance(prompt, str):
        return sum(prompt.count(item) for item in placeholders if isinstance(item, str))
    tokens = {item for item in placeholders if isinstance(item, int)}
    places = [token if token in tokens else None for token in ints_of(prompt) or []]
    return sum(token is not None and token != before for before, token in zip([None, *places], places, strict=False))


ExchangeRule = Callable[[Exchange, str, Rules], Iterable[Case] | Skip]
