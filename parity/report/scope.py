"""What a verdict speaks of, and what it does not show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.findings import Finding, Level, Message, Status
from parity.records.experiment import LIST_TWIN
from parity.report.runs import RunOutcome

REFERENCE_TRAINER = "parity's reference GRPO trainer"
"""The trainer of `parity run`, which is not the user's own."""


FIXED_WEIGHTS = Message("fixed weights")
"""In place of a trainer, where nothing is trained."""

SAMPLED = "sampled"
"""The design of samples at fixed weights, which are of no run and no step."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a verdict speaks of; a text is empty, and a number 0, where it is not recorded.

    Attributes:
        engine: The engine that answered.
        engine_version: The version that it states.
        dtype: The number format that it states.
        model: The model that it served.
        trainer: What was trained with.
        task: Where prompts and rewards come from.
        runs: Number of runs.
        steps: Steps of the longest run.
        groups: Groups of samples in all runs.
        margins: By metric, the margin that a finding held it to.
        default_margins: Those of them that nobody stated.
        not_shown: What the verdict leaves open, a phrase each.
    """

    engine: str
    engine_version: str
    dtype: str
    model: str
    trainer: str
    task: str
    runs: int
    steps: int
    groups: int
    margins: Mapping[str, float]
    default_margins: tuple[str, ...]
    not_shown: tuple[str, ...]


def scope_of(
    facts: Mapping[str, Any],
    outcomes: Sequence[RunOutcome],
    counts: Mapping[str, int],
    findings: Iterable[Finding],
    statuses: Mapping[Level, Status],
) -> Scope:
    """The scope of a report.

    Args:
        facts: What is recorded of the experiment: ``engine``, ``engine_version``, ``engine_dtype``, ``model``,
            ``trainer``, ``task`` and ``default_margins``, the metrics whose margin nobody stated.
        outcomes: How each run ended.
        counts: Samples, groups and the like.
        findings: All findings; those with a margin say what was held to one.
        statuses: What each rung came to.
    """
    margins = {
        finding.where.field: float(margin)
        for finding in findings
        if finding.where.field and isinstance(margin := finding.evidence.get("margin"), (int, float))
    }
    defaults = set(facts.get("default_margins") or ())
    runs = [outcome for outcome in outcomes if outcome.design != SAMPLED]
    return Scope(
        engine=str(facts.get("engine") or ""),
        engine_version=str(facts.get("engine_version") or ""),
        dtype=str(facts.get("engine_dtype") or ""),
        model=str(facts.get("model") or ""),
        trainer=str(facts.get("trainer") or ""),
        task=str(facts.get("task") or ""),
        runs=len(runs),
        steps=max((outcome.steps for outcome in runs), default=0),
        groups=counts.get("groups", 0),
        margins=margins,
        default_margins=tuple(metric for metric in margins if metric in defaults),
        not_shown=tuple(_not_shown(facts, outcomes, statuses)),
    )


_OPEN = {
    Level.CONTRACT: Message("that every exchange and sample obeys the contract (L0)"),
    Level.SAMPLING: Message("that free sampling is equally distributed in both arms at fixed weights (L1)"),
    Level.REPLAY: Message("that identical responses give identical samples, loss and gradients (L2)"),
    Level.TRAINING: Message("that the curves of whole training runs agree (L3)"),
}
"""What stays open where nothing of a rung was compared."""


def _not_shown(
    facts: Mapping[str, Any], outcomes: Sequence[RunOutcome], statuses: Mapping[Level, Status]
) -> Iterable[Message]:
    if facts.get("trainer") == REFERENCE_TRAINER:
        yield Message("anything of another trainer, model, engine or task than these")
    yield from (phrase for level, phrase in _OPEN.items() if statuses[level] is Status.NOT_COMPARED)
    if any(outcome.design == LIST_TWIN for outcome in outcomes):
        yield Message(
            "native's own sampling: in the list-twin, lists with a seed an item replaced it, so that only the path of "
            "a group's request and answer is compared"
        )
