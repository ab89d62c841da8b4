"""Requests: every sample came out of exactly one answer, and every request is accounted for.

What was received and what samples hold are compared by digest, so that books over any number of exchanges stay small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.evidence.contract.facts import NULL, Bools, Facts, Groups, Objects, integer_lists, known_objects, over_rows
from parity.evidence.contract.finish import unfinished
from parity.evidence.contract.outcomes import SHOWN, Case, Outcome
from parity.evidence.contract.streams import settled
from parity.evidence.contract.wire import WireOutput, outputs_of
from parity.findings import Where, quantity
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout

Key = tuple[int | None, int | None]
Content = tuple[bytes, bytes, str | None, bytes | None]
"""One output: digests of its ids and log-probs, with these as received and as 32 bits hold them, its finish reason, and
a digest of its text, if it has any."""

SAMPLING_PARAMS = ("temperature", "top_p", "top_k", "max_new_tokens")


@dataclass(slots=True)
class Account:
    """What was sent for one group: answered requests by arm, failed and repeated ones, and outputs as received.

    `asked` has the values of each sampling parameter over the answered requests.
    """

    answered: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    repeated: int = 0
    asked: dict[str, set[Any]] = field(default_factory=dict)
    outputs: list[Content] = field(default_factory=list)
    unreadable: int = 0


Accounts = dict[Key, Account]


def booked(exchanges: Iterable[Exchange], accounts: Accounts) -> Iterator[Exchange]:
    """The exchanges as they come, each booked on its group, `(rollout_id, group_index)`."""
    for exchange in exchanges:
        _book(accounts.setdefault((exchange.rollout_id, exchange.group_index), Account()), exchange)
        yield exchange


def _book(account: Account, exchange: Exchange) -> None:
    account.repeated += exchange.attempt > 1
    if exchange.status != 200:
        account.failed += 1
        return
    account.answered[exchange.arm or "unknown"] += 1
    answer = settled(exchange)
    outputs = outputs_of(answer, "")
    account.unreadable += len(answer.outputs) - len(outputs)
    account.outputs += map(_received, outputs)
    for output in outputs:
        for name in SAMPLING_PARAMS:
            value = output.params.get(name)
            if isinstance(value, (int, float)):
                account.asked.setdefault(name, set()).add(value)


def _received(output: WireOutput) -> Content:
    """What a sample keeps of an output."""
    values = None if output.triples is None else list(map(itemgetter(0), output.triples))
    sound = values is not None and set(map(type, values)) <= {float, int, type(None)}
    ids, finish = output.ids or [], output.finish.get("type")
    try:
        logprobs = np.asarray(values, np.float64) if sound else None
        tokens = np.asarray(ids, np.int32)
        contents = _digest(tokens, logprobs), _digest(tokens, _in_32_bits(logprobs))
    except OverflowError:  # an id or value that no sample can hold
        contents = (blake2b(repr((ids, values)).encode(), digest_size=16).digest(),) * 2
    return *contents, None if finish is None else str(finish), _text_digest(output.body.get("text"))


def _digest(ids: npt.NDArray[Any], logprobs: npt.NDArray[Any] | None) -> bytes:
    count = None if logprobs is None else len(logprobs)
    digest = blake2b(f"{len(ids)} {count}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(ids).data)
    if logprobs is not None:
        digest.update(np.ascontiguousarray(logprobs).data)
    return digest.digest()


def _in_32_bits(logprobs: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    with np.errstate(over="ignore"):
        return None if logprobs is None else logprobs.astype(np.float32)


def _text_digest(text: Any) -> bytes | None:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest() if isinstance(text, str) else None


@dataclass(frozen=True, slots=True)
class Receipts:
    """What each sample says that it received, as of outputs, `None` where it does not say, (rows,).

    `rounded` is `None` too where log-probs need more than 32 bits.
    """

    content: Objects
    rounded: Objects
    finish: Objects
    text: Objects

    @classmethod
    def concatenate(cls, parts: Sequence[Receipts]) -> Receipts:
        """Those of a stream's parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


def receipts_of(rollout: Rollout) -> Receipts:
    """Reads the receipts of a rollout."""
    ids, logprobs = integer_lists(rollout, "output_ids"), rollout.ragged("logprobs")
    content, rounded = np.full((2, len(rollout)), None, dtype=object)
    edges = zip(pairwise(ids.offsets.tolist()), pairwise(logprobs.offsets.tolist()), strict=True)
    for row, ((start, end), (first, last)) in enumerate(edges):
        if ids.valid[row]:
            tokens, values = ids.values[start:end], logprobs.values[first:last] if logprobs.valid[row] else None
            short = _in_32_bits(values)
            content[row] = _digest(tokens, values)
            if values is None or short is None or np.array_equal(values, short, equal_nan=True):
                rounded[row] = _digest(tokens, short)
    text = np.full(len(rollout), None, dtype=object)
    text[:] = [_text_digest(value) for value in rollout.table.column("text").to_pylist()]
    return Receipts(content, rounded, rollout.strings("finish_reason"), text)


@dataclass(frozen=True, slots=True)
class Matching:
    """Samples held against what was received.

    `known` (groups,): something is booked on the group and all its samples have ids; `strangers` are the rows that hold
    what was not received for them, `unused` the outputs that are in no sample, by group.
    """

    known: Bools
    strangers: Mapping[int, list[int]]
    unused: Mapping[int, int]


def match(facts: Facts, groups: Groups, receipts: Receipts, accounts: Accounts) -> Matching:
    """Finds for each sample the output that it came from; where one request brought the whole group, in its order."""
    known = np.zeros(len(groups), dtype=np.bool_)
    strangers: dict[int, list[int]] = {}
    unused: dict[int, int] = {}
    for group in range(len(groups)):
        rows = groups.rows(group).tolist()
        account = accounts.get(_key(facts, rows[0]))
        if account is None or None in receipts.content[rows]:
            continue
        known[group] = True
        # train dumps hold log-probs in 32 bits and no finish reason
        exact, named = None in receipts.rounded[rows], any(receipts.finish[rows])
        held = (receipts.content if exact else receipts.rounded)[rows]
        contents = [(content, receipts.finish[row] if named else None) for content, row in zip(held, rows, strict=True)]
        received = [
            (content if exact else rounded, finish if named else None)
            for content, rounded, finish, _ in account.outputs
        ]
        left = Counter(received)
        strange = []
        for row, content in zip(rows, contents, strict=True):
            left[content] -= 1
            if left[content] < 0:
                strange.append(row)
        unused[group] = sum(count for count in left.values() if count > 0)
        if not strange and not unused[group] and account.answered.total() == 1:
            in_order = zip(rows, contents, received, strict=True)
            strange = [row for row, content, other in in_order if content != other]
        strangers[group] = strange
    return Matching(known, strangers, unused)


def requests_accounted(facts: Facts, groups: Groups, accounts: Accounts, chunk: int | None) -> Outcome:
    """A group of n takes n answered requests sample by sample, one batched or native (or one a chunk)."""
    booked_on = [accounts.get(_key(facts, int(row))) for row in groups.first]

    def wanted(group: int) -> dict[str, int]:
        account, size = booked_on[group], int(groups.sizes[group])
        arms = sorted(account.answered) if account else []
        arm = arms[0] if len(arms) == 1 else str(facts.arm[groups.first[group]] or "unknown")
        return {arm: size if arm == "per-sample" else -(-size // (chunk or size))}

    def fails(group: int) -> bool:
        account = booked_on[group]
        return account is None or dict(account.answered) != wanted(group) or account.failed < account.repeated

    def case(group: int) -> tuple[Any, Any, str]:
        account, size = booked_on[group], quantity(groups.sizes[group], "samples")
        if account is None:
            return wanted(group), None, f"no request is recorded for a group of {size}"
        found = {**account.answered, "failed": account.failed, "repeated": account.repeated}
        return (
            wanted(group),
            found,
            f"a group of {size} took requests {found}, {wanted(group)} expected",
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


def params_sent(facts: Facts, groups: Groups, accounts: Accounts) -> Outcome:
    """The sampling parameters that a group's samples name are those that were sent for it.

    The cap that samples name is the largest sent: what continues a response is sent with what is left of it.
    """
    columns: Mapping[str, npt.NDArray[Any]] = {name: getattr(facts, name) for name in SAMPLING_PARAMS}
    known = np.zeros(len(groups), dtype=np.bool_)
    wrong: dict[int, tuple[str, list[Any], list[Any]]] = {}
    for group in range(len(groups)):
        rows = groups.rows(group)
        account = accounts.get(_key(facts, int(rows[0])))
        for name, column in columns.items():
            sent = account.asked.get(name, set()) if account else set()
            named = {value for value in column[rows].tolist() if value == value and value != NULL}
            if not sent or not named:
                continue
            known[group] = True
            if named != ({max(sent)} if name == "max_new_tokens" else sent):
                wrong.setdefault(group, (name, sorted(sent), sorted(named)))

    def case(group: int) -> tuple[Any, Any, str]:
        name, sent, named = wrong[group]
        return sent, named, f"{name} {named} is named by samples that were asked for with {sent}"

    return over_rows(
        facts,
        known=known,
        fails=np.isin(np.arange(len(groups)), list(wrong)),
        field="temperature",
        case=case,
        missing="no exchanges or no sampling parameters recorded",
        groups=groups,
    )


def samples_received(facts: Facts, groups: Groups, accounts: Accounts, matching: Matching) -> Outcome:
    """The samples of a group are the outputs received for it: none changed, lost, invented or used twice.

    Where one request brought the whole group, they stand in the order received.
    """

    def fails(group: int) -> bool:
        if not matching.known[group]:
            return False
        unreadable = accounts[_key(facts, int(groups.first[group]))].unreadable
        return bool(matching.strangers[group] or matching.unused[group] or unreadable)

    def case(group: int) -> tuple[Any, Any, str]:
        slots, unused = facts.index[matching.strangers[group]].tolist(), matching.unused[group]
        message = (
            f"slots {slots} hold other outputs than were received for them, {quantity(unused, 'outputs')} in no sample"
        )
        return {"slots": [], "unused": 0}, {"slots": slots, "unused": unused}, message

    return over_rows(
        facts,
        known=matching.known,
        fails=np.asarray([fails(group) for group in range(len(groups))], dtype=np.bool_),
        field="output_ids",
        case=case,
        missing="no exchanges or no output ids recorded",
        groups=groups,
    )


def texts_received(facts: Facts, groups: Groups, receipts: Receipts, accounts: Accounts, matching: Matching) -> Outcome:
    """The text of a sample is the one that was received with its tokens."""
    received = _is_received(facts, groups, matching)
    known, fails = known_objects(receipts.text), np.zeros(len(facts), dtype=np.bool_)
    for group in np.flatnonzero(matching.known).tolist():
        texts: dict[bytes, set[bytes | None]] = {}
        for content, rounded, _, text in accounts[_key(facts, int(groups.first[group]))].outputs:
            texts.setdefault(content, set()).add(text)
            texts.setdefault(rounded, set()).add(text)
        for row in groups.rows(group).tolist():
            of_tokens = texts.get(receipts.content[row], {None})
            known[row] &= None not in of_tokens
            fails[row] = receipts.text[row] not in of_tokens
    return over_rows(
        facts,
        known=known,
        fails=fails,
        field="text",
        case=lambda row: ("the text of its tokens", "another text", "its text was not received with its tokens"),
        missing="no text recorded in the sample or the exchange",
        concerns=received,
    )


def mask_complete(facts: Facts, groups: Groups, matching: Matching) -> Outcome:
    """What one answer brought was sampled, every token of it, so the mask of such a sample holds no 0 beside a 1."""

    def case(row: int) -> tuple[Any, Any, str]:
        length, trained = int(facts.mask_length[row]), int(facts.mask_sum[row])
        return length, trained, f"{trained} of {length} tokens are trained on, though all came from one answer"

    return over_rows(
        facts,
        known=facts.mask_length != NULL,
        fails=(facts.mask_sum > 0) & (facts.mask_sum < facts.mask_length) & (facts.bad_mask == 0),
        field="loss_mask",
        case=case,
        missing="no mask recorded",
        concerns=_is_received(facts, groups, matching) & ~unfinished(facts),
    )


def _is_received(facts: Facts, groups: Groups, matching: Matching) -> Bools:
    """Whether a sample holds one output as it was received, (rows,)."""
    received = matching.known[groups.code]
    for rows in matching.strangers.values():
        received[rows] = False
    return received


def groups_answered(facts: Facts, groups: Groups, accounts: Accounts) -> Outcome:
    """Every group that was asked for is in the rollout."""
    present = {_key(facts, int(row)) for row in groups.first}
    named = [key for key in accounts if key[1] is not None]
    lost = [key for key in named if key not in present]
    cases = tuple(
        Case(
            Where(None, *key, None, "group_index"),
            "in the rollout",
            "missing",
            f"requests answered: {accounts[key].answered.total()}, failed: {accounts[key].failed}, but no sample",
        )
        for key in lost[:SHOWN]
    )
    unnamed = len(accounts) - len(named)
    return Outcome(len(named), len(lost), cases, unnamed, "the exchanges do not say which group they are for")


def _key(facts: Facts, row: int) -> Key:
    rollout_id = int(facts.rollout_id[row])
    return None if rollout_id == NULL else rollout_id, int(facts.group_index[row])
