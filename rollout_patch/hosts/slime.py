"""slime: ``--rollout-function-path rollout_patch.hosts.slime.generate_rollout``.

Delegates to slime's own rollout, which runs unchanged; only the requests of a group's samples become one. Evaluation
stays as it is. Read with slime of August 2026 (`slime/rollout/sglang_rollout.py`).
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from rollout_patch.hosts.calls import RolloutCalls, Way, flag_conditions, sample_conditions
from rollout_patch.hosts.guard import Used, check_host
from rollout_patch.hosts.meeting import errors_as_raised, once_a_group, post_function, sample_function
from rollout_patch.hosts.options import allows_unknown_host, read_options
from rollout_patch.hosts.samples import replaced
from rollout_patch.media import digest

ATTEMPTS = 60
"""How often slime sends a request (its `http_utils.post`)."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The rollout function of slime, with groups asked for as the options say.

    Raises:
        UnsupportedHost: slime's functions are others than the known ones, or made groups without the plug-in.
        ResponseRefused: An answer broke the protocol.
        ValueError: An option has no such value.
    """
    slime = importlib.import_module("slime.rollout.sglang_rollout")
    if evaluation:
        return slime.generate_rollout(args, rollout_id, data_source, evaluation=True)
    unknown = check_host("slime", uses(), allows_unknown_host(args))
    calls = RolloutCalls.of(args, rollout_id)
    calls.unknown_host = unknown
    calls.warn_if_never(conditions_of(args))
    group_function = calls.group_function(way_of(slime, args), slime.generate_and_rm_group)
    try:
        with (
            errors_as_raised(),
            replaced((slime, "generate_and_rm_group", group_function), *places_of(slime, calls)),
        ):
            output = slime.generate_rollout(args, rollout_id, data_source, evaluation=False)
        return calls.finish(output)
    finally:
        calls.close()


def way_of(slime: Any, args: Any) -> Way:
    """What slime has its own of.

    Args:
        slime: The module `slime.rollout.sglang_rollout`.
        args: slime's arguments.
    """
    return Way(
        state_of=lambda args: slime.GenerateState(args),
        semaphore="semaphore",
        post=slime.post,
        get=slime.get,
        attempts=ATTEMPTS,
        conditions=lambda group: [*conditions_of(args), *sample_conditions(group, slime.Sample.Status)],
        args=args,
    )


def places_of(slime: Any, calls: RolloutCalls) -> list[tuple[Any, str, Any]]:
    """What is replaced in slime's module besides the group's function, as module, name and value."""
    encode = slime.encode_image_for_rollout_engine
    return [
        (slime, "generate_and_rm", sample_function(slime.generate_and_rm)),
        (slime, "post", post_function(slime.post)),
        (slime, "encode_image_for_rollout_engine", once_a_group(encode, digest)),
        (slime, "batched_async_rm", calls.count_rewards(slime.batched_async_rm)),
    ]


def uses() -> list[Used]:
    """What the plug-in uses of slime."""
    slime = importlib.import_module("slime.rollout.sglang_rollout")
    http = importlib.import_module("slime.utils.http_utils")
    return [
        Used(slime, "generate_and_rm_group", body=True, calls=("generate_and_rm",)),
        Used(slime, "generate_and_rm", body=True),
        Used(slime, "generate", body=True, calls=("post",)),
        Used(http, "_post", body=True),
        *(Used(slime, name) for name in ("generate_rollout", "GenerateState", "Sample", "post", "get")),
        *(Used(slime, name) for name in ("encode_image_for_rollout_engine", "batched_async_rm")),
    ]


def conditions_of(args: Any) -> list[str]:
    """The conditions that slime's flags decide."""
    return flag_conditions(args)


if "slime" in sys.modules:  # loaded by slime itself, at its start: what does not fit is said now
    check_host("slime", uses(), allow_unknown=None)
    read_options(None, os.environ)
