"""What lies on disk of the runs of an experiment, and what is said of each besides its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.engines.detection import summary_of
from parity.findings import Message
from parity.metrics import RunCurves
from parity.records.metric_names import REWARD
from parity.records.provenance import config_hash
from parity.stats import detect_collapse

STEP_TIME = "perf/step_time"
NOT_RECORDED = Message("not recorded")
MARKED_EVENTS = ("engine_restart", "resume", "abort")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One training run as it lies on disk.

    Attributes:
        name: The run's directory name, unique in the experiment (``native-seed0``).
        arm: How it asked for its groups; the design, where it has groups of both arms.
        seed: The seed of its pair.
        design: One of `parity.records.experiment.DESIGNS`.
        metrics: Lines of ``metrics.jsonl``: one mapping a step under slime's names, with its ``step``.
        outcome: Content of ``run.json``; read here: ``status``, ``message``, ``peak_memory_bytes`` and ``counts``
            (``samples``, ``groups``, ``exchanges``, …).
        events: Lines of ``events.jsonl``: ``event`` (``start``, ``step``, ``retry``, ``engine_restart``, ``resume``,
            ``abort``, ``end``), and where known ``time`` (seconds since the epoch), ``step``, ``message`` and
            ``count``.
        by_arm: Where it has groups of both arms: what the samples of each arm measure, as in `metrics`.
    """

    name: str
    arm: str
    seed: int
    design: str
    metrics: Sequence[Mapping[str, Any]]
    outcome: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    by_arm: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a run at a step and belongs on its curves: one of `MARKED_EVENTS`, or ``collapse``."""

    run: str
    step: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How one run ended; `seconds` is the time in finished steps; it and the memory are `None` if not recorded."""

    run: str
    arm: str
    seed: int
    design: str
    steps: int
    status: str
    message: str
    retries: int
    restarts: int
    resumes: int
    seconds: float | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """What it takes to make the experiment again.

    `determinism` is what the engine was seen to promise, in a line; `seconds` is from the first event to the last.
    """

    commands: tuple[str, ...]
    commit: str
    versions: Mapping[str, str]
    task: str
    engine: str
    determinism: str
    seeds: tuple[int, ...]
    steps: int | None
    margins: Mapping[str, float]
    config: Mapping[str, Any]
    config_hash: str
    seconds: float | None


def marks_of(run: RunRecord, curves: RunCurves) -> list[Mark]:
    """What its events say of a run, and where its reward collapsed, in order of steps."""
    marks = [
        Mark(run.name, event["step"], str(event["event"]), str(event.get("message") or ""))
        for event in run.events
        if event.get("event") in MARKED_EVENTS and isinstance(event.get("step"), int)
    ]
    onset = detect_collapse(curves[REWARD]).onset if REWARD in curves else None
    if onset is not None:
        marks.append(Mark(run.name, onset, "collapse", "the reward's running median stays below half of its peak"))
    return sorted(marks, key=lambda mark: mark.step)


def outcome_of(run: RunRecord, curves: RunCurves) -> RunOutcome:
    """How a run ended, and what its events count."""

    def happened(kind: str) -> int:
        return sum(int(event.get("count", 1)) for event in run.events if event.get("event") == kind)

    return RunOutcome(
        run=run.name,
        arm=run.arm,
        seed=run.seed,
        design=run.design,
        steps=len(run.metrics),
        status=str(run.outcome.get("status", NOT_RECORDED)),
        message=str(run.outcome.get("message") or ""),
        retries=happened("retry"),
        restarts=happened("engine_restart"),
        resumes=happened("resume"),
        seconds=float(curves[STEP_TIME].values.sum()) if STEP_TIME in curves else None,
        peak_memory_bytes=run.outcome.get("peak_memory_bytes"),
    )


def counts_of(runs: Sequence[RunRecord]) -> dict[str, int]:
    """The counts of all runs together."""
    counts: dict[str, int] = {}
    for run in runs:
        for name, count in (run.outcome.get("counts") or {}).items():
            counts[name] = counts.get(name, 0) + int(count)
    return counts


def provenance_of(experiment: Mapping[str, Any], runs: Sequence[RunRecord]) -> Provenance:
    """How to make the experiment again; what it does not say is `NOT_RECORDED`."""
    times = [float(event["time"]) for run in runs for event in run.events if "time" in event]
    config = experiment.get("config") or {}
    return Provenance(
        commands=tuple(experiment.get("commands") or ()),
        commit=_recorded(experiment, "commit"),
        versions={str(name): str(version) for name, version in (experiment.get("versions") or {}).items()},
        task=_recorded(experiment, "task"),
        engine=_engine(experiment),
        determinism=summary_of(experiment.get("engine_determinism") or {}) or NOT_RECORDED,
        seeds=tuple(experiment.get("seeds") or ()),
        steps=experiment.get("steps"),
        margins=dict(experiment.get("margins") or {}),
        config=config,
        config_hash=config_hash(config),
        seconds=max(times) - min(times) if times else None,
    )


def _engine(experiment: Mapping[str, Any]) -> str:
    """The engine asked for, and the version that it stated."""
    engine, version = _recorded(experiment, "engine"), experiment.get("engine_version")
    return Message("{engine}, version {version}", engine=engine, version=version) if version else engine


def _recorded(experiment: Mapping[str, Any], name: str) -> str:
    return str(experiment[name]) if experiment.get(name) else NOT_RECORDED
