"""W&B: an offline run for each run, and one for the comparison, to be uploaded with `wandb sync`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.metrics import RunCurves
from parity.report.document import Report
from parity.report.trackers import content
from parity.sources.curves.recorded_runs import STEP_OF_PREFIX

PROJECT = "parity"
"""The project where ``WANDB_PROJECT`` names none."""


def publish(report: Report, directory: Path) -> Iterator[str]:
    """Writes offline runs under ``<directory>/wandb``, in the group of the experiment's name."""
    import wandb
    from wandb.errors import Error

    try:
        for run in content.tracked_runs(report):
            with _session(directory, run.name, run.arm, run.tags, run.settings) as session:
                for metric in run.curves:
                    session.define_metric(metric, step_metric=_counter(metric))
                for step, row in sorted(_rows(run.curves).items()):
                    session.log(row, step=step)
            yield f"W&B: {run.name}: {Path(session.dir).parent}"
        settings = content.provenance(report)
        tags = ("parity", report.verdict.verdict.value)
        with _session(directory, content.title(report), "comparison", tags, settings) as session:
            session.summary.update({"verdict": report.verdict.verdict.value, "headline": content.words(report)})
            session.summary.update(content.numbers(report))
            tables = {
                title: wandb.Table(columns=list(head), data=[list(row) for row in rows])
                for title, (head, *rows) in content.tables(report).items()
            }
            pictures = {path.stem: wandb.Image(str(path)) for path in sorted(directory.glob("*.png"))}
            session.log({**tables, **pictures})
            artifact = wandb.Artifact("parity-report", type="report")
            for name in content.FILES:
                artifact.add_file(str(directory / name))
            session.log_artifact(artifact)
        yield f"W&B: comparison: {Path(session.dir).parent}"
    except (Error, OSError) as error:
        yield f"W&B: not written: {error}"
    else:
        yield "W&B: upload each with: wandb sync DIRECTORY"
    finally:
        wandb.teardown()


def _session(directory: Path, name: str, kind: str, tags: tuple[str, ...], settings: Mapping[str, str]) -> Any:
    import wandb

    quiet = wandb.Settings(
        mode="offline",
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        x_disable_meta=True,
    )
    label = content.label(directory)
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        name=f"{label}: {name}",
        group=label,
        job_type=kind,
        tags=[tag[:64] for tag in tags],
        config=dict(settings),
        dir=str(directory),
        settings=quiet,
    )


def _counter(metric: str) -> str:
    """The field that counts a metric's steps, as the hosts define it."""
    return STEP_OF_PREFIX.get(metric.partition("/")[0], ("rollout/step",))[0]


def _rows(curves: RunCurves) -> dict[int, dict[str, float]]:
    """The values of each step, with the fields that count it."""
    rows: dict[int, dict[str, float]] = {}
    for metric, curve in curves.items():
        for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
            rows.setdefault(step, {}).update({_counter(metric): step, metric: value})
    return rows
