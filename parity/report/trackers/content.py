"""What trackers are given of a report: runs with their curves, and the comparison's words, numbers and tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.metrics import RunCurves
from parity.report import text
from parity.report.document import Report
from parity.report.plots import BASELINE, COST_PANELS, CURVE_PANELS, EXPERIMENT
from parity.report.words import shortened

LONGEST = 4_000
"""Characters of one text; report.json has it whole."""

FILES = ("report.html", "report.md", "comment.md", "report.json", "junit.xml")


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """One run as a tracker shows it.

    Attributes:
        name: The run's name, or ``<run>/<arm>`` for one arm's samples in a run of both.
        arm: Its arm; the design, where it has groups of both.
        tags: What it may be filtered by.
        settings: What it was made with, as text.
        curves: Its curves by metric.
    """

    name: str
    arm: str
    tags: tuple[str, ...]
    settings: Mapping[str, str]
    curves: RunCurves


def tracked_runs(report: Report) -> list[TrackedRun]:
    """The runs of a report, and of mixed runs also the curves of each arm; those without a curve are left out."""
    found = []
    for run in report.outcomes:
        arms = {run.run: run.arm}
        arms |= {
            name: arm
            for arm, names in report.arms_of_design.get(run.design, {}).items()
            for name in names
            if name.startswith(f"{run.run}/")
        }
        settings = {"seed": str(run.seed), "status": run.status, "message": shown(run.message), "steps": str(run.steps)}
        for name, arm in arms.items():
            if curves := report.curves.get(name):
                tags = ("parity", arm, run.design, run.status)
                own = {**provenance(report), **settings, "arm": arm, "design": run.design}
                found.append(TrackedRun(name, arm, tuple(dict.fromkeys(tags)), own, curves))
    return found


def provenance(report: Report) -> dict[str, str]:
    """What the experiment was made with, as text."""
    source = report.provenance
    facts = {
        "commands": "\n".join(source.commands),
        "commit": source.commit,
        "task": source.task,
        "engine": source.engine,
        "determinism": source.determinism,
        "config_hash": source.config_hash,
        "scope": text.scope_sentence(report),
        **{f"margin {metric}": str(margin) for metric, margin in source.margins.items()},
        **{f"version {name}": version for name, version in source.versions.items()},
    }
    return {shown(name): shown(value) for name, value in facts.items()}


def title(report: Report) -> str:
    """The comparison's name."""
    return f"{report.experiment} against {report.baseline}"


def label(directory: Path) -> str:
    """The experiment's name, from the directory of its report (``<experiment>/report``)."""
    return directory.resolve().parent.name


def words(report: Report) -> str:
    """The verdict with what it rests on and leaves open, a line each."""
    return "\n".join(map(shown, (text.headline(report), *text.beside(report), *text.reasons(report))))


def shown(value: object) -> str:
    """Text that every tracker can store: of some length at most, with ``?`` for what is no character."""
    return shortened(str(value), LONGEST).encode(errors="replace").decode()


def numbers(report: Report) -> dict[str, float]:
    """Numbers that describe the comparison as a whole; what was not measured is absent."""
    costs = {f"{row.name}, experiment / baseline": row.ratio for row in report.cost if row.ratio is not None}
    counts = {
        "findings": len(report.findings),
        "findings that fail": len(report.failing),
        "findings not compared": len(report.not_compared),
    }
    return {**counts, **costs}


def tables(report: Report) -> dict[str, list[Sequence[str]]]:
    """Tables by title, each a list of rows of text, the first of them the head."""
    return {title: [[shown(cell) for cell in row] for row in rows] for title, rows in _tables(report).items()}


def _tables(report: Report) -> dict[str, list[Sequence[str]]]:
    cost_head = ("", "baseline", "experiment", "experiment / baseline")
    return {
        "eight metrics": [text.COLUMNS, *map(text.row_cells, report.rows)],
        "ladder": [
            ("level", "question", "status", "findings compared", "strongest finding"),
            *(
                (
                    text.rung_name(rung.level),
                    text.QUESTIONS[rung.level],
                    text.status(rung.status),
                    f"{rung.compared} of {rung.total}",
                    text.sentence(rung.strongest) if rung.strongest else "no finding",
                )
                for rung in report.ladder
            ),
        ],
        "cost": [cost_head, *map(text.cost_cells, report.cost)],
        "findings": [
            ("level", "status", "finding"),
            *(
                (text.rung_name(finding.level), text.status(finding.status), text.sentence(finding))
                for finding in report.findings
            ),
        ],
    }


def overlays(report: Report) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Figures of plotly.js with the curves of all runs of a design: design, metric, and figure.

    A value that is not finite leaves a gap.
    """
    for design, arms in report.arms_of_design.items():
        for metric, axis in (*CURVE_PANELS, *COST_PANELS):
            traces = [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "x": curve.steps.tolist(),
                    "y": [value if np.isfinite(value) else None for value in curve.values.tolist()],
                    "line": {
                        "color": BASELINE if arm == report.baseline else EXPERIMENT,
                        "dash": "solid" if arm == report.baseline else "dash",
                    },
                }
                for arm, names in arms.items()
                for name in names
                if (curve := report.curves[name].get(metric)) is not None
            ]
            if traces:
                layout = {"xaxis": {"title": {"text": "training step"}}, "yaxis": {"title": {"text": axis}}}
                yield design, metric, {"data": traces, "layout": layout}


def safe_name(name: str) -> str:
    """A name that is one file's name on any system."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "_"
