"""How a response ended, and whether that is true of its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.evidence.contract.columns import NULL, Bools, Ints
from parity.evidence.contract.facts import Facts, Groups, known_objects, one_of, over_rows
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import Message, quantity
from parity.records.samples import FINISH_REASONS, STATUS_OF_FINISH_REASON, STATUSES


def finish_reason(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Every finished response says stop, length or abort; one that failed need not say."""
    given = known_objects(facts.finish_reason)

    def case(row: int) -> tuple[Any, Any, Message]:
        reason = facts.finish_reason[row]
        return list(FINISH_REASONS), reason, Message("finish reason {reason!r}", reason=reason)

    unknown = ~one_of(facts.finish_reason, FINISH_REASONS)
    return over_rows(
        facts,
        known=given | bool(given.any()),
        fails=unknown,
        field="finish_reason",
        case=case,
        missing=Message("no finish reason recorded"),
        concerns=given | (facts.status != "failed"),
    )


def _caps(facts: Facts, rules: Rules) -> Ints:
    """Each response's cap in tokens: its own or the rules', cut by what the context leaves; `NULL` where not known."""
    caps = facts.max_new_tokens
    if rules.max_new_tokens is not None:
        caps = np.where(caps == NULL, rules.max_new_tokens, caps)
    if rules.context_length is None:
        return caps
    room = np.where(facts.prompt_length == NULL, np.iinfo(np.int64).max, rules.context_length - facts.prompt_length)
    return np.where(caps == NULL, NULL, np.minimum(caps, room))


def finish_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No response is longer than its cap, and `length` means that it reached it; of several turns each has the cap."""
    caps, one_turn = _caps(facts, rules), facts.turns <= 1
    length = np.where(one_turn, facts.output_length, facts.longest_turn)
    says_length = (facts.finish_reason == "length") & one_turn

    def case(row: int) -> tuple[Any, Any, Message]:
        tokens, cap = int(length[row]), int(caps[row])
        if tokens > cap:
            message = Message("{tokens}, above the cap of {cap}", tokens=quantity(tokens, "tokens"), cap=cap)
            return f"at most {cap}", tokens, message
        message = Message("finished by length after {tokens} of {cap}", tokens=tokens, cap=quantity(cap, "tokens"))
        return cap, tokens, message

    return over_rows(
        facts,
        known=(caps != NULL) & (length != NULL),
        fails=(length > caps) | (says_length & (length != caps)),
        field="finish_reason",
        case=case,
        missing=Message("no cap or no output ids recorded"),
    )


def finish_stop(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """`stop` means that the last token, or the last sampled one, is a stop token, and no turn goes on after one."""
    stops_last = np.isin([facts.last_id, facts.last_sampled], sorted(rules.stop_token_ids)).any(axis=0)
    says_stop = facts.finish_reason == "stop"
    unfinished = says_stop & ~stops_last & (not rules.stop_strings)
    runs_on = (facts.stops > 0) | np.isin(facts.stop_amid, sorted(rules.stop_token_ids))

    def case(row: int) -> tuple[Any, Any, Message]:
        if runs_on[row]:
            stops = max(int(facts.stops[row]), 1)
            return "a stop token only at the end", stops, Message("tokens stand after a stop token")
        last = None if facts.last_id[row] == NULL else int(facts.last_id[row])
        message = Message("finished by stop on token {last}, which is no stop token", last=last)
        return sorted(rules.stop_token_ids), last, message

    return over_rows(
        facts,
        known=(facts.output_length != NULL) & bool(rules.stop_token_ids),
        fails=unfinished | runs_on,
        field="finish_reason",
        case=case,
        missing=Message("the stop tokens are not given, or no output ids recorded"),
    )


def status(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The status is a known one, says what the finish reason says, and nothing is left pending."""
    given = known_objects(facts.status)
    implied = np.asarray([STATUS_OF_FINISH_REASON.get(reason) for reason in facts.finish_reason], dtype=object)
    known_status = one_of(facts.status, STATUSES) & (facts.status != "pending")
    agrees = (implied == facts.status) | ~known_objects(implied) | (facts.status == "failed")

    def case(row: int) -> tuple[Any, Any, Message]:
        status, reason = facts.status[row], facts.finish_reason[row]
        message = Message("status {status!r} with finish reason {reason!r}", status=status, reason=reason)
        return implied[row], status, message

    return over_rows(
        facts,
        known=given | bool(given.any()),
        fails=~(known_status & agrees),
        field="status",
        case=case,
        missing=Message("no status recorded"),
    )


def unfinished(facts: Facts) -> Bools:
    """Samples that were aborted, failed or never finished, by status or finish reason, (rows,)."""
    return one_of(facts.status, ("aborted", "failed", "pending")) | one_of(facts.finish_reason, ("abort",))


def context(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Prompt and response together fit the context."""
    total = facts.prompt_length + facts.output_length

    def case(row: int) -> tuple[Any, Any, Message]:
        tokens = quantity(int(total[row]), "tokens")
        message = Message("{tokens} in a context of {context}", tokens=tokens, context=rules.context_length)
        return f"at most {rules.context_length}", int(total[row]), message

    known = (facts.prompt_length != NULL) & (facts.output_length != NULL) & (rules.context_length is not None)
    fails, missing = total > (rules.context_length or 0), Message("the context length is not given")
    return over_rows(facts, known=known, fails=fails, field="output_ids", case=case, missing=missing)
