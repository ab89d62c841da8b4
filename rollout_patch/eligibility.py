"""May this group go native, or batched? If not: the reason, by name.

The conditions are those that Relax's native group sampling and Miles' group-batched `/generate` each refuse, and those
that follow from the engine's protocol. A host adds the names that its own flags decide; the rest is read off the group
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rollout_patch.media import digests
from rollout_patch.requests import ARMS, SEED, SampleRequest


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine behind the host's `post` was seen to do.

    Attributes:
        seeded: It samples deterministically from `sampling_seed` (``--enable-deterministic-inference``).
        seed_per_slot: With n > 1, sample i takes `sampling_seed` + i; otherwise one seed makes n equal samples.
        free_clones: Without `sampling_seed` the n samples of a request are equal; `None` where that was not seen, and
            what SGLang does is taken: its default seed makes them equal where `seeded` without `seed_per_slot`.
        parallel_sampling: It takes n > 1.
        prompt_lists: It takes a list of prompts.
        text_lists: It takes a list of prompts given as text; sglang-router takes lists of token ids alone.
        sampling_params_lists: It takes a list of sampling parameters; routers that re-serialise bodies do not.
        media_with_n: It takes media together with n > 1.
        media_lists: It takes media together with a list of prompts.
        lora_with_n: It takes LoRA adapters together with n > 1, and unloads them afterwards.
        lora_lists: It takes LoRA adapters together with a list of prompts.
        shared_routing_key: A request of several samples may go by the first one's headers: their keys only spread the
            load, and nothing was kept under the others'.
        most_samples: The largest n that it takes (vLLM's `max_num_seqs`); larger groups go in several requests. `None`
            where it sets no limit or that is not known.
    """

    seeded: bool = False
    seed_per_slot: bool = False
    free_clones: bool | None = None
    parallel_sampling: bool = True
    prompt_lists: bool = True
    text_lists: bool = True
    sampling_params_lists: bool = True
    media_with_n: bool = True
    media_lists: bool = True
    lora_with_n: bool = False
    lora_lists: bool = False
    shared_routing_key: bool = False
    most_samples: int | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """One reason why a group may not go a certain way.

    Attributes:
        sentence: Why, for a log.
        arms: The arms that it rules out.
        by: "group" when it is read off the group and the engine, "host" when the host's flags decide it.
    """

    sentence: str
    arms: frozenset[str]
    by: str = "group"


_NATIVE = frozenset({"native"})
_BATCHED = frozenset({"batched"})
_BOTH = _NATIVE | _BATCHED

CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "switched_off": Condition("group sampling is not switched on", _BOTH, "host"),
        "evaluation": Condition("evaluation keeps one request a sample unless asked otherwise", _NATIVE, "host"),
        "middleware_router": Condition(
            "the host's own router keeps state per request and reads single answers only", _BOTH, "host"
        ),
        "on_policy_distillation": Condition(
            "distillation asks for the most likely tokens, which were not seen with several samples a request",
            _BOTH,
            "host",
        ),
        "indexer_replay": Condition(
            "replayed choices of an attention indexer were not seen with more than one sample a request", _BOTH, "host"
        ),
        "speculative_decoding": Condition(
            "speculative decoding was not seen with more than one sample a request", _BOTH, "host"
        ),
        "custom_generate": Condition("a custom generate function makes its own requests", _BOTH, "host"),
        "sample_generate": Condition("a sample of the group names its own generate function", _BOTH, "host"),
        "disaggregated_prefill": Condition(
            "with disaggregated prefill the warm-up and all samples of a request share one bootstrap room, which may "
            "hang the engine",
            _BOTH,
            "host",
        ),
        "engine_unknown": Condition(
            "the engines have a configuration file of their own and do not say how they run", _BOTH, "host"
        ),
        "multi_turn": Condition("a conversation goes on after the first answer, each sample by itself", _BOTH, "host"),
        "finished_sample": Condition("a sample of the group needs no generation any more", _BOTH, "host"),
        "single_sample": Condition("a group of one is one request in every arm", _BOTH),
        "prompt_kinds_differ": Condition("some samples ask with text and some with ids", _BOTH),
        "prompts_differ": Condition("one request with n holds one prompt", _NATIVE),
        "media_differ": Condition("one request with n holds one media payload", _NATIVE),
        "media_kinds_differ": Condition("samples with and without a kind of media were not seen in one list", _BATCHED),
        "media_with_n_refused": Condition("the engine does not take media together with n", _NATIVE),
        "media_lists_refused": Condition("the engine does not take media together with a list of prompts", _BATCHED),
        "resumed": Condition("a sample carries earlier partial output", _NATIVE),
        "sampling_params_differ": Condition("one request with n holds one set of sampling parameters", _NATIVE),
        "sampling_params_lists_refused": Condition(
            "parameters differ, and the engine or its router refuses a list of them", _BATCHED
        ),
        "greedy_with_n": Condition("the engine refuses n > 1 at temperature 0", _NATIVE),
        "list_restarts_seed": Condition(
            "every prompt of a list starts at the same seed, so that its samples would be equal", _BATCHED
        ),
        "seeds_not_per_slot": Condition(
            "one request with n carries one seed, and the engine does not derive one a sample", _NATIVE
        ),
        "deterministic_inference": Condition(
            "deterministic inference makes the n samples of one request equal", _NATIVE
        ),
        "routing_keys_differ": Condition("one request carries one routing key", _BOTH),
        "options_differ": Condition("the samples ask for different request options", _BOTH),
        "lora_adapter": Condition(
            "earlier releases of SGLang than 0.5.23 may wait for ever to unload a LoRA adapter that was used with n",
            _NATIVE,
        ),
        "lora_lists_refused": Condition(
            "LoRA adapters were not seen together with a list of prompts before SGLang 0.5.23", _BATCHED
        ),
        "client_request_id": Condition(
            "the engine replaces a client's request id, so it could not be aborted by it", _BOTH
        ),
        "parallel_sampling_refused": Condition("the engine does not take n > 1", _NATIVE),
        "prompt_lists_refused": Condition("the engine does not take a list of prompts", _BATCHED),
        "text_lists_refused": Condition("the engine or its router does not take a list of texts", _BATCHED),
        "kept_tokens": Condition(
            "the tokens kept by top-p, which slime's own build of SGLang sends, were not seen with several samples",
            _BOTH,
        ),
        "refused_native": Condition("the engine refused this group's request with n", _NATIVE),
        "refused_batched": Condition("the engine refused this group's list of prompts", _BATCHED),
    }
)
"""Every reason by name, with its sentence and the arms that it rules out."""


Rule = Callable[[Sequence[SampleRequest], Capabilities], bool]
"""Whether a condition holds for a group."""


def conditions(
    requests: Sequence[SampleRequest],
    capabilities: Capabilities,
    by_host: Collection[str] = (),
    rules: Mapping[str, Rule] = MappingProxyType({}),
) -> tuple[str, ...]:
    """The names of all conditions that hold for a group, in the order of `CONDITIONS`.

    Args:
        requests: What each slot asks for.
        capabilities: What the engine does.
        by_host: Names that the host's own flags decide.
        rules: Those of the engine's dialect, in place of the ones here.

    Raises:
        ValueError: The host gave a name that is none of `CONDITIONS`, or the group is empty.
    """
    if unknown := set(by_host) - set(CONDITIONS):
        raise ValueError(f"unknown conditions {sorted(unknown)}; known are {list(CONDITIONS)}")
    if not requests:
        raise ValueError("a group has at least one sample")
    holds = {**_HOLDS, **rules}
    return tuple(
        name for name in CONDITIONS if name in by_host or (name in holds and holds[name](requests, capabilities))
    )


def excluded(arm: str, names: Collection[str]) -> tuple[str, ...]:
    """Those of the conditions that rule out one arm; nothing rules out `per-sample`."""
    return tuple(name for name in names if arm in CONDITIONS[name].arms)


def choose_arm(asked: str, names: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """The arm a group goes, and why not the one asked for.

    A group that may not go native goes batched, and one that may not go batched goes per sample.

    Returns:
        The arm, and the names of the conditions that ruled out those before it; empty where it is the arm asked for.
    """
    reasons: dict[str, None] = {}
    for arm in reversed(ARMS[: ARMS.index(asked) + 1]):
        against = excluded(arm, names)
        if not against:
            return arm, tuple(reasons)
        reasons.update(dict.fromkeys(against))
    raise AssertionError("nothing rules out per-sample")


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values[1:])


def params_differ(requests: Sequence[SampleRequest]) -> bool:
    """Whether the samples of a group ask with different sampling parameters."""
    return _differ([request.sampling_params for request in requests])


def _without(mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key != name}


def _media_kinds(request: SampleRequest) -> set[str]:
    return {name for name, items in request.media.items() if items}


def _media_differ(requests: Sequence[SampleRequest], capabilities: Capabilities) -> bool:
    """Compares by content, so that deep-copied siblings still share one payload."""
    kinds = [_media_kinds(request) for request in requests]
    if _differ(kinds):
        return True
    return any(_differ(digests([request.media[kind] for request in requests])) for kind in kinds[0])


def _seeds_fit(requests: Sequence[SampleRequest], capabilities: Capabilities) -> bool:
    """Whether one request with n gives each slot the seed it asks for."""
    seeds = [request.sampling_params.get(SEED) for request in requests]
    if all(seed is None for seed in seeds):
        return True
    return (
        capabilities.seed_per_slot and seeds[0] is not None and seeds == [seeds[0] + slot for slot in range(len(seeds))]
    )


def _clones(requests: Sequence[SampleRequest], capabilities: Capabilities) -> bool:
    """Whether one request with n makes n equal samples of these."""
    if capabilities.free_clones is None:
        return capabilities.seeded and not capabilities.seed_per_slot
    return capabilities.free_clones and any(SEED not in request.sampling_params for request in requests)


_HOLDS: dict[str, Rule] = {
    "single_sample": lambda requests, _: len(requests) < 2,
    "prompt_kinds_differ": lambda requests, _: _differ([request.text is None for request in requests]),
    "prompts_differ": lambda requests, _: _differ([request.prompt for request in requests]),
    "media_differ": _media_differ,
    "media_kinds_differ": lambda requests, _: _differ([_media_kinds(request) for request in requests]),
    "media_with_n_refused": lambda requests, can: not can.media_with_n and any(map(_media_kinds, requests)),
    "media_lists_refused": lambda requests, can: not can.media_lists and any(map(_media_kinds, requests)),
    "resumed": lambda requests, _: any(request.resumed for request in requests),
    "sampling_params_differ": lambda requests, _: _differ(
        [_without(request.sampling_params, SEED) for request in requests]
    ),
    "sampling_params_lists_refused": lambda requests, can: not can.sampling_params_lists and params_differ(requests),
    "seeds_not_per_slot": lambda requests, can: not _seeds_fit(requests, can),
    "deterministic_inference": _clones,
    "routing_keys_differ": lambda requests, can: (
        not can.shared_routing_key and _differ([request.headers for request in requests])
    ),
    "options_differ": lambda requests, _: _differ([_without(request.options, "lora_path") for request in requests]),
    "lora_adapter": lambda requests, can: (
        not can.lora_with_n and any(request.options.get("lora_path") for request in requests)
    ),
    "lora_lists_refused": lambda requests, can: (
        not can.lora_lists and any(request.options.get("lora_path") for request in requests)
    ),
    "client_request_id": lambda requests, _: any(request.options.get("rid") for request in requests),
    "kept_tokens": lambda requests, _: any(
        "return_top_p_token_ids" in (request.sampling_params.get("custom_params") or {}) for request in requests
    ),
    "parallel_sampling_refused": lambda _, can: not can.parallel_sampling,
    "prompt_lists_refused": lambda _, can: not can.prompt_lists,
    "text_lists_refused": lambda requests, can: (
        not can.text_lists and any(request.text is not None for request in requests)
    ),
}
