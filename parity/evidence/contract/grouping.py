"""Groups: their size, their slots, and what the samples of one group must share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from parity.evidence.contract.columns import NULL, Bools, Ints, Objects
from parity.evidence.contract.facts import Facts, Groups, known_objects, over_rows
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import Message, quantity


def output_count(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Every group has `group_size` samples."""
    size = rules.group_size

    def case(group: int) -> tuple[Any, Any, Message]:
        count = int(groups.sizes[group])
        message = Message("a group of {samples}, not {size}", samples=quantity(count, "samples"), size=size)
        if size and count % size == 0:
            times = count // size
            message = Message(
                "{message}: its prompt was drawn {times} times, or repeated", message=message, times=times
            )
        return size, count, message

    return over_rows(
        facts,
        known=np.full(len(groups), size is not None),
        fails=groups.sizes != size,
        field="index",
        case=case,
        missing=Message("the group size is not given"),
        groups=groups,
    )


def slot_index(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The slots of a group are 0 to n - 1, each once."""
    slots = np.arange(len(facts)) - np.repeat(groups.starts, groups.sizes)
    wrong = groups.any(_unsorted(groups, facts.index[groups.order] != slots))

    def case(group: int) -> tuple[Any, Any, Message]:
        slots = facts.index[groups.rows(group)].tolist()
        message = Message(
            "the slots of a group of {samples} are {slots}; index counts from 0 in each group",
            samples=quantity(len(slots), "samples"),
            slots=slots,
        )
        return list(range(len(slots))), slots, message

    return over_rows(
        facts,
        known=facts.recorded("index")[groups.first],
        fails=wrong,
        field="index",
        case=case,
        missing=Message("the source numbers no samples; the reader numbered them"),
        groups=groups,
    )


def row_order(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Samples stand by rollout, group and slot, so that a reader that slices by n sees whole groups."""
    misplaced = groups.order != np.arange(len(facts))
    first = groups.order.copy()

    def case(row: int) -> tuple[Any, Any, Message]:
        later = Message("after") if first[row] < row else Message("before")
        return int(first[row]), row, Message("row {row} holds a sample that belongs {later} it", row=row, later=later)

    return over_rows(
        facts,
        known=facts.recorded("order"),
        fails=misplaced,
        field="index",
        case=case,
        missing=Message("the reader put the samples in order"),
    )


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
    columns = {name: getattr(facts, name) for name in ("temperature", "top_p", "top_k", "max_new_tokens")}
    first = groups.first[groups.code]
    # NaN stands for a parameter that is not recorded, and equals itself here
    differs = {
        name: (values != values[first]) & ((values == values) | (values[first] == values[first]))
        for name, values in columns.items()
    }
    recorded = (facts.temperature == facts.temperature) | (facts.max_new_tokens != NULL)

    def named(row: int) -> str:
        return next(name for name, wrong in differs.items() if wrong[row])

    def value(row: int, name: str) -> Any:
        number = columns[name][row].item()
        return number if number == number and number != NULL else None

    def case(row: int) -> tuple[Any, Any, Message]:
        name, slot = named(row), int(facts.index[first[row]])
        message = Message("{field} differs from slot {slot} of its group", field=name, slot=slot)
        return value(int(first[row]), name), value(row, name), message

    return over_rows(
        facts,
        known=recorded & recorded[first],
        fails=np.logical_or.reduce(list(differs.values())),
        field=named,
        case=case,
        missing=Message("no sampling parameters recorded"),
    )


def group_arm(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """All samples of a group were asked for by one arm."""
    return _shared(facts, groups, "arm", codes_of(facts.arm), known_objects(facts.arm), lambda row: facts.arm[row])


def weight_version(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """All tokens of a group come from one weight version, and from the trainer's where that is given.

    A sample without tokens, as an aborted one that was put back, has no version.
    """
    versions = facts.weight_versions
    known = known_objects(versions)
    none_yet = np.fromiter((row == () for row in versions), np.bool_, len(facts)) & (facts.output_length <= 0)
    wanted: dict[int, str] = {}
    for row in groups.order.tolist():
        if versions[row]:
            trainer = rules.weight_versions.get(int(facts.rollout_id[row]))
            wanted.setdefault(int(groups.code[row]), versions[row][0] if trainer is None else trainer)
    fails = np.zeros(len(facts), dtype=np.bool_)
    for row in np.flatnonzero(known & (not rules.partial_versions)).tolist():
        fails[row] = set(versions[row]) != {wanted.get(int(groups.code[row]))}

    def case(row: int) -> tuple[Any, Any, Message]:
        expected = wanted.get(int(groups.code[row]))
        message = Message(
            "tokens of weight versions {versions} in a group of {expected}",
            versions=list(versions[row]),
            expected=expected,
        )
        return [expected], list(versions[row]), message

    return over_rows(
        facts,
        known=known,
        fails=fails,
        field="weight_versions",
        case=case,
        missing=Message("no weight version recorded"),
        concerns=~none_yet,
    )


def seed_distinct(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The seeds of a group are distinct; equal seeds give copies, not samples."""
    return _repeated_seeds(facts, groups.code, Message("its group"))


def seed_reuse(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No seed serves two samples of one rollout; across groups shared noise correlates them."""
    return _repeated_seeds(facts, facts.rollout_id, Message("its rollout"))


def _repeated_seeds(facts: Facts, scope: Ints, of: Message) -> Outcome:
    order = np.lexsort((np.arange(len(facts)), facts.sampling_seed, scope))
    seed, place = facts.sampling_seed[order], scope[order]
    again = np.zeros(len(facts), dtype=np.bool_)
    again[order[1:]] = (seed[1:] == seed[:-1]) & (place[1:] == place[:-1])

    def case(row: int) -> tuple[Any, Any, Message]:
        value = int(facts.sampling_seed[row])
        message = Message("seed {value} serves an earlier sample of {scope} too", value=value, scope=of)
        return "a seed of its own", value, message

    known, missing = facts.sampling_seed != NULL, Message("no seed recorded")
    return over_rows(facts, known=known, fails=again, field="sampling_seed", case=case, missing=missing)


def _shared(facts: Facts, groups: Groups, field: str, key: Ints, known: Bools, value: Callable[[int], Any]) -> Outcome:
    first = groups.first[groups.code]

    def case(row: int) -> tuple[Any, Any, Message]:
        slot = int(facts.index[first[row]])
        message = Message("{field} differs from slot {slot} of its group", field=field, slot=slot)
        return value(int(first[row])), value(row), message

    return over_rows(
        facts,
        known=known & known[first],
        fails=key != key[first],
        field=field,
        case=case,
        missing=Message("no {field} recorded", field=field),
    )


def prompt_named(facts: Facts, row: int) -> str:
    """A prompt by its length and checksum."""
    return f"{facts.prompt_length[row]} tokens, CRC-32 {facts.prompt_hash[row] & 0xFFFFFFFF:08x}"


def codes_of(values: Objects) -> Ints:
    """A number for each distinct object of a column, (rows,)."""
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values))


def _unsorted(groups: Groups, in_order: Bools) -> Bools:
    rows = np.empty_like(in_order)
    rows[groups.order] = in_order
    return rows
