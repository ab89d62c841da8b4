"""Relax's ``--rollout-result-dir``: JSON lines, one file a rollout, ``train/<rollout_id>.jsonl``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity.errors import InputError
from parity.records.json_lines import read_lines
from parity.records.samples import Rollout
from parity.sources.dumps.rows import FINISH_REASON_OF_STATUS, groups_and_slots, rollout_of, step_in_name, whole

_COLUMN_OF_FIELD = {
    "response_token_ids": "output_ids",
    "response_rollout_log_probs": "logprobs",
    "response": "text",
    "status": "status",
    "reward": "reward",
    "prompt_token_count": "prompt_tokens",
    "response_token_count": "response_length",
}
_READ = {*_COLUMN_OF_FIELD, "rollout_id", "group_index"}


def is_relax_result(row: dict[str, Any]) -> bool:
    """Whether a line is one of a result file; those of mid-2026 have no token ids yet."""
    return {"rollout_id", "sample_index", "response", "response_token_count"} <= row.keys()


def read_relax_result(path: Path, group_size: int | None) -> Iterator[Rollout]:
    """The samples of one rollout by group, since Relax writes them in the order in which they finished.

    Prompt ids are not in the file, and a sample's slot is its place among its group. The finish reason follows from the
    status.

    Raises:
        InputError: A line is damaged or of the wrong type, or the lines are of several rollouts.
        UsageError: The lines name no group, and the group size is not given.
    """
    lines = list(read_lines(path))
    places = [place for place, _ in lines]
    for place, row in lines:
        if whole(row, "rollout_id", place) != lines[0][1]["rollout_id"]:
            raise InputError(f"{place}: rollout {row['rollout_id']} in a file of rollout {lines[0][1]['rollout_id']}")
    rollout_id = lines[0][1]["rollout_id"]
    step_in_name(path.name.partition(".")[0], rollout_id, str(path))
    groups = groups_and_slots(
        [row.get("group_index") for _, row in lines], [None] * len(lines), group_size, str(path), places.__getitem__
    )
    rows = [
        {"rollout_id": rollout_id, "group_index": group, "index": slot, **_columns(row)}
        for (_, row), (group, slot) in zip(lines, groups, strict=True)
    ]
    order = sorted(range(len(rows)), key=lambda number: groups[number])
    yield rollout_of([rows[number] for number in order], lambda number: places[order[number]], {"index", "order"})


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    columns = {column: row.get(field) for field, column in _COLUMN_OF_FIELD.items()}
    status = columns["status"]
    columns["finish_reason"] = FINISH_REASON_OF_STATUS.get(status) if isinstance(status, str) else None
    columns["extra"] = {name: value for name, value in row.items() if name not in _READ}
    return columns
