"""What findings say in Chinese: real findings of every kind are translated whole, and report.json stays English."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from recorded_runs import recorded

from parity.commands.compare import Question, compare, margins_of
from parity.contract_checks import Rules, check_exchanges, check_samples, samples_of
from parity.evidence.replay.twins import compare_twins
from parity.faults import FAULTS
from parity.faults.scenes import build_draws
from parity.findings import Finding, Level, Message, Status, quantity
from parity.metrics import curves_of_run
from parity.records.exchanges import read_exchanges
from parity.records.samples import Rollout, Sample
from parity.report import data
from parity.report.document import Report
from parity.report.sentences import in_language
from parity.report.words import catalogue
from parity.sources.curves.recorded_runs import RecordedRun
from parity.stats import cost_findings

ANSWERS = Path(__file__).parents[1] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"


def planted(name: str) -> Sequence[Finding]:
    fault = FAULTS[name]
    scene = fault.kind.build(np.random.default_rng(0), fault.units)
    fault.plant(scene)
    return list(fault.kind.judge(scene))


@cache
def of_faults() -> Sequence[Finding]:
    of_reports = [name for name, fault in FAULTS.items() if fault.kind.build is not build_draws]
    return list(chain.from_iterable(map(planted, of_reports)))


def comparisons() -> Iterator[Report]:
    """Comparisons of recorded runs that have little in common but that each says something else."""

    def arm(name: str, count: int, first_seed: int, **changed: float) -> list[RecordedRun]:
        return [recorded(f"{name}{k}", first_seed + k, **changed) for k in range(count)]  # type: ignore[arg-type]

    question = Question(margins_of({"response_length": 0.05}, history=False))
    yield compare(arm("b", 5, 0), arm("e", 5, 100, seconds=8.0), question=question)
    yield compare(arm("b", 5, 0), arm("e", 5, 100, shift=-0.2), question=question)
    yield compare(arm("b", 1, 0), arm("e", 1, 100))
    yield compare(arm("b", 1, 0), arm("e", 1, 100), arm("h", 5, 50), Question(margins_of({}, history=True)))
    yield compare(arm("b", 2, 0), arm("e", 3, 100, steps=20))
    cut = [replace(run, ending="oom") for run in arm("e", 3, 100, steps=40)]
    yield compare(arm("b", 3, 0), cut, question=question)


@cache
def of_comparisons() -> Sequence[Finding]:
    return [finding for report in comparisons() for finding in report.findings]


def of_single_answers() -> Sequence[Finding]:
    """What the contract says of each answer of the real engine alone, and of each of their outputs."""
    answers = read_exchanges(ANSWERS)
    rules = Rules(group_size=2, max_new_tokens=1, context_length=8, vocab_size=9, temperature=1.0)
    of_exchanges = [finding for answer in answers for finding in check_exchanges([answer], rules)]
    outputs = [sample for answer in read_exchanges(ANSWERS) for sample in samples_of([answer])]
    alone = [finding for sample in outputs for finding in check_samples(Rollout.from_samples([sample]), rules)]
    return [*of_exchanges, *alone]


def of_one_pair() -> Sequence[Finding]:
    """What two runs of a pair cost, and what a twin of one step and sample shows."""
    steps = [{"step": step, **dict.fromkeys(COSTS, 2.0 + step % 3)} for step in range(40)]
    pair = tuple(curves_of_run(name, steps) for name in ("a", "b"))
    single = Rollout.from_samples([Sample(0, 0, rollout_id=0, output_ids=[1])])
    return [*cost_findings([pair]), *compare_twins(single, single, steps[:1], steps[:1])]


COSTS = ("perf/requests", "perf/rollout_time", "perf/tokens_per_gpu_per_sec", "rollout/response_len/mean")
ONE_OF_SEVERAL = re.compile(
    r"(?<![+\d.,] )(?<![\d.,])\b1 ([a-z]+ )?(?!(?:is|its|was|has|holds|serves|this)\b)[a-z-]+s\b"
)
"""One of what is named in the plural; sums ("1 + 1 runs") are of several."""


def test_the_findings_here_are_of_every_kind() -> None:
    assert len({finding.check for finding in of_faults() if finding.status is Status.FAIL}) > 60
    assert len({finding.check for finding in of_comparisons()}) > 12


def untranslated(value: object) -> set[str]:
    """What of a message no catalogue can have, or the Chinese one lacks: its template, or one of a message in it."""
    if type(value) is not Message:
        return {f"not a message: {value}"}
    inner = (part for part in value.values.values() if isinstance(part, Message))
    lacks = bool(re.search("[A-Za-z]", re.sub(r"\{.*?\}", "", value.template)))
    known = catalogue("zh")(value.template) != value.template or value.template in SAME
    return set().union({value.template} if lacks and not known else (), *map(untranslated, inner))


SAME = {"run", "step", "step {step}", "run {run}"}
"""What Chinese text of the field writes as it is."""


@pytest.mark.parametrize("findings", [of_faults, of_comparisons, of_single_answers, of_one_pair])
def test_what_findings_say_is_translated_whole(findings: Callable[[], Sequence[Finding]]) -> None:
    assert set().union(*(untranslated(finding.message) for finding in findings())) == set()


def test_a_message_is_translated_whole_or_found() -> None:
    known = Message("{compared} of {findings} compared", compared=1, findings=quantity(3, "findings"))
    assert untranslated(known) == set()
    assert untranslated(Message("{message} ({reason})", message=known, reason="an engine's words")) == set()
    assert untranslated(Message("{a}, {b}", a=known, b=quantity(3, "bananas"))) == {"{number:,} bananas"}
    assert untranslated("made by hand") == {"not a message: made by hand"}


@pytest.mark.parametrize("findings", [of_faults, of_comparisons, of_single_answers, of_one_pair])
def test_one_of_a_thing_is_said_in_the_singular(findings: Callable[[], Sequence[Finding]]) -> None:
    messages = {finding.message for finding in findings()}
    assert any(re.search(r"\b1 [a-z]+\b", message) for message in messages)
    assert sorted(message for message in messages if ONE_OF_SEVERAL.search(message)) == []


def test_the_singular_is_told_from_the_plural() -> None:
    wrong = ("over 1 pairs of runs", "in 1 samples", "1 other changes", "1 log-probs", "in 1 prompt groups")
    right = ("1 + 1 runs", "0.1 nats", "1 of 2 samples fail", "seed 1 serves", "1 pair of runs", "step 1 is", "21 runs")
    assert [text for text in (*wrong, *right) if ONE_OF_SEVERAL.search(text)] == list(wrong)


def test_values_stay_as_they_are_in_chinese_and_the_json_stays_english(build: Callable[..., Report]) -> None:
    quoted = Finding("odd", Level.CONTRACT, Status.FAIL, Message("not compared: {why}", why="{braces} of an engine"))
    report = build(findings=[quoted])
    assert in_language(report, "zh").findings[0].message.endswith("{braces} of an engine")
    assert in_language(report, "en") is report
    assert isinstance(report.findings[0].message, Message)
    assert [finding["message"] for finding in data.document(report)["findings"]] == [quoted.message]


def test_rows_and_rungs_carry_the_same_findings_in_chinese(report: Report) -> None:
    chinese = in_language(report, "zh")
    known = {id(finding) for finding in chinese.findings}
    carried = [finding for row in chinese.rows for finding in row.findings]
    carried += [rung.strongest for rung in chinese.ladder if rung.strongest]
    assert {id(finding) for finding in carried} <= known
    assert [len(row.findings) for row in chinese.rows] == [len(row.findings) for row in report.rows]
