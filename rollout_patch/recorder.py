"""Recording: what was sent and what came back, as JSON lines that a contract check reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollout_patch.group import GroupReport
from rollout_patch.media import digest
from rollout_patch.requests import SEED

STATUS_OF_FINISH_REASON = {"stop": "completed", "length": "truncated", "abort": "aborted"}


def append_line(path: Path, line: str) -> None:
    """Appends one line to a file."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(line + "\n")


def json_lines(
    path: Path, labels: Mapping[str, Any] | None = None, append: Callable[[Path, str], None] = append_line
) -> Callable[[Mapping[str, Any]], None]:
    """A recorder that appends each object as one line to a file.

    Args:
        path: The file, ``*.exchanges.jsonl`` or ``*.samples.jsonl``; its folder must exist.
        labels: Fields that every line gets besides its own, such as `rollout_id` and `group_index`.
        append: Writes a line, encoded by then: what changes in the object afterwards is not in it.
    """

    def record(row: Mapping[str, Any]) -> None:
        append(path, json.dumps({**row, **(labels or {})}, separators=(",", ":")))

    return record


def sample_rows(report: GroupReport, rollout_id: int, group_index: int) -> list[dict[str, Any]]:
    """A group's samples as lines of ``*.samples.jsonl``, before they are scored; unknown fields are left out."""
    rows = []
    for index, (asked, output) in enumerate(zip(report.asked, report.outputs, strict=True)):
        params = asked.sampling_params
        media = [digest(item) for items in asked.media.values() for item in items]
        row = {
            "rollout_id": rollout_id,
            "group_index": group_index,
            "index": index,
            "prompt_ids": None if asked.input_ids is None else list(asked.input_ids),
            "output_ids": output.output_ids,
            "logprobs": output.logprobs,
            "text": output.text,
            "finish_reason": output.finish_reason,
            "status": STATUS_OF_FINISH_REASON[output.finish_reason],
            "response_length": len(output.output_ids),
            "weight_versions": None if output.weight_version is None else [output.weight_version],
            "sampling_seed": params.get(SEED),
            **{name: params.get(name) for name in ("max_new_tokens", "temperature", "top_p", "top_k")},
            "prompt_tokens": output.prompt_tokens,
            "cached_tokens": output.cached_tokens,
            "media_sha256": media or None,
            "arm": report.arm_used,
        }
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows
