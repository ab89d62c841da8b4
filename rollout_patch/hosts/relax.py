"""Relax: ``--rollout-function-path rollout_patch.hosts.relax.generate_rollout``.

Delegates to Relax's own rollout, which runs unchanged and fills its TransferQueue; only the requests of a group's
samples become one. Evaluation stays as it is unless asked. Read with Relax of mid-2026
(`relax/engine/rollout/sglang_rollout.py`).

Run as a module it prints the flags that a launcher adds, by the launcher's environment:

    python -m rollout_patch.hosts.relax
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rollout_patch.hosts.calls import RolloutCalls, Way, flag_conditions, sample_conditions
from rollout_patch.hosts.guard import Used, check_host
from rollout_patch.hosts.meeting import errors_as_raised, once_a_group, post_function, sample_function
from rollout_patch.hosts.options import allows_unknown_host, read_options, refuse_unknown_variables, switched_on
from rollout_patch.hosts.samples import replaced
from rollout_patch.media import digest

ATTEMPTS = 6
"""How often Relax sends a request (its `http_utils.post`)."""

KINDS = ("images", "videos", "audio")
"""Relax's kinds of media."""


def launcher_flags(environment: Mapping[str, str]) -> list[str]:
    """What a launcher adds to Relax's command line.

    With ``SGLANG_NATIVE_GROUP_SAMPLING=1``, the rollout function and the router's policy: `round_robin` unless
    ``SGLANG_ROUTER_POLICY`` says otherwise, because a cache-aware router counts a request of n samples as one and sends
    groups of a common prefix to one engine. Otherwise only a policy that was asked for.

    Raises:
        ValueError: A variable looks like an option and is none, or the switch is neither 0 nor 1.
    """
    refuse_unknown_variables(environment)
    policy = environment.get("SGLANG_ROUTER_POLICY")
    if not switched_on(environment):
        return ["--sglang-router-policy", policy] if policy else []
    function = ["--rollout-function-path", "rollout_patch.hosts.relax.generate_rollout"]
    return [*function, "--sglang-router-policy", policy or "round_robin"]


def generate_rollout(
    args: Any, rollout_id: int, data_buffer: Any, data_system_client: Any, evaluation: bool = False
) -> Any:
    """The rollout function of Relax, with groups asked for as the options say; evaluation only if they say so.

    Raises:
        UnsupportedHost: Relax's functions are others than the known ones, or made groups without the plug-in.
        ResponseRefused: An answer broke the protocol.
        ValueError: An option has no such value.
    """
    relax = importlib.import_module("relax.engine.rollout.sglang_rollout")
    unknown = check_host("relax", uses(), allows_unknown_host(args))
    calls = RolloutCalls.of(args, rollout_id, evaluation=evaluation)
    calls.unknown_host = unknown
    at_once = getattr(args, "fully_async", False)  # with training, whose function would be replaced meanwhile
    if evaluation and (at_once or not calls.options.evaluation):
        return relax.generate_rollout(args, rollout_id, data_buffer, data_system_client, evaluation=True)
    calls.warn_if_never(conditions_of(args))
    way = Way(
        state_of=lambda args: relax.GenerateState(args),
        semaphore="semaphore",
        post=relax.post,
        get=relax.get,
        attempts=ATTEMPTS,
        conditions=lambda group: [*conditions_of(args), *sample_conditions(group, relax.Sample.Status)],
        args=args,
    )
    process = once_a_group(relax._run_image_processor, lambda state, args, *prompt: digest(list(prompt)))
    encode = once_a_group(relax._encode_multimodal_inputs, digest)
    try:
        with (
            errors_as_raised(),
            replaced(
                (relax, "generate_and_rm_group", calls.group_function(way, relax.generate_and_rm_group)),
                (relax, "generate_and_rm", sample_function(relax.generate_and_rm)),
                (relax, "post", post_function(relax.post)),
                (relax, "_run_image_processor", _own_results(process)),
                (relax, "_encode_multimodal_inputs", _only_media(encode)),
                (relax, "batched_async_rm", calls.count_rewards(relax.batched_async_rm)),
                (relax, "_log_rollout_data", _log_function(relax._log_rollout_data, calls)),
            ),
        ):
            output = relax.generate_rollout(args, rollout_id, data_buffer, data_system_client, evaluation=evaluation)
        return calls.finish(output)
    finally:
        calls.close()


def uses() -> list[Used]:
    """What the plug-in uses of Relax."""
    relax = importlib.import_module("relax.engine.rollout.sglang_rollout")
    http = importlib.import_module("relax.utils.http_utils")
    names = ("generate_rollout", "GenerateState", "Sample", "post", "get", "batched_async_rm", "_log_rollout_data")
    return [
        Used(relax, "generate_and_rm_group", body=True, calls=("generate_and_rm",)),
        Used(relax, "generate_and_rm", body=True),
        Used(relax, "generate", body=True, calls=("post", "_run_image_processor", "_encode_multimodal_inputs")),
        Used(http, "_post", body=True),
        *(Used(relax, name) for name in names),
    ]


def conditions_of(args: Any) -> list[str]:
    """The conditions that Relax's flags decide; merged LoRA weights are no adapter."""
    lora = (getattr(args, "lora_rank", 0) or 0) > 0 and bool(getattr(args, "lora_adapter_mode", False))
    return flag_conditions(
        args,
        middleware_router=getattr(args, "use_slime_router", False),
        lora_adapter=lora,
        lora_lists_refused=lora,
    )


def _log_function(stock_log: Callable[..., Any], calls: RolloutCalls) -> Callable[..., Any]:
    """Relax's own log of a rollout, with the counts: it does not read the metrics that a rollout function returns."""

    def log(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> Any:
        extra = {**(rollout_extra_metrics or {}), **calls.metrics()}
        return stock_log(rollout_id, args, samples, extra, rollout_time)

    return log


def _own_results(process: Callable[..., Any]) -> Callable[..., Any]:
    """What the processor made once for a group, as each sample's own list and mapping."""

    async def own_results(*args: Any) -> Any:
        ids, train_inputs, seconds = await process(*args)
        return list(ids), None if train_inputs is None else dict(train_inputs), seconds

    return own_results


def _only_media(encode: Callable[..., Any]) -> Callable[..., Any]:
    """The encoder, which is not called where there are no media; each sample gets lists of its own."""

    async def only_media(multimodal_inputs: Mapping[str, Any]) -> tuple[dict[str, list[Any]], float]:
        if not any(multimodal_inputs.get(kind) for kind in KINDS):
            return {}, 0.0
        encoded, seconds = await encode(multimodal_inputs)
        return {name: list(items) for name, items in encoded.items()}, seconds

    return only_media


if __name__ == "__main__":
    try:
        print(" ".join(launcher_flags(os.environ)))
    except ValueError as error:
        sys.exit(f"Error: {error}")
elif "relax" in sys.modules:  # loaded by Relax itself, at its start: what does not fit is said now
    check_host("relax", uses(), allow_unknown=None)
    read_options(None, os.environ)
