"""Chains: what several requests brought, put together into one sample.

In a conversation with tools, and where a response was aborted and went on later, each request's prompt is what the
sample holds so far: the sample's prompt, what the requests before it brought, and what tools or an environment put in
between. So the place of an output in a sample is the length of its prompt less the sample's own, and the sample up to
there must be that prompt. Tokens that no request brought were not sampled: they have no log-prob, and mask 0.

Prompts and outputs are compared by digest, so that books over any number of exchanges stay small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.evidence.contract.columns import Bools, Floats
from parity.findings import Message, quantity

Tokens = npt.NDArray[np.int32]


def digest(ids: npt.NDArray[Any], logprobs: npt.NDArray[Any] | None = None) -> bytes:
    """A digest of token ids (tokens,) and of their log-probs (tokens,), if there are any."""
    count = None if logprobs is None else len(logprobs)
    hasher = blake2b(f"{len(ids)} {count}".encode(), digest_size=16)
    hasher.update(np.ascontiguousarray(ids).data)
    if logprobs is not None:
        hasher.update(np.ascontiguousarray(logprobs).data)
    return hasher.digest()


def in_32_bits(logprobs: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    """Log-probs as train dumps hold them."""
    with np.errstate(over="ignore"):
        return None if logprobs is None else logprobs.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Received:
    """One output as it was received.

    Attributes:
        number: Its number among all outputs of the exchanges.
        prompt_length: Tokens of its prompt, `None` where neither ids nor the engine's count say.
        prompt: Digest of the prompt's ids, `None` where a text was sent.
        length: Tokens of the output.
        content: Digest of ids and log-probs as received.
        rounded: The same with log-probs in 32 bits.
        finish: Its finish reason.
        text: Digest of its text.
    """

    number: int
    prompt_length: int | None
    prompt: bytes | None
    length: int
    content: bytes
    rounded: bytes
    finish: str | None
    text: bytes | None


@dataclass(frozen=True, slots=True)
class Held:
    """One sample's tokens, as it holds them: `prompt` (tokens,) where known, `ids`, `logprobs` and `mask` by token."""

    prompt: Tokens | None
    ids: Tokens
    logprobs: Floats | None
    mask: npt.NDArray[np.int8] | None
    finish: str | None


@dataclass(frozen=True, slots=True)
class Chain:
    """The outputs that a sample consists of, by number and in order, and the link at which it breaks, if it does."""

    links: tuple[int, ...]
    broken: Message | None = None


def chain_of(sample: Held, outputs: Sequence[Received]) -> Chain | None:
    """Finds the outputs that make up a sample; `None` where none begins it, and more than one would be needed.

    Args:
        sample: The sample.
        outputs: What was received for its group, here or in earlier rollouts.
    """
    lengths = [output.prompt_length for output in outputs if output.prompt_length is not None]
    if not lengths or max(lengths) == min(lengths):
        return None  # one prompt: each sample is one output
    own = len(sample.prompt) if sample.prompt is not None else min(lengths)
    short = in_32_bits(sample.logprobs)
    rounded = (
        sample.logprobs is not None and short is not None and np.array_equal(sample.logprobs, short, equal_nan=True)
    )
    whole = sample.ids if sample.prompt is None else np.concatenate([sample.prompt, sample.ids])
    prefixes: dict[int, bytes] = {}
    links, sampled = list[Received](), np.zeros(len(sample.ids), dtype=np.bool_)
    at = 0
    for output in sorted(outputs, key=lambda item: (item.prompt_length or 0, item.number)):
        start = (output.prompt_length or 0) - own
        if not at <= start <= len(sample.ids) or (not links and start > 0):
            continue
        if output.prompt is not None and sample.prompt is not None:
            length = own + start
            if length not in prefixes:
                prefixes[length] = digest(whole[:length])
            if prefixes[length] != output.prompt:
                continue
        if _holds(sample, output, start, rounded):
            links.append(output)
            at = start + output.length
            sampled[start:at] = True
    if not links:
        first = [output for output in outputs if output.prompt_length == own]
        return Chain((), _lost_start(sample, first, rounded)) if first else None
    return Chain(tuple(output.number for output in links), _flaw(sample, outputs, links, sampled, own, rounded))


def _holds(sample: Held, output: Received, start: int, rounded: bool) -> bool:
    """Whether the sample holds an output, ids and log-probs, from a place on."""
    end = start + output.length
    if not 0 <= start <= end <= len(sample.ids):
        return False
    logprobs = None if sample.logprobs is None else sample.logprobs[start:end]
    if digest(sample.ids[start:end], logprobs) == output.content:
        return True
    return rounded and digest(sample.ids[start:end], in_32_bits(logprobs)) == output.rounded


def _lost_start(sample: Held, first: Sequence[Received], rounded: bool) -> Message:
    holds = partial(_holds, sample, rounded=rounded)
    places = [start for output in first for start in _places(sample, output) if start and holds(output, start)]
    if places:
        return Message(
            "link 1: what the first request brought stands at token {place}, not at the start", place=places[0]
        )
    return Message(
        "link 1: the sample does not begin with what a request for its prompt brought; its first tokens and log-probs "
        "are of another prefix"
    )


def _places(sample: Held, output: Received) -> list[int]:
    """Where an output may stand: where trained tokens begin, and so that it ends with the sample."""
    mask = np.ones(len(sample.ids), dtype=np.int8) if sample.mask is None else sample.mask
    begins = np.flatnonzero(np.diff(mask, prepend=0) > 0).tolist()
    return sorted({*begins, len(sample.ids) - output.length})


def _flaw(
    sample: Held, outputs: Sequence[Received], links: Sequence[Received], sampled: Bools, own: int, rounded: bool
) -> Message | None:
    """What is wrong with a chain: tokens that no request brought and that count as sampled, or how it ends."""
    number = len(links) + 1
    trained: npt.NDArray[Any]
    if sample.mask is not None:
        trained = sample.mask
    else:  # what has a log-prob counts as sampled
        trained = np.zeros(len(sample.ids)) if sample.logprobs is None else np.nan_to_num(sample.logprobs) != 0.0
    if len(trained) != len(sample.ids):
        return None  # the rules of lengths say so
    strange = np.flatnonzero((trained != 0) & ~sampled)
    if len(strange):
        place = int(strange[0])
        number = 1 + sum((link.prompt_length or 0) - own <= place for link in links)
        for output in outputs:
            later = [start for start in _places(sample, output) if start > (output.prompt_length or 0) - own]
            where = next((start for start in later if _holds(sample, output, start, rounded)), None)
            if where is not None and output not in links:
                wanted = (output.prompt_length or 0) - own
                kept = quantity(where - wanted, "tokens")
                if np.array_equal(sample.ids[wanted:where], sample.ids[max(wanted - (where - wanted), 0) : wanted]):
                    return Message(
                        "link {number}: what its request brought stands at token {where}, not {wanted}: {kept} before "
                        "it are kept twice",
                        number=number, where=where, wanted=wanted, kept=kept,
                    )  # fmt: skip
                return Message(
                    "link {number}: what its request brought stands at token {where}, not {wanted}, after {kept} that "
                    "no request had in its prompt",
                    number=number, where=where, wanted=wanted, kept=kept,
                )  # fmt: skip
        return Message(
            "link {number}: {tokens} from token {place} on are trained on, and no request with that prefix had them",
            number=number, tokens=quantity(len(strange), "tokens"), place=place,
        )  # fmt: skip
    between = np.flatnonzero(~sampled)
    if sample.logprobs is not None and len(sample.logprobs) == len(sample.ids):
        given = between[np.nan_to_num(sample.logprobs[between]) != 0.0]
        if len(given):
            return Message(
                "{tokens} that no request brought have log-probs, the first at token {place}",
                tokens=quantity(len(given), "tokens"), place=int(given[0]),
            )  # fmt: skip
    for number, link in enumerate(links, start=1):
        start = (link.prompt_length or 0) - own
        kept_of = trained[start : start + link.length]
        if 0 < kept_of.sum() < len(kept_of):
            return Message(
                "link {number}: {trained} of {tokens} of one answer are trained on",
                number=number, trained=int(kept_of.sum()), tokens=quantity(len(kept_of), "tokens"),
            )  # fmt: skip
    last = links[-1]
    if sample.finish is not None and last.finish is not None and sample.finish != last.finish and sampled[-1]:
        return Message(
            "link {number}: the last answer ended by {ended}, the sample says {finish}",
            number=len(links), ended=last.finish, finish=sample.finish,
        )  # fmt: skip
    return None
