"""Miles: ``--rollout-function-path rollout_patch.hosts.miles.GroupRolloutFn``.

On the legacy path (``MILES_USE_LEGACY_ROLLOUT_V1=1``) it is ``rollout_patch.hosts.miles.generate_rollout``. Both
delegate to Miles' own rollout and replace only its generation of one group for the time of the call; evaluation stays
as it is. Read with Miles of August 2026 (`miles/rollout/inference_rollout/`, `miles/rollout/sglang_rollout.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

CLASS_GROUPS = (
    ("state", "group", "sampling_params", "evaluation"),
    ("state", "group", "sampling_params", "evaluation", "sample_done_callback"),
)
LEGACY_GROUP = ("args", "group", "sampling_params", "evaluation")
LEGACY_SAMPLE = ("args", "sample", "sampling_params")
ATTEMPTS = 60
"""How often Miles sends a request (its `http_utils.post`)."""

GroupFunction = Callable[..., Coroutine[Any, Any, Any]]


class GroupRolloutFn:
    """Miles' `InferenceRolloutFn`, with groups asked for as the options say.

    Raises:
        UnsupportedHost: Miles' functions have other signatures than the known ones.
    """

    def __init__(self, input: Any) -> None:
        common = importlib.import_module("miles.rollout.inference_rollout.inference_rollout_common")
        self._train = importlib.import_module("miles.rollout.inference_rollout.inference_rollout_train")
        self._single_turn = importlib.import_module("miles.rollout.generate_hub.single_turn")
        self._endpoint = importlib.import_module("miles.rollout.generate_utils.generate_endpoint_utils")
        self._common = common
        self._stock = common.InferenceRolloutFn(input)
        self._args = input.args
        require(self._train.generate_and_rm_group, *CLASS_GROUPS)
        require(
            self._single_turn.generate,
            ("input",),
            calls=("post", "compute_request_payload", "compute_prompt_ids_from_sample"),
        )
        require(
            self._endpoint.compute_request_payload,
            ("args", "input_ids", "sampling_params", "multimodal_inputs"),
            calls=("encode_image_for_rollout_engine",),
        )

    async def __call__(self, input: Any) -> Any:
        """One rollout, or one evaluation by Miles' own way."""
        if input.evaluation:
            return await self._stock(input)
        calls = RolloutCalls.of(self._args, input.rollout_id)
        custom = self._stock.state.generate_function is not self._single_turn.generate
        calls.warn_if_never(_circumstances(self._args, [], self._common.Sample.Status, custom))
        stock_group = self._train.generate_and_rm_group
        with replaced((self._train, "generate_and_rm_group", self._group_function(stock_group, calls))):
            output = await self._stock(input)
        return calls.finish(output)

    def _group_function(self, stock_group: GroupFunction, calls: RolloutCalls) -> GroupFunction:
        common, single_turn, status = self._common, self._single_turn, self._common.Sample.Status
        inputs = importlib.import_module("miles.rollout.base_types").GenerateFnInput

        async def generate_and_rm_group(
            state: Any,
            group: list[Any],
            sampling_params: dict[str, Any],
            evaluation: bool = False,
            sample_done_callback: Callable[[], None] | None = None,
        ) -> list[Any]:
            args = state.args
            callback = {} if sample_done_callback is None else {"sample_done_callback": sample_done_callback}
            if state.aborted or evaluation:
                return list(await stock_group(state, group, sampling_params, evaluation=evaluation, **callback))

            def generate(sample: Any, params: dict[str, Any]) -> Any:
                given = inputs(state=state, sample=sample, sampling_params=params, evaluation=False)
                return single_turn.generate(given)

            custom = state.generate_function is not single_turn.generate
            way = _Way(
                stock=Stock(
                    generate,
                    single_turn,
                    [
                        images_as_they_are(self._endpoint),
                        _once(single_turn, "compute_prompt_ids_from_sample", lambda state, sample: id(sample)),
                    ],
                ),
                encode=self._endpoint.encode_image_for_rollout_engine,
                params=calls.params_by_slot(sampling_params, group, lambda slot: args.rollout_seed + slot),
                prime=lambda sample: _prime(args, sample, common.policy_uses_routing_key(args)),
                semaphore=state.generate_fn_semaphore,
                aborted=lambda: bool(state.aborted),
                circumstances=_circumstances(args, group, status, custom),
                aborted_status=status.ABORTED,
                lifecycle=common.TrajectoryLifecycle().sink,
                reward=lambda sample: common.async_rm(args, sample),
                reward_group=lambda scored: common.batched_async_rm(args, scored, inplace_set_reward_field=True),
            )
            try:
                done = await calls.in_its_arms(group, partial(_generate_and_score, way, args, calls))
            except BaseException:
                _call_for_each(group, sample_done_callback)
                raise
            if done is None:
                return list(await stock_group(state, group, sampling_params, evaluation=False, **callback))
            _call_for_each(group, sample_done_callback)
            return done

        return generate_and_rm_group


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The legacy rollout function of Miles, with groups asked for as the options say.

    Raises:
        UnsupportedHost: Miles' functions have other signatures than the known ones.
        ValueError: An option has no such value.
    """
    miles = importlib.import_module("miles.rollout.sglang_rollout")
    if evaluation:
        return miles.generate_rollout(args, rollout_id, data_source, evaluation=True)
    require(miles.generate_and_rm_group, LEGACY_GROUP)
    require(miles.generate, LEGACY_SAMPLE, calls=("post", "encode_image_for_rollout_engine", "call_processor"))
    calls = RolloutCalls.of(args, rollout_id)
    calls.warn_if_never(_circumstances(args, [], miles.Sample.Status, bool(args.custom_generate_function_path)))
    with replaced((miles, "generate_and_rm_group", _legacy_group_function(miles, miles.generate_and_rm_group, calls))):
        output = miles.generate_rollout(args, rollout_id, data_source, evaluation=False)
    return calls.finish(output)


def _legacy_group_function(miles: Any, stock_group: GroupFunction, calls: RolloutCalls) -> GroupFunction:
    async def generate_and_rm_group(
        args: Any, group: list[Any], sampling_params: dict[str, Any], evaluation: bool = False
    ) -> list[Any]:
        state = miles.GenerateState(args)
        if state.aborted or evaluation:
            return list(await stock_group(args, group, sampling_params, evaluation=evaluation))

        async def reward_group(scored: Sequence[Any]) -> None:
            rewards = await miles.batched_async_rm(args, scored)
            for sample, reward in zip(scored, rewards, strict=True):
                sample.reward = reward

        way = _Way(
            stock=Stock(
                lambda sample, params: miles.generate(args, sample, params),
                miles,
                [
                    images_as_they_are(miles),
                    _once(miles, "call_processor", lambda processor, prompt, media: (id(prompt), id(media))),
                ],
            ),
            encode=miles.encode_image_for_rollout_engine,
            params=calls.params_by_slot(sampling_params, group, lambda slot: args.rollout_seed + slot),
            prime=lambda sample: _prime(args, sample, miles.policy_uses_routing_key(args)),
            semaphore=state.semaphore,
            aborted=lambda: bool(state.aborted),
            circumstances=_circumstances(args, group, miles.Sample.Status, bool(args.custom_generate_function_path)),
            aborted_status=miles.Sample.Status.ABORTED,
            lifecycle=miles.TrajectoryLifecycle().sink,
            reward=lambda sample: miles.async_rm(args, sample),
            reward_group=reward_group,
        )
        done = await calls.in_its_arms(group, partial(_generate_and_score, way, args, calls))
        if done is None:
            return list(await stock_group(args, group, sampling_params, evaluation=evaluation))
        return done

    return generate_and_rm_group


@dataclass(frozen=True, slots=True)
class _Way:
    """What the class path and the legacy path of Miles have each their own of."""

    stock: Stock
    encode: Callable[[Any], Any]
    params: Sequence[Mapping[str, Any]]
    prime: Callable[[Any], None]
    semaphore: asyncio.Semaphore
    aborted: Callable[[], bool]
    circumstances: Sequence[str]
    aborted_status: Any
    lifecycle: Any
    reward: Callable[[Any], Awaitable[Any]]
    reward_group: Callable[[Sequence[Any]], Awaitable[Any]]


async def _generate_and_score(
    way: _Way, args: Any, calls: RolloutCalls, group: list[Any], turn: Turn
) -> list[Any] | None:
    """Generates and scores a group as Miles does; `None` where Miles' own way is to be gone.

    The lifecycle sees the samples that are trained on, and no copies.
    """
    begun: list[Any] = []

    def prime(sample: Any) -> None:
        way.prime(sample)
        if way.lifecycle is not None and turn.trained:
            way.lifecycle.attempt_start(sample)
            way.lifecycle.gen_start(sample)
            begun.append(sample)

    try:
        report = await calls.generate(
            group,
            StockAdapter(way.stock, group, way.params, prime, way.aborted_status),
            turn=turn,
            post=way.stock.post_in.post,
            encoder=image_encoder(way.encode),
            attempts=ATTEMPTS,
            semaphore=way.semaphore,
            capacity=args.sglang_server_concurrency * args.rollout_num_gpus // args.rollout_num_gpus_per_engine,
            aborted=way.aborted,
            circumstances=way.circumstances,
        )
    finally:
        for sample in begun:
            way.lifecycle.attempt_end(sample)
    if report is None:
        return None
    if report.aborted:
        return group
    if not args.group_rm:
        await asyncio.gather(*(_score(way, sample) for sample in group))
    elif not way.aborted():
        await way.reward_group(group)
    calls.record(group, turn, report)
    return group


async def _score(way: _Way, sample: Any) -> None:
    if sample.status != way.aborted_status and sample.reward is None:
        sample.reward = await way.reward(sample)


def _once(module: Any, name: str, key: Callable[..., Any]) -> tuple[Any, str, Any]:
    """The place of Miles' work on a prompt, done once although its `generate` is called twice: to ask, and to apply.

    Args:
        module: Where `generate` finds the function.
        name: The function.
        key: What its result depends on, from its arguments.
    """
    function = getattr(module, name)
    known: dict[Any, Any] = {}

    def once(*args: Any) -> Any:
        at = key(*args)
        if at not in known:
            known[at] = function(*args)
        return known[at]

    return (module, name, once)


def _call_for_each(group: Sequence[Any], callback: Callable[[], None] | None) -> None:
    if callback is not None:
        for _ in group:
            callback()


def _prime(args: Any, sample: Any, routed: bool) -> None:
    """What Miles does to a sample before it is generated."""
    if routed and sample.routing_key is None:
        sample.routing_key = str(uuid.uuid4())
    mask_earlier_tokens(args, sample)


def _circumstances(args: Any, group: Sequence[Any], status: Any, custom: bool) -> list[str]:
    """The conditions that Miles' flags and samples decide."""
    fresh = (status.PENDING, status.ABORTED)
    held = {
        "middleware_router": getattr(args, "use_miles_router", False),
        "on_policy_distillation": getattr(args, "use_opd", False),
        "routing_replay": getattr(args, "use_rollout_routing_replay", False)
        or getattr(args, "use_rollout_indexer_replay", False),
        "speculative_decoding": getattr(args, "sglang_speculative_algorithm", None),
        "custom_generate": custom,
        "sample_generate": any(sample.generate_function_path for sample in group),
        "weights_move": getattr(args, "fully_async", False),
        "finished_sample": any(sample.status not in fresh for sample in group),
        "client_request_id": any(sample.adapter is not None for sample in group),
    }
    return [name for name, holds in held.items() if holds]
