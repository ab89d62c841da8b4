"""What findings say in Chinese: real findings of every kind are translated whole, and what is not known is quoted."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from recorded_runs import recorded

from parity.comparison import Question, compare, margins_of
from parity.contract_checks import CHECKS
from parity.curves import RecordedRun
from parity.engine.detection import SENTENCES
from parity.faults import FAULTS
from parity.faults.scenes import DRAWS
from parity.findings import Finding, Level, Status
from parity.reports import markdown
from parity.reports.document import Report
from parity.reports.sentences import in_language, sentences, translate
from parity.reports.words import LANGUAGES

CHINESE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
SAME = {"run", "runs", "step", "steps", "{value:number}"}
"""What Chinese text of the field writes as it is."""


def places(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def untranslated(findings: Sequence[Finding]) -> set[str]:
    said = {finding.message.removeprefix(f"{finding.check}: ") for finding in findings}
    return {message for message in said if translate(message, "zh") is None}


def test_each_template_has_its_places_in_chinese() -> None:
    for english, chinese in sentences("zh").items():
        assert places(english) == places(chinese), english
        assert CHINESE.search(chinese) or english in SAME, english


def test_every_rule_of_the_contract_is_translated() -> None:
    assert [check.rule for check in CHECKS if check.rule not in sentences("zh")] == []


def planted(name: str) -> Sequence[Finding]:
    fault = FAULTS[name]
    scene = fault.kind.build(np.random.default_rng(0), fault.units)
    fault.plant(scene)
    return list(fault.kind.judge(scene))


def test_what_checks_say_of_every_planted_fault_is_translated() -> None:
    of_reports = [name for name, fault in FAULTS.items() if fault.kind is not DRAWS]
    findings = list(chain.from_iterable(map(planted, of_reports)))
    assert len({finding.check for finding in findings if finding.status is Status.FAIL}) > 60
    assert untranslated(findings) == set()


def comparisons() -> Iterator[Report]:
    """Comparisons of recorded runs that have little in common but that each says something else."""

    def arm(name: str, count: int, first_seed: int, **changed: float) -> list[RecordedRun]:
        return [recorded(f"{name}{k}", first_seed + k, **changed) for k in range(count)]  # type: ignore[arg-type]

    question = Question(margins_of({"rollout/response_len/mean": 10.0}, history=False))
    yield compare(arm("b", 5, 0), arm("e", 5, 100, seconds=8.0), question=question)
    yield compare(arm("b", 5, 0), arm("e", 5, 100, shift=-0.2), question=question)
    yield compare(arm("b", 1, 0), arm("e", 1, 100))
    yield compare(arm("b", 1, 0), arm("e", 1, 100), arm("h", 5, 50), Question(margins_of({}, history=True)))
    yield compare(arm("b", 2, 0), arm("e", 3, 100, steps=20))
    cut = [replace(run, ending="oom") for run in arm("e", 3, 100, steps=40)]
    yield compare(arm("b", 3, 0), cut, question=question)


def test_what_is_said_of_recorded_runs_is_translated() -> None:
    findings = [finding for report in comparisons() for finding in report.findings]
    assert len({finding.check for finding in findings}) > 12
    assert untranslated(findings) == set()


def test_a_sentence_is_never_translated_by_half() -> None:
    known = "3 samples: Every group has `group_size` samples"
    assert translate(known, "zh") == "3 个样本均符合规则：每个组有 `group_size` 个样本"  # noqa: RUF001 - Chinese
    assert translate("3 samples: Every group is nice", "zh") is None
    assert translate("3 bananas: Every group has `group_size` samples", "zh") is None


def test_what_is_not_known_is_quoted_whole_and_json_stays_english(report: Report) -> None:
    odd = Finding("odd", Level.CONTRACT, Status.FAIL, "{braces} and an engine's own words")
    chinese = in_language(replace(report, findings=(*report.findings, odd)), "zh")
    assert chinese.findings[-1].message == "英文原文：{braces} and an engine's own words"  # noqa: RUF001 - Chinese
    assert [finding.message for finding in in_language(report, "en").findings] == [
        finding.message for finding in report.findings
    ]


def test_what_the_engine_was_seen_to_promise_is_said_or_quoted_whole(build: Callable[..., Report]) -> None:
    report = build()
    facts = list(SENTENCES.values())
    said = replace(report.provenance, determinism=f"seen: {', '.join(facts[:6])}; not so: {', '.join(facts[6:])}")
    assert not re.search("seen|seed|vary", in_language(replace(report, provenance=said), "zh").provenance.determinism)
    odd = replace(report.provenance, determinism=f"not compared: {facts[0]} (HTTP 500: oops)", commit="not recorded")
    chinese = in_language(replace(report, provenance=odd), "zh").provenance
    assert chinese.determinism == f"英文原文：{odd.determinism}"  # noqa: RUF001 - Chinese
    assert chinese.commit == "未记录"


def test_a_number_of_things_is_set_as_chinese_is() -> None:
    rule = "Every logged value is a finite number"
    assert translate(f"216 curves: {rule}", "zh") == "216 条曲线均符合规则：每个记录值都是有限数"  # noqa: RUF001 - Chinese
    assert translate(f"3 samples in 6 runs: {rule}", "zh").startswith("6 个 run 中的 3 个样本均符合")  # type: ignore[union-attr]
    assert translate("reward is equal bit for bit in 4 samples", "zh") == "reward 在 4 个样本中逐比特相等"


def test_rows_and_rungs_carry_the_same_findings_in_chinese(report: Report) -> None:
    chinese = in_language(report, "zh")
    known = {id(finding) for finding in chinese.findings}
    carried = [finding for row in chinese.rows for finding in row.findings]
    carried += [rung.strongest for rung in chinese.ladder if rung.strongest]
    assert {id(finding) for finding in carried} <= known
    assert [len(row.findings) for row in chinese.rows] == [len(row.findings) for row in report.rows]


@pytest.mark.parametrize("message", ["nothing; " * 5_000, "the rates differ; " * 40, ": " * 900, "(" * 900, "\ud800"])
def test_hostile_messages_are_quoted(build: Callable[..., Report], message: str) -> None:
    odd = Finding("odd", Level.CONTRACT, Status.FAIL, message)
    assert "英文原文" in markdown.render(build(findings=[odd]), [], "zh")


def test_catalogues_are_files_of_the_package() -> None:
    folder = Path(str(resources.files("parity.reports")))
    assert {path.name for path in folder.glob("sentences.*.json")} == {
        f"sentences.{language}.json" for language in LANGUAGES if language != "en"
    }
