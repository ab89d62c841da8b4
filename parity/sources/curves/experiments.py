"""The package's own experiments and runs."""

from __future__ import annotations

from pathlib import Path

from parity.errors import UsageError
from parity.records.experiment import ExperimentConfig, plan_pairs
from parity.records.store import EXPERIMENT_FILE, RunStore, read_experiment, run_store
from parity.sources.curves.recorded_runs import RecordedCurves, points_of, sentences

FORMAT = "run of parity"


def is_experiment(directory: Path) -> bool:
    """Whether a directory holds an experiment."""
    return (directory / EXPERIMENT_FILE).is_file()


def is_run(directory: Path) -> bool:
    """Whether a directory holds one run."""
    return (directory / "metrics.jsonl").is_file() and (directory / "events.jsonl").is_file()


def read_experiment_runs(directory: Path, side: str) -> list[RecordedCurves]:
    """The freely sampled runs of one arm of an experiment; seeded twins are copies of each other and are left out.

    Args:
        directory: The experiment.
        side: ``baseline`` or ``experiment``: the arm that is read.

    Raises:
        InputError: A file of it cannot be read.
        UsageError: It has no freely sampled run of this arm, or several arms beside the baseline.
    """
    experiment = read_experiment(directory)
    config = ExperimentConfig.from_json(experiment.get("config"))
    if side == "experiment" and len(config.arms) > 2:
        raise UsageError(
            f"{directory} compares {', '.join(config.arms[1:])} with {config.arms[0]}: name the runs of one, such "
            f"as {directory / 'runs'}/{config.arms[1]}-seed*"
        )
    pairs = plan_pairs(config, experiment.get("designs", ()))
    names = [pair.names[side == "experiment"] for pair in pairs if pair.design == "paired"]
    found = [_recording(run_store(directory, name), name) for name in names if _has_metrics(directory, name)]
    if not found:
        raise UsageError(f"{directory}: no freely sampled run of its {side} has a finished step")
    return found


def _has_metrics(directory: Path, name: str) -> bool:
    return (directory / "runs" / name / "metrics.jsonl").is_file()


def read_run(directory: Path) -> list[RecordedCurves]:
    """One run by its directory.

    Raises:
        InputError: A file of it cannot be read.
    """
    return [_recording(RunStore(directory), "")]


def _recording(store: RunStore, part: str) -> RecordedCurves:
    left_out: dict[str, str] = {}
    points = [point for row in store.metrics() for point in points_of(row, left_out)]
    counted: dict[str, int] = {}
    for event in store.events():
        kind = str(event.get("event"))
        if kind in ("retry", "engine_restart", "resume"):
            counted[kind] = counted.get(kind, 0) + int(event.get("count", 1))
    status = str(store.outcome().get("status", ""))
    return RecordedCurves(part, FORMAT, points, skipped=sentences(left_out), ending=status or None, incidents=counted)
