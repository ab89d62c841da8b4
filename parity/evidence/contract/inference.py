"""What a rollout was asked to be, read from the rollout itself where nobody says.

Each rule that can be inferred is accepted where it explains at least nine of ten groups, and says from how many; else
the checks that need it say *not compared*. What is inferred is then held against the groups that disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.evidence.contract.columns import NULL, Bools
from parity.evidence.contract.facts import Facts, Groups
from parity.evidence.contract.placeholders import KNOWN_TOKENS, total_runs
from parity.evidence.contract.rules import AdvantageFormula, AdvantageScope, Rules
from parity.evidence.contract.scores import advantages_agree, in_mean, informative
from parity.findings import Message, listed, quantity

SHARE = 0.9
"""The share of groups that a rule must explain to be accepted."""

FEWEST = 2
"""Groups that must show a rule."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """The rules with what could be read from the data.

    Attributes:
        rules: The rules given, completed.
        accepted: By rule that was inferred, what it is and from how many groups.
        refused: By rule that was looked for and explains too few groups, what came closest.
    """

    rules: Rules
    accepted: Mapping[str, Message]
    refused: Mapping[str, Message]


def infer(facts: Facts, groups: Groups, rules: Rules) -> Inferred:
    """Completes rules from the data; what is given stays."""
    accepted: dict[str, Message] = {}
    refused: dict[str, Message] = {}
    for name, look in _LOOKS.items():
        if getattr(rules, name) or (name == "stop_token_ids" and rules.stop_strings):
            continue
        found = look(facts, groups, rules)
        if found is None:
            continue
        changes, what, agree, of = found
        counts = {"what": what, "agree": agree, "groups": quantity(of, "groups")}
        if of >= FEWEST and agree >= SHARE * of:
            rules = replace(rules, **changes)
            accepted[name] = Message("{what}, as {agree:,} of {groups} have it", **counts)
        elif of >= FEWEST:
            refused[name] = Message(
                "not given, and the data does not tell ({what} fits {agree:,} of {groups})", **counts
            )
    return Inferred(rules, accepted, refused)


Found = tuple[dict[str, Any], Message, int, int]
"""Changes of the rules, what they say, the groups that agree, and the groups that were looked at."""


def _group_size(facts: Facts, groups: Groups, rules: Rules) -> Found | None:
    if not len(groups):
        return None
    size, agree = Counter(groups.sizes.tolist()).most_common(1)[0]
    return {"group_size": size}, Message("group size {size}", size=size), agree, len(groups)


def _cap(facts: Facts, groups: Groups, rules: Rules) -> Found | None:
    """The cap is where responses stop by length, where samples name none."""
    cut = (facts.finish_reason == "length") & (facts.turns <= 1) & (facts.output_length != NULL)
    if not cut.any() or (facts.max_new_tokens != NULL).any():
        return None
    cap = int(Counter(facts.output_length[cut].tolist()).most_common(1)[0][0])
    agree, of = _groups_where(groups, cut, facts.output_length == cap)
    return {"max_new_tokens": cap}, Message("cap of {cap} tokens", cap=cap), agree, of


def _context(facts: Facts, groups: Groups, rules: Rules) -> Found | None:
    """The context is where responses stop by length before their cap: prompt and response together are then as long."""
    caps = np.where(facts.max_new_tokens == NULL, rules.max_new_tokens or NULL, facts.max_new_tokens)
    cut = (facts.finish_reason == "length") & (facts.turns <= 1) & (facts.prompt_length != NULL)
    cut &= (caps != NULL) & (facts.output_length < caps)
    if not cut.any():
        return None
    total = facts.prompt_length + facts.output_length
    context = int(Counter(total[cut].tolist()).most_common(1)[0][0])
    if (total[(facts.prompt_length != NULL) & (facts.output_length != NULL)] > context).any():
        return None
    agree, of = _groups_where(groups, cut, total == context)
    return {"context_length": context}, Message("context of {context} tokens", context=context), agree, of


def _stop_tokens(facts: Facts, groups: Groups, rules: Rules) -> Found | None:
    """Stop tokens are what responses that say `stop` end on and what does not stand amid turns."""
    stopped = (facts.finish_reason == "stop") & (facts.last_sampled != NULL)
    sound = stopped & ~facts.ends_amid
    tokens = np.unique(facts.last_sampled[sound])
    if not stopped.any():
        return None
    agree, of = _groups_where(groups, stopped, sound)
    shown = listed([str(token) for token in tokens[:6].tolist()])
    what = Message("stop tokens {tokens}", tokens=shown) if len(tokens) else Message("no set of stop tokens")
    return {"stop_token_ids": frozenset(tokens.tolist())}, what, agree, of


def _placeholders(facts: Facts, groups: Groups, rules: Rules) -> Found | None:
    media = np.fromiter((len(item or ()) for item in facts.media), np.int64, len(facts))
    has = (media > 0) & (facts.prompt_length != NULL)
    if not has.any():
        return None
    present = {item.token for row in facts.media_runs[has] for item in row}
    choices = [frozenset(present & KNOWN_TOKENS), *(frozenset({token}) for token in sorted(present - KNOWN_TOKENS))]
    best: tuple[int, int, frozenset[int]] | None = None
    for tokens in filter(None, choices):
        agree, of = _groups_where(groups, has, total_runs(facts.media_runs, tokens)[0] == media)
        if best is None or agree > best[0]:
            best = agree, of, tokens
    if best is None:
        return None
    agree, of, tokens = best
    shown = listed([str(token) for token in sorted(tokens)])
    return {"media_placeholders": tokens}, Message("media placeholders {tokens}", tokens=shown), agree, of


_BY_DEVIATION = "(reward - mean) / (standard deviation with n - {ddof} + {epsilon:g})"
_FORMULAS: tuple[tuple[AdvantageFormula, int, float, Message], ...] = (
    *(
        ("grpo", ddof, epsilon, Message(_BY_DEVIATION, ddof=ddof, epsilon=epsilon))
        for epsilon in (1e-6, 1e-4, 1e-8, 1e-5, 0.0)
        for ddof in (1, 0)
    ),
    ("grpo_no_std", 1, 0.0, Message("reward - mean")),
    ("rloo", 1, 0.0, Message("reward - mean of the others")),
    ("batch_std", 1, 1e-6, Message("(reward - mean) / standard deviation of the batch")),
    ("batch", 1, 1e-6, Message("(reward - mean of the batch) / standard deviation of the batch")),
)


def _advantage(facts: Facts, groups: Groups, rules: Rules) -> Found | None:
    """The formula that explains most of the groups that can tell formulas apart: those of several rewards."""
    telling, counted = informative(facts, groups), in_mean(facts)
    if not telling.any():
        return None
    scopes: tuple[AdvantageScope, ...] = ("group", "prompt")
    best: Found | None = None
    for scope in scopes:
        for formula, ddof, epsilon, words in _FORMULAS:
            changes: dict[str, Any] = {
                "advantage": formula,
                "ddof": ddof,
                "epsilon": epsilon,
                "advantage_over": scope,
            }
            fails = ~advantages_agree(facts, groups, replace(rules, **changes), counted)
            agree = int((telling & ~groups.any(fails)).sum())
            if best is None or agree > best[2]:
                what = Message(
                    "advantage {formula} over each {scope}",
                    formula=words,
                    scope=Message("group" if scope == "group" else "prompt"),
                )
                best = changes, what, agree, int(telling.sum())
    return best


def _groups_where(groups: Groups, concerned: Bools, agrees: Bools) -> tuple[int, int]:
    """The groups whose concerned rows all agree, and the groups with a concerned row."""
    of = groups.any(concerned)
    return int((of & ~groups.any(concerned & ~agrees)).sum()), int(of.sum())


_LOOKS = {
    "group_size": _group_size,
    "max_new_tokens": _cap,
    "context_length": _context,
    "stop_token_ids": _stop_tokens,
    "media_placeholders": _placeholders,
    "advantage": _advantage,
}
"""How each rule is looked for, in this order: the context's cap may be the inferred one."""

RULE_OF_CHECK = {
    "output_count": "group_size",
    "finish_length": "max_new_tokens",
    "context": "context_length",
    "finish_stop": "stop_token_ids",
    "media_placeholders": "media_placeholders",
    "generated_placeholders": "media_placeholders",
    "advantage_recomputed": "advantage",
}
"""The rule that a check needs and that may be inferred."""
