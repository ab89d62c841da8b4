"""Numbers and sentences, and what a terminal shows."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from parity.findings import Finding, Level, Severity, Status, Where
from parity.report import markdown, text
from parity.report.terminal import print_report


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "not compared"),
        (math.nan, "NaN"),
        (math.inf, "+inf"),
        (-math.inf, "-inf"),
        (0.0, "0"),
        (-0.0, "0"),
        (1e-17, "1.000e-17"),
        (0.00012344, "0.0001234"),
        (0.75617, "0.7562"),
        (512.0, "512"),
        (9999.7, "10,000"),
        (123456.7, "123,457"),
        (20480, "20,480"),
        (1e300, "1.000e+300"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers_have_four_significant_digits(value, shown):
    assert text.number(value) == shown


@settings(derandomize=True)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_only_zero_reads_as_zero(value):
    shown = text.number(value)
    assert (shown == "0") == (value == 0)
    if math.isfinite(value):
        exact = Decimal(value)  # as a float, the largest ones round up to infinity
        assert abs(Decimal(shown.replace(",", "")) - exact) <= abs(exact) * Decimal("5.1e-4")
        assert text.number(value, signed=True).lstrip("+") == shown


def test_a_warning_is_no_failure_in_words():
    warning = Finding("row_order", Level.CONTRACT, Status.FAIL, "out of order", severity=Severity.WARNING)
    failure = Finding("row_order", Level.CONTRACT, Status.FAIL, "out of order", Where(rollout_id=3))
    assert text.outcome(warning) == "L0 warning"
    assert text.outcome(failure) == "L0 fail at step 3"


def test_a_verdict_that_rests_on_a_rung_with_a_warning_says_so_as_do_the_tables(report, build):
    warning = Finding("exchange_status", Level.CONTRACT, Status.FAIL, "status 502", severity=Severity.WARNING)
    clean = [finding for finding in report.findings if not text.warns(finding)]
    assert "none fails)" in text.headline(build(findings=clean))
    warned = build(findings=[*clean, warning])
    before, _, after = text.headline(warned).partition("none fails, 1 warn) and L2 replay")
    assert before.startswith("PARITY: ") and "none fails)" in after
    assert "| L0 | exchange_status | warning |" in markdown.render(warned, None)


def test_a_verdict_without_evidence_is_inconclusive_and_names_the_rungs(build):
    said = text.headline(build(findings=[]))
    assert said.startswith("INCONCLUSIVE: native against per-sample (embedded, ")
    assert "): L0 contract (0 of 0 findings compared): not compared" in said


def test_parity_says_when_training_is_inconclusive(report, build):
    more = Finding(
        "training_parity", Level.TRAINING, Status.INCONCLUSIVE, "4 more runs an arm", Where(field="train/loss")
    )
    said = text.headline(build(findings=[*report.findings, more]))
    assert said.startswith("PARITY")
    assert said.endswith("the curves (L3), which could only contradict that: inconclusive.")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "not recorded"), (2.345, "2.35 s"), (80, "1 min 20 s"), (3725, "1 h 2 min 5 s")]
)
def test_durations(seconds, shown):
    assert text.duration(seconds) == shown


def printed(report, language="en", **options) -> str:
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=200, **options), language)
    return stream.getvalue()


def test_a_terminal_shows_the_rows_in_order_and_ends_with_the_verdict(report):
    shown = printed(report)
    lines = [line.strip() for line in shown.rstrip().splitlines()]
    places = [next(at for at, line in enumerate(lines) if line.startswith(row.name.split()[0])) for row in report.rows]
    assert places == sorted(places)
    assert any(line.startswith("PARITY: native equals per-sample (embedded, task arithmetic, ") for line in lines)
    assert any(line.startswith("Scope: engine embedded; task arithmetic; ") for line in lines)
    assert lines[-1].startswith("Not shown: that free sampling is equally distributed")
    assert any("rollout time" in line and "0.64 (95 % 0.62 to 0.66)" in line for line in lines)
    assert "\x1b" not in shown


def test_a_mean_advantage_of_rounding_reads_0_and_another_does_not(report):
    (row,) = (row for row in report.rows if row.name == "advantage")
    assert text.row_cells(replace(row, baseline={"mean": -2.3e-18}, experiment={"mean": 2.3e-18}))[1:4] == ("0",) * 3
    assert text.row_cells(replace(row, baseline={"mean": 0.0}, experiment={"mean": 2e-6}))[2] == "2.000e-06"


def test_colour_is_left_out_when_the_user_wants_none(report, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32m" in printed(report, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in printed(report, force_terminal=True, color_system="standard")


def test_no_message_steers_a_terminal_or_floods_it(build):
    hostile = "\x1b]0;title\x07\x1b[2J \ud800 \u202e" + "x" * 1_000_000
    shown = printed(build(findings=[Finding("odd", Level.CONTRACT, Status.FAIL, hostile)]))
    assert "]0;title" in shown
    assert not set(shown) & {"\x1b", "\x07", "\ud800", "\u202e"}
    assert len(shown) < 10_000


def test_markup_in_a_message_is_text_on_a_terminal(report, build):
    fault = Finding("reward_recomputed", Level.CONTRACT, Status.FAIL, "[red]not[/red] [/] markup")
    assert "[red]not[/red] [/] markup" in printed(build(findings=[*report.findings, fault]))
