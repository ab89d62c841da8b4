"""ClearML: a task a run, and one for the comparison; on the server that the user has configured, else as zips.

The SDK runs in a process of its own (`parity.report.trackers.clearml_session`): it retries a dead server for hours,
has handlers at exit that wait for it, and cannot go offline half-way; a process can be ended, and another started.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.metrics import RunCurves
from parity.report.document import Report
from parity.report.trackers import content
from parity.sources.curves.clearml import NOT_FINITE, NOT_FINITE_COUNT

PATIENCE = 120.0
"""Seconds that one task may take before the server counts as dead."""
PROJECT = "parity"
"""The project where ``CLEARML_PROJECT`` names none."""

_NO_SOURCE = {
    "CLEARML_VCS_DIFF": "IA==",  # a space in base 64: the SDK would upload source code in its place
    "CLEARML_SUPPRESS_UPDATE_MESSAGE": "1",
}
_OF_OTHER_TASKS = ("CLEARML_TASK_ID", "TRAINS_TASK_ID", "CLEARML_PROC_MASTER_ID", "CLEARML_SET_ITERATION_OFFSET")


@dataclass(frozen=True, slots=True)
class _Session:
    """What became of tasks: where finished ones are, the ids of those begun, the link to compare, the failure."""

    addresses: Mapping[str, str]
    begun: Mapping[str, str]
    compare: str
    failure: str


def publish(report: Report, directory: Path) -> Iterator[str]:
    """Publishes the runs and the comparison, online where the SDK is configured, and what is left as offline zips."""
    tasks = _tasks(report, directory)
    reason = offline_reason(os.environ)
    if not reason:
        yield f"ClearML: uploading {len(tasks)} tasks"
        session = _run(tasks, None)
        yield from (f"ClearML: {name}: {address}" for name, address in session.addresses.items())
        if session.compare:
            yield f"ClearML: compare the runs: {session.compare}"
        tasks = [task for task in tasks if task["name"] not in session.addresses]
        if not tasks:
            return
        reason = session.failure
        for task in tasks:
            if unfinished := session.begun.get(task["name"]):
                yield f"ClearML: {task['name']}: task {unfinished} of the server is incomplete; its zip has all of it"
    yield from _offline(tasks, directory / "clearml", reason)


def offline_reason(environment: Mapping[str, str]) -> str:
    """Why tasks cannot go to a server as things stand; empty where the SDK is configured."""
    if environment.get("CLEARML_OFFLINE_MODE", "").lower() not in ("", "0", "false"):
        return "CLEARML_OFFLINE_MODE is set"
    if environment.get("CLEARML_API_ACCESS_KEY") or environment.get("CLEARML_AUTH_TOKEN"):
        return ""
    configuration = Path(environment.get("CLEARML_CONFIG_FILE") or "~/clearml.conf").expanduser()
    return "" if configuration.is_file() else f"there is no {configuration} (`clearml-init` makes it)"


def _offline(tasks: Sequence[Mapping[str, Any]], directory: Path, reason: str) -> Iterator[str]:
    session = _run(tasks, directory)
    yield f"ClearML: {len(session.addresses)} tasks are offline and not uploaded, because {reason}"
    yield from (f"ClearML: {name}: {address}" for name, address in session.addresses.items())
    if session.addresses:
        yield "ClearML: upload each with: clearml-task --import-offline-session ZIP"
    if session.failure:
        lost = ", ".join(task["name"] for task in tasks if task["name"] not in session.addresses)
        yield f"ClearML: not published: {lost}: {session.failure}; the report itself is whole"


def _run(tasks: Sequence[Mapping[str, Any]], zips: Path | None) -> _Session:
    """Lets the SDK make the tasks in a process of its own: zips in a directory, or on the server for `None`."""
    environment = {**os.environ, **_NO_SOURCE}
    for name in _OF_OTHER_TASKS:
        environment.pop(name, None)
    addresses: dict[str, str] = {}
    begun: dict[str, str] = {}
    compare, failure = "", ""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as job:
        if zips:
            environment |= {"CLEARML_OFFLINE_MODE": "1", "CLEARML_CACHE_DIR": scratch}
        project = os.environ.get("CLEARML_PROJECT") or PROJECT
        json.dump({"project": project, "tasks": tasks, "zips": str(zips or ""), "patience": PATIENCE}, job)
        job.seek(0)
        command = [sys.executable, "-m", "parity.report.trackers.clearml_session"]
        with subprocess.Popen(
            command, stdin=job, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            try:
                for event in map(json.loads, process.stdout or ()):
                    if event["event"] == "begun":
                        begun[event["name"]] = event["id"]
                    elif event["event"] == "done":
                        addresses[event["name"]] = event["address"]
                    elif event["event"] == "compare":
                        compare = event["address"]
                    else:
                        failure = event["reason"]
            except BaseException:
                process.kill()
                raise
    if not failure and len(addresses) < len(tasks):
        ended = process.returncode
        failure = f"a task was not done in {PATIENCE:.0f} s" if ended == 1 else f"the SDK ended with code {ended}"
    return _Session(addresses, begun, compare, failure)


def _tasks(report: Report, directory: Path) -> list[dict[str, Any]]:
    """The tasks to make, in order, the comparison last."""
    label = content.label(directory)
    runs: list[dict[str, Any]] = [
        {
            "name": f"{label}: {run.name}",
            "type": "training",
            "tags": run.tags,
            "comment": run.settings["message"],
            "settings": run.settings,
            "scalars": _scalars(run.curves),
            "plots": [],
            "tables": {},
            "numbers": {
                NOT_FINITE_COUNT: sum(int((~np.isfinite(curve.values)).sum()) for curve in run.curves.values())
            },
            "artifacts": {},
        }
        for run in content.tracked_runs(report)
    ]
    files = [path for path in sorted(directory.iterdir()) if path.name in content.FILES or path.suffix == ".png"]
    comparison: dict[str, Any] = {
        "name": f"{label}: {content.title(report)}",
        "type": "qc",
        "tags": ["parity", report.verdict.verdict.value, report.baseline, report.experiment],
        "comment": content.words(report),
        "settings": {"verdict": report.verdict.verdict.value, **content.provenance(report)},
        "scalars": [],
        "plots": list(content.overlays(report)),
        "tables": content.tables(report),
        "numbers": content.numbers(report),
        "artifacts": {path.name: str(path.resolve()) for path in files},
    }
    tasks = [*runs, comparison]
    names = [content.safe_name(task["name"]) for task in tasks]
    return [
        {**task, "zip": f"{place:02}-{name}.zip"} for place, (task, name) in enumerate(zip(tasks, names, strict=True))
    ]


def _scalars(curves: RunCurves) -> list[tuple[str, str, list[int], list[float]]]:
    """Title, series, steps and values of each curve, as Relax reports them: titles end at the first slash.

    What is not finite is a gap of its curve, and a point of the series of the same name under `NOT_FINITE`: the SDK
    would store 0, and a server's data base has no NaN.
    """
    found = []
    for metric, curve in curves.items():
        pairs = list(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))
        finite = [pair for pair in pairs if math.isfinite(pair[1])]
        others = [
            (step, 0.0 if math.isnan(value) else math.copysign(1.0, value))
            for step, value in pairs
            if not math.isfinite(value)
        ]
        head, _, rest = metric.partition("/")
        for title, series, points in ((head, rest or head, finite), (NOT_FINITE, metric, others)):
            if points:
                steps, values = map(list, zip(*points, strict=True))
                found.append((title, series, steps, values))
    return found
