"""Requests: every sample came out of exactly one answer, and every request is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from parity.contracts.facts import NULL, Facts, Groups, over_rows
from parity.contracts.outcomes import SHOWN, Case, Outcome
from parity.contracts.wire import Output, outputs_of
from parity.exchanges import Exchange
from parity.findings import Where
from parity.samples import Rollout

Key = tuple[int | None, int | None]


@dataclass(slots=True)
class Account:
    """What was sent for one group: answered requests by arm, failed and repeated ones, and outputs as received."""

    answered: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    repeated: int = 0
    outputs: list[tuple[Any, ...]] = field(default_factory=list)
    unreadable: int = 0


def accounts_of(exchanges: Iterable[Exchange]) -> dict[Key, Account]:
    """Books every exchange on its group, `(rollout_id, group_index)`."""
    accounts: dict[Key, Account] = {}
    for exchange in exchanges:
        account = accounts.setdefault((exchange.rollout_id, exchange.group_index), Account())
        account.repeated += exchange.attempt > 1
        if exchange.status != 200:
            account.failed += 1
            continue
        account.answered[exchange.arm or "unknown"] += 1
        outputs = outputs_of(exchange, "")
        account.unreadable += len(exchange.outputs) - len(outputs)
        account.outputs += map(_content, outputs)
    return accounts


def _content(output: Output) -> tuple[Any, ...]:
    """What a sample keeps of an output, hashable."""
    values = None if output.triples is None else list(map(itemgetter(0), output.triples))
    sound = values is not None and set(map(type, values)) <= {float, int, type(None)}
    return (
        tuple(output.ids or ()),
        tuple(values) if values is not None and sound else None,
        str(output.finish.get("type")),
    )


def requests_accounted(facts: Facts, groups: Groups, accounts: dict[Key, Account], chunk: int | None) -> Outcome:
    """A group of n takes n answered requests sample by sample, one batched or native (or one a chunk)."""
    booked = [accounts.get(_key(facts, int(row))) for row in groups.first]

    def wanted(group: int) -> dict[str, int]:
        account, size = booked[group], int(groups.sizes[group])
        arms = sorted(account.answered) if account else []
        arm = arms[0] if len(arms) == 1 else str(facts.arm[groups.first[group]] or "unknown")
        return {arm: size if arm == "per-sample" else -(-size // (chunk or size))}

    def fails(group: int) -> bool:
        account = booked[group]
        return account is None or dict(account.answered) != wanted(group) or account.failed < account.repeated

    def case(group: int) -> tuple[Any, Any, str]:
        account = booked[group]
        if account is None:
            return wanted(group), None, f"no request is recorded for a group of {groups.sizes[group]} samples"
        found = {**account.answered, "failed": account.failed, "repeated": account.repeated}
        return (
            wanted(group),
            found,
            f"a group of {groups.sizes[group]} samples took requests {found}, {wanted(group)} expected",
        )

    return over_rows(
        facts,
        known=np.full(len(groups), bool(accounts)),
        fails=np.asarray([fails(group) for group in range(len(groups))], dtype=np.bool_),
        field="requests",
        case=case,
        missing="no exchanges recorded",
        groups=groups,
    )


def samples_received(facts: Facts, groups: Groups, rollout: Rollout, accounts: dict[Key, Account]) -> Outcome:
    """The samples of a group are the outputs received for it: none changed, lost, invented or used twice.

    Where one request brought the whole group, they stand in the order received.
    """
    columns = ("output_ids", "logprobs", "finish_reason")
    ids, logprobs, finish = (rollout.table.column(name).to_pylist() for name in columns)
    known = np.zeros(len(groups), dtype=np.bool_)
    fails = np.zeros(len(groups), dtype=np.bool_)
    spare: dict[int, tuple[list[int], int]] = {}
    for group in range(len(groups)):
        rows = groups.rows(group).tolist()
        account = accounts.get(_key(facts, rows[0]))
        known[group] = account is not None and all(ids[row] is not None for row in rows)
        if account is None or not known[group]:
            continue
        left = Counter(account.outputs)
        strangers = []
        contents = [
            (tuple(ids[row]), None if logprobs[row] is None else tuple(logprobs[row]), str(finish[row])) for row in rows
        ]
        for row, content in zip(rows, contents, strict=True):
            left[content] -= 1
            if left[content] < 0:
                strangers.append(row)
        unused = sum(count for count in left.values() if count > 0)
        if not strangers and not unused and account.answered.total() == 1:
            in_order = zip(rows, contents, account.outputs, strict=True)
            strangers = [row for row, content, received in in_order if content != received]
        fails[group] = bool(strangers or unused or account.unreadable)
        spare[group] = strangers, unused

    def case(group: int) -> tuple[Any, Any, str]:
        strangers, unused = spare[group]
        slots = facts.index[strangers].tolist()
        message = f"slots {slots} hold other outputs than were received for them, {unused} outputs are in no sample"
        return {"slots": [], "unused": 0}, {"slots": slots, "unused": unused}, message

    return over_rows(
        facts,
        known=known,
        fails=fails,
        field="output_ids",
        case=case,
        missing="no exchanges or no output ids recorded",
        groups=groups,
    )


def groups_answered(facts: Facts, groups: Groups, accounts: dict[Key, Account]) -> Outcome:
    """Every group that was asked for is in the rollout."""
    present = {_key(facts, int(row)) for row in groups.first}
    named = [key for key in accounts if key[1] is not None]
    lost = [key for key in named if key not in present]
    cases = tuple(
        Case(
            Where(None, *key, None, "group_index"),
            "in the rollout",
            "missing",
            f"{accounts[key].answered.total()} answered and {accounts[key].failed} failed requests, but no sample",
        )
        for key in lost[:SHOWN]
    )
    unnamed = len(accounts) - len(named)
    return Outcome(len(named), len(lost), cases, unnamed, "the exchanges do not say which group they are for")


def _key(facts: Facts, row: int) -> Key:
    rollout_id = int(facts.rollout_id[row])
    return None if rollout_id == NULL else rollout_id, int(facts.group_index[row])
