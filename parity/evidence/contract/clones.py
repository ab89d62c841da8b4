"""Clones: siblings that are equal more often than chance allows.

A policy may honestly answer alike twice: short answers, a collapsed policy, greedy decoding. Whether it did is no
matter of taste, because the log-probs say how likely it was. A sample drawn independently is x with probability P(x),
the exponential of its log-probs. A defect that copies one of the k earlier siblings with probability q gives x with
q m / k + (1 - q) P(x), where m of them are x. The product over all samples of the ratio of the two, averaged over some
q, is a nonnegative martingale of mean 1 under independence, so that it exceeds 1 / alpha with probability at most alpha
(Ville's inequality), however few or many the samples, in however many groups, and whatever the policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from parity.evidence.contract.facts import PREFIX, Bools, Facts, Floats, Groups, Ints, over_rows
from parity.evidence.contract.finish import unfinished
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import quantity

FALSE_ALARM = 1e-6
"""Bound on the probability that independent samples are called clones, over everything checked at once."""

COPY_RATES = (0.00001, 0.001, 0.01, 0.1, 0.5, 0.99)


def clones(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Samples of a group are drawn independently: none repeats another more often than its log-probs allow."""
    return _repeats(
        facts, groups, rules, facts.output_hash, facts.logprob_sum, facts.output_length, facts.output_length > 0
    )


def clone_prefixes(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Samples of a group do not share their first 32 tokens more often than their log-probs allow."""
    lengths = np.full(len(facts), PREFIX)
    long = facts.output_length >= PREFIX
    return _repeats(facts, groups, rules, facts.prefix_hash, facts.prefix_logprob_sum, lengths, long)


def _repeats(
    facts: Facts, groups: Groups, rules: Rules, key: Ints, logprob: Floats, length: Ints, concerns: Bools
) -> Outcome:
    temperature = facts.temperature
    if rules.temperature is not None:
        temperature = np.where(np.isnan(temperature), rules.temperature, temperature)
    top_p = np.where(np.isnan(facts.top_p), 1.0, facts.top_p)
    # top-k draws from a renormalised distribution of a mass that is not known
    whole = (facts.top_k <= 0) | (facts.top_k >= (rules.vocab_size or 1 << 30))  # not known counts as not limited
    aligned = (facts.logprobs_length == facts.output_length) & (facts.bad_logprobs == 0)
    sampled = (temperature != 0) & (facts.top_k != 1)
    usable = aligned & ~np.isnan(temperature) & whole & (top_p > 0)
    concerned = concerns & sampled & ~unfinished(facts)
    # renormalised top-p probabilities are at most 1 / top_p times the log-prob's own
    likely = np.minimum(logprob - length * np.log(np.where(top_p > 0, top_p, 1.0)), 0.0)
    siblings, copies = _siblings(groups, key, concerned & usable)
    repeats = copies > 0
    evidence = _log_evidence(likely, siblings, copies)
    # of many repeats, those that nobody would expect once among all pairs show the defect; the rest may be honest
    striking = repeats & (likely < -np.log(max(int(siblings.sum()), 1)))
    copied = (striking if striking.any() else repeats) & (evidence > -np.log(FALSE_ALARM))

    def case(row: int) -> tuple[Any, Any, str]:
        tokens = int(length[row])
        message = (
            f"it shares its first {quantity(tokens, 'tokens')} with an earlier sibling, "
            f"which by chance has probability e^{likely[row]:.1f}"
        )
        return "tokens of its own", f"{quantity(tokens, 'tokens')} of a sibling", message

    outcome = over_rows(
        facts,
        known=usable,
        fails=copied,
        field="output_ids",
        case=case,
        missing="no sound log-probs, no temperature, or top-k sampling",
        concerns=concerned,
    )
    return replace(outcome, evidence={"repeats": int(repeats.sum()), "log_evidence": evidence})


def _siblings(groups: Groups, key: Ints, counted: Bools) -> tuple[Ints, Ints]:
    """How many earlier siblings each counted sample has, and how many of them it repeats, both (rows,)."""
    rows = groups.order[counted[groups.order]]
    code = groups.code[rows]
    by_key = np.lexsort((np.arange(len(rows)), key[rows], code))
    same = (np.diff(key[rows][by_key]) == 0) & (np.diff(code[by_key]) == 0)
    siblings, copies = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
    siblings[rows] = _places(np.diff(code) == 0) if len(rows) else 0
    copies[rows[by_key]] = _places(same) if len(rows) else 0
    return siblings, copies


def _places(continues: Bools) -> Ints:
    """The place of each entry in its run, (entries,), where each but the first says whether it continues a run."""
    starts = np.flatnonzero(np.append(True, ~continues))
    places = np.arange(len(continues) + 1)
    return np.asarray(places - np.repeat(starts, np.diff(np.append(starts, len(places)))))


def _log_evidence(likely: Floats, siblings: Ints, copies: Ints) -> float:
    """Log of the averaged product of likelihood ratios, over samples that have an earlier sibling."""
    hits, misses = copies > 0, int(((siblings > 0) & (copies == 0)).sum())
    # of a copy: log of (m / k) / P
    gain = np.log(copies[hits] / siblings[hits]) - likely[hits]
    totals = [
        float(np.sum(np.logaddexp(np.log(rate) + gain, np.log1p(-rate)))) + misses * float(np.log1p(-rate))
        for rate in COPY_RATES
    ]
    return float(np.logaddexp.reduce(totals)) - float(np.log(len(totals)))
