"""How a response ended, and whether that is true of its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.evidence.contract.facts import NULL, Bools, Facts, Groups, Ints, known_objects, one_of, over_rows
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import quantity
from parity.records.samples import FINISH_REASONS, STATUS_OF_FINISH_REASON, STATUSES


def finish_reason(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Every finished response says stop, length or abort; one that failed need not say."""
    given = known_objects(facts.finish_reason)

    def case(row: int) -> tuple[Any, Any, str]:
        found = facts.finish_reason[row]
        return list(FINISH_REASONS), found, f"finish reason {found!r}"

    unknown = ~one_of(facts.finish_reason, FINISH_REASONS)
    return over_rows(
        facts,
        known=given | bool(given.any()),
        fails=unknown,
        field="finish_reason",
        case=case,
        missing="no finish reason recorded",
        concerns=given | (facts.status != "failed"),
    )


def _caps(facts: Facts, rules: Rules) -> Ints:
    """Each response's cap in tokens: its own or the rules', cut by what the context leaves; `NULL` where not known."""
    own = facts.max_new_tokens
    caps = own if rules.max_new_tokens is None else np.where(own == NULL, rules.max_new_tokens, own)
    if rules.context_length is None:
        return caps
    room = np.where(facts.prompt_length == NULL, np.iinfo(np.int64).max, rules.context_length - facts.prompt_length)
    return np.where(caps == NULL, NULL, np.minimum(caps, room))


def finish_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No response is longer than its cap, and `length` means that it reached it; of several turns each has the cap."""
    caps, one_turn = _caps(facts, rules), facts.turns <= 1
    length = np.where(one_turn, facts.output_length, facts.longest_turn)
    says_length = (facts.finish_reason == "length") & one_turn

    def case(row: int) -> tuple[Any, Any, str]:
        found, cap = int(length[row]), int(caps[row])
        if found > cap:
            return f"at most {cap}", found, f"{quantity(found, 'tokens')}, above the cap of {cap}"
        return cap, found, f"finished by length after {found} of {quantity(cap, 'tokens')}"

    return over_rows(
        facts,
        known=(caps != NULL) & (length != NULL),
        fails=(length > caps) | (says_length & (length != caps)),
        field="finish_reason",
        case=case,
        missing="no cap or no output ids recorded",
    )


def finish_stop(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """`stop` means that the last token, or the last sampled one, is a stop token, and no turn goes on after one."""
    stops_last = np.isin([facts.last_id, facts.last_sampled], sorted(rules.stop_token_ids)).any(axis=0)
    says_stop = facts.finish_reason == "stop"
    unfinished = says_stop & ~stops_last & (not rules.stop_strings)
    runs_on = facts.stops > 0

    def case(row: int) -> tuple[Any, Any, str]:
        if runs_on[row]:
            return "a stop token only at the end", int(facts.stops[row]), "tokens stand after a stop token"
        last = None if facts.last_id[row] == NULL else int(facts.last_id[row])
        return sorted(rules.stop_token_ids), last, f"finished by stop on token {last}, which is no stop token"

    return over_rows(
        facts,
        known=(facts.output_length != NULL) & bool(rules.stop_token_ids),
        fails=unfinished | runs_on,
        field="finish_reason",
        case=case,
        missing="the stop tokens are not given, or no output ids recorded",
    )


def status(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The status is a known one, says what the finish reason says, and nothing is left pending."""
    given = known_objects(facts.status)
    said = np.asarray([STATUS_OF_FINISH_REASON.get(reason) for reason in facts.finish_reason], dtype=object)
    known_status = one_of(facts.status, STATUSES) & (facts.status != "pending")
    agrees = (said == facts.status) | ~known_objects(said) | (facts.status == "failed")

    def case(row: int) -> tuple[Any, Any, str]:
        found = facts.status[row]
        return said[row], found, f"status {found!r} with finish reason {facts.finish_reason[row]!r}"

    return over_rows(
        facts,
        known=given | bool(given.any()),
        fails=~(known_status & agrees),
        field="status",
        case=case,
        missing="no status recorded",
    )


def unfinished(facts: Facts) -> Bools:
    """Samples that were aborted, failed or never finished, by status or finish reason, (rows,)."""
    return one_of(facts.status, ("aborted", "failed", "pending")) | one_of(facts.finish_reason, ("abort",))


def context(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Prompt and response together fit the context."""
    total = facts.prompt_length + facts.output_length

    def case(row: int) -> tuple[Any, Any, str]:
        return (
            f"at most {rules.context_length}",
            int(total[row]),
            f"{quantity(total[row], 'tokens')} in a context of {rules.context_length}",
        )

    known = (facts.prompt_length != NULL) & (facts.output_length != NULL) & (rules.context_length is not None)
    fails = total > (rules.context_length or 0)
    return over_rows(
        facts, known=known, fails=fails, field="output_ids", case=case, missing="the context length is not given"
    )
