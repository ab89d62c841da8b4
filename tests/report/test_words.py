"""The report in Chinese: every text of the report has one, with the same places for values."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import chinese as chinese_words
import pytest

from parity.findings import Finding, Level, Severity, Status, Where
from parity.report import html, markdown, text, words
from parity.report.document import Report
from parity.report.words import catalogue, speaker

CHINESE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
SAID = re.compile(r'\bsay\(\s*"((?:[^"\\]|\\.)*)"')
SAME = {" ", "commit", "loss", "prompt", "run", "step", "step {step}"}
"""Terms that the field writes in English in Chinese text too."""


def places(template: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def test_each_text_has_the_same_places_for_values_in_chinese():
    for english, chinese in catalogue("zh").items():
        assert places(english) == places(chinese), english
        assert CHINESE.search(chinese) or english in SAME, english


def test_english_says_its_templates_as_they_are_and_values_are_never_templates():
    assert speaker("en")("{a} and {b}", a="{b}", b=2) == "{b} and 2"
    assert speaker("zh")("{a} and {b}", a="{b}", b=2) == "{b} and 2"


def scripts() -> Iterator[str]:
    for name in html.SCRIPTS:
        yield (resources.files("parity.report.html") / f"{name}.js").read_text("utf-8")


def test_every_text_of_the_page_is_in_the_catalogue():
    said = {match.replace('\\"', '"') for script in scripts() for match in SAID.findall(script)}
    assert len(said) > 80
    assert said - set(catalogue("zh")) == set()


@pytest.fixture
def faulty(report: Report, build) -> Report:
    """A report in which every kind of sentence is made."""
    findings = [
        *report.findings,
        Finding("twin_reward", Level.REPLAY, Status.FAIL, "differs", Where("native-seed0", 3, 0, 1, "reward")),
        Finding("order", Level.CONTRACT, Status.FAIL, "odd", severity=Severity.WARNING),
        Finding("spread", Level.TRAINING, Status.INCONCLUSIVE, "open"),
    ]
    return build(findings=findings, config={"plants": ["exchanged-outputs@3", "late@4"]})


def test_nothing_that_markdown_says_itself_is_left_in_english(report, faulty, build, monkeypatch: pytest.MonkeyPatch):
    lacking: set[str] = set()
    known = catalogue("zh")

    def recording(template: str, **values: object) -> str:
        lacking.update({template} - set(known))
        return speaker("zh")(template, **values)

    monkeypatch.setattr(markdown, "speaker", lambda language: recording)
    for one in (report, faulty, build(findings=[]), build(runs=[], findings=[])):
        for pictures in ([], None):
            markdown.render(one, pictures, "zh")
        markdown.render(replace(one, compared_design="recorded"), [], "zh")
    assert {template for template in lacking if not re.fullmatch(r"([\d.,+-]+( GiB)?)?", template)} == set()


def test_chinese_markdown_keeps_the_numbers_and_the_eight_rows(report):
    english, chinese = (markdown.render(report, [], language) for language in ("en", "zh"))
    table = chinese.split("## 八项指标")[1].split("\n\n")[1].splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in table[2:]] == chinese_words.EIGHT_ROWS
    numbers = re.compile(r"\d+\.\d{3,}")
    assert sorted(numbers.findall(chinese)) == sorted(numbers.findall(english))


def test_what_is_counted_has_its_measure_word(report, faulty):
    for one in (report, faulty):
        said = markdown.render(one, [], "zh")
        assert "143,360 个样本" in said
        assert "3 + 3 个 run" in said
        assert re.findall(r"\d (?:样本|组|请求|应答|输出|指标|曲线|run|step|token|prompt)\b", said) == []


def test_a_failure_is_said_with_its_place(faulty):
    said = text.headline(faulty, speaker("zh"))
    assert "DIFFERENT" in said
    assert "run native-seed0，step 3，组 0，槽位 1，字段 reward" in said  # noqa: RUF001 - the comma of Chinese


def test_catalogues_are_files_of_the_package():
    folder = Path(str(resources.files("parity.report")))
    assert {path.name for path in folder.glob("words.*.json")} == {
        f"words.{language}.json" for language in words.LANGUAGES if language != "en"
    }
