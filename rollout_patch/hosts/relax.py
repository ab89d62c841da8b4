"""Relax: ``--rollout-function-path rollout_patch.hosts.relax.generate_rollout``.

Delegates to Relax's own rollout, which fills its TransferQueue, and replaces only its generation of one group for the
time of the call; evaluation stays as it is unless asked. Read with Relax of mid-2026
(`relax/engine/rollout/sglang_rollout.py`).

Run as a module it prints the flags that a launcher adds, by the launcher's environment:

    python -m rollout_patch.hosts.relax
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from rollout_patch.hosts.calls import RolloutCalls, Turn
from rollout_patch.hosts.stock import Stock, StockAdapter, mask_earlier_tokens, replaced, require
from rollout_patch.media import Encoder, digest

GROUP = ("args", "group", "sampling_params", "evaluation")
SAMPLES = (("args", "sample", "sampling_params"), ("args", "sample", "sampling_params", "evaluation"))
LOG = ("rollout_id", "args", "samples", "rollout_extra_metrics", "rollout_time")
ATTEMPTS = 6
"""How often Relax sends a request (its `http_utils.post`)."""

KINDS = {"images": "image_data", "videos": "video_data", "audio": "audio_data"}
ENCODERS = {
    "image_data": "async_encode_image_for_rollout_engine",
    "video_data": "async_encode_video_tensor_for_rollout_engine",
    "audio_data": "async_encode_audio_for_rollout_engine",
}


def launcher_flags(environment: Mapping[str, str]) -> list[str]:
    """What a launcher adds to Relax's command line.

    With ``SGLANG_NATIVE_GROUP_SAMPLING=1``, the rollout function, group rewards and the router's policy: `round_robin`
    unless ``SGLANG_ROUTER_POLICY`` says otherwise, because a cache-aware router counts a request of n samples as one
    and sends groups of a common prefix to one engine. Otherwise only a policy that was asked for.
    """
    policy = environment.get("SGLANG_ROUTER_POLICY")
    if environment.get("SGLANG_NATIVE_GROUP_SAMPLING", "0") != "1":
        return ["--sglang-router-policy", policy] if policy else []
    function = ["--rollout-function-path", "rollout_patch.hosts.relax.generate_rollout"]
    return [*function, "--group-rm", "--sglang-router-policy", policy or "round_robin"]


def generate_rollout(
    args: Any, rollout_id: int, data_buffer: Any, data_system_client: Any, evaluation: bool = False
) -> Any:
    """The rollout function of Relax, with groups asked for as the options say; evaluation only if they say so.

    Raises:
        UnsupportedHost: Relax's functions have other signatures than the known ones.
        ValueError: An option has no such value.
    """
    relax = importlib.import_module("relax.engine.rollout.sglang_rollout")
    calls = RolloutCalls.of(args, rollout_id, evaluation=evaluation)
    at_once = getattr(args, "fully_async", False)  # with training, whose function would be replaced meanwhile
    if evaluation and (at_once or not calls.options.evaluation):
        return relax.generate_rollout(args, rollout_id, data_buffer, data_system_client, evaluation=True)
    require(relax.generate_and_rm_group, GROUP)
    require(relax.generate, *SAMPLES, calls=("post", "_run_image_processor", "_encode_multimodal_inputs"))
    require(relax._log_rollout_data, LOG)
    calls.warn_if_never(flag_conditions(args))
    with replaced(
        (relax, "generate_and_rm_group", _group_function(relax, relax.generate_and_rm_group, calls)),
        (relax, "_log_rollout_data", _log_function(relax._log_rollout_data, calls)),
    ):
        output = relax.generate_rollout(args, rollout_id, data_buffer, data_system_client, evaluation=evaluation)
    return calls.finish(output)


def _log_function(stock_log: Callable[..., Any], calls: RolloutCalls) -> Callable[..., Any]:
    """Relax's own log of a rollout, with the counts: it does not read the metrics that a rollout function returns."""

    def log(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> Any:
        extra = {**(rollout_extra_metrics or {}), **calls.metrics()}
        return stock_log(rollout_id, args, samples, extra, rollout_time)

    return log


def _group_function(
    relax: Any, stock_group: Callable[..., Coroutine[Any, Any, Any]], calls: RolloutCalls
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The `generate_and_rm_group` of Relax, with the group's samples asked for together.

    Args:
        relax: The module `relax.engine.rollout.sglang_rollout`.
        stock_group: Its own `generate_and_rm_group`, for groups that go its way.
        calls: The rollout that the groups belong to.
    """

    async def generate_and_rm_group(
        args: Any, group: list[Any], sampling_params: dict[str, Any], evaluation: bool = False
    ) -> list[Any]:
        state = relax.GenerateState(args)
        if evaluation is not calls.evaluation or (state.aborted and not evaluation):
            return list(await stock_group(args, group, sampling_params, evaluation=evaluation))

        async def ask(samples: list[Any], turn: Turn) -> list[Any] | None:
            return await _generate_and_score(relax, args, state, samples, sampling_params, calls, turn)

        done = await calls.in_its_arms(group, ask)
        if done is None:
            return list(await stock_group(args, group, sampling_params, evaluation=evaluation))
        return done

    return generate_and_rm_group


async def _generate_and_score(
    relax: Any,
    args: Any,
    state: Any,
    group: list[Any],
    sampling_params: Mapping[str, Any],
    calls: RolloutCalls,
    turn: Turn,
) -> list[Any] | None:
    """Generates and scores a group as Relax does; `None` where Relax's own way is to be gone."""
    conditions = [
        *flag_conditions(args),
        *sample_conditions(group, relax.Sample.Status),
        *(["evaluation"] if calls.evaluation else []),
    ]
    left = calls.hosts_own(turn, conditions)
    processed = {} if left else await _process_media(relax, state, args, group)
    params = calls.params_by_slot(sampling_params, group, lambda slot: state.group_sampling_seeds[slot])
    spent: dict[str, float] = {}

    def aborted() -> bool:
        return bool(state.aborted) and not calls.evaluation

    stock = _stock(relax, args, processed, calls, turn)
    report = await calls.generate(
        group,
        StockAdapter(stock, group, params, partial(_prime, args), relax.Sample.Status.ABORTED),
        turn=turn,
        post=_timed(relax.post, "generate", spent),
        encoder=_timed(_encoder(relax), "mm_encode", spent),
        attempts=ATTEMPTS,
        semaphore=state.semaphore,
        capacity=args.sglang_server_concurrency * args.rollout_num_gpus // args.rollout_num_gpus_per_engine,
        aborted=aborted,
        circumstances=conditions,
    )
    if report is None:
        return None
    if report.aborted:
        return group
    for sample in group:
        timing = sample.metadata.get("_timing", {})
        timing.update({phase: spent[phase] for phase in spent if phase in timing})
    if not aborted():
        rewards = await relax.batched_async_rm(args, group)
        for sample, reward in zip(group, rewards, strict=True):
            sample.reward = reward
    calls.record(group, turn, report)
    return group


def _stock(relax: Any, args: Any, processed: Mapping[tuple[int, int], Any], calls: RolloutCalls, turn: Turn) -> Stock:
    """Relax's `generate`, with media that were processed already and that are encoded later.

    One request carries one routing key, the first sample's; requests a sample keep each its own.

    Args:
        relax: The module.
        args: Relax's arguments.
        processed: What its processor made of each prompt with media, by the objects.
        calls: The rollout, or evaluation.
        turn: The arm that is asked for.
    """

    async def processor(state: Any, args: Any, prompt: Any, multimodal_inputs: Any) -> Any:
        ids, train_inputs, seconds = processed[id(prompt), id(multimodal_inputs)]
        return list(ids), None if train_inputs is None else dict(train_inputs), seconds

    async def unencoded(multimodal_inputs: Mapping[str, Any]) -> tuple[dict[str, list[Any]], float]:
        return {
            field: list(multimodal_inputs[kind]) for kind, field in KINDS.items() if multimodal_inputs.get(kind)
        }, 0.0

    evaluation = {"evaluation": True} if calls.evaluation else {}
    return Stock(
        lambda sample, params: relax.generate(args, sample, params, **evaluation),
        relax,
        [(relax, "_run_image_processor", processor), (relax, "_encode_multimodal_inputs", unencoded)],
        shared_headers=turn.arm != "per-sample",
    )


async def _process_media(relax: Any, state: Any, args: Any, group: Sequence[Any]) -> dict[tuple[int, int], Any]:
    """What Relax's processor makes of each prompt with media, by the objects; equal ones are processed once a group."""
    with_media = [
        (sample.prompt, sample.multimodal_inputs)
        for sample in group
        if state.processor and any((sample.multimodal_inputs or {}).get(kind) for kind in KINDS)
    ]
    distinct = {(id(prompt), id(media)): [prompt, media] for prompt, media in with_media}
    done: dict[str, Any] = {}
    results = {}
    for objects, key in zip(distinct, map(digest, distinct.values()), strict=True):
        if key not in done:
            done[key] = await relax._run_image_processor(state, args, *distinct[objects])
        results[objects] = done[key]
    return results


def _encoder(relax: Any) -> Encoder:
    async def encoder(kind: str, items: Sequence[Any]) -> Sequence[Any]:
        encode = getattr(relax, ENCODERS[kind])
        return list(await asyncio.gather(*(encode(item) for item in items)))

    return encoder


def _timed(work: Callable[..., Awaitable[Any]], phase: str, spent: dict[str, float]) -> Callable[..., Awaitable[Any]]:
    """The same work, whose longest call is kept: that of a phase of Relax's `_timing`, which all siblings share."""

    async def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.monotonic()
        try:
            return await work(*args, **kwargs)
        finally:
            spent[phase] = max(spent.get(phase, 0.0), time.monotonic() - start)

    return timed


def _prime(args: Any, sample: Any) -> None:
    """What Relax does to a sample before it is generated."""
    if sample.session_id is None:
        sample.session_id = str(uuid.uuid4())
    mask_earlier_tokens(args, sample)


def flag_conditions(args: Any) -> list[str]:
    """The conditions that Relax's flags decide; merged LoRA weights are no adapter."""
    lora = (getattr(args, "lora_rank", 0) or 0) > 0 and bool(getattr(args, "lora_adapter_mode", False))
    held = {
        "no_group_reward": not getattr(args, "group_rm", False),
        "partial_rollout": getattr(args, "partial_rollout", False),
        "middleware_router": getattr(args, "use_slime_router", False),
        "on_policy_distillation": getattr(args, "use_opd", False),
        "routing_replay": getattr(args, "use_rollout_routing_replay", False),
        "speculative_decoding": getattr(args, "sglang_speculative_algorithm", None) is not None,
        "custom_generate": getattr(args, "custom_generate_function_path", None) is not None,
        "weights_move": getattr(args, "fully_async", False),
        "lora_adapter": lora,
        "lora_lists_refused": lora,
    }
    return [name for name, holds in held.items() if holds]


def sample_conditions(group: Sequence[Any], status: Any) -> list[str]:
    """The conditions that Relax's samples decide."""
    fresh = (status.PENDING, status.ABORTED)
    held = {
        "sample_generate": any(getattr(sample, "generate_function_path", None) for sample in group),
        "loss_mask": any(sample.loss_mask is not None for sample in group),
        "finished_sample": any(sample.status not in fresh for sample in group),
    }
    return [name for name, holds in held.items() if holds]


if __name__ == "__main__":
    print(" ".join(launcher_flags(os.environ)))
