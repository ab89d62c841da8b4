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

from parity.evidence.contract.columns import NULL, PREFIX, Bools, Floats, Ints
from parity.evidence.contract.facts import Facts, Groups, over_rows
from parity.evidence.contract.finish import unfinished
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.rules import Rules
from parity.findings import Message, quantity

FALSE_ALARM = 1e-6
"""Bound on the probability that independent samples are called clones, over everything checked at once."""

LONG_TEXT = 64
"""Characters of a text that a policy which still samples does not write twice alike."""

FEWEST_COPIES = 3
"""Groups of one text alone that are needed to call texts copies, for want of log-probs."""

SURE = 20.0
"""Nats below which two groups do not hold the same samples by chance."""

COPY_RATES = (0.00001, 0.001, 0.01, 0.1, 0.5, 0.99)


def clones(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Samples of a group are drawn independently: none repeats another more often than its log-probs allow."""
    whole = facts.output_length > 0
    return _repeats(facts, groups, rules, facts.output_hash, facts.logprob_sum, facts.output_length, whole, None)


def clone_prefixes(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Samples of a group do not share their first 32 tokens more often than their log-probs allow."""
    lengths = np.full(len(facts), PREFIX)
    long = facts.output_length >= PREFIX
    return _repeats(facts, groups, rules, facts.prefix_hash, facts.prefix_logprob_sum, lengths, long, None)


def clones_elsewhere(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Samples repeat those of other groups and rollouts with their prompt no more often than their log-probs allow."""
    whole = facts.output_length > 0
    # where no prompt is recorded, all samples count as of one prompt: more siblings make a repeat less telling
    prompt = np.where(facts.prompt_length != NULL, facts.prompt_hash, NULL)
    return _repeats(facts, groups, rules, facts.output_hash, facts.logprob_sum, facts.output_length, whole, prompt)


def groups_once(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No two groups hold the same samples: a batch is trained on once."""
    usable = (facts.output_length > 0) & (facts.logprobs_length == facts.output_length) & (facts.bad_logprobs == 0)
    usable &= ~unfinished(facts)
    seen: dict[Any, int] = {}
    twin = np.full(len(groups), -1)
    known = np.zeros(len(groups), dtype=np.bool_)
    for group in range(len(groups)):
        rows = groups.rows(group)
        likelihood = dict(zip(facts.output_hash[rows].tolist(), facts.logprob_sum[rows].tolist(), strict=True))
        # a group of one answer may be greedy, and short ones may honestly come again
        known[group] = bool(usable[rows].all()) and len(likelihood) > 1 and sum(likelihood.values()) < -SURE
        if known[group]:
            key = (
                facts.prompt_hash[rows[0]],
                *sorted(zip(facts.output_hash[rows], facts.logprob_sum[rows], strict=True)),
            )
            twin[group] = seen.setdefault(key, group)
    repeated = known & (twin != np.arange(len(groups)))

    def case(group: int) -> tuple[Any, Any, Message]:
        where = facts.where(int(groups.first[twin[group]]), "group_index").to_json()
        rollout, index = where.get("rollout_id"), where["group_index"]
        samples = quantity(int(groups.sizes[group]), "samples")
        message = Message(
            "its {samples} are those of group {index} of rollout {rollout}, log-probs and all",
            samples=samples,
            index=index,
            rollout=rollout,
        )
        return "other samples", {"rollout_id": rollout, "group_index": index}, message

    return over_rows(
        facts,
        known=known,
        fails=repeated,
        field="output_ids",
        case=case,
        missing=Message("no log-probs, or too few tokens to tell"),
        groups=groups,
    )


def text_clones(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """Where texts alone are recorded, no three groups consist of one long text each."""
    texts = (facts.text_length != NULL) & (facts.output_length == NULL) & (facts.temperature != 0)
    concerned = groups.any(texts) & (groups.sizes > 1)
    first = groups.first[groups.code]
    repeats = (facts.text_hash == facts.text_hash[first]) & (facts.text_length >= LONG_TEXT)
    alike = concerned & ~groups.any(~repeats)
    some = concerned & groups.any(repeats & (np.arange(len(facts)) != first))
    copied = alike & (int(alike.sum()) >= FEWEST_COPIES)

    def case(group: int) -> tuple[Any, Any, Message]:
        row, size = int(groups.first[group]), int(groups.sizes[group])
        length = quantity(int(facts.text_length[row]), "characters")
        message = Message("all {samples} are one text of {length}", samples=quantity(size, "samples"), length=length)
        return "several texts", 1, message

    return over_rows(
        facts,
        known=copied | ~some,
        fails=copied,
        field="text",
        case=case,
        missing=Message("long texts repeat, and without log-probs nobody can tell whether by chance"),
        concerns=concerned,
        groups=groups,
    )


def _repeats(
    facts: Facts,
    groups: Groups,
    rules: Rules,
    key: Ints,
    logprob: Floats,
    length: Ints,
    concerns: Bools,
    elsewhere: Ints | None,
) -> Outcome:
    """Repeats of earlier siblings: of the own group, or of other groups with the same number in `elsewhere` (rows,)."""
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
    if elsewhere is not None:
        concerned &= _in_several_groups(groups, elsewhere)
    siblings, copies = _siblings(groups, key, concerned & usable, elsewhere)
    repeats = copies > 0
    evidence = _log_evidence(likely, siblings, copies)
    # of many repeats, those that nobody would expect once among all pairs show the defect; the rest may be honest
    striking = repeats & (likely < -np.log(max(int(siblings.sum()), 1)))
    copied = (striking if striking.any() else repeats) & (evidence > -np.log(FALSE_ALARM))

    def case(row: int) -> tuple[Any, Any, Message]:
        tokens = quantity(int(length[row]), "tokens")
        sibling = Message("an earlier sibling") if elsewhere is None else Message("a sample of another group")
        message = Message(
            "it shares its first {tokens} with {sibling}, which by chance has probability e^{likely:.1f}",
            tokens=tokens,
            sibling=sibling,
            likely=float(likely[row]),
        )
        return "tokens of its own", f"{tokens} of a sibling", message

    outcome = over_rows(
        facts,
        known=usable,
        fails=copied,
        field="output_ids",
        case=case,
        missing=Message("no valid log-probs, no temperature, or top-k sampling"),
        concerns=concerned,
    )
    return replace(outcome, evidence={"repeats": int(repeats.sum()), "log_evidence": evidence})


def _in_several_groups(groups: Groups, number: Ints) -> Bools:
    """Where a sample's number (rows,) stands in more than one group, (rows,)."""
    _, code = np.unique(number, return_inverse=True)
    pairs = np.unique(np.stack([code.reshape(-1), groups.code]), axis=1)
    return np.asarray(np.bincount(pairs[0])[code.reshape(-1)] > 1) if len(code) else np.zeros(0, dtype=np.bool_)


def _siblings(groups: Groups, key: Ints, counted: Bools, elsewhere: Ints | None) -> tuple[Ints, Ints]:
    """How many earlier siblings each counted sample has, and how many of them it repeats, both (rows,)."""
    rows = groups.order[counted[groups.order]]
    siblings, copies = np.zeros((2, len(key)), np.int64)
    if not len(rows):
        return siblings, copies
    siblings[rows] = _earlier(groups.code[rows])
    copies[rows] = _earlier(groups.code[rows], key[rows])
    if elsewhere is not None:
        siblings[rows] = _earlier(elsewhere[rows]) - siblings[rows]
        copies[rows] = _earlier(elsewhere[rows], key[rows]) - copies[rows]
    return siblings, copies


def _earlier(*keys: Ints) -> Ints:
    """How many entries before each have the same keys, (entries,)."""
    order = np.lexsort((np.arange(len(keys[0])), *keys))
    same = np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])
    counts = np.empty(len(order), dtype=np.int64)
    counts[order] = _places(same)
    return counts


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
