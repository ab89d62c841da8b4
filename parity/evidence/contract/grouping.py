"""Groups: their size, their slots, and what the samples of one group must share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from parity.evidence.contract.facts import NULL, Bools, Facts, Groups, Ints, Objects, known_objects, over_rows
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import quantity


def output_count(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Every group has `group_size` samples."""
    size = rules.group_size

    def case(group: int) -> tuple[Any, Any, str]:
        found = int(groups.sizes[group])
        return size, found, f"a group of {quantity(found, 'samples')}, not {size}"

    return over_rows(
        facts,
        known=np.full(len(groups), size is not None),
        fails=groups.sizes != size,
        field="index",
        case=case,
        missing="the group size is not given",
        groups=groups,
    )


def slot_index(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The slots of a group are 0 to n - 1, each once."""
    slots = np.arange(len(facts)) - np.repeat(groups.starts, groups.sizes)
    wrong = groups.any(_unsorted(groups, facts.index[groups.order] != slots))

    def case(group: int) -> tuple[Any, Any, str]:
        found = facts.index[groups.rows(group)].tolist()
        return (
            list(range(len(found))),
            found,
            f"the slots of a group of {quantity(len(found), 'samples')} are {found}; index counts from 0 in each group",
        )

    return over_rows(facts, known=_all(groups), fails=wrong, field="index", case=case, missing="", groups=groups)


def row_order(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Samples stand by rollout, group and slot, so that a reader that slices by n sees whole groups."""
    misplaced = groups.order != np.arange(len(facts))
    first = groups.order.copy()

    def case(row: int) -> tuple[Any, Any, str]:
        return (
            int(first[row]),
            row,
            f"row {row} holds a sample that belongs {'after' if first[row] < row else 'before'} it",
        )

    return over_rows(facts, known=_rows(facts), fails=misplaced, field="index", case=case, missing="")


def group_prompt(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """All samples of a group answer the same prompt ids."""
    named = partial(prompt_named, facts)
    return _shared(facts, groups, "prompt_ids", facts.prompt_hash, facts.prompt_length != NULL, named)


def group_media(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """All samples of a group carry the same media in the same order."""
    known = groups.any(known_objects(facts.media))[groups.code]  # a null beside a sibling's media is media lost
    return _shared(facts, groups, "media_sha256", codes_of(facts.media), known, lambda row: facts.media[row])


def group_params(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """All samples of a group were drawn with the same temperature, top_p, top_k and cap."""
    columns = {
        "temperature": facts.temperature,
        "top_p": facts.top_p,
        "top_k": facts.top_k,
        "cap": facts.max_new_tokens,
    }
    rows = np.empty(len(facts), dtype=object)
    rows[:] = list(zip(*(column.tolist() for column in columns.values()), strict=True)) if len(facts) else []
    known = (facts.temperature == facts.temperature) | (facts.max_new_tokens != NULL)
    names = list(columns)

    def value(row: int) -> Any:
        return {name: item for name, item in zip(names, rows[row], strict=True) if item != NULL and item == item}

    return _shared(facts, groups, "temperature", codes_of(_text(rows)), known, value)


def group_arm(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """All samples of a group were asked for by one arm."""
    return _shared(facts, groups, "arm", codes_of(facts.arm), known_objects(facts.arm), lambda row: facts.arm[row])


def weight_version(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """All tokens of a group come from one weight version, and from the trainer's where that is given."""
    known = known_objects(facts.weight_versions)
    first = groups.first[groups.code]
    fails = np.zeros(len(facts), dtype=np.bool_)
    wanted = facts.weight_versions[first]
    for row in np.flatnonzero(known & known[first]).tolist():
        versions = set(facts.weight_versions[row])
        trainer = rules.weight_versions.get(int(facts.rollout_id[row]))
        if trainer is not None:
            wanted[row] = (trainer,)
        fails[row] = not rules.partial_versions and (len(versions) != 1 or not versions <= set(wanted[row]))

    def case(row: int) -> tuple[Any, Any, str]:
        versions = list(facts.weight_versions[row])
        return (
            list(wanted[row])[:1],
            versions,
            f"tokens of weight versions {versions} in a group of {list(wanted[row])[:1]}",
        )

    return over_rows(
        facts,
        known=known & known[first],
        fails=fails,
        field="weight_versions",
        case=case,
        missing="no weight version recorded",
    )


def seed_distinct(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The seeds of a group are distinct; equal seeds give copies, not samples."""
    return _repeated_seeds(facts, groups.code, "its group")


def seed_reuse(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No seed serves two samples of one rollout; across groups shared noise correlates them."""
    return _repeated_seeds(facts, facts.rollout_id, "its rollout")


def _repeated_seeds(facts: Facts, scope: Ints, of: str) -> Outcome:
    order = np.lexsort((np.arange(len(facts)), facts.sampling_seed, scope))
    seed, place = facts.sampling_seed[order], scope[order]
    again = np.zeros(len(facts), dtype=np.bool_)
    again[order[1:]] = (seed[1:] == seed[:-1]) & (place[1:] == place[:-1])

    def case(row: int) -> tuple[Any, Any, str]:
        value = int(facts.sampling_seed[row])
        return "a seed of its own", value, f"seed {value} serves an earlier sample of {of} too"

    known = facts.sampling_seed != NULL
    return over_rows(facts, known=known, fails=again, field="sampling_seed", case=case, missing="no seed recorded")


def _shared(facts: Facts, groups: Groups, field: str, key: Ints, known: Bools, value: Callable[[int], Any]) -> Outcome:
    first = groups.first[groups.code]

    def case(row: int) -> tuple[Any, Any, str]:
        slot = int(facts.index[first[row]])
        return value(int(first[row])), value(row), f"{field} differs from slot {slot} of its group"

    return over_rows(
        facts,
        known=known & known[first],
        fails=key != key[first],
        field=field,
        case=case,
        missing=f"no {field} recorded",
    )


def prompt_named(facts: Facts, row: int) -> str:
    """A prompt by its length and checksum."""
    length = quantity(facts.prompt_length[row], "tokens")
    return f"{length}, CRC-32 {facts.prompt_hash[row] & 0xFFFFFFFF:08x}"


def codes_of(values: Objects) -> Ints:
    """A number for each distinct object of a column, (rows,)."""
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values))


def _text(values: Objects) -> Objects:
    return np.asarray([repr(value) for value in values], dtype=object)


def _all(groups: Groups) -> Bools:
    return np.ones(len(groups), dtype=np.bool_)


def _rows(facts: Facts) -> Bools:
    return np.ones(len(facts), dtype=np.bool_)


def _unsorted(groups: Groups, in_order: Bools) -> Bools:
    rows = np.empty_like(in_order)
    rows[groups.order] = in_order
    return rows
