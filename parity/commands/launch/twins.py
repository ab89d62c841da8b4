"""Pairs whose arms sample with the same seeds: what they recorded is compared bit for bit (L2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from parity.errors import InputError
from parity.evidence.replay import compare_twin_steps
from parity.findings import Finding, Level, Message, Status, Where, listed
from parity.launch import Launched, LaunchFile
from parity.records.samples import Rollout
from parity.sources.directories import find_sources
from parity.sources.registry import Source

Step = tuple[int, Rollout]


def twin_findings(
    launch: LaunchFile, pair: tuple[Launched, Launched], metrics: tuple[Sequence[Mapping[str, Any]], ...]
) -> list[Finding]:
    """L2 of a pair, by the samples and metrics of the steps that both arms have made.

    Args:
        launch: What was asked for.
        pair: The baseline's run and the experiment's.
        metrics: The metrics of each, a line a step.
    """
    name = pair[1].plan.name
    try:
        first, second = (_sources(launch, run) for run in pair)
        form = next((form for form in first if form in second), None)
        if form is None:
            held = [f"{run.plan.name}: {listed(own) or 'none'}" for run, own in zip(pair, (first, second), strict=True)]
            message = Message("no samples of one format in both arms ({held})", held=listed(held, "; "))
            return [Finding("twin_samples", Level.REPLAY, Status.INCONCLUSIVE, message, Where(name))]
        asked: tuple[set[str | None], set[str | None]] = (set(), set())
        ended = tuple(run.status == "completed" for run in pair)
        steps = _together(_by_step(first[form], asked[0]), _by_step(second[form], asked[1]), ended)
        common = min(map(len, metrics))
        found = compare_twin_steps(steps, metrics[0][:common], metrics[1][:common])
    except InputError as error:
        message = Message("what it recorded cannot be checked: {problem}", problem=str(error))
        return [Finding("twin_samples", Level.REPLAY, Status.INCONCLUSIVE, message, Where(name))]
    return [finding.in_run(name) for finding in [*found, _arms_finding(*asked)]]


def _arms_finding(baseline: set[str | None], experiment: set[str | None]) -> Finding:
    """Two runs that were asked for in the same way are equal whatever the change does."""
    shown = [listed(sorted(str(arm) for arm in side)) for side in (baseline, experiment)]
    if baseline != experiment:
        message = Message("groups came by {baseline} and by {experiment}", baseline=shown[0], experiment=shown[1])
        return Finding("twin_arms", Level.REPLAY, Status.PASS, message)
    message = Message(
        "the samples of both arms say that they came by {arm}, so that equal runs show nothing: does each arm's "
        "recording name its own?",
        arm=shown[0],
    )
    return Finding("twin_arms", Level.REPLAY, Status.INCONCLUSIVE, message)


def _sources(launch: LaunchFile, run: Launched) -> dict[str, list[Source]]:
    paths = [path for at in run.plan.samples if (path := Path(at)).exists()]
    found: dict[str, list[Source]] = {}
    for source in find_sources(paths, launch.results.group_size or None).sources:
        if source.samples:
            found.setdefault(source.format, []).append(source)
    return found


def _by_step(sources: Sequence[Source], asked: set[str | None]) -> Iterator[Step]:
    """The samples step by step, one in memory at a time; `asked` takes the ways in which they say they came.

    Raises:
        InputError: A step comes again after a later one.
    """
    pending: Step | None = None
    for source in sources:
        assert source.samples is not None
        for part in source.samples():
            asked.update(part.table.column("arm").to_pylist())
            steps = part.integers("rollout_id")
            for step in dict.fromkeys(steps.tolist()):
                rows = Rollout(part.table.filter(pa.array(steps == step)))
                if pending and pending[0] == step:
                    pending = step, Rollout.concatenate([pending[1], rows])
                    continue
                if pending and pending[0] > step:
                    raise InputError(f"{source.path}: step {step} comes again after step {pending[0]}")
                if pending:
                    yield pending
                pending = step, rows
    if pending:
        yield pending


def _together(
    first: Iterator[Step], second: Iterator[Step], ended: tuple[bool, ...]
) -> Iterator[tuple[Rollout, Rollout]]:
    """The steps of both; one that an arm lacks which has completed is a difference, and else yet to come."""
    none = Rollout.from_samples([])
    left, right = next(first, None), next(second, None)
    while left or right:
        if left and right and left[0] == right[0]:
            yield left[1], right[1]
            left, right = next(first, None), next(second, None)
        elif left and (not right or left[0] < right[0]):
            if right or ended[1]:
                yield left[1], none
            left = next(first, None)
        elif right:
            if left or ended[0]:
                yield none, right[1]
            right = next(second, None)
