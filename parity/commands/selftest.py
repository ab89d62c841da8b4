"""The self-test: every fault is planted, and must be caught by the check named for it and by no other.

A statistical test has a rate of false alarms by design; its controls use seeds that are given, so that the self-test
says the same at every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from parity.contract_checks import check_samples
from parity.faults import CONTROLS, FAULTS, Control, Fault, Kind, name_of
from parity.faults.clean import RULES, clean_prompts, clean_rollout
from parity.faults.scenes import DRAWS
from parity.findings import Finding, Status, quantity

SEED = 2026
CLEAN_RUNS, CLEAN_STEPS, CLEAN_GROUPS = 200, 4, 16
SMALLEST_DRAW = 64
"""Groups that the tests of sampling are tried with first."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one fault.

    Attributes:
        fault: Its name.
        level: The level that must catch it.
        check: The check that must.
        place: Where it was planted.
        origin: Where it happened.
        caught: That check failed, at a scene of at most the size stated.
        after: The smallest size tried at which it did, or None.
        unit: What sizes count: groups, steps or runs.
        message: What the check says.
        unexpected: Checks that failed and should not.
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
    """What became of one control: the checks that failed, with what they say, where none may."""

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
    """False alarms of the rules over samples, in runs that have no fault."""

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


def run_selftest(progress: Callable[[int, int], None]) -> SelfTest:
    """Plants every fault, shows every control, and looks for false alarms in clean runs.

    Args:
        progress: Called with the number of trials done and of all.
    """
    total = len(FAULTS) + len(CONTROLS) + 1
    done = iter(range(1, total + 1))

    def counted(trials: Iterable[Any]) -> Iterator[Any]:
        for trial in trials:
            yield trial
            progress(next(done), total)

    faults = tuple(counted(try_fault(fault) for fault in FAULTS.values()))
    controls = tuple(counted(try_control(control) for control in CONTROLS))
    (clean,) = counted([try_clean(CLEAN_RUNS)])
    return SelfTest(faults, controls, clean)


def _rng(name: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *name.encode(), *numbers])


def _sizes(kind: Kind, most: int) -> list[int]:
    """Sizes of scenes to try: doubling up to the one stated."""
    sizes = [SMALLEST_DRAW if kind is DRAWS else 1]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def _failures(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The first failing finding of each check, warnings included, in the order found."""
    failed: dict[str, Finding] = {}
    for finding in findings:
        if finding.status is Status.FAIL:
            failed.setdefault(name_of(finding), finding)
    return failed


def unexpected_checks(fault: Fault, failed: Iterable[str]) -> tuple[str, ...]:
    """The failed checks that are neither the fault's own nor among its companions."""
    allowed = (fault.check, *fault.companions)
    return tuple(name for name in failed if not any(fnmatchcase(name, pattern) for pattern in allowed))


def try_fault(fault: Fault) -> Trial:
    """Plants a fault in scenes of growing size until its check fails."""
    started = time.perf_counter()
    found, after, failed = None, None, dict[str, Finding]()
    for size in _sizes(fault.kind, fault.units):
        scene = _planted(fault, size)
        if scene is None:
            continue
        failed = _failures(fault.kind.judge(scene))
        found = failed.get(fault.check)
        if found is not None and found.level is fault.level:
            after = size
            break
    return Trial(
        fault=fault.name,
        level=fault.level.rung,
        check=fault.check,
        place=fault.place,
        origin=fault.origin,
        caught=after is not None,
        after=after,
        unit=fault.kind.unit,
        message=found.message if found else "",
        unexpected=unexpected_checks(fault, failed),
        seconds=time.perf_counter() - started,
    )


def _planted(fault: Fault, size: int) -> Any:
    """A scene with the fault in it, or None where it is too small to hold it."""
    scene = fault.kind.build(_rng(fault.name, size), size)
    try:
        fault.plant(scene)
    except (IndexError, ValueError):
        return None
    return scene


def try_control(control: Control) -> ControlTrial:
    """Shows a control to all checks of its scene."""
    started = time.perf_counter()
    scene = control.kind.build(_rng(control.name), control.units)
    control.plant(scene)
    failed = _failures(control.kind.judge(scene))
    alarms = {name: finding.message for name, finding in failed.items()}
    return ControlTrial(control.name, control.description, alarms, time.perf_counter() - started)


def try_clean(runs: int) -> CleanTrial:
    """Counts false alarms of the rules over samples in runs without a fault, each 4 steps of 16 groups of 8."""
    started = time.perf_counter()
    alarms: dict[str, int] = {}
    samples = 0
    for run in range(runs):
        rng = _rng("clean", run)
        rollout = clean_rollout(rng, clean_prompts(rng, CLEAN_STEPS * CLEAN_GROUPS, media=True), steps=CLEAN_STEPS)
        samples += len(rollout)
        for name in _failures(check_samples(rollout, RULES)):
            alarms[name] = alarms.get(name, 0) + 1
    groups = runs * CLEAN_STEPS * CLEAN_GROUPS
    return CleanTrial(runs, groups, samples, alarms, time.perf_counter() - started)


def table(result: SelfTest) -> str:
    """The result as plain text: one line a fault, then controls, and the summary."""
    rows = [("level", "fault", "planted in", "caught by", "after", "seconds", "")]
    for trial in result.faults:
        after = f"{trial.after} {trial.unit}" if trial.after else "not caught"
        rows.append((trial.level, trial.fault, trial.place, trial.check, after, f"{trial.seconds:.2f}", _mark(trial)))
    controls = [("control", "what it is", "", "", "", "seconds", "")]
    for control in result.controls:
        seconds = f"{control.seconds:.2f}"
        controls.append((control.control, control.description, "", "", "", seconds, _mark(control)))
    return "\n".join([*_aligned(rows), "", *_aligned(controls), "", summary(result)])


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
    if isinstance(trial, ControlTrial):
        return f"ALARM {', '.join(trial.alarms)}" if trial.alarms else ""
    if trial.passed:
        return ""
    return f"ALSO {', '.join(trial.unexpected)}" if trial.caught else "MISSED"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows in columns as wide as their widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True) if width).rstrip() for row in rows
    ]
