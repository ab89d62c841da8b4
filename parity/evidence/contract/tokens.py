"""Tokens: ids, log-probs and masks, their lengths and their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from parity.evidence.contract.columns import NULL, Bools, Ints
from parity.evidence.contract.facts import Facts, Groups, known_objects, one_of, over_rows
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import Message, listed, quantity

LONG_TAIL = 2
"""Exact zeros at the end of a row of log-probs that look like filling: one may be an honest certain token."""


def response_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """`response_length` is the number of output ids."""
    return _same_length(facts, facts.response_length, facts.output_length, "response_length")


def rollout_log_probs_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """There is one log-prob for each output id."""
    return _same_length(facts, facts.logprobs_length, facts.output_length, "logprobs")


def loss_mask_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """There is one mask value for each output id."""
    return _same_length(facts, facts.mask_length, facts.output_length, "loss_mask")


def _same_length(facts: Facts, lengths: Ints, wanted: Ints, field: str) -> Outcome:
    """A length that only some samples of a rollout have is a breach, not missing data: something dropped it."""
    has = lengths != NULL
    known = (wanted != NULL) & (has | _some(facts, has))

    def case(row: int) -> tuple[Any, Any, Message]:
        length, ids = int(lengths[row]) if has[row] else None, quantity(int(wanted[row]), "output ids")
        template = "{field} is missing for {ids}" if length is None else "{field} counts {length} for {ids}"
        return int(wanted[row]), length, Message(template, field=field, length=length, ids=ids)

    return over_rows(
        facts,
        known=known,
        fails=(lengths != wanted) & (has | (wanted != 0)),  # a restored sample has neither
        field=field,
        case=case,
        missing=Message("no {field} or no output ids recorded", field=field),
    )


def _some(facts: Facts, has: Bools) -> Bools:
    """Whether any sample of the same rollout has it, (rows,)."""
    _, rollout = np.unique(facts.rollout_id, return_inverse=True)
    return (np.bincount(rollout, has, 1) > 0)[rollout] if len(has) else has


def token_ids(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Token ids are whole numbers from 0 up to the vocabulary."""

    def case(row: int) -> tuple[Any, Any, Message]:
        bad = int(facts.bad_ids[row])
        wanted = "0 <= id" + (f" < {rules.vocab_size}" if rules.vocab_size else "")
        return wanted, bad, Message("{ids} outside the vocabulary", ids=quantity(bad, "ids"))

    known, missing = facts.output_length != NULL, Message("no output ids recorded")
    return over_rows(facts, known=known, fails=facts.bad_ids > 0, field="output_ids", case=case, missing=missing)


def logprob_values(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Log-probs are finite, at most 0, and no padding value such as -9999."""

    def case(row: int) -> tuple[Any, Any, Message]:
        bad, worst = int(facts.bad_logprobs[row]), float(facts.worst_logprob[row])
        values = quantity(int(facts.logprobs_length[row]), "log-probs")
        message = Message("{bad} of {values} are invalid, the first is {worst!r}", bad=bad, values=values, worst=worst)
        return "finite and <= 0", repr(worst), message

    known, missing = facts.logprobs_length != NULL, Message("no log-probs recorded")
    return over_rows(facts, known=known, fails=facts.bad_logprobs > 0, field="logprobs", case=case, missing=missing)


def logprob_tail(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Log-probs of sampled tokens do not end in a row of exact zeros, as filled-up ones do."""

    def case(row: int) -> tuple[Any, Any, Message]:
        zeros = int(facts.zero_tail[row])
        values = quantity(int(facts.logprobs_length[row]), "log-probs")
        message = Message("the last {zeros} of {values} are exactly 0", zeros=zeros, values=values)
        return f"fewer than {LONG_TAIL}", zeros, message

    partly = (facts.zero_tail >= LONG_TAIL) & (facts.zero_tail < facts.logprobs_length)
    return over_rows(
        facts,
        known=(facts.logprobs_length != NULL) & (facts.temperature != 0),
        fails=partly & (facts.top_k != 1),
        field="logprobs",
        case=case,
        missing=Message("no log-probs recorded, or the tokens were not sampled"),
    )


def logprob_low(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No sampled token is less likely than e^-50, from where a probability ratio overflows."""

    def case(row: int) -> tuple[Any, Any, Message]:
        low = float(facts.worst_logprob[row])
        return ">= -50", low, Message("a sampled token has log-prob {low:.4g}", low=low)

    known = (facts.logprobs_length != NULL) & (facts.bad_logprobs == 0)
    return over_rows(
        facts,
        known=known,
        fails=facts.worst_logprob < -50,
        field="logprobs",
        case=case,
        missing=Message("no valid log-probs recorded"),
    )


def loss_mask_values(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """A mask holds 0 and 1, and trains something where a response has tokens, was not cut off and not removed.

    Overlong filtering masks responses that reached the cap, as DAPO does (arXiv 2503.14476). Where neither status nor
    finish reason is kept, as in a train dump, the rule holds of a rollout as a whole.
    """
    cut_off = one_of(facts.status, ("aborted", "failed", "pending", "truncated"))
    cut_off |= one_of(facts.finish_reason, ("abort", "length"))
    unlabelled = ~(known_objects(facts.status) | known_objects(facts.finish_reason))
    exempt = cut_off | facts.removed | (unlabelled & _some(facts, facts.mask_sum > 0))
    untrained = (facts.mask_sum == 0) & (facts.mask_length > 0) & ~exempt

    def case(row: int) -> tuple[Any, Any, Message]:
        if facts.bad_mask[row]:
            values = quantity(int(facts.bad_mask[row]), "mask values")
            return "0 or 1", int(facts.bad_mask[row]), Message("{values} neither 0 nor 1", values=values)
        tokens = quantity(int(facts.mask_length[row]), "tokens")
        return "at least 1", 0, Message("none of {tokens} is trained on, though the response finished", tokens=tokens)

    return over_rows(
        facts,
        known=facts.mask_length != NULL,
        fails=(facts.bad_mask > 0) | untrained,
        field="loss_mask",
        case=case,
        missing=Message("no mask recorded"),
    )


def prompt_tokens(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The engine saw as many prompt tokens as the sample holds (a prompt with media may grow, never shrink)."""
    media = np.fromiter((bool(item) for item in facts.media), np.bool_, len(facts))
    media |= np.fromiter((bool(row) for row in facts.media_runs), np.bool_, len(facts))
    fewer, differ = facts.prompt_tokens < facts.prompt_length, facts.prompt_tokens != facts.prompt_length

    def case(row: int) -> tuple[Any, Any, Message]:
        sent, seen = int(facts.prompt_length[row]), int(facts.prompt_tokens[row])
        message = Message("the sample holds {sent} prompt tokens, the engine counted {seen}", sent=sent, seen=seen)
        return sent, seen, message

    known = (facts.prompt_tokens != NULL) & (facts.prompt_length != NULL)
    return over_rows(
        facts,
        known=known,
        fails=np.where(media, fewer, differ),
        field="prompt_tokens",
        case=case,
        missing=Message("no prompt ids or no prompt token count recorded"),
    )


def cached_tokens(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No more prompt tokens came from the cache than the prompt has."""

    def case(row: int) -> tuple[Any, Any, Message]:
        cached, prompt = int(facts.cached_tokens[row]), int(facts.prompt_tokens[row])
        message = Message("{cached} cached of {prompt} prompt tokens", cached=cached, prompt=prompt)
        return f"0 to {prompt}", cached, message

    known = (facts.cached_tokens != NULL) & (facts.prompt_tokens != NULL)
    wrong = (facts.cached_tokens < 0) | (facts.cached_tokens > facts.prompt_tokens)
    missing = Message("no cache count recorded")
    return over_rows(facts, known=known, fails=wrong, field="cached_tokens", case=case, missing=missing)


PER_TOKEN = ("routed_experts", "indexer_topk", "log_probs", "logprobs", "returns", "values")
"""Endings of the names of lists that hold one entry a token."""


def token_arrays(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Lists that a source keeps beside the tokens have one entry a token, as routed experts of a response have.

    Some count the response, some prompt and response together, some leave out the last token: what nine of ten samples
    of a list have in common is its rule. A list of a known name that has none must fit one of them.
    """
    response, total = facts.output_length, facts.output_length + np.maximum(facts.prompt_length, 0)
    # (rules, rows): the lengths that a list may have
    lengths = np.stack([response, total, response - 1, total - 1, response + 1, total + 1])
    wrong: dict[int, tuple[str, int, list[int]]] = {}
    known = np.zeros(len(facts), dtype=np.bool_)
    for name, rows, found in _lists_by_name(facts):
        fits = lengths[:, rows] == found
        shares = fits.mean(axis=1)
        rule = int(shares.argmax())
        usual = shares[rule] >= 0.9 and len(set(found.tolist())) > 1
        if not usual and not name.endswith(PER_TOKEN):
            continue
        known[rows] = True
        allowed = [rule] if usual else [0, 1, 2, 3]
        for place in np.flatnonzero(~fits[allowed].any(axis=0)).tolist():
            wrong.setdefault(int(rows[place]), (name, int(found[place]), lengths[allowed, rows[place]].tolist()))

    def case(row: int) -> tuple[Any, Any, Message]:
        name, length, wanted = wrong[row]
        message = Message(
            "{name} has {entries}, where {wanted} are expected",
            name=name,
            entries=quantity(length, "entries"),
            wanted=listed(map(str, sorted(set(wanted))), " or "),
        )
        return wanted, length, message

    return over_rows(
        facts,
        known=known,
        fails=np.isin(np.arange(len(facts)), list(wrong)),
        field="extra",
        case=case,
        missing=Message("no list beside the tokens recorded"),
        concerns=known,
    )


def _lists_by_name(facts: Facts) -> Iterator[tuple[str, Ints, Ints]]:
    """Each list kept beside the tokens: its name, the rows that have it and output ids, and its length in each."""
    by_name: dict[str, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(facts.output_length > 0).tolist():
        for name, length in facts.arrays[row]:
            by_name.setdefault(name, []).append((row, length))
    for name, pairs in by_name.items():
        rows, lengths = np.asarray(pairs, dtype=np.int64).T
        yield name, rows, lengths


def encoded_media(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No sample keeps encoded media (a data URL, or 4 KB of base64)."""
    message = Message("text or extra fields hold encoded media")
    return over_rows(
        facts,
        known=np.ones(len(facts), dtype=np.bool_),
        fails=facts.encoded_media,
        field="extra",
        case=lambda row: ("no encoded media", "encoded media", message),
    )
