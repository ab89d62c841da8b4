"""A report of a twin whose gradient norm is NaN at one step and infinite at the next, and its files."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from parity.metrics import RunCurves
from parity.report.document import Report
from parity.report.write import write_report

NAN_STEP = 9
HIDDEN = ("CLEARML_CONFIG_FILE", "CLEARML_API_ACCESS_KEY", "CLEARML_OFFLINE_MODE", "CLEARML_PROJECT", "WANDB_PROJECT")
HOMES = ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")


def with_odd_values(curves: RunCurves) -> RunCurves:
    norm = curves["train/grad_norm"]
    values = norm.values.copy()
    values[NAN_STEP : NAN_STEP + 2] = math.nan, math.inf
    return {**curves, "train/grad_norm": replace(norm, values=values)}


@pytest.fixture(scope="session")
def odd_report(report: Report) -> Report:
    outcomes = tuple(run for run in report.outcomes if run.design == "twin")
    curves = {run.run: with_odd_values(report.curves[run.run]) for run in outcomes}
    return replace(
        report,
        outcomes=outcomes,
        curves=curves,
        compared_design="twin",
        marks=(),
        arms_of_design={"twin": report.arms_of_design["twin"]},
    )


@pytest.fixture(scope="session")
def written(odd_report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written") / "report"
    write_report(odd_report, directory)
    return directory


@pytest.fixture
def files(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the report's files of its own; nothing that a user has configured is seen."""
    for variable in HIDDEN:
        monkeypatch.delenv(variable, raising=False)
    for variable in HOMES:
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    return Path(shutil.copytree(written, tmp_path / "mine" / "report"))
