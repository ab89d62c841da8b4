"""verl's ``trainer.rollout_data_dir``: JSON lines of decoded text, one file a step, ``<global_step>.jsonl``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity.errors import InputError
from parity.records.json_lines import read_lines
from parity.records.samples import Rollout
from parity.sources.dumps.rows import rollout_of, step_in_name, whole

_READ = {"input", "output", "score", "step"}


def is_verl_rollout(row: dict[str, Any]) -> bool:
    """Whether a line is one of a rollout file."""
    return row.keys() >= _READ


def read_verl_rollout(path: Path, group_size: int | None) -> Iterator[Rollout]:
    """The samples of one step by group: text and score; verl writes neither token ids nor log-probs.

    A group is what shares the first part of ``uid`` (``<uid>_<session>_<i>``), which its later trainer writes, and else
    what has the same input; where few inputs have several times the lines of most, they were drawn so often, and are as
    many groups. Groups count in the order met, and slots by line.

    Raises:
        InputError: A line is damaged or of the wrong type, or the lines are of several steps.
    """
    lines = list(read_lines(path))
    places = [place for place, _ in lines]
    step = whole(lines[0][1], "step", places[0])
    step_in_name(path.name.partition(".")[0], step, str(path))
    members: dict[str, list[int]] = {}
    for number, (place, row) in enumerate(lines):
        if missing := sorted(_READ - row.keys()):
            raise InputError(f"{place}: fields {missing} are missing")
        if whole(row, "step", place) != step:
            raise InputError(f"{place}: step {row['step']} in a file of step {step}")
        members.setdefault(_group(row), []).append(number)
    groups = _drawn([*members.values()], group_size) if "uid" not in lines[0][1] else [*members.values()]
    order = [(group, slot, number) for group, numbers in enumerate(groups) for slot, number in enumerate(numbers)]
    rows = [
        {"rollout_id": step, "group_index": group, "index": slot, **_columns(lines[number][1])}
        for group, slot, number in order
    ]
    yield rollout_of(rows, lambda row: places[order[row][2]], {"index", "order"})


SELDOM = 0.1
"""The share of inputs up to which several draws of one are taken for chance, and not for lines written too often."""


def _drawn(members: list[list[int]], group_size: int | None) -> list[list[int]]:
    """Lines by draw: those of an input that was drawn several times are parted into groups of the usual size."""
    usual = group_size or Counter(map(len, members)).most_common(1)[0][0]
    often = [numbers for numbers in members if len(numbers) > usual and len(numbers) % usual == 0]
    if len(often) > SELDOM * len(members):
        return members
    groups: list[list[int]] = []
    for numbers in members:
        size = usual if numbers in often else len(numbers)
        groups += [numbers[start : start + size] for start in range(0, len(numbers), size)]
    return groups


def _group(row: dict[str, Any]) -> str:
    uid = row.get("uid")
    return f"uid {uid.rsplit('_', 2)[0]}" if isinstance(uid, str) else f"input {row['input']}"


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    extra = {name: value for name, value in row.items() if name not in _READ}
    return {"text": row["output"], "reward": row["score"], "extra": {"prompt": row["input"], **extra}}
