"""The self-test: plants every fault, which the check named for it must catch and no other, and shows every control.

Statistical tests raise false alarms at a known rate, so every trial has its own fixed seed: the outcome is the same at
every call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from parity.contract_checks import check_samples
from parity.faults import CONTROLS, FAULTS, Control, Fault, name_of
from parity.faults.clean import RULES, clean_prompts, clean_rollout
from parity.findings import Finding, Progress, Status, quantity

SEED = 2026
CLEAN_RUNS, CLEAN_STEPS, CLEAN_GROUPS = 200, 4, 16


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of one fault.

    Attributes:
        fault: Its name.
        level: The level of the check that must catch it, ``L0`` to ``L4``.
        check: That check.
        place: Where the fault was planted.
        origin: The public report of the bug.
        caught: The check failed in a scene of at most the size stated.
        after: The smallest size tried at which it failed, or None.
        unit: What sizes count: groups, steps or runs.
        message: The finding's message.
        unexpected: Other checks that failed and are not the fault's companions.
        seconds: Time of all its trials.
    """

    fault: str
    level: str
    check: str
    place: str
    origin: str
    caught: bool
    after: int | None
    unit: str
    message: str
    unexpected: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Caught by the right check alone."""
        return self.caught and not self.unexpected


@dataclass(frozen=True, slots=True)
class ControlTrial:
    """The outcome of one control: the checks that failed, with their messages; none may."""

    control: str
    description: str
    alarms: Mapping[str, str]
    seconds: float

    @property
    def passed(self) -> bool:
        """No check failed."""
        return not self.alarms


@dataclass(frozen=True, slots=True)
class CleanTrial:
    """False alarms of the checks of samples in runs without a fault, by check."""

    runs: int
    groups: int
    samples: int
    alarms: Mapping[str, int]
    seconds: float

    @property
    def passed(self) -> bool:
        """No check failed in any run."""
        return not self.alarms


@dataclass(frozen=True, slots=True)
class SelfTest:
    """All trials."""

    faults: tuple[Trial, ...]
    controls: tuple[ControlTrial, ...]
    clean: CleanTrial

    @property
    def passed(self) -> bool:
        """Everything was caught, and nothing else was."""
        faults, controls = ([trial.passed for trial in trials] for trials in (self.faults, self.controls))
        return all((*faults, *controls, self.clean.passed))

    def to_json(self) -> dict[str, Any]:
        """The result in the envelope of `--json`, with every trial."""
        caught = sum(trial.caught for trial in self.faults)
        return {
            "verdict": "PASS" if self.passed else "FAIL",
            "counts": {"faults": len(self.faults), "caught": caught, "controls": len(self.controls)},
            "faults": [{**asdict(trial), "passed": trial.passed} for trial in self.faults],
            "controls": [{**asdict(trial), "passed": trial.passed} for trial in self.controls],
            "clean": {**asdict(self.clean), "passed": self.clean.passed},
        }


def run_selftest(progress: Progress) -> SelfTest:
    """Plants every fault, shows every control, and counts false alarms in clean runs.

    Args:
        progress: Called after each trial.
    """
    total = len(FAULTS) + len(CONTROLS) + 1
    done = iter(range(1, total + 1))

    def counted(trials: Iterable[Any]) -> Iterator[Any]:
        for trial in trials:
            yield trial
            progress(next(done), total, "planting faults")

    faults = tuple(counted(map(try_fault, FAULTS.values())))
    controls = tuple(counted(map(try_control, CONTROLS)))
    (clean,) = counted([try_clean(CLEAN_RUNS)])
    return SelfTest(faults, controls, clean)


def _rng(name: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *name.encode(), *numbers])


def _failures(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The first failing finding of each check, warnings included."""
    failed: dict[str, Finding] = {}
    for finding in findings:
        if finding.status is Status.FAIL:
            failed.setdefault(name_of(finding), finding)
    return failed


def try_fault(fault: Fault) -> Trial:
    """Plants a fault in scenes of growing size, doubled up to the one stated, until its check fails."""
    started = time.perf_counter()
    after, size = None, fault.kind.smallest
    failed: dict[str, Finding] = {}
    while after is None and size <= fault.units:
        scene = fault.kind.build(_rng(fault.name, size), size)
        try:
            fault.plant(scene)
        except (IndexError, ValueError):
            failed = {}  # the scene is too small for this fault
        else:
            failed = _failures(fault.kind.judge(scene))
        if fault.check in failed and failed[fault.check].level is fault.level:
            after = size
        size = size * 2 if size == fault.units else min(size * 2, fault.units)
    allowed = (fault.check, *fault.companions)
    return Trial(
        fault=fault.name,
        level=fault.level.rung,
        check=fault.check,
        place=fault.place,
        origin=fault.origin,
        caught=after is not None,
        after=after,
        unit=fault.kind.unit,
        message=failed[fault.check].message if fault.check in failed else "",
        unexpected=tuple(name for name in failed if not any(fnmatchcase(name, pattern) for pattern in allowed)),
        seconds=time.perf_counter() - started,
    )


def try_control(control: Control) -> ControlTrial:
    """Judges a control by every check of its scene."""
    started = time.perf_counter()
    scene = control.kind.build(_rng(control.name), control.units)
    control.plant(scene)
    alarms = {name: finding.message for name, finding in _failures(control.kind.judge(scene)).items()}
    return ControlTrial(control.name, control.description, alarms, time.perf_counter() - started)


def try_clean(runs: int) -> CleanTrial:
    """Counts false alarms of the checks of samples in runs without a fault, each 4 steps of 16 groups of 8."""
    started = time.perf_counter()
    alarms: Counter[str] = Counter()
    samples = 0
    for run in range(runs):
        rng = _rng("clean", run)
        rollout = clean_rollout(rng, clean_prompts(rng, CLEAN_STEPS * CLEAN_GROUPS, media=True), steps=CLEAN_STEPS)
        samples += len(rollout)
        alarms.update(_failures(check_samples(rollout, RULES)).keys())
    groups = runs * CLEAN_STEPS * CLEAN_GROUPS
    return CleanTrial(runs, groups, samples, alarms, time.perf_counter() - started)


def table(result: SelfTest) -> str:
    """The result as plain text: one line for each fault and control, then the summary."""
    faults = [("level", "fault", "planted in", "caught by", "after", "seconds", "")]
    for trial in result.faults:
        after = f"{trial.after} {trial.unit}" if trial.after else "not caught"
        place = (trial.level, trial.fault, trial.place, trial.check)
        faults.append((*place, after, f"{trial.seconds:.2f}", _mark(trial)))
    controls = [("control", "what it is", "seconds", "")]
    for control in result.controls:
        controls.append((control.control, control.description, f"{control.seconds:.2f}", _mark(control)))
    return "\n".join([*_aligned(faults), "", *_aligned(controls), "", summary(result)])


def summary(result: SelfTest) -> str:
    """What went wrong, one line each, then false alarms, and the verdict in the last line."""
    wrong = [
        *(f"{trial.fault}: {_mark(trial)}" for trial in result.faults if not trial.passed),
        *(f"{control.control}: {_mark(control)}" for control in result.controls if not control.passed),
    ]
    clean = result.clean
    alarms = ", ".join(f"{name} in {quantity(count, 'runs')}" for name, count in clean.alarms.items())
    caught, quiet = (sum(trial.passed for trial in trials) for trials in (result.faults, result.controls))
    return "\n".join(
        [
            *wrong,
            f"{clean.runs} clean runs of {clean.groups} groups, {clean.samples} samples in all: "
            f"{alarms or 'no false alarm'} ({clean.seconds:.1f} s)",
            f"{caught} of {len(result.faults)} faults caught by the check named for them and by no other, "
            f"{quiet} of {len(result.controls)} controls pass: {'PASS' if result.passed else 'FAIL'}",
        ]
    )


def _mark(trial: Trial | ControlTrial) -> str:
    """What is wrong with a trial; empty if nothing is."""
    if trial.passed:
        return ""
    if isinstance(trial, ControlTrial):
        return f"ALARM {', '.join(trial.alarms)}"
    return f"ALSO {', '.join(trial.unexpected)}" if trial.caught else "MISSED"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows in columns as wide as their widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
