"""Requests: every sample came out of the answers to its requests, and every request is accounted for.

What was received and what samples hold are compared by digest, so that books over any number of exchanges stay small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.evidence.contract.chains import Chain, Held, Received, chain_of, digest, in_32_bits
from parity.evidence.contract.columns import NULL, Bools, Objects, integer_lists
from parity.evidence.contract.facts import Facts, Groups, known_objects, over_rows
from parity.evidence.contract.finish import unfinished
from parity.evidence.contract.outcomes import SHOWN, Case, Outcome
from parity.evidence.contract.streams import settled
from parity.evidence.contract.wire import WireOutput, ints_of, is_whole, outputs_of
from parity.findings import Message, Where, listed, quantity
from parity.records.exchanges import MEDIA_FIELDS, Exchange
from parity.records.samples import Rollout

Key = tuple[int | None, int | None]

Chunk = int | Mapping[str, "int | None"] | None
"""Most samples of a request: for all arms, or by arm; None puts a group into one."""

SAMPLING_PARAMS = ("temperature", "top_p", "top_k", "max_new_tokens")

_NO_EXCHANGES = Message("no exchanges recorded")


@dataclass(slots=True)
class Account:
    """What was sent for one group: answered requests by arm, failed and repeated ones, and outputs as received.

    `asked` has the values of each sampling parameter over the answered requests.
    """

    answered: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    repeated: int = 0
    asked: dict[str, set[Any]] = field(default_factory=dict)
    outputs: list[Received] = field(default_factory=list)
    unreadable: int = 0


@dataclass(slots=True)
class Accounts:
    """The accounts by group, `(rollout_id, group_index)`; what was aborted by `group_index`, with its rollout."""

    by_group: dict[Key, Account] = field(default_factory=dict)
    aborted: dict[int | None, list[tuple[int, Received]]] = field(default_factory=dict)
    outputs: int = 0

    def carried_over(self, key: Key) -> list[Received]:
        """What was aborted for a group in earlier rollouts, and may go on in this one."""
        rollout_id, group_index = key
        if rollout_id is None:
            return []
        return [output for step, output in self.aborted.get(group_index, ()) if step < rollout_id]


def booked(exchanges: Iterable[Exchange], accounts: Accounts) -> Iterator[Exchange]:
    """The exchanges as they come, each booked on its group."""
    for exchange in exchanges:
        key = exchange.rollout_id, exchange.group_index
        _book(accounts.by_group.setdefault(key, Account()), exchange, accounts)
        yield exchange


def _book(account: Account, exchange: Exchange, accounts: Accounts) -> None:
    account.repeated += exchange.attempt > 1
    if exchange.status != 200:
        account.failed += 1
        return
    account.answered[exchange.arm or "unknown"] += 1
    answer = settled(exchange)
    outputs = outputs_of(answer, "")
    account.unreadable += len(answer.outputs) - len(outputs)
    for output in outputs:
        received = _received(output, accounts.outputs)
        account.outputs.append(received)
        accounts.outputs += 1
        if received.finish == "abort" and exchange.rollout_id is not None:
            accounts.aborted.setdefault(exchange.group_index, []).append((exchange.rollout_id, received))
        for name in SAMPLING_PARAMS:
            value = output.params.get(name)
            if isinstance(value, (int, float)):
                account.asked.setdefault(name, set()).add(value)


def _received(output: WireOutput, number: int) -> Received:
    """What a sample keeps of an output."""
    values = None if output.triples is None else list(map(itemgetter(0), output.triples))
    sound = values is not None and set(map(type, values)) <= {float, int, type(None)}
    ids, finish = output.ids or [], output.finish.get("type")
    try:
        logprobs = np.asarray(values, np.float64) if sound else None
        tokens = np.asarray(ids, np.int32)
        contents = digest(tokens, logprobs), digest(tokens, in_32_bits(logprobs))
    except OverflowError:  # an id or value that no sample can hold
        contents = (blake2b(repr((ids, values)).encode(), digest_size=16).digest(),) * 2
    length, prompt = _prompt_of(output)
    reason = None if finish is None else str(finish)
    return Received(number, length, prompt, len(ids), *contents, reason, _text_digest(output.body.get("text")))


def _prompt_of(output: WireOutput) -> tuple[int | None, bytes | None]:
    """How long the prompt of an output is in tokens, and the digest of its ids, where ids were sent."""
    ids = ints_of(output.prompt)
    if ids is not None and not any(output.exchange.request.get(name) for name in MEDIA_FIELDS):
        try:
            return len(ids), digest(np.asarray(ids, np.int32))
        except OverflowError:
            return len(ids), None
    counted = output.meta.get("prompt_tokens")  # of text, and of media that the engine expands
    return (counted if is_whole(counted) else None), None


def _text_digest(text: Any) -> bytes | None:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest() if isinstance(text, str) else None


@dataclass(frozen=True, slots=True)
class Receipts:
    """What each sample says that it received, as of outputs, `None` where it does not say, (rows,).

    `rounded` is `None` too where log-probs need more than 32 bits. `chain` is the `Chain` of outputs that the sample
    consists of, where its group was asked for with prompts of several lengths.
    """

    content: Objects
    rounded: Objects
    finish: Objects
    text: Objects
    chain: Objects

    @classmethod
    def concatenate(cls, parts: Sequence[Receipts]) -> Receipts:
        """Those of a stream's parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


def receipts_of(rollout: Rollout, accounts: Accounts) -> Receipts:
    """Reads the receipts of a rollout, whose exchanges are all booked."""
    ids, logprobs = integer_lists(rollout, "output_ids"), rollout.ragged("logprobs")
    prompts, masks = integer_lists(rollout, "prompt_ids"), integer_lists(rollout, "loss_mask")
    finish = rollout.strings("finish_reason")
    content, rounded, chain = np.full((3, len(rollout)), None, dtype=object)
    keys = zip(rollout.integers("rollout_id", NULL).tolist(), rollout.integers("group_index").tolist(), strict=True)
    received: dict[Key, list[Received]] = {}
    for row, (rollout_id, group_index) in enumerate(keys):
        if not ids.valid[row]:
            continue
        tokens, values = ids[row], logprobs[row] if logprobs.valid[row] else None
        short = in_32_bits(values)
        content[row] = digest(tokens, values)
        if values is None or short is None or np.array_equal(values, short, equal_nan=True):
            rounded[row] = digest(tokens, short)
        key = (None if rollout_id == NULL else rollout_id), group_index
        if key not in received:
            received[key] = [*accounts.carried_over(key), *accounts.by_group.get(key, Account()).outputs]
        prompt = prompts[row] if prompts.valid[row] else None
        mask = masks[row] if masks.valid[row] else None
        chain[row] = chain_of(Held(prompt, tokens, values, mask, finish[row]), received[key])
    text = np.full(len(rollout), None, dtype=object)
    text[:] = [_text_digest(value) for value in rollout.table.column("text").to_pylist()]
    return Receipts(content, rounded, finish, text, chain)


@dataclass(frozen=True, slots=True)
class Matching:
    """Samples held against what was received.

    `known` (groups,): something is booked on the group and all its samples have ids; `strangers` are the rows that hold
    what was not received for them, `unused` the outputs that are in no sample, by group. `chained` (groups,): its
    samples are made of several outputs each; `broken` says of a row where its chain breaks.
    """

    known: Bools
    strangers: Mapping[int, list[int]]
    unused: Mapping[int, int]
    chained: Bools
    broken: Mapping[int, Message]


def match(facts: Facts, groups: Groups, receipts: Receipts, accounts: Accounts) -> Matching:
    """Finds for each sample the outputs that it came from; where one request brought the group, in its order."""
    known, chained = np.zeros((2, len(groups)), dtype=np.bool_)
    strangers: dict[int, list[int]] = {}
    unused: dict[int, int] = {}
    broken: dict[int, Message] = {}
    for group in range(len(groups)):
        rows = groups.rows(group).tolist()
        account = accounts.by_group.get(_key(facts, rows[0]))
        if account is None or None in receipts.content[rows]:
            continue
        known[group] = True
        chains = {row: receipts.chain[row] for row in rows if receipts.chain[row] is not None}
        if chains:
            chained[group] = True
            broken |= {row: chain.broken for row, chain in chains.items() if chain.broken is not None}
            strangers[group] = [row for row in rows if row not in chains or row in broken]
            unused[group] = _unused_links(account, chains.values())
        else:
            strangers[group], unused[group] = _single(rows, receipts, account)
    return Matching(known, strangers, unused, chained, broken)


def _unused_links(account: Account, chains: Iterable[Chain]) -> int:
    """Outputs that are a link of no chain; outputs alike stand for each other, and what was aborted may be dropped."""
    kinds = {output.number: (output.prompt, output.content) for output in account.outputs}
    left = Counter(kinds[output.number] for output in account.outputs if output.finish != "abort")
    used = Counter(kinds[number] for chain in chains for number in chain.links if number in kinds)
    return sum(max(count - used[kind], 0) for kind, count in left.items())


def _single(rows: Sequence[int], receipts: Receipts, account: Account) -> tuple[list[int], int]:
    """The rows that hold no output as it was received, and how many outputs are in no sample; one output a sample."""
    # train dumps hold log-probs in 32 bits and no finish reason
    exact, named = None in receipts.rounded[rows], any(receipts.finish[rows])
    held = (receipts.content if exact else receipts.rounded)[rows]
    contents = [(content, receipts.finish[row] if named else None) for content, row in zip(held, rows, strict=True)]
    received = [
        (output.content if exact else output.rounded, output.finish if named else None) for output in account.outputs
    ]
    left = Counter(received)
    strangers = []
    for row, content in zip(rows, contents, strict=True):
        left[content] -= 1
        if left[content] < 0:
            strangers.append(row)
    unused = sum(count for count in left.values() if count > 0)
    if not strangers and not unused and account.answered.total() == 1:
        in_order = zip(rows, contents, received, strict=True)
        strangers = [row for row, content, other in in_order if content != other]
    return strangers, unused


def requests_accounted(facts: Facts, groups: Groups, accounts: Accounts, matching: Matching, chunk: Chunk) -> Outcome:
    """A group of n takes n answered requests sample by sample, one batched or native (or one a chunk).

    Where a sample is a chain of outputs, it takes a request for each link. `chunk` may be given by arm.
    """
    booked_on = [accounts.by_group.get(_key(facts, int(row))) for row in groups.first]

    def wanted(group: int) -> dict[str, int]:
        account, size = booked_on[group], int(groups.sizes[group])
        arms = sorted(account.answered) if account else []
        named = str(facts.arm[groups.first[group]] or "unknown")
        arm = arms[0] if len(arms) == 1 else named
        most = chunk.get(named) if isinstance(chunk, Mapping) else chunk
        return {arm: size if arm == "per-sample" else -(-size // (most or size))}

    def fails(group: int) -> bool:
        account = booked_on[group]
        if account is None or account.failed < account.repeated:
            return True
        return not matching.chained[group] and dict(account.answered) != wanted(group)

    def case(group: int) -> tuple[Any, Any, Message]:
        account, samples = booked_on[group], quantity(int(groups.sizes[group]), "samples")
        if account is None:
            return wanted(group), None, Message("no request is recorded for a group of {samples}", samples=samples)
        counts = {**account.answered, "failed": account.failed, "repeated": account.repeated}
        template = "a group of {samples} took requests {counts}, {wanted} expected"
        return wanted(group), counts, Message(template, samples=samples, counts=counts, wanted=wanted(group))

    broken = np.asarray([bool(matching.strangers.get(group)) for group in range(len(groups))], dtype=np.bool_)
    return over_rows(
        facts,
        known=~(matching.chained & broken) & bool(accounts.by_group),
        fails=np.asarray([fails(group) for group in range(len(groups))], dtype=np.bool_),
        field="requests",
        case=case,
        missing=Message("no exchanges recorded, or a chain of requests is broken") if broken.any() else _NO_EXCHANGES,
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
        account = accounts.by_group.get(_key(facts, int(rows[0])))
        for name, column in columns.items():
            sent = account.asked.get(name, set()) if account else set()
            named = {value for value in column[rows].tolist() if value == value and value != NULL}
            if not sent or not named:
                continue
            known[group] = True
            if named != ({max(sent)} if name == "max_new_tokens" else sent):
                wrong.setdefault(group, (name, sorted(sent), sorted(named)))

    def case(group: int) -> tuple[Any, Any, Message]:
        name, sent, named = wrong[group]
        template = "{name} {named} is named by samples that were asked for with {sent}"
        return sent, named, Message(template, name=name, named=named, sent=sent)

    return over_rows(
        facts,
        known=known,
        fails=np.isin(np.arange(len(groups)), list(wrong)),
        field=lambda group: wrong[group][0],
        case=case,
        missing=Message("no exchanges or no sampling parameters recorded"),
        groups=groups,
    )


def samples_received(facts: Facts, groups: Groups, accounts: Accounts, matching: Matching) -> Outcome:
    """The samples of a group are the outputs received for it: none changed, lost, invented or used twice.

    Where one request brought the whole group, they stand in the order received. A sample may be a chain of outputs
    whose prompts extend each other.
    """

    def fails(group: int) -> bool:
        if not matching.known[group]:
            return False
        unreadable = accounts.by_group[_key(facts, int(groups.first[group]))].unreadable
        return bool(matching.strangers[group] or matching.unused[group] or unreadable)

    def case(group: int) -> tuple[Any, Any, Message]:
        slots, unused = facts.index[matching.strangers[group]].tolist(), matching.unused[group]
        message = Message(
            "slots {slots} hold other outputs than were received for them, {unused} in no sample",
            slots=slots,
            unused=quantity(unused, "outputs"),
        )
        links = [
            Message("slot {slot}, {flaw}", slot=int(facts.index[row]), flaw=matching.broken[row])
            for row in matching.strangers[group]
            if row in matching.broken
        ]
        if links:
            message = Message("{message}: {links}", message=message, links=listed(links[:SHOWN], "; "))
        return {"slots": [], "unused": 0}, {"slots": slots, "unused": unused}, message

    return over_rows(
        facts,
        known=matching.known,
        fails=np.asarray([fails(group) for group in range(len(groups))], dtype=np.bool_),
        field="output_ids",
        case=case,
        missing=Message("no exchanges or no output ids recorded"),
        groups=groups,
    )


def texts_received(facts: Facts, groups: Groups, receipts: Receipts, accounts: Accounts, matching: Matching) -> Outcome:
    """The text of a sample is the one that was received with its tokens."""
    received = _is_one_output(groups, matching)
    known, fails = known_objects(receipts.text), np.zeros(len(facts), dtype=np.bool_)
    for group in np.flatnonzero(matching.known & ~matching.chained).tolist():
        texts: dict[bytes, set[bytes | None]] = {}
        for output in accounts.by_group[_key(facts, int(groups.first[group]))].outputs:
            texts.setdefault(output.content, set()).add(output.text)
            texts.setdefault(output.rounded, set()).add(output.text)
        for row in groups.rows(group).tolist():
            of_tokens = texts.get(receipts.content[row], {None})
            known[row] &= None not in of_tokens
            fails[row] = receipts.text[row] not in of_tokens
    message = Message("its text was not received with its tokens")
    return over_rows(
        facts,
        known=known,
        fails=fails,
        field="text",
        case=lambda row: ("the text of its tokens", "another text", message),
        missing=Message("no text recorded in the sample or the exchange"),
        concerns=received,
    )


def mask_complete(facts: Facts, groups: Groups, matching: Matching) -> Outcome:
    """What one answer brought was sampled, every token of it, so the mask of such a sample holds no 0 beside a 1."""

    def case(row: int) -> tuple[Any, Any, Message]:
        length, trained = int(facts.mask_length[row]), int(facts.mask_sum[row])
        template = "{trained} of {tokens} are trained on, though all came from one answer"
        return length, trained, Message(template, trained=trained, tokens=quantity(length, "tokens"))

    return over_rows(
        facts,
        known=facts.mask_length != NULL,
        fails=(facts.mask_sum > 0) & (facts.mask_sum < facts.mask_length) & (facts.bad_mask == 0),
        field="loss_mask",
        case=case,
        missing=Message("no mask recorded"),
        concerns=_is_one_output(groups, matching) & ~unfinished(facts),
    )


def _is_one_output(groups: Groups, matching: Matching) -> Bools:
    """Whether a sample holds one output as it was received, (rows,)."""
    received = (matching.known & ~matching.chained)[groups.code]
    for rows in matching.strangers.values():
        received[rows] = False
    return received


def groups_answered(facts: Facts, groups: Groups, accounts: Accounts) -> Outcome:
    """Every group that was asked for is in the rollout, or was aborted and is in a later one."""
    present = {_key(facts, int(row)) for row in groups.first}
    latest: dict[int | None, int] = {}
    for rollout_id, group_index in present:
        latest[group_index] = max(latest.get(group_index, NULL), NULL if rollout_id is None else rollout_id)

    def is_lost(key: Key) -> bool:
        rollout_id, group_index = key
        aborted = all(output.finish == "abort" for output in accounts.by_group[key].outputs)
        later = rollout_id is not None and latest.get(group_index, NULL) > rollout_id
        return key not in present and not (aborted and later)

    named = [key for key in accounts.by_group if key[1] is not None]
    lost = [key for key in named if is_lost(key)]

    def case(key: Key) -> Case:
        account = accounts.by_group[key]
        template = "requests answered: {answered}, failed: {failed}, but no sample"
        message = Message(template, answered=account.answered.total(), failed=account.failed)
        return Case(Where(None, *key, None, "group_index"), "in the rollout", "missing", message)

    unnamed = len(accounts.by_group) - len(named)
    missing = Message("the exchanges do not say which group they are for")
    return Outcome(len(named), len(lost), tuple(map(case, lost[:SHOWN])), unnamed, missing)


def _key(facts: Facts, row: int) -> Key:
    rollout_id = int(facts.rollout_id[row])
    return None if rollout_id == NULL else rollout_id, int(facts.group_index[row])
