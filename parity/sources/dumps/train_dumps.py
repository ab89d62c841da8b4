"""Train dumps of slime, Miles and Relax: what ``--save-debug-train-data`` writes, after rewards became advantages.

Either one file a rank, ``{"rollout_id", "rank", "rollout_data": {column: […]}}`` (Miles, early slime), or one of all
samples, ``{"rollout_id", "samples": [{column: …}]}`` (slime's format 2, Relax); `miles/utils/train_dump_utils.py`,
`slime/observability/train_data_utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.errors import InputError, UsageError
from parity.records.samples import TRAINER_LOGPROBS, Rollout
from parity.sources.dumps.rows import plain, rollout_of, split_tokens, whole

_READ = {"tokens", "response_lengths", "rollout_log_probs", "loss_masks", "advantages", "raw_reward", "weight_versions"}
_SCALARS = (
    "rewards",
    "truncated",
    "total_lengths",
    "rollout_ids",
    "rollout_position",
    "sample_index",
    "sample_indices",
)


def is_train_dump(content: Any) -> bool:
    """Whether a PyTorch file holds samples as the trainer takes them."""
    if not isinstance(content, dict):
        return False
    samples = content.get("samples")
    by_sample = isinstance(samples, list) and all(
        isinstance(sample, dict) and "response_lengths" in sample for sample in samples[:1]
    )
    return bool(samples and by_sample) or isinstance(content.get("rollout_data"), dict)


def rollout_of_train_dump(content: Mapping[str, Any], path: Path, group_size: int | None) -> Rollout:
    """The samples of one file.

    Train dumps keep no group: with `group_size` n, sample i (over all groups, as hosts number samples) is slot i mod n
    of group i div n. The advantage is that of the response where all trained tokens have the same, as in GRPO without
    a penalty by token; else it is not known. Of what is split over context-parallel ranks, no rank has the whole, so
    that it counts as not recorded.

    Raises:
        InputError: A column is missing, of the wrong length, or of the wrong type.
        UsageError: The group size is not given.
    """
    if group_size is None:
        raise UsageError(f"{path}: a train dump does not say which samples are one group; give --group-size N")
    rollout_id = whole(content, "rollout_id", str(path))
    samples = _samples(content, path)
    split = bool(content.get("cp_size", 1) != 1)

    def place(number: int) -> str:
        return f"{path}: sample {number}"

    rows = []
    for number, sample in enumerate(samples):
        position = _position(sample, place(number))
        group, slot = divmod(position, group_size)
        columns = _columns(sample, place(number), split)
        columns["extra"] |= {"rank": content["rank"]} if "rollout_data" in content and "rank" in content else {}
        rows.append({"rollout_id": rollout_id, "group_index": group, "index": slot, **columns})
    return rollout_of(rows, place)


def _samples(content: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    """One mapping a sample, with the reward before normalisation, which dumps keep once for the whole batch."""
    if "rollout_data" in content:
        columns = content["rollout_data"]
        count = len(_sequence(columns, "response_lengths", path))
        if len(_sequence(columns, "tokens", path)) != count:
            raise InputError(f"{path}: {len(columns['tokens'])} token lists for {count} response lengths")
        samples = [
            {name: column[number] for name, column in columns.items() if _is_by_sample(column, count)}
            for number in range(count)
        ]
        rewards, positions = columns.get("raw_reward"), plain(columns.get("partition"))
    else:
        if odd := [number for number, sample in enumerate(content["samples"]) if not isinstance(sample, dict)]:
            raise InputError(f"{path}: sample {odd[0]}: a sample is a mapping")
        samples = [dict(sample) for sample in content["samples"]]
        rewards, positions = content.get("raw_reward"), [sample.get("rollout_position") for sample in samples]
    rewards = plain(rewards)
    ordered = isinstance(positions, list) and len(positions) == len(samples)
    for number, sample in enumerate(samples):
        position = plain(positions[number]) if ordered else None
        known = isinstance(rewards, list) and isinstance(position, int) and 0 <= position < len(rewards)
        sample["raw_reward"] = plain(rewards[position]) if known else None
    return samples


def _sequence(columns: Mapping[str, Any], name: str, path: Path) -> Sequence[Any]:
    column = columns.get(name)
    if not isinstance(column, (list, tuple)) and not hasattr(column, "tolist"):
        raise InputError(f"{path}: column {name!r} of the train data is {type(column).__name__}, not a list")
    return column  # type: ignore[return-value]


def _is_by_sample(column: Any, count: int) -> bool:
    return (isinstance(column, (list, tuple)) or bool(getattr(column, "shape", ()))) and len(column) == count


def _position(sample: Mapping[str, Any], place: str) -> int:
    for name in ("sample_index", "sample_indices", "rollout_position", "partition"):
        if sample.get(name) is not None:
            return whole(sample, name, place)
    raise InputError(f"{place}: neither sample_indices nor partition says which sample it is")


def _columns(sample: Mapping[str, Any], place: str, split: bool) -> dict[str, Any]:
    response_length = whole(sample, "response_lengths", place)
    prompt_ids, output_ids = split_tokens(sample.get("tokens"), response_length, place)
    mask = plain(sample.get("loss_masks"))
    return {
        "prompt_ids": prompt_ids,
        "output_ids": output_ids,
        "logprobs": None if split else plain(sample.get("rollout_log_probs")),
        "reward": sample["raw_reward"],
        "advantage": None if split else _advantage(plain(sample.get("advantages")), mask),
        "loss_mask": mask,
        "response_length": response_length,
        "weight_versions": None if (versions := plain(sample.get("weight_versions"))) == [] else versions,
        "extra": _extra(sample, split),
    }


def _extra(sample: Mapping[str, Any], split: bool) -> dict[str, Any]:
    """What else a dump holds of a sample: numbers, the trainer's log-probs, and of other lists the length alone."""
    extra = {name: plain(sample[name]) for name in _SCALARS if sample.get(name) is not None}
    if split:
        return extra
    if isinstance(logprobs := plain(sample.get("log_probs")), list):
        extra[TRAINER_LOGPROBS] = logprobs
    for name, value in sample.items():
        if name not in _READ and name not in _SCALARS and name != "log_probs" and hasattr(value, "__len__"):
            shape = list(getattr(value, "shape", ())) or [len(value)]
            extra[name] = {"shape": shape} if not isinstance(value, (str, dict)) else value
    return extra


def _advantage(advantages: Any, mask: Any) -> float | None:
    """The one value of all trained tokens, if there is one."""
    if not isinstance(advantages, list):
        return None
    whole_mask = isinstance(mask, list) and len(mask) == len(advantages)
    trained = [value for value, kept in zip(advantages, mask, strict=True) if kept] if whole_mask else advantages
    return trained[0] if trained and trained.count(trained[0]) == len(trained) else None
