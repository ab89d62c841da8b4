"""Miles: ``--rollout-function-path rollout_patch.hosts.miles.GroupRolloutFn``.

On the legacy path (``MILES_USE_LEGACY_ROLLOUT_V1=1``) it is ``rollout_patch.hosts.miles.generate_rollout``. Both
delegate to Miles' own rollout, which runs unchanged; only the requests of a group's samples become one. Evaluation
stays as it is. Read with Miles of August 2026 (`miles/rollout/inference_rollout/`, `miles/rollout/sglang_rollout.py`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rollout_patch.hosts.calls import RolloutCalls, Way, flag_conditions, sample_conditions
from rollout_patch.hosts.guard import Used, check_host
from rollout_patch.hosts.meeting import (
    current_meeting,
    errors_as_raised,
    once_a_group,
    post_function,
    sample_function,
)
from rollout_patch.hosts.options import allows_unknown_host, read_options
from rollout_patch.hosts.samples import replaced
from rollout_patch.media import digest

ATTEMPTS = 60
"""How often Miles sends a request (its `http_utils.post`)."""

_PATH = "miles.rollout.inference_rollout"


class GroupRolloutFn:
    """Miles' `InferenceRolloutFn`, with groups asked for as the options say.

    Raises:
        UnsupportedHost: Miles' functions are others than the known ones.
        ValueError: An option has no such value.
    """

    def __init__(self, input: Any) -> None:
        self._args = input.args
        self._unknown = check_host("miles", uses(), allows_unknown_host(self._args))
        read_options(self._args, os.environ)
        self._common = importlib.import_module(f"{_PATH}.inference_rollout_common")
        self._train = importlib.import_module(f"{_PATH}.inference_rollout_train")
        self._single_turn = importlib.import_module("miles.rollout.generate_hub.single_turn")
        self._endpoint = importlib.import_module("miles.rollout.generate_utils.generate_endpoint_utils")
        self._stock = self._common.InferenceRolloutFn(input)

    async def __call__(self, input: Any) -> Any:
        """One rollout, or one evaluation by Miles' own way."""
        if input.evaluation:
            return await self._stock(input)
        args, common, train, single_turn = self._args, self._common, self._train, self._single_turn
        custom = self._stock.state.generate_function is not single_turn.generate
        calls = RolloutCalls.of(args, input.rollout_id)
        calls.unknown_host = self._unknown
        calls.warn_if_never(conditions_of(args, [], custom))
        way = Way(
            state_of=lambda state: state,
            semaphore="generate_fn_semaphore",
            post=single_turn.post,
            get=train.get,
            attempts=ATTEMPTS,
            conditions=lambda group: [
                *conditions_of(args, group, custom),
                *sample_conditions(group, common.Sample.Status),
            ],
            args=args,
            callbacks=("sample_done_callback",),
        )
        encode = self._endpoint.encode_image_for_rollout_engine
        try:
            with (
                errors_as_raised(),
                replaced(
                    (train, "generate_and_rm_group", calls.group_function(way, train.generate_and_rm_group)),
                    (common, "generate_and_rm", sample_function(common.generate_and_rm)),
                    (single_turn, "post", post_function(single_turn.post)),
                    (self._endpoint, "encode_image_for_rollout_engine", once_a_group(encode, digest)),
                    (common, "batched_async_rm", calls.count_rewards(common.batched_async_rm)),
                    *_unseen_copies(common),
                ),
            ):
                output = await self._stock(input)
            return calls.finish(output)
        finally:
            calls.close()


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The legacy rollout function of Miles, with groups asked for as the options say.

    Raises:
        UnsupportedHost: Miles' functions are others than the known ones, or made groups without the plug-in.
        ResponseRefused: An answer broke the protocol.
        ValueError: An option has no such value.
    """
    miles = importlib.import_module("miles.rollout.sglang_rollout")
    if evaluation:
        return miles.generate_rollout(args, rollout_id, data_source, evaluation=True)
    unknown = check_host("miles", legacy_uses(), allows_unknown_host(args))
    custom = bool(args.custom_generate_function_path)
    calls = RolloutCalls.of(args, rollout_id)
    calls.unknown_host = unknown
    calls.warn_if_never(conditions_of(args, [], custom))
    way = Way(
        state_of=lambda args: miles.GenerateState(args),
        semaphore="semaphore",
        post=miles.post,
        get=miles.get,
        attempts=ATTEMPTS,
        conditions=lambda group: [*conditions_of(args, group, custom), *sample_conditions(group, miles.Sample.Status)],
        args=args,
    )
    encode = miles.encode_image_for_rollout_engine
    try:
        with (
            errors_as_raised(),
            replaced(
                (miles, "generate_and_rm_group", calls.group_function(way, miles.generate_and_rm_group)),
                (miles, "generate_and_rm", sample_function(miles.generate_and_rm)),
                (miles, "post", post_function(miles.post)),
                (miles, "encode_image_for_rollout_engine", once_a_group(encode, digest)),
                (miles, "batched_async_rm", calls.count_rewards(miles.batched_async_rm)),
                *_unseen_copies(miles),
            ),
        ):
            output = miles.generate_rollout(args, rollout_id, data_source, evaluation=False)
        return calls.finish(output)
    finally:
        calls.close()


def uses() -> list[Used]:
    """What the plug-in uses of Miles."""
    common = importlib.import_module(f"{_PATH}.inference_rollout_common")
    train = importlib.import_module(f"{_PATH}.inference_rollout_train")
    single_turn = importlib.import_module("miles.rollout.generate_hub.single_turn")
    endpoint = importlib.import_module("miles.rollout.generate_utils.generate_endpoint_utils")
    http = importlib.import_module("miles.utils.http_utils")
    return [
        Used(common, "generate_and_rm_group", body=True, calls=("generate_and_rm",)),
        Used(common, "generate_and_rm", body=True),
        Used(single_turn, "generate", body=True, calls=("post",)),
        Used(train, "generate_and_rm_group"),
        Used(train, "submit_generate_tasks", calls=("generate_and_rm_group",)),
        Used(http, "_post", body=True),
        *(Used(common, name) for name in ("InferenceRolloutFn", "Sample", "batched_async_rm")),
        Used(train, "get"),
        Used(single_turn, "post"),
        Used(endpoint, "encode_image_for_rollout_engine"),
    ]


def legacy_uses() -> list[Used]:
    """What the plug-in uses of Miles' legacy path."""
    miles = importlib.import_module("miles.rollout.sglang_rollout")
    http = importlib.import_module("miles.utils.http_utils")
    return [
        Used(miles, "generate_and_rm_group", body=True, calls=("generate_and_rm",)),
        Used(miles, "generate_and_rm", body=True),
        Used(miles, "generate", body=True, calls=("post",)),
        Used(http, "_post", body=True),
        *(Used(miles, name) for name in ("generate_rollout", "GenerateState", "Sample", "post", "get")),
        *(Used(miles, name) for name in ("encode_image_for_rollout_engine", "batched_async_rm")),
    ]


def conditions_of(args: Any, group: Any, custom: bool) -> list[str]:
    """The conditions that Miles' flags, and the adapters of its samples, decide.

    Args:
        args: Miles' arguments.
        group: The samples.
        custom: Whether the generate function is another than the single-turn one.
    """
    return flag_conditions(
        args,
        middleware_router=getattr(args, "use_miles_router", False),
        on_policy_distillation=_asks_for_likely_tokens(args),
        indexer_replay=getattr(args, "use_rollout_indexer_replay", False),
        custom_generate=custom,
        client_request_id=any(getattr(sample, "adapter", None) is not None for sample in group),
    )


def sends_adapter(args: Any) -> bool:
    """Whether Miles' requests name a LoRA adapter."""
    lora = (getattr(args, "lora_rank", 0) or 0) > 0 or getattr(args, "lora_adapter_path", None) is not None
    return lora and not getattr(args, "lora_train_only", False)


def _asks_for_likely_tokens(args: Any) -> bool:
    """Whether the legacy path asks for the student's most likely tokens at each place."""
    several = (getattr(args, "opd_log_prob_top_k", 0) or 0) > 0
    return bool(getattr(args, "use_opd", False)) and several and args.opd_top_k_strategy != "only-teacher"


def _unseen_copies(module: Any) -> list[tuple[Any, str, Any]]:
    """The place of Miles' lifecycle, which sees the samples that are trained on, and no copies."""
    if not hasattr(module, "TrajectoryLifecycle"):
        return []
    stock: Callable[[], Any] = module.TrajectoryLifecycle

    def lifecycle() -> Any:
        meeting = current_meeting()
        return stock() if meeting is None or meeting.trained else SimpleNamespace(sink=None)

    return [(module, "TrajectoryLifecycle", lifecycle)]
