"""One vocabulary of margins: every name leads to one metric, and what cannot be held to is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.records.margins import IN_RUN, METRICS, RUN, SAMPLING, WHOLE_RUNS, by_curve, check_margin, parse_margins


def test_a_metric_is_one_by_its_name_and_by_its_curve() -> None:
    for name, metric in METRICS.items():
        assert parse_margins([f"{name}=0.5"], METRICS) == {name: 0.5}
        if metric.curve:
            assert parse_margins([f"{metric.curve}=0.5"], METRICS) == {name: 0.5}
            assert by_curve({name: 0.5}) == by_curve({metric.curve: 0.5}) == {metric.curve: 0.5}


def test_no_two_metrics_share_a_name_and_every_default_is_a_margin() -> None:
    curves = [metric.curve for metric in METRICS.values() if metric.curve]
    assert len(set(curves) | set(METRICS)) == len(curves) + len(METRICS)
    for name, margin in [*SAMPLING.items(), *RUN.items()]:
        check_margin(name, margin)
    assert {*WHOLE_RUNS, *IN_RUN} == set(RUN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reward", "METRIC=NUMBER"),
        ("=1", "METRIC=NUMBER"),
        ("reward=much", "not a number"),
        ("reward=nan", "positive and finite"),
        ("reward=0", "positive and finite"),
        ("reward=inf", "positive and finite"),
        ("response_length=20", "share of the baseline's mean"),
        ("rollout/response_len/mean=20", "response_length=0.05"),
        ("rewrad=0.1", "did you mean reward?"),
        ("rollout/raw_rewrad=0.1", "did you mean rollout/raw_reward?"),
        ("grad_norm=0.5", "not compared by this command"),
    ],
)
def test_what_is_no_margin_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="--margin") as raised:
        parse_margins([text], SAMPLING)
    assert words in str(raised.value)


def test_other_curves_are_taken_only_where_they_are_asked_for() -> None:
    assert parse_margins(["eval/accuracy=0.02"], WHOLE_RUNS, others=True) == {"eval/accuracy": 0.02}
    with pytest.raises(UsageError, match="no such metric"):
        parse_margins(["eval/accuracy=0.02"], WHOLE_RUNS)
    with pytest.raises(UsageError, match="more than once"):
        parse_margins(["reward=0.1", "rollout/raw_reward=0.2"], WHOLE_RUNS)


def test_the_documented_table_is_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for metric in METRICS.values():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{metric.name}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        defaults = ["" if margin is None else f"{margin:g}" for margin in (metric.sampling, metric.run)]
        assert cells[2:] == [metric.unit.value, *defaults, metric.reason]
