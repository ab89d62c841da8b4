"""Groups of two recordings at fixed weights, brought together by their prompts (L1)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from parity.errors import InputError
from parity.evidence.metric_findings import metric_finding
from parity.findings import Finding, Level, Message, Status, listed, quantity
from parity.records.samples import Rollout

CHECK = "sampling_matched"

Ints = npt.NDArray[np.int64]
Keys = Sequence[Hashable]

_finding = partial(metric_finding, Level.SAMPLING, CHECK)


@dataclass(frozen=True, slots=True)
class Matched:
    """Groups of the same prompts in both arms, numbered alike, and what of the recordings is not among them.

    Attributes:
        rollouts: The baseline's samples and the experiment's, group by group from 0 on, all of one rollout.
        size: Samples of each group.
        findings: On what was matched, and on the weights.
    """

    rollouts: tuple[Rollout, Rollout]
    size: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    key: Hashable
    rows: Ints


def match_prompts(rollouts: tuple[Rollout, Rollout], arms: tuple[str, str], rng: np.random.Generator) -> Matched:
    """Pairs each group of the baseline with a group of the experiment that has the same prompt.

    Prompts are the same where their token ids are, or their texts where a recording has no ids, and their images. A
    prompt that several groups have is paired as often as both arms have it, in their order. Groups have as many samples
    as most of them have in the arm where that is fewer; of larger groups samples are drawn at random, and smaller ones
    are left out.

    Args:
        rollouts: The baseline's samples and the experiment's.
        arms: What the arms are called.
        rng: Draws samples of groups that are too large.

    Raises:
        InputError: An arm has no samples, prompts are not recorded, or no prompt is in both.
    """
    for arm, rollout in zip(arms, rollouts, strict=True):
        if not len(rollout):
            raise InputError(f"{arm}: no sample in it")
    named_by, keys = _keys(rollouts, arms)
    groups = [_groups(rollout, of_arm) for rollout, of_arm in zip(rollouts, keys, strict=True)]
    size = min(_usual_size(of_arm) for of_arm in groups)
    kept = [[group for group in of_arm if len(group.rows) >= size] for of_arm in groups]
    pairs = _paired(kept[0], kept[1])
    if not pairs:
        raise InputError(
            f"no prompt of {arms[0]} ({len(groups[0])} groups) is a prompt of {arms[1]} ({len(groups[1])} groups), by "
            f"their {named_by}"
        )
    tables = tuple(
        _numbered(rollout, [pair[side].rows for pair in pairs], size, rng) for side, rollout in enumerate(rollouts)
    )
    left = [len(of_arm) - len(pairs) for of_arm in groups]
    small = [len(of_arm) - len(of_kept) for of_arm, of_kept in zip(groups, kept, strict=True)]
    findings = [
        _matched_finding(named_by, len(pairs), size, groups),
        *(_left_out(arm, *counts) for arm, *counts in zip(arms, left, small, map(len, groups), strict=True)),
        _weights(rollouts, arms),
    ]
    return Matched((tables[0], tables[1]), size, tuple(finding for finding in findings if finding is not None))


def _keys(rollouts: tuple[Rollout, Rollout], arms: tuple[str, str]) -> tuple[str, list[Keys]]:
    """What prompts are told apart by, and the key of each sample's prompt, by arm."""
    images = [rollout.table.column("media_sha256").to_pylist() for rollout in rollouts]
    ids = [rollout.ragged("prompt_ids") for rollout in rollouts]
    if all(column.valid.all() for column in ids):
        found: list[list[Any]] = [[column[row].tobytes() for row in range(len(column.valid))] for column in ids]
        named_by = "token ids"
    else:
        found, named_by = [_texts(rollout, arm) for rollout, arm in zip(rollouts, arms, strict=True)], "texts"
    return named_by, [
        [(key, tuple(shown or ())) for key, shown in zip(keys, of_arm, strict=True)]
        for keys, of_arm in zip(found, images, strict=True)
    ]


def _texts(rollout: Rollout, arm: str) -> list[Any]:
    """The prompt of each sample as its source wrote it: a text, or messages."""
    texts = []
    for row, extra in enumerate(rollout.table.column("extra").to_pylist()):
        prompt = orjson.loads(extra).get("prompt") if extra else None
        if not prompt:
            raise InputError(
                f"{arm}, sample {row}: neither prompt_ids nor a prompt's text in every sample of both recordings, so "
                "that prompts cannot be matched"
            )
        texts.append(prompt if isinstance(prompt, str) else orjson.dumps(prompt))
    return texts


def _groups(rollout: Rollout, keys: Keys) -> list[_Group]:
    """The groups in their order; the samples of a group whose prompts differ are groups of their own prompt."""
    order: dict[Hashable, list[int]] = {}
    names = zip(rollout.integers("rollout_id").tolist(), rollout.integers("group_index").tolist(), strict=True)
    for row, (name, key) in enumerate(zip(names, keys, strict=True)):
        order.setdefault((name, key), []).append(row)
    return [_Group(key, np.array(rows)) for (_, key), rows in order.items()]  # type: ignore[misc, has-type]


def _usual_size(groups: Sequence[_Group]) -> int:
    sizes, counts = np.unique([len(group.rows) for group in groups], return_counts=True)
    return int(sizes[np.argmax(counts)])


def _paired(baseline: Sequence[_Group], experiment: Sequence[_Group]) -> list[tuple[_Group, _Group]]:
    """Groups of the same prompt: the first of one arm with the first of the other, and so on."""
    waiting: dict[Hashable, list[_Group]] = {}
    for group in reversed(experiment):
        waiting.setdefault(group.key, []).append(group)
    return [(group, waiting[group.key].pop()) for group in baseline if waiting.get(group.key)]


def _numbered(rollout: Rollout, groups: Sequence[Ints], size: int, rng: np.random.Generator) -> Rollout:
    """The samples of these groups, `size` of each in the order of their slots, with group and slot counted from 0."""
    slots = rollout.integers("index")
    chosen = [np.sort(rows if len(rows) == size else rng.choice(rows, size, replace=False)) for rows in groups]
    rows = np.concatenate([of_group[np.argsort(slots[of_group], kind="stable")] for of_group in chosen])
    table = rollout.table.take(pa.array(rows))
    numbers = {
        "rollout_id": np.zeros(len(rows), dtype=np.int64),
        "group_index": np.repeat(np.arange(len(groups)), size),
        "index": np.tile(np.arange(size), len(groups)),
    }
    for name, values in numbers.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values, pa.int64()))
    return Rollout(table)


def _matched_finding(named_by: str, pairs: int, size: int, groups: Sequence[Sequence[_Group]]) -> Finding:
    message = Message(
        "{pairs} of {size} have the same prompt in both arms, by their {named_by}; the baseline has {baseline}, the "
        "experiment {experiment}",
        pairs=quantity(pairs, "groups"),
        size=quantity(size, "samples"),
        named_by=Message("token ids") if named_by == "token ids" else Message("texts"),
        baseline=quantity(len(groups[0]), "groups"),
        experiment=quantity(len(groups[1]), "groups"),
    )
    evidence = {"units": pairs, "baseline": len(groups[0]), "experiment": len(groups[1]), "unit": "prompt group"}
    return _finding("prompts", Status.PASS, message, evidence)


def _left_out(arm: str, left: int, small: int, groups: int) -> Finding | None:
    if not left:
        return None
    message = Message(
        "{left} of {groups} of {arm} are not compared: {small} have fewer samples than the others, {rest} have a "
        "prompt that the other arm lacks",
        left=left,
        groups=quantity(groups, "groups"),
        arm=arm,
        small=small,
        rest=left - small,
    )
    return _finding(f"groups of {arm}", Status.NOT_COMPARED, message, {"left_out": left, "small": small})


def _weights(rollouts: tuple[Rollout, Rollout], arms: tuple[str, str]) -> Finding:
    """Whether the samples were drawn from the same weights: a difference of arms means nothing else only then."""
    metric = "weights"
    versions = [rollout.table.column("weight_versions").to_pylist() for rollout in rollouts]
    evidence = {
        arm: sorted({version for row in of_arm for version in row or ()})[:8]
        for arm, of_arm in zip(arms, versions, strict=True)
    }
    unknown = sum(not row for of_arm in versions for row in of_arm)
    if unknown:
        message = Message(
            "weights: {unknown:,} of {samples} name no weight version, so equal weights are taken for granted and not "
            "seen: a difference may be one of weights",
            unknown=unknown,
            samples=quantity(sum(map(len, versions)), "samples"),
        )
        return _finding(metric, Status.NOT_COMPARED, message, evidence)
    changing = [arm for arm, of_arm in evidence.items() if len(of_arm) > 1]
    if changing:
        message = Message(
            "weights: {arms} changed weights while it was recorded ({versions}); sampling is compared at fixed weights",
            arms=listed(changing),
            versions=listed([version for arm in changing for version in evidence[arm]]),
        )
        return _finding(metric, Status.INCONCLUSIVE, message, evidence)
    first, second = (evidence[arm][0] for arm in arms)
    if first != second:
        message = Message(
            "weights: {baseline} names version {first}, {experiment} version {second}; a difference may be one of "
            "weights",
            baseline=arms[0],
            experiment=arms[1],
            first=first,
            second=second,
        )
        return _finding(metric, Status.NOT_COMPARED, message, evidence)
    message = Message("weights: every sample of both arms names version {version}", version=first)
    return _finding(metric, Status.PASS, message, evidence)
