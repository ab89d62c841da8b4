"""What findings say in Chinese: real findings of every kind are translated whole, and what is not known is quoted."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from recorded_runs import recorded

from parity.commands.compare import Question, compare, margins_of
from parity.contract_checks import CHECKS, Rules, check_exchanges, check_samples, samples_of
from parity.engines.detection import SENTENCES
from parity.evidence.replay.twins import compare_twins
from parity.faults import FAULTS
from parity.faults.scenes import build_draws
from parity.findings import Finding, Level, Status
from parity.metrics import curves_of_run
from parity.records.exchanges import read_exchanges
from parity.records.samples import Rollout, Sample
from parity.report import markdown
from parity.report.document import Report
from parity.report.sentences import in_language, sentences, translate
from parity.report.words import LANGUAGES
from parity.sources.curves import RecordedRun
from parity.stats import cost_findings

CHINESE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
ANSWERS = Path(__file__).parents[1] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"
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


@cache
def of_faults() -> Sequence[Finding]:
    of_reports = [name for name, fault in FAULTS.items() if fault.kind.build is not build_draws]
    return list(chain.from_iterable(map(planted, of_reports)))


def test_what_checks_say_of_every_planted_fault_is_translated() -> None:
    findings = of_faults()
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


@cache
def of_comparisons() -> Sequence[Finding]:
    return [finding for report in comparisons() for finding in report.findings]


def test_what_is_said_of_recorded_runs_is_translated() -> None:
    findings = of_comparisons()
    assert len({finding.check for finding in findings}) > 12
    assert untranslated(findings) == set()


def of_single_answers() -> Sequence[Finding]:
    """What the contract says of each answer of the real engine alone, and of each of their outputs."""
    recorded = read_exchanges(ANSWERS)
    rules = Rules(group_size=2, max_new_tokens=1, context_length=8, vocab_size=9, temperature=1.0)
    of_exchanges = [finding for one in recorded for finding in check_exchanges([one], rules)]
    outputs = [sample for one in read_exchanges(ANSWERS) for sample in samples_of([one])]
    alone = [finding for one in outputs for finding in check_samples(Rollout.from_samples([one]), rules)]
    return [*of_exchanges, *alone]


def of_one_pair() -> Sequence[Finding]:
    """What two runs of a pair cost, and what a twin of one step and sample shows."""
    steps = [{"step": step, **dict.fromkeys(COSTS, 2.0 + step % 3)} for step in range(40)]
    pair = tuple(curves_of_run(name, steps) for name in ("a", "b"))
    one = Rollout.from_samples([Sample(0, 0, rollout_id=0, output_ids=[1])])
    return [*cost_findings([pair]), *compare_twins(one, one, steps[:1], steps[:1])]


COSTS = ("perf/requests", "perf/rollout_time", "perf/tokens_per_gpu_per_sec", "rollout/response_len/mean")
ONE_OF_SEVERAL = re.compile(
    r"(?<![+\d.,] )(?<![\d.,])\b1 ([a-z]+ )?(?!(?:is|its|was|has|holds|serves|this)\b)[a-z-]+s\b"
)
"""One of what is named in the plural; sums ("1 + 1 runs") are of several."""


@pytest.mark.parametrize("said", [of_faults, of_comparisons, of_single_answers, of_one_pair])
def test_one_of_a_thing_is_said_in_the_singular(said: Callable[[], Sequence[Finding]]) -> None:
    messages = {finding.message for finding in said()}
    assert any(re.search(r"\b1 [a-z]+\b", message) for message in messages)
    assert sorted(message for message in messages if ONE_OF_SEVERAL.search(message)) == []
    assert untranslated(said()) == set()


def test_the_singular_is_told_from_the_plural() -> None:
    wrong = ("over 1 pairs of runs", "in 1 samples", "1 other changes", "1 log-probs", "in 1 prompt groups")
    right = ("1 + 1 runs", "0.1 nats", "1 of 2 samples fail", "seed 1 serves", "1 pair of runs", "step 1 is", "21 runs")
    assert [text for text in (*wrong, *right) if ONE_OF_SEVERAL.search(text)] == list(wrong)


def test_a_template_about_several_is_that_of_one(build: Callable[..., Report]) -> None:
    assert translate("a group of 1 sample, not 8 (1 of 1 group fail)", "zh") == translate(
        "a group of 1 samples, not 8 (1 of 1 groups fail)", "zh"
    )
    assert translate("step 0: reward is equal bit for bit in 1 bananas", "zh") is None


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
    folder = Path(str(resources.files("parity.report")))
    assert {path.name for path in folder.glob("sentences.*.json")} == {
        f"sentences.{language}.json" for language in LANGUAGES if language != "en"
    }
