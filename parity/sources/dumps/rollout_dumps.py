"""Rollout dumps of slime, Miles and Relax: what ``--save-debug-rollout-data`` writes.

``{"rollout_id": N, "samples": [Sample.to_dict(), …]}``; Miles adds ``metadata``, Relax ``decoded_tokens`` to each
sample, and early versions saved the list of samples alone (`slime/observability/rollout_data_utils.py`,
`miles/ray/rollout/debug_data.py`, `slime/utils/types.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.errors import InputError
from parity.records.samples import Rollout
from parity.sources.dumps.rows import (
    FINISH_REASON_OF_STATUS,
    groups_and_slots,
    plain,
    rollout_of,
    split_tokens,
    step_in_name,
    whole,
)

_READ = {"group_index", "index", "tokens", "response_length", "response", "rollout_log_probs", "loss_mask", "status"}
_READ |= {"weight_versions", "reward", "prefix_cache_info"}
_DESCRIBED = (
    "rollout_routed_experts",
    "rollout_indexer_topk",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "multimodal_train_inputs",
    "decoded_tokens",
)
"""Large fields that no rule reads; of these only the sizes are kept."""


def is_rollout_dump(content: Any) -> bool:
    """Whether a PyTorch file holds samples as they are before training."""
    samples = content.get("samples") if isinstance(content, dict) else content
    return isinstance(samples, list) and all(
        isinstance(sample, dict) and "response_length" in sample for sample in samples[:1]
    )


def rollout_of_dump(content: Any, path: Path, group_size: int | None) -> Rollout:
    """The samples of one rollout, in the order of the dump; other fields go to `extra`.

    The finish reason follows from the status, the only one of the two that a dump keeps. A reward that is a mapping
    counts by its `score` or `reward`, and stays whole in `extra`. Prompt tokens are taken from the cache's count only
    where one request brought the response, since the count adds up over requests.

    Raises:
        InputError: A sample is not what `Sample.to_dict` makes.
        UsageError: The samples name no group, and the group size is not given.
    """
    samples = content["samples"] if isinstance(content, dict) else content
    rollout_id = _rollout_id(content, path)

    def place(number: int) -> str:
        return f"{path}: samples[{number}]"

    for number, sample in enumerate(samples):
        if not isinstance(sample, dict):
            raise InputError(f"{place(number)}: a sample is a mapping, not {type(sample).__name__}")
    groups = groups_and_slots(
        [sample.get("group_index") for sample in samples],
        [sample.get("index") for sample in samples],
        group_size,
        str(path),
        place,
    )
    rows = [
        {"rollout_id": rollout_id, "group_index": group, "index": slot, **_columns(sample, place(number))}
        for number, (sample, (group, slot)) in enumerate(zip(samples, groups, strict=True))
    ]
    numbered = any(sample.get("index") is not None for sample in samples)
    return rollout_of(rows, place, () if numbered else {"index"})


def _rollout_id(content: Any, path: Path) -> int | None:
    if isinstance(content, dict) and content.get("rollout_id") is not None:
        rollout_id = whole(content, "rollout_id", str(path))
        step_in_name(path.stem, rollout_id, str(path))
        return rollout_id
    return int(path.stem) if path.stem.isascii() and path.stem.isdigit() else None


def _columns(sample: Mapping[str, Any], place: str) -> dict[str, Any]:
    response_length = whole(sample, "response_length", place)
    prompt_ids, output_ids = split_tokens(sample.get("tokens"), response_length, place)
    status = sample.get("status")
    versions = plain(sample.get("weight_versions"))
    return {
        "prompt_ids": prompt_ids,
        "output_ids": output_ids,
        "logprobs": plain(sample.get("rollout_log_probs")),
        "text": sample.get("response"),
        "finish_reason": FINISH_REASON_OF_STATUS.get(status) if isinstance(status, str) else None,
        "status": status,
        "reward": _reward(sample.get("reward")),
        "loss_mask": plain(sample.get("loss_mask")),
        "response_length": response_length,
        "weight_versions": None if versions == [] else versions,
        "media_sha256": _media(sample.get("multimodal_inputs")),
        **_cache(sample.get("prefix_cache_info"), requests=len(versions) if isinstance(versions, list) else 0),
        "extra": _extra(sample),
    }


def _reward(reward: Any) -> Any:
    if isinstance(reward, dict):
        return plain(reward.get("score", reward.get("reward")))
    return plain(reward)


def _cache(info: Any, requests: int) -> dict[str, Any]:
    total = plain(info.get("total_prompt_tokens")) if isinstance(info, dict) else None
    if total is None or total == 0 or requests > 1:
        return {}
    return {"prompt_tokens": total, "cached_tokens": plain(info.get("cached_tokens"))}


def _media(inputs: Any) -> list[str] | None:
    """A hash of each medium, kind by kind; `None` where there are none, or one is of a kind that has no bytes."""
    items = [item for value in inputs.values() for item in _items(value)] if isinstance(inputs, dict) else []
    content = [_bytes(item) for item in items]
    if not content or None in content:
        return None
    return [hashlib.sha256(one).hexdigest() for one in content if one is not None]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _bytes(item: Any) -> bytes | None:
    if isinstance(item, str):
        return item.encode(errors="surrogatepass")
    if isinstance(item, bytes):
        return item
    numpy = getattr(item, "numpy", None)
    try:
        array = numpy() if callable(numpy) else item
    except (TypeError, RuntimeError):  # sparse, of a type that NumPy lacks, or without data
        return None
    return array.tobytes() if hasattr(array, "tobytes") else None


def _extra(sample: Mapping[str, Any]) -> dict[str, Any]:
    extra = {name: value for name, value in sample.items() if name not in _READ and _says_something(value)}
    if isinstance(sample.get("reward"), dict):
        extra["reward"] = sample["reward"]
    for name in _DESCRIBED:
        if name in extra:
            extra[name] = _sizes(extra[name])
    return extra


def _says_something(value: Any) -> bool:
    return value is not None and not (isinstance(value, (str, list, dict)) and not value)


def _sizes(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _sizes(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {"length": len(value)}
    return value
