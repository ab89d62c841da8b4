"""What an engine's samples depend on, found by asking it: 23 short requests, none of which changes anything.

The prompts mean nothing and are sampled at the highest temperature that every engine takes, so that two independent
responses are hardly ever equal: with a chance of about 1e-20 for the warm-started default policy. A response here is
its tokens and their log-probs, since a twin compares both bit for bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from parity.engines.answers import REQUEST_RETRIES, RETRY_WAIT
from parity.engines.client import DAMAGED_TRIES
from parity.errors import EngineUnavailable
from parity.findings import Message, listed, term
from parity.records.arms import WAYS
from rollout_patch import (
    CONDITIONS,
    SGLANG,
    Capabilities,
    Dialect,
    PlannedRequest,
    Post,
    RequestFailed,
    ResponseRefused,
    SampleRequest,
    plan_requests,
)

SLOTS = 4
"""Samples of a group that is asked for."""

TOKENS = 24
TEMPERATURE = 2.0
"""vLLM refuses higher ones."""
SEEDS = tuple(range(20_011, 20_011 + SLOTS))

CROWD = 6
"""Requests of another prompt that run beside those whose seeds must hold in any batch."""

_PROMPT, _OTHER_PROMPT = tuple(range(5, 16)), tuple(range(6, 26))
_PASSING = frozenset({None, 408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses that say nothing about what an engine can do, as one below 400 with a damaged answer; `None` is none."""

Response = tuple[tuple[int, ...], tuple[float, ...]]
"""The tokens of a sample and their log-probs."""

Answer = list[Response] | str
"""The responses of a group, or why there are none."""


class _Refused(str):
    """Why there are none, where the engine does not take such a request; a broken answer is for the run to show."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Whether something holds, `None` where that could not be asked, and what was seen."""

    holds: bool | None
    seen: str


@dataclass(frozen=True, slots=True)
class Determinism:
    """What an engine can promise about its samples, as it was seen to.

    Attributes:
        repeats: A seed repeats its response when it is asked alone again.
        in_any_batch: A seed repeats its response beside other work.
        seeds_differ: Different seeds give different responses.
        seed_per_slot: In a native request of n with a seed, sample i is that of the seed plus i.
        seed_per_item: In a list of prompts with a seed an item, each sample is that of its seed.
        free_per_sample: Requests for one sample without a seed are all answered differently.
        free_batched: The items of a list without seeds are all answered differently.
        free_native: The n samples of a native request without a seed are all different.
        capabilities: What follows for groups.
        clones: The arms whose groups without a seed are n times one response, because of a seed that stands for none.
        contradictions: What the engine announces and does not do, or the other way round.
        alike: Whether all engines of several give a seed the same response; None where there is one.
    """

    repeats: Fact
    in_any_batch: Fact
    seeds_differ: Fact
    seed_per_slot: Fact
    seed_per_item: Fact
    free_per_sample: Fact
    free_batched: Fact
    free_native: Fact
    capabilities: Capabilities
    clones: tuple[str, ...]
    contradictions: tuple[Message, ...]
    alike: Fact | None = None

    @property
    def facts(self) -> dict[str, Fact]:
        """Each fact by what it says."""
        return {sentence: fact for name, sentence in SENTENCES.items() if (fact := getattr(self, name))}

    @property
    def summary(self) -> Message:
        """One line: what was seen to hold, what was not and why, and what could not be asked."""
        return summary_of(asdict(self))

    def to_json(self) -> dict[str, Any]:
        """As ``experiment.json`` holds it: the facts by name, and the summary for those who read the file."""
        return {**asdict(self), "summary": self.summary}


SENTENCES = {
    "repeats": Message("a seed repeats its response"),
    "in_any_batch": Message("a seed repeats its response beside other work"),
    "seeds_differ": Message("seeds differ in their responses"),
    "seed_per_slot": Message("native groups take a seed per slot"),
    "seed_per_item": Message("lists take a seed per item"),
    "free_per_sample": Message("per-sample groups vary without seeds"),
    "free_batched": Message("batched groups vary without seeds"),
    "free_native": Message("native groups vary without seeds"),
    "alike": Message("all engines give a seed the same response"),
}
"""What each fact says, in the order of the summary."""


def summary_of(seen: Mapping[str, Any]) -> Message:
    """The summary of what `Determinism.to_json` gave; facts that it lacks are left out."""
    facts = [(sentence, seen[name]) for name, sentence in SENTENCES.items() if seen.get(name)]
    parts: list[Message] = []
    for how, holds in ((Message("seen"), True), (Message("does not hold"), False), (Message("not compared"), None)):
        alike = [
            sentence if holds else Message("{fact} ({seen})", fact=sentence, seen=fact["seen"])
            for sentence, fact in facts
            if fact["holds"] is holds
        ]
        parts += [Message("{how}: {facts}", how=how, facts=listed(alike))] if alike else []
    return listed([*parts, *map(term, seen.get("contradictions", ()))], "; ")


@dataclass(frozen=True, slots=True)
class Asker:
    """Who is asked, and how."""

    post: Post
    dialect: Dialect
    announced: Capabilities = Capabilities()  # noqa: RUF009 (frozen)


async def detect_determinism(post: Post, announced: Capabilities, dialect: Dialect = SGLANG) -> Determinism:
    """Asks an engine for the same and for different samples in each arm, and compares.

    What is not seen cannot be promised by a few requests: batches of other shapes, other lengths and other weights may
    still part. A twin compares every response and would show it.

    Args:
        post: Sends one request.
        announced: What the engine says of itself.
        dialect: How it is spoken to.

    Raises:
        EngineUnavailable: A request got no answer, a damaged one or a passing error, each time that it was sent.
    """
    asker = Asker(post, dialect, announced)
    alone = _joined([await ask_group(asker, "per-sample", SEEDS[slot : slot + 1]) for slot in range(SLOTS)])
    again = await ask_group(asker, "per-sample", SEEDS[:1])
    crowd = [ask_group(asker, "per-sample", [None], _OTHER_PROMPT) for _ in range(CROWD)]
    crowded = ask_group(asker, "per-sample", SEEDS)
    beside = (await asyncio.gather(*crowd[: CROWD // 2], crowded, *crowd[CROWD // 2 :]))[CROWD // 2]
    native, items = await ask_group(asker, "native", SEEDS), await ask_group(asker, "batched", SEEDS)
    free = {arm: await ask_group(asker, arm, [None] * SLOTS) for arm in WAYS}

    repeats = _equal(alone if isinstance(alone, str) else alone[:1], again)
    in_any_batch, differ = _equal(alone, beside), _distinct(alone)
    kept = [fact.holds for fact in (repeats, in_any_batch, differ)]
    seeded = all(kept)
    per_slot = _slots(alone, native) if seeded or isinstance(native, str) else _NO_SEEDS
    per_item = _equal(alone, items) if seeded or isinstance(items, str) else _NO_SEEDS
    cloned = {arm for arm in WAYS if not isinstance(free[arm], str) and len(set(free[arm])) == 1}
    # Clones of one arm alone on an engine without seeds are a fault, which a run is to show, and no default seed.
    clones = tuple(arm for arm in WAYS if arm in cloned) if seeded or "per-sample" in cloned else ()
    capabilities = replace(
        announced,
        seeded=seeded,
        seed_per_slot=bool(per_slot.holds),
        free_clones="native" in clones,
        parallel_sampling=announced.parallel_sampling and not isinstance(native, _Refused),
        prompt_lists=announced.prompt_lists and not isinstance(free["batched"], _Refused),
        sampling_params_lists=announced.sampling_params_lists and not isinstance(items, _Refused),
    )
    return Determinism(
        repeats=repeats,
        in_any_batch=in_any_batch,
        seeds_differ=differ,
        seed_per_slot=per_slot,
        seed_per_item=per_item,
        free_per_sample=_distinct(free["per-sample"]),
        free_batched=_distinct(free["batched"]),
        free_native=_distinct(free["native"]),
        capabilities=capabilities,
        clones=clones,
        contradictions=_contradictions(announced, None if None in kept else seeded, per_slot.holds),
    )


_NO_SEEDS = Fact(None, "seeds do not hold")


async def detect_alike(posts: Mapping[str, tuple[Post, Dialect]]) -> Fact:
    """Whether several engines, which must hold the same weights, give a seed the same response; where they part first.

    Raises:
        EngineUnavailable: As `detect_determinism`.
    """
    (name, (post, dialect)), *others = posts.items()
    expected = await ask_group(Asker(post, dialect), "per-sample", SEEDS)
    for other, (of_other, other_dialect) in others:
        found = await ask_group(Asker(of_other, other_dialect), "per-sample", SEEDS)
        fact = _equal(expected, found)
        if not fact.holds:
            return Fact(fact.holds, f"{name} and {other}: {fact.seen}{_parting(name, expected, other, found)}")
    return Fact(True, f"{len(SEEDS)} seeds at {', '.join(posts)}")


def _parting(name: str, expected: Answer, other: str, found: Answer) -> str:
    """Where two engines' responses part first."""
    if isinstance(expected, str) or isinstance(found, str):
        return ""
    for seed, (tokens, values), (other_tokens, other_values) in zip(SEEDS, expected, found, strict=True):
        both = zip(tokens, other_tokens, values, other_values, strict=False)  # the shorter one ends there
        for place, (one, two, value, other_value) in enumerate(both):
            if (one, value) != (two, other_value):
                return (
                    f"; seed {seed} parts at token {place}: {one} ({value:.6g}) at {name}, {two} ({other_value:.6g}) "
                    f"at {other}"
                )
    return ""


def together(seen: Sequence[tuple[str, Determinism]], alike: Fact | None) -> Determinism:
    """What can be promised of several engines: each fact as the first one has it that does not hold it.

    Args:
        seen: Of each arm, its way of asking and what its engine was seen to promise.
        alike: What `detect_alike` found.
    """
    first = seen[0][1]
    if all(one is first for _, one in seen):
        return first

    def joint(name: str) -> Fact:
        way = {"seed_per_slot": "native", "seed_per_item": "batched"}.get(name)  # which these speak of
        facts: list[Fact] = [getattr(one, name) for of_arm, one in seen if way in (None, of_arm)]
        return next((fact for fact in facts if not fact.holds), facts[0] if facts else getattr(first, name))

    clones = tuple(way for way in WAYS if any(way == of_arm and way in one.clones for of_arm, one in seen))
    facts = {name: joint(name) for name in SENTENCES if name != "alike"}
    capabilities = replace(
        first.capabilities,
        seeded=all(one.capabilities.seeded for _, one in seen),
        seed_per_slot=bool(facts["seed_per_slot"].holds),
        free_clones="native" in clones,
    )
    said = tuple(dict.fromkeys(text for _, one in seen for text in one.contradictions))
    return replace(first, **facts, capabilities=capabilities, clones=clones, contradictions=said, alike=alike)


async def ask_group(
    asker: Asker, arm: str, seeds: Sequence[int | None], prompt: Sequence[int] = _PROMPT, tokens: int = TOKENS
) -> Answer:
    """One group in one arm, a seed a slot; requests for several are sent at once.

    An answer that breaks the protocol is asked for again, since it may have been damaged on its way, and is the
    engine's own after `DAMAGED_TRIES`.
    """
    how = {"max_new_tokens": tokens, "temperature": TEMPERATURE, "ignore_eos": True}
    requests = [
        SampleRequest(
            how | ({} if seed is None else {"sampling_seed": seed}), input_ids=prompt, options={"return_logprob": True}
        )
        for seed in seeds
    ]
    for name, holds in asker.dialect.rules.items():
        if arm in CONDITIONS[name].arms and holds(requests, asker.announced):
            return _Refused(CONDITIONS[name].sentence)
    plan = plan_requests(arm, requests, dialect=asker.dialect)
    try:
        groups = await asyncio.gather(*(_responses(asker, planned, requests) for planned in plan))
    except RequestFailed as error:
        return _Refused(f"refused with {str(error)[:200]}")
    except ResponseRefused as error:
        return f"the answer breaks the protocol: {error}"
    return [response for group in groups for response in group]


async def _responses(asker: Asker, planned: PlannedRequest, requests: Sequence[SampleRequest]) -> list[Response]:
    """The responses of one answer; a refusal is raised as it is."""
    for _ in range(DAMAGED_TRIES):
        try:
            answer = await _send(asker.post, planned.payload)
            outputs = asker.dialect.read_response(planned, answer, requests, _no_doubt)
            return [(tuple(output.output_ids), tuple(output.logprobs or ())) for output in outputs]
        except ResponseRefused as error:
            broken = error
    raise broken


def _no_doubt(name: str, message: str) -> None:
    """What may stand in an answer here, since neither ids nor counts are looked at."""


async def _send(post: Post, payload: dict[str, Any]) -> Any:
    """The answer to one request, sent again where it got none, a damaged one or a passing error."""
    for attempt in range(REQUEST_RETRIES + 1):
        try:
            return await post(payload, {})
        except RequestFailed as error:
            if error.status is not None and error.status >= 400 and error.status not in _PASSING:
                raise
            if attempt == REQUEST_RETRIES:
                raise EngineUnavailable(
                    f"asking what the engine promises failed {REQUEST_RETRIES + 1} times: {error}"
                ) from error
        await asyncio.sleep(RETRY_WAIT)
    raise AssertionError("the last attempt returns or raises")


def _joined(answers: Sequence[Answer]) -> Answer:
    joined: list[Response] = []
    for answer in answers:
        if isinstance(answer, str):
            return answer
        joined += answer
    return joined


def _equal(expected: Answer, found: Answer) -> Fact:
    """Whether responses are the same, slot by slot, to the last bit of a log-prob."""
    if isinstance(expected, str) or isinstance(found, str):
        return Fact(None, next(answer for answer in (expected, found) if isinstance(answer, str)))
    pairs = list(zip(expected, found, strict=True))
    other = [(first, second) for first, second in pairs if first != second]
    if not other:
        return Fact(True, f"{len(pairs)} of {len(pairs)} equal")
    in_tokens = sum(first[0] != second[0] for first, second in other)
    how = f"{in_tokens} in tokens" if in_tokens else "in log-probs only"
    return Fact(False, f"{len(other)} of {len(pairs)} differ, {how}")


def _distinct(answer: Answer) -> Fact:
    """Whether no two responses have the same tokens."""
    if isinstance(answer, str):
        return Fact(None, answer)
    different = len({tokens for tokens, _ in answer})
    return Fact(different == len(answer), f"{different} different of {len(answer)}")


def _slots(alone: Answer, native: Answer) -> Fact:
    """Whether slot i of a native request has the seed plus i; that all have the first is said."""
    fact = _equal(alone, native)
    if fact.holds is False and not isinstance(native, str) and {tokens for tokens, _ in native} == {alone[0][0]}:
        return Fact(False, f"all {len(native)} samples take the one seed")
    return fact


def _contradictions(announced: Capabilities, seeded: bool | None, per_slot: bool | None) -> tuple[Message, ...]:
    """What the engine says of its seeds and what it does, where these part; `None` is what could not be asked."""
    parted = []
    if seeded is not None and announced.seeded != seeded:
        parted.append(
            Message("the engine announces seeds that hold, and they do not")
            if announced.seeded
            else Message("the engine does not announce that its seeds hold, and they do")
        )
    if per_slot is not None and announced.seed_per_slot != per_slot:
        parted.append(
            Message("the engine announces a seed per slot of a native request, and there is none")
            if announced.seed_per_slot
            else Message("the engine does not announce a seed per slot of a native request, and there is one")
        )
    return tuple(parted)
