"""The report in Chinese: every text of the report has one, with the same places for values."""

from __future__ import annotations

import re
import runpy
import string
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import chinese as chinese_words
import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po

from parity.findings import Finding, Level, Message, Severity, Status, Where, listed, quantity
from parity.report import html, markdown, text
from parity.report.document import Report
from parity.report.words import LANGUAGES, catalogue, speaker

ROOT = Path(__file__).parents[2]
LOCALE = Path(str(resources.files("parity.report"))) / "locale"
PLACES = re.compile(r"(\{\w+\})*")
"""A template that has no words."""

TRANSLATED = [language for language in LANGUAGES if language != "en"]
CHINESE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
SAME = {" ", "commit", "loss", "prompt", "run", "step", "step {step}", "run {run}"}
"""Terms that the field writes in English in Chinese text too."""


@cache
def tool() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "messages.py")))


@cache
def entries(language: str) -> Catalog:
    with (LOCALE / language / "LC_MESSAGES" / "parity.po").open("rb") as file:
        return read_po(file)


def places(template: str) -> list[tuple[str | None, str | None]]:
    """The places of a template with how each value is written, in any order."""
    return sorted((name, how) for _, name, how, _ in string.Formatter().parse(template) if name is not None)


def test_each_language_has_a_catalogue():
    assert sorted(path.name for path in LOCALE.iterdir()) == TRANSLATED


@pytest.mark.parametrize("language", TRANSLATED)
def test_what_reports_read_is_what_translators_write(language: str):
    known = catalogue(language)
    written = {str(entry.id): str(entry.string) for entry in entries(language) if entry.id and entry.string}
    assert len(written) > 300
    assert {template: known(template) for template in written} == written
    assert not any(entry.fuzzy for entry in entries(language) if entry.id)


def test_each_template_has_the_same_places_for_values_in_chinese():
    for entry in entries("zh"):
        if entry.id and entry.string:
            assert places(entry.string) == places(entry.id), entry.id
            words = re.search("[a-z]", re.sub(r"\{.*?\}", "", entry.id))
            assert CHINESE.search(entry.string) or entry.id in SAME or not words, entry.id


@pytest.mark.parametrize("language", TRANSLATED)
def test_every_template_of_the_package_has_a_translation_and_no_other_is_kept(language: str):
    """`make messages` brings the catalogue up to date and lists what lacks a translation."""
    known = {str(entry.id) for entry in entries(language) if entry.id and entry.string}
    templates = set(tool().templates())
    assert len(templates) > 700
    assert templates - known == set()
    assert known - templates == set()


def test_a_template_that_is_no_literal_is_refused(tmp_path: Path):
    module = tmp_path / "module.py"
    module.write_text(
        'template = "x" if sure else "y"\nMessage(template)\n'
        'Message("a {b}", b=quantity(2, "steps"))\nf"{say(\'c\')}"\nlisted(parts, "; ")\n'
    )
    found = {template for _, template in tool()._of_file(module)}
    assert found == {"x", "y", "a {b}", "{number:,} steps", "c", "; "}
    module.write_text("Message(given)")
    with pytest.raises(SystemExit, match="line 1"):
        list(tool()._of_file(module))


def test_english_says_its_templates_as_they_are_and_values_are_never_templates():
    for language in LANGUAGES:
        assert speaker(language)("{a} and {b}", a="{b}", b=2) == "{b} and 2"
        assert speaker(language)("{a}") == "{a}"
        assert speaker(language)("") == ""


def test_a_message_is_translated_with_the_messages_in_it():
    say = speaker("zh")
    whole = Message("{compared} of {findings} compared", compared=1, findings=quantity(1, "findings"))
    assert whole == "1 of 1 finding compared"
    assert say(whole) == "1 条结果中比较了 1 条"
    assert say(quantity(1_024, "samples")) == "1,024 个样本"
    assert say(listed([quantity(2, "groups"), "{odd}"], "; ")) == "2 个组；{odd}"  # noqa: RUF001 - Chinese
    assert say(Where("a-seed0", 3, 0, 1, "reward").words) == "run a-seed0，step 3，组 0，槽位 1，字段 reward"  # noqa: RUF001
    assert say(Message("{n:.2f} nobody has translated", n=1)) == "1.00 nobody has translated"


def test_every_text_of_the_page_is_in_the_catalogue():
    said = set(html.texts())
    assert len(said) > 100
    assert {template for template in said if not entries("zh").get(template)} == set()
    scripts = "".join(
        (resources.files("parity.report.html") / f"{name}.js").read_text("utf-8") for name in html.SCRIPTS
    )
    by_name = re.findall(r"\bsay\((?!\s*\")[^)]*", scripts)  # the name of an event, a status, a level, a row or a unit
    assert {literal for call in by_name for literal in re.findall('"([^"]*)"', call)} <= {"_", " "}


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


@pytest.fixture
def several(report: Report, faulty: Report, build) -> Iterator[Report]:
    return iter(
        (report, faulty, build(findings=[]), build(runs=[], findings=[]), replace(report, compared_design="recorded"))
    )


def test_nothing_that_markdown_says_itself_is_left_in_english(several: Iterator[Report], monkeypatch):
    lacking: set[str] = set()

    def recording(template: str, /, **values: object) -> str:
        template = template.template if isinstance(template, Message) else template
        lacking.update({template} - {str(entry.id) for entry in entries("zh")})
        return speaker("zh")(template, **values)

    monkeypatch.setattr(markdown, "speaker", lambda language: recording)
    for each in several:
        for pictures in ([], None):
            markdown.render(each, pictures, "zh")
    assert {template for template in lacking if not PLACES.fullmatch(template)} == set()


def test_chinese_markdown_keeps_the_numbers_and_the_eight_rows(report):
    english, chinese = (markdown.render(report, [], language) for language in ("en", "zh"))
    table = chinese.split("## 八项指标")[1].split("\n\n")[1].splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in table[2:]] == chinese_words.EIGHT_ROWS
    numbers = re.compile(r"\d+\.\d{3,}")
    assert sorted(numbers.findall(chinese)) == sorted(numbers.findall(english))


def test_what_is_counted_has_its_measure_word(report, faulty):
    for each in (report, faulty):
        said = markdown.render(each, [], "zh")
        assert "143,360 个样本" in said
        assert "3 + 3 个 run" in said
        assert re.findall(r"\d (?:样本|组|请求|应答|输出|指标|曲线|run|step|token|prompt)\b", said) == []


def test_a_failure_is_said_with_its_place(faulty):
    said = text.headline(faulty, speaker("zh"))
    assert "DIFFERENT" in said
    assert "run native-seed0，step 3，组 0，槽位 1，字段 reward" in said  # noqa: RUF001 - the comma of Chinese
