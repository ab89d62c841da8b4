"""Media: placeholders in prompts against the media sent, and placeholders that a policy made up."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.evidence.contract.columns import NULL, Ints, Objects
from parity.evidence.contract.facts import Facts, Groups, known_objects, over_rows
from parity.evidence.contract.outcomes import Outcome
from parity.evidence.contract.placeholders import total_runs
from parity.evidence.contract.rules import Rules
from parity.findings import Message, quantity

_MISSING = Message("no media recorded, or the placeholder tokens are not given")


def _declared(rules: Rules) -> frozenset[int]:
    return frozenset(item for item in rules.media_placeholders if isinstance(item, int))


def media_placeholders(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """A prompt has one placeholder, or one run of expanded ones, for each medium, and no run is cut off."""
    media = np.fromiter((len(item or ()) for item in facts.media), np.int64, len(facts))
    runs, sizes, cut = total_runs(facts.media_runs, _declared(rules))
    usual = _usual_sizes(facts.media, sizes, runs == media)

    def case(row: int) -> tuple[Any, Any, Message]:
        if runs[row] != media[row]:
            places = quantity(int(runs[row]), "placeholders")
            message = Message("{places} in a prompt whose media are {media}", places=places, media=int(media[row]))
            return int(media[row]), int(runs[row]), message
        if cut[row]:
            message = Message("{runs} of placeholders cut off at one side", runs=quantity(int(cut[row]), "runs"))
            return 0, int(cut[row]), message
        message = Message(
            "{size} placeholder tokens for media that take {usual} elsewhere",
            size=int(sizes[row]),
            usual=int(usual[row]),
        )
        return int(usual[row]), int(sizes[row]), message

    known = known_objects(facts.media) & (facts.prompt_length != NULL) & bool(_declared(rules))
    wrong = (runs != media) | (cut > 0) | (sizes < usual)
    return over_rows(facts, known=known, fails=wrong, field="prompt_ids", case=case, missing=_MISSING)


def _usual_sizes(media: Objects, sizes: Ints, counted: Any) -> Ints:
    """The most placeholder tokens that the same media take in any sample, (rows,); `NULL` without media."""
    most: dict[Any, int] = {}
    for row in np.flatnonzero(counted).tolist():
        if media[row]:
            most[media[row]] = max(most.get(media[row], 0), int(sizes[row]))
    return np.fromiter((most.get(item, NULL) for item in media), np.int64, len(media))


def generated_placeholders(facts: Facts, groups: Groups, rules: Rules) -> Outcome:
    """No response holds a placeholder of media, at which a trainer would look for an image that is not there."""
    declared = _declared(rules)
    made = np.fromiter((next((t for t in row if t in declared), NULL) for row in facts.generated), np.int64, len(facts))

    def case(row: int) -> tuple[Any, Any, Message]:
        token = int(made[row])
        return None, token, Message("the response holds token {token}, a placeholder of media", token=token)

    with_media = np.fromiter((bool(item) for item in facts.media), np.bool_, len(facts))
    return over_rows(
        facts,
        known=(facts.output_length != NULL) & bool(declared),
        fails=made != NULL,
        field="output_ids",
        case=case,
        missing=_MISSING,
        concerns=np.full(len(facts), bool(declared) or bool(with_media.any())),
    )
