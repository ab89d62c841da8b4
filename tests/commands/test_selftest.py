"""The self-test says when a check is blind, when another one cries, and when a sound run is blamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.commands import selftest
from parity.commands.selftest import run_selftest, try_clean, try_control, try_fault
from parity.faults import CONTROLS, FAULTS

FAULT = FAULTS["length-off-by-one"]
CONTROL = next(control for control in CONTROLS if control.name == "greedy-clones")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(selftest, "FAULTS", {FAULT.name: FAULT})
    monkeypatch.setattr(selftest, "CONTROLS", (CONTROL,))
    monkeypatch.setattr(selftest, "CLEAN_RUNS", 2)
    yield


def test_a_blind_check_is_a_miss() -> None:
    trial = try_fault(replace(FAULT, plant=lambda scene: None))
    assert (trial.caught, trial.after, trial.passed) == (False, None, False)


def test_a_fault_that_finds_no_place_is_a_miss() -> None:
    def plant(scene: Any) -> None:
        scene.samples[10**6].reward = 1.0

    assert not try_fault(replace(FAULT, plant=plant)).caught


def test_the_right_check_at_the_wrong_level_is_a_miss() -> None:
    assert not try_fault(replace(FAULT, level=FAULTS["text-trimmed"].level)).caught


def test_an_undeclared_companion_is_named() -> None:
    trial = try_fault(replace(FAULTS["end-dropped"], companions=()))
    assert trial.caught
    assert (trial.unexpected, trial.passed) == (("samples_received",), False)


def test_sizes_grow_until_the_check_fails() -> None:
    trial = try_fault(FAULTS["pair-cloned-in-tenth-group"])
    assert trial.after == 16
    assert not try_fault(replace(FAULTS["pair-cloned-in-tenth-group"], units=8)).caught


def test_a_control_that_is_blamed_is_an_alarm() -> None:
    trial = try_control(replace(CONTROL, kind=FAULT.kind, plant=FAULT.plant))
    assert list(trial.alarms) == ["response_length"]
    assert not trial.passed


def test_clean_runs_that_are_blamed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_clean(2).alarms == {}
    monkeypatch.setattr(selftest, "RULES", replace(selftest.RULES, group_size=7))
    trial = try_clean(2)
    assert trial.alarms == {"output_count": 2}
    assert (trial.runs, trial.groups, trial.samples, trial.passed) == (2, 128, 1024, False)


def test_progress_counts_every_trial() -> None:
    seen: list[tuple[int, int]] = []
    assert run_selftest(lambda done, total, _: seen.append((done, total))).passed
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_command_prints_a_line_for_each_and_exits_0() -> None:
    result = CliRunner().invoke(cli, ["selftest"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    row = next(line.split() for line in lines if FAULT.name in line)
    assert row[:6] == ["L0", FAULT.name, "host", "response_length", "1", "groups"]
    assert any(line.startswith(CONTROL.name) for line in lines)
    assert "2 clean runs of 128 groups, 1024 samples in all: no false alarm" in result.stdout
    assert lines[-1].endswith("1 of 1 controls pass: PASS")


def test_the_command_exits_1_on_a_miss_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "FAULTS", {FAULT.name: replace(FAULT, plant=lambda scene: None)})
    result = CliRunner().invoke(cli, ["selftest"])
    assert result.exit_code == 1
    assert "not caught" in result.stdout and "MISSED" in result.stdout
    assert "0 of 1 faults" in result.stdout


def test_quiet_prints_the_verdict_and_what_went_wrong_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(cli, ["selftest", "--quiet"])
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    monkeypatch.setattr(selftest, "FAULTS", {FAULT.name: replace(FAULT, plant=lambda scene: None)})
    result = CliRunner().invoke(cli, ["selftest", "--quiet"])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == f"{FAULT.name}: MISSED"


def test_json_holds_every_trial_in_the_envelope() -> None:
    result = CliRunner().invoke(cli, ["selftest", "--json"])
    document = json.loads(result.stdout)
    assert document["verdict"] == "PASS"
    assert document["counts"] == {"faults": 1, "caught": 1, "controls": 1}
    (fault,) = document["faults"]
    assert (fault["fault"], fault["check"], fault["after"], fault["passed"]) == (FAULT.name, FAULT.check, 1, True)
    assert document["controls"][0]["alarms"] == {}
    assert document["clean"]["samples"] == 1024
