"""What the runs of a launch were started with: what differs as the file says, and what differs besides."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from parity.errors import InputError
from parity.findings import Finding, Level, Message, Severity, Status, listed, quantity
from parity.launch import Launched, LaunchFile
from parity.launch.file import ArmFile
from parity.records.store import read_json

_OF_ITS_OWN = ("PWD", "OLDPWD", "SHLVL", "_")
"""Variables that each shell sets, and those of Ray, whose jobs have ids."""
_SHOWN = 8


def setup_findings(launch: LaunchFile, runs: Sequence[Launched], level: Level) -> Iterator[Finding]:
    """Two findings: how the arms differ by the launch file, and whether anything else differed at any start."""
    finding = partial(_warning, level)
    yield _stated(launch, level)
    setups, problems = _setups(runs)
    if len(setups) < 2:
        reason = listed(problems) if problems else Message("fewer than two runs have started")
        message = Message("what the runs were started with is not compared: {reason}", reason=reason)
        yield finding("same_setup", Status.NOT_COMPARED, message)
        return
    stated = {*launch.environment, *(name for arm in launch.arms.values() for name in arm.environment)}
    differing = list(_differences(setups, stated))
    facts = next(iter(setups.values()))
    if differing:
        shown = listed(differing[:_SHOWN], "; ")
        message = Message(
            "{count} that the launch file does not state: {shown}",
            count=quantity(len(differing), "differences"),
            shown=shown,
        )
        yield finding("same_setup", Status.FAIL, message, differences=differing)
    else:
        message = Message(
            "{starts} with the same {packages}, code and variables, but for those stated",
            starts=quantity(len(setups), "starts"),
            packages=quantity(len(facts["packages"]), "packages"),
        )
        yield finding("same_setup", Status.PASS, message, code=facts["code"], python=facts["python"])
    if problems:
        message = Message("not compared: {problems}", problems=listed(problems))
        yield finding("same_setup", Status.NOT_COMPARED, message)


def _warning(level: Level, check: str, status: Status, message: Message, **evidence: Any) -> Finding:
    return Finding(check, level, status, message, severity=Severity.WARNING, evidence=evidence)


def _stated(launch: LaunchFile, level: Level) -> Finding:
    """How each arm differs from the baseline as the launch file has it."""
    baseline, *_ = launch.arms
    parts = []
    for name, arm in launch.arms.items():
        if name != baseline:
            told = _words(arm, launch.arms[baseline])
            parts.append(
                Message("{arm}: {changes}", arm=name, changes=listed(told, ", ") if told else Message("nothing"))
            )
    message = Message(
        "by the launch file the arms differ from {baseline} in {parts}", baseline=baseline, parts=listed(parts, "; ")
    )
    return _warning(level, "stated_differences", Status.PASS, message)


def _words(arm: ArmFile, baseline: ArmFile) -> list[str]:
    told = []
    if arm.command != baseline.command:
        told.append("command")
    if arm.arguments != baseline.arguments:
        told.append(f"arguments {shlex.join(arm.arguments) or 'none'}")
    changed = {**baseline.environment, **arm.environment}
    told += [
        f"{name}={arm.environment.get(name, '')}"
        for name in changed
        if arm.environment.get(name) != baseline.environment.get(name)
    ]
    return told


def _setups(runs: Sequence[Launched]) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """What was written at each start, by run and attempt, and which starts wrote nothing that can be read."""
    setups: dict[str, Mapping[str, Any]] = {}
    problems = []
    for run in runs:
        for attempt in range(1, run.attempt + 1):
            path = run.plan.setup(attempt)
            if not path.exists():
                if attempt == run.attempt:
                    problems.append(f"{run.plan.name} wrote no {path.name}")
                continue
            try:
                setup = read_json(path)
                if not all(isinstance(setup.get(name), dict) for name in ("packages", "code", "environment")):
                    raise InputError(f"{path}: lacks packages, code or environment")
            except InputError as error:
                problems.append(str(error))
                continue
            setups[run.plan.name if attempt == 1 else f"{run.plan.name}, attempt {attempt}"] = setup
    return setups, problems


def _differences(setups: Mapping[str, Mapping[str, Any]], stated: set[str]) -> Iterator[str]:
    """Everything that is not the same at all starts, with two starts that differ."""

    def unlike(values: Mapping[str, Any]) -> str | None:
        first, *others = values
        other = next((name for name in others if values[name] != values[first]), None)
        return None if other is None else f"{values[first] or 'none'} ({first}), {values[other] or 'none'} ({other})"

    if told := unlike({name: setup.get("python") for name, setup in setups.items()}):
        yield f"Python {told}"
    for part in ("code", "packages"):
        for key in dict.fromkeys(key for setup in setups.values() for key in setup[part]):
            if told := unlike({name: setup[part].get(key) for name, setup in setups.items()}):
                yield f"{key} {told}"
    names = dict.fromkeys(key for setup in setups.values() for key in setup["environment"])
    for key in names:
        if key in stated or key in _OF_ITS_OWN or key.startswith("RAY_"):
            continue
        values = {name: setup["environment"].get(key) for name, setup in setups.items()}
        if len(set(values.values())) > 1:
            first = next(name for name in values if values[name] != next(iter(values.values())))
            yield f"variable {key} (first in {first})"
