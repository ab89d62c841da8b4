"""Tokens: ids, log-probs and masks, their lengths and their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.evidence.contract.facts import NULL, Bools, Facts, Groups, Ints, known_objects, one_of, over_rows
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import quantity

LONG_TAIL = 2
"""Exact zeros at the end of a row of log-probs that look like filling: one may be an honest certain token."""


def response_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """`response_length` is the number of output ids."""
    return _same_length(facts, facts.response_length, facts.output_length, "response_length", "says", "output ids")


def rollout_log_probs_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """There is one log-prob for each output id."""
    return _same_length(facts, facts.logprobs_length, facts.output_length, "logprobs", "has", "output ids")


def loss_mask_length(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """There is one mask value for each output id."""
    return _same_length(facts, facts.mask_length, facts.output_length, "loss_mask", "has", "output ids")


def _same_length(facts: Facts, lengths: Ints, wanted: Ints, field: str, verb: str, of: str) -> Outcome:
    """A length that only some samples of a rollout have is a breach, not missing data: something dropped it."""
    has, ids = lengths != NULL, wanted != NULL
    known = ids & (has | _some(facts, has))

    def case(row: int) -> tuple[Any, Any, str]:
        found = int(lengths[row]) if has[row] else None
        return int(wanted[row]), found, f"{field} {verb} {'nothing' if found is None else found} for {wanted[row]} {of}"

    return over_rows(
        facts,
        known=known,
        fails=(lengths != wanted) & (has | (wanted != 0)),  # a restored sample has neither
        field=field,
        case=case,
        missing=f"no {field} or no output ids recorded",
    )


def _some(facts: Facts, has: Bools) -> Bools:
    """Whether any sample of the same rollout has it, (rows,)."""
    _, rollout = np.unique(facts.rollout_id, return_inverse=True)
    return (np.bincount(rollout, has, 1) > 0)[rollout] if len(has) else has


def token_ids(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Token ids are whole numbers from 0 up to the vocabulary."""

    def case(row: int) -> tuple[Any, Any, str]:
        bad = int(facts.bad_ids[row])
        wanted = "0 <= id" + (f" < {rules.vocab_size}" if rules.vocab_size else "")
        return wanted, bad, f"{quantity(bad, 'ids')} outside the vocabulary"

    known = facts.output_length != NULL
    return over_rows(
        facts, known=known, fails=facts.bad_ids > 0, field="output_ids", case=case, missing="no output ids recorded"
    )


def logprob_values(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Log-probs are finite, at most 0, and no padding value such as -9999."""

    def case(row: int) -> tuple[Any, Any, str]:
        bad, worst = int(facts.bad_logprobs[row]), float(facts.worst_logprob[row])
        return (
            "finite and <= 0",
            repr(worst),
            f"{bad} of {quantity(facts.logprobs_length[row], 'log-probs')} unsound, the first is {worst!r}",
        )

    known = facts.logprobs_length != NULL
    return over_rows(
        facts, known=known, fails=facts.bad_logprobs > 0, field="logprobs", case=case, missing="no log-probs recorded"
    )


def logprob_tail(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Log-probs of sampled tokens do not end in a row of exact zeros, as filled-up ones do."""

    def case(row: int) -> tuple[Any, Any, str]:
        zeros = int(facts.zero_tail[row])
        return (
            f"fewer than {LONG_TAIL}",
            zeros,
            f"the last {zeros} of {facts.logprobs_length[row]} log-probs are exactly 0",
        )

    partly = (facts.zero_tail >= LONG_TAIL) & (facts.zero_tail < facts.logprobs_length)
    return over_rows(
        facts,
        known=(facts.logprobs_length != NULL) & (facts.temperature != 0),
        fails=partly & (facts.top_k != 1),
        field="logprobs",
        case=case,
        missing="no log-probs recorded, or the tokens were not sampled",
    )


def logprob_low(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No sampled token is less likely than e^-50, from where a probability ratio overflows."""

    def case(row: int) -> tuple[Any, Any, str]:
        low = float(facts.worst_logprob[row])
        return ">= -50", low, f"a sampled token has log-prob {low:.4g}"

    known = (facts.logprobs_length != NULL) & (facts.bad_logprobs == 0)
    return over_rows(
        facts,
        known=known,
        fails=facts.worst_logprob < -50,
        field="logprobs",
        case=case,
        missing="no sound log-probs recorded",
    )


def loss_mask_values(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """A mask holds 0 and 1, and trains something where a response has tokens, was not aborted and not removed.

    Where neither status nor finish reason is kept, as in a train dump, that holds of a rollout as a whole.
    """
    aborted = one_of(facts.status, ("aborted", "failed", "pending")) | (facts.finish_reason == "abort")
    says_nothing = ~(known_objects(facts.status) | known_objects(facts.finish_reason))
    let_be = aborted | facts.removed | (says_nothing & _some(facts, facts.mask_sum > 0))
    untrained = (facts.mask_sum == 0) & (facts.mask_length > 0) & ~let_be

    def case(row: int) -> tuple[Any, Any, str]:
        if facts.bad_mask[row]:
            return "0 or 1", int(facts.bad_mask[row]), f"{quantity(facts.bad_mask[row], 'mask values')} neither 0 nor 1"
        return "at least 1", 0, f"none of {quantity(facts.mask_length[row], 'tokens')} is trained on"

    known = facts.mask_length != NULL
    return over_rows(
        facts,
        known=known,
        fails=(facts.bad_mask > 0) | untrained,
        field="loss_mask",
        case=case,
        missing="no mask recorded",
    )


def prompt_tokens(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """The engine saw as many prompt tokens as the sample holds (a prompt with media may grow, never shrink)."""
    media = np.fromiter((bool(item) for item in facts.media), np.bool_, len(facts)) | (facts.prompt_media > 0)
    fewer, differ = facts.prompt_tokens < facts.prompt_length, facts.prompt_tokens != facts.prompt_length

    def case(row: int) -> tuple[Any, Any, str]:
        sent, seen = int(facts.prompt_length[row]), int(facts.prompt_tokens[row])
        return sent, seen, f"the sample holds {sent} prompt tokens, the engine counted {seen}"

    known = (facts.prompt_tokens != NULL) & (facts.prompt_length != NULL)
    return over_rows(
        facts,
        known=known,
        fails=np.where(media, fewer, differ),
        field="prompt_tokens",
        case=case,
        missing="no prompt ids or no prompt token count recorded",
    )


def cached_tokens(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No more prompt tokens came from the cache than the prompt has."""

    def case(row: int) -> tuple[Any, Any, str]:
        cached, prompt = int(facts.cached_tokens[row]), int(facts.prompt_tokens[row])
        return f"0 to {prompt}", cached, f"{cached} cached of {prompt} prompt tokens"

    known = (facts.cached_tokens != NULL) & (facts.prompt_tokens != NULL)
    wrong = (facts.cached_tokens < 0) | (facts.cached_tokens > facts.prompt_tokens)
    return over_rows(
        facts, known=known, fails=wrong, field="cached_tokens", case=case, missing="no cache count recorded"
    )


def encoded_media(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No sample keeps encoded media (a data URL, or 4 KB of base64)."""
    return over_rows(
        facts,
        known=np.ones(len(facts), dtype=np.bool_),
        fails=facts.encoded_media,
        field="extra",
        case=lambda row: ("no encoded media", "encoded media", "text or extra fields hold encoded media"),
        missing="",
    )


def media_placeholders(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """A prompt has one placeholder, or one run of expanded ones, for each medium."""
    count = np.fromiter((len(item or ()) for item in facts.media), np.int64, len(facts))
    has = known_objects(facts.media) & (facts.prompt_length != NULL)
    declared = any(isinstance(item, int) for item in rules.media_placeholders)

    def case(row: int) -> tuple[Any, Any, str]:
        found = int(facts.prompt_media[row])
        return int(count[row]), found, f"{quantity(found, 'placeholders')} in a prompt whose media are {count[row]}"

    return over_rows(
        facts,
        known=has & declared,
        fails=facts.prompt_media != count,
        field="prompt_ids",
        case=case,
        missing="no media recorded, or the placeholder tokens are not given",
    )
