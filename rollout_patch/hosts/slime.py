"""slime: ``--rollout-function-path rollout_patch.hosts.slime.generate_rollout``.

Delegates to slime's own rollout and replaces only its generation of one group for the time of the call. Evaluation
stays as it is. Read with slime of August 2026 (`slime/rollout/sglang_rollout.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rollout_patch.hosts.calls import RolloutCalls, Turn
from rollout_patch.hosts.stock import (
    Stock,
    StockAdapter,
    image_encoder,
    images_as_they_are,
    mask_earlier_tokens,
    replaced,
    require,
)
from rollout_patch.responses import UNSENT, Output

GROUP = ("args", "group", "sampling_params", "evaluation")
SAMPLE = ("args", "sample", "sampling_params")
ATTEMPTS = 60
"""How often slime sends a request (its `http_utils.post`)."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The rollout function of slime, with groups asked for as the options say.

    Raises:
        UnsupportedHost: slime's functions have other signatures than the known ones.
        ValueError: An option has no such value.
    """
    slime = importlib.import_module("slime.rollout.sglang_rollout")
    if evaluation:
        return slime.generate_rollout(args, rollout_id, data_source, evaluation=True)
    require(slime.generate_and_rm_group, GROUP)
    require(slime.generate, SAMPLE, calls=("post", "encode_image_for_rollout_engine", "trace_span"))
    calls = RolloutCalls.of(args, rollout_id)
    calls.warn_if_never(_circumstances(args, [], slime.Sample.Status))
    with replaced((slime, "generate_and_rm_group", _group_function(slime, slime.generate_and_rm_group, calls))):
        output = slime.generate_rollout(args, rollout_id, data_source, evaluation=False)
    return calls.finish(output)


def _group_function(
    slime: Any, stock_group: Callable[..., Coroutine[Any, Any, Any]], calls: RolloutCalls
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The `generate_and_rm_group` of slime, with the group's samples asked for together.

    Args:
        slime: The module `slime.rollout.sglang_rollout`.
        stock_group: Its own `generate_and_rm_group`, for groups that go its way.
        calls: The rollout that the groups belong to.
    """

    async def generate_and_rm_group(
        args: Any, group: list[Any], sampling_params: dict[str, Any], evaluation: bool = False
    ) -> list[Any]:
        state = slime.GenerateState(args)
        if state.aborted or evaluation:
            return list(await stock_group(args, group, sampling_params, evaluation=evaluation))

        async def ask(samples: list[Any], turn: Turn) -> list[Any] | None:
            held = _circumstances(args, samples, slime.Sample.Status)
            if calls.hosts_own(turn, held):  # which slime traces itself
                span = nullcontext()
            else:
                span = slime.trace_span(samples, "generate_and_rm_group", attrs={"group_size": len(samples)})
            with span:
                return await _generate_and_score(slime, args, state, samples, sampling_params, calls, turn, held)

        done = await calls.in_its_arms(group, ask)
        if done is None:
            return list(await stock_group(args, group, sampling_params, evaluation=evaluation))
        return done

    return generate_and_rm_group


async def _generate_and_score(
    slime: Any,
    args: Any,
    state: Any,
    group: list[Any],
    sampling_params: Mapping[str, Any],
    calls: RolloutCalls,
    turn: Turn,
    held: Sequence[str],
) -> list[Any] | None:
    """Generates and scores a group as slime does; `None` where slime's own way is to be gone."""
    stock = Stock(
        lambda sample, params: slime.generate(args, sample, params), slime, [images_as_they_are(slime)], slime
    )
    params = calls.params_by_slot(sampling_params, group, lambda slot: state.group_sampling_seeds[slot])
    report = await calls.generate(
        group,
        StockAdapter(stock, group, params, lambda sample: _prime(args, sample), slime.Sample.Status.ABORTED),
        turn=turn,
        post=slime.post,
        encoder=image_encoder(slime.encode_image_for_rollout_engine),
        attempts=ATTEMPTS,
        semaphore=state.semaphore,
        capacity=args.sglang_server_concurrency * slime.get_rollout_num_engines(args),
        aborted=lambda: bool(state.aborted),
        circumstances=held,
    )
    if report is None:
        return None
    if report.aborted:
        return group
    pairs = zip(group, report.outputs, strict=True)
    scored = list(await asyncio.gather(*(_finish(slime, args, sample, output) for sample, output in pairs)))
    if args.group_rm and not state.aborted:
        with slime.trace_span(scored, "group_reward_model"):
            rewards = await slime.batched_async_rm(args, scored)
        for sample, reward in zip(scored, rewards, strict=True):
            sample.reward = reward
    calls.record(scored, turn, report)
    return scored


def _prime(args: Any, sample: Any) -> None:
    """What slime does to a sample before it is generated."""
    if sample.session_id is None:
        sample.session_id = str(uuid.uuid4())
    mask_earlier_tokens(args, sample)


async def _finish(slime: Any, args: Any, sample: Any, output: Output) -> Any:
    """What slime does to a sample after it was sent: hooks, and the reward unless the group is scored together."""
    if output.id == UNSENT:
        return sample
    sample = await slime.apply_rollout_sample_hooks(args, sample, evaluation=False)
    if args.group_rm or sample.status == slime.Sample.Status.ABORTED:
        return sample
    if sample.reward is None:
        with slime.trace_span(sample, "reward_model"):
            sample.reward = await slime.async_rm(args, sample)
    return sample


def _circumstances(args: Any, group: list[Any], status: Any) -> list[str]:
    """The conditions that slime's flags and samples decide."""
    fresh = (status.PENDING, status.ABORTED)
    held = {
        "routing_replay": getattr(args, "use_rollout_routing_replay", False),
        "speculative_decoding": getattr(args, "sglang_speculative_algorithm", None),
        "custom_generate": args.custom_generate_function_path,
        "sample_generate": any(getattr(sample, "generate_function_path", None) for sample in group),
        "finished_sample": any(sample.status not in fresh for sample in group),
    }
    return [name for name, holds in held.items() if holds]
