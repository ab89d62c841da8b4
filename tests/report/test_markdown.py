"""The report as Markdown, read back by a parser as GitHub would."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from parity.findings import Finding, Level, Status, Where
from parity.report import markdown
from parity.report.document import Report
from parity.report.plots import Picture
from parity.report.runs import RunRecord
from parity.report.words import CONTROL

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
PICTURE = Picture("curves-paired.png", "Curves", "Thin lines are runs.", b"")
ZERO_WIDTH_SPACE = "\u200b"


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text as rows of cells, as a reader sees them."""
    found: list[list[list[str]]] = []
    for token in PARSER.parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level and found[-1] and token.map:
            shown = "".join(child.content for child in token.children or ())
            if "|" in text.splitlines()[token.map[0]]:
                found[-1][-1].append(shown.replace(ZERO_WIDTH_SPACE, ""))
    return found


def headings(text: str) -> list[str]:
    tokens = PARSER.parse(text)
    return [tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open"]


def table_under(text: str, summary: str) -> list[list[str]]:
    """The first table below a summary that opens on a click."""
    return tables(text.partition(f"<summary>{summary}</summary>")[2])[0]


def failing(message: str, **place: object) -> Finding:
    return Finding("reward_recomputed", Level.CONTRACT, Status.FAIL, message, Where(**place), "0", "1")  # type: ignore[arg-type]


def test_the_first_table_is_the_eight_rows_as_a_parser_sees_them(report):
    text = markdown.render(report, [])
    first = tables(text)[0]
    assert first[0] == ["", "baseline", "experiment", "difference", "margin", "interval", "finding"]
    assert [row[0] for row in first[1:]] == [row.name for row in report.rows]
    assert all(len(row) == 7 for row in first)
    assert first[1][1:5] == ["20,480", "20,480", "0", "exact"]
    assert first[1][6] == "L0 pass; L2 pass"
    assert first[5][4:6] == ["±0.1", "-0.0076 to +0.0357 (90 %)"]
    tested = table_under(text, "How each metric was tested")
    assert "margin ±0.1, 90 % CI [-0.0076, 0.0357], 3 + 3 runs" in tested[5][1]


def test_the_verdict_comes_first_with_what_it_speaks_of_and_rests_on(report):
    text = markdown.render(report, [])
    lines = text.splitlines()
    assert lines[0] == "# Rollout parity: PARITY"
    assert lines[2].startswith("**PARITY: native equals per-sample (embedded, task arithmetic, 8 runs, 40 steps, ")
    assert "by L0 contract (6 of 6" in lines[2]
    assert lines[4].startswith("Scope: engine embedded; task arithmetic; 8 runs; 40 steps; ")
    assert "not recorded: model, trainer" in lines[4]
    assert "margins: rollout/raw\\_reward ±0.1" in lines[4] or "margins: rollout/raw_reward ±0.1" in lines[4]
    assert lines[6].startswith("Not shown: that free sampling is equally distributed")
    assert headings(text) == ["Rollout parity: PARITY", "The eight metrics", "Performance", "Details"]
    assert re.findall("<summary>(.*)</summary>", text)[:7] == [
        "How each metric was tested",
        "The ladder of evidence",
        "Curves",
        "How costs were measured",
        "What was not compared",
        "How each run ended",
        "How to reproduce",
    ]


def test_a_difference_is_said_with_its_step_group_and_slot(report, build):
    fault = failing("reward 1 is recorded", run="native-seed0", rollout_id=7, group_index=3, index=2, field="reward")
    text = markdown.render(build(findings=[*report.findings, fault]), [])
    place = "at run native-seed0, step 7, group 3, slot 2, field reward"
    assert text.splitlines()[2].startswith("**DIFFERENT: native differs from per-sample (embedded, ")
    assert place in text.splitlines()[2]
    assert headings(text)[1] == "What failed"
    assert place in text.split("## What failed")[1].split("##")[0]
    assert tables(text)[0][5][6] == f"L0 fail {place}; L2 pass; L3 pass"


def test_a_planted_fault_is_told_beside_the_verdict_and_none_otherwise(report, build):
    text = markdown.render(build(config={"plants": ["exchanged-outputs@3"]}), [])
    assert text.splitlines()[4] == "Faults injected on purpose: exchanged-outputs at step 3 of native."
    assert "on purpose" not in markdown.render(report, [])


def test_one_ratio_stands_for_a_cost(report):
    cost = tables(markdown.render(report, []))[1]
    assert [row[0] for row in cost[1:]] == ["requests a step", "rollout time a step, s", "response tokens/s"]
    assert "0.64 (95 % 0.62 to 0.66)" in cost[2][3]
    assert cost[1][1:] == cost[3][1:] == ["not compared"] * 3


def test_every_rung_shows_its_status_and_strongest_finding(report):
    ladder = table_under(markdown.render(report, []), "The ladder of evidence")
    assert [(row[0], row[2], row[3]) for row in ladder[1:]] == [
        ("L0 contract", "pass", "6 of 6"),
        ("L1 sampling", "not compared", "0 of 0"),
        ("L2 replay", "pass", "8 of 8"),
        ("L3 training", "pass", "1 of 2"),
        ("L4 cost", "pass", "1 of 1"),
    ]


def test_what_was_not_compared_is_listed(report, build):
    text = markdown.render(report, [])
    listed = text.split("<summary>What was not compared</summary>")[1].split("</details>")[0]
    assert "L3 kl: train/kl_loss: not recorded in 3 runs of the baseline" in listed
    assert "L1 sampling: no finding" in listed
    nothing = markdown.render(build(runs=[], findings=[]), [])
    assert "the row grad norm: no values" in nothing
    assert "the row grad norm: no finding tests it" in nothing
    assert tables(nothing)[0][1] == ["output count", *["not compared"] * 3, "none", "", "not compared"]


def test_nan_is_shown_as_nan_and_never_as_zero(build):
    runs = [
        RunRecord(f"{arm}-seed1", arm, 1, "paired", [{"step": 0, "train/loss": value}], {}, [])
        for arm, value in (("per-sample", 0.25), ("native", math.nan))
    ]
    loss = tables(markdown.render(build(runs=runs), []))[0][7]
    assert loss[:4] == ["loss", "0.25", "NaN", "NaN"]


def test_how_to_reproduce_is_word_for_word(build):
    text = markdown.render(build(commands=["parity run --experiment native --out 'a b'"]), [])
    fences = [token.content for token in PARSER.parse(text) if token.type == "fence"]
    assert fences[0] == "parity run --experiment native --out 'a b'\n"
    values = dict(table_under(text, "How to reproduce"))
    assert values["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert values["seeds"] == "1, 2, 3"
    assert re.fullmatch(r"[0-9a-f]{12}", values["config hash"])


def test_retries_and_restarts_are_reported_per_run(report):
    ended = table_under(markdown.render(report, []), "How each run ended")
    assert ended[0][:7] == ["run", "design", "steps", "how it ended", "retries", "engine restarts", "resumes"]
    assert ended[1][:7] == ["per-sample-seed1", "paired", "40", "completed", "0", "0", "0"]
    assert len(ended) == 9


def test_pictures_are_linked_by_name_and_explained(report):
    text = markdown.render(report, [PICTURE])
    assert "![Curves](curves-paired.png)\n\nThin lines are runs." in text


HOSTILE = (
    "a|b",
    "<img src=x onerror=alert(1)>",
    "</details><script>",
    "`code` ``` fence",
    "**bold** __x__ ~~gone~~",
    "[link](javascript:x) ![image](http://x/y.png)",
    "line one\nline two\r\n\n# heading",
    "\u202eright to left\u2028",
    "&lt;already&gt; &amp;",
    "$x^2$ \\backslash \\| end",
    "\x00\x1b[31mred",
    "\ud800 alone",
)


@pytest.mark.parametrize("message", HOSTILE)
def test_what_others_wrote_stays_text(report, build, message):
    plain = markdown.render(build(findings=[*report.findings, failing("harmless")]), [])
    text = markdown.render(build(findings=[*report.findings, failing(message)]), [])

    def shape(of: str) -> list[str]:
        parsed = PARSER.parse(of)
        inline = [child.type for token in parsed for child in token.children or () if child.type != "text_special"]
        return [token.type for token in parsed] + [kind for kind in inline if kind not in ("text", "softbreak")]

    assert shape(text) == shape(plain)
    said = tables(text)[-1][1][-1]
    assert said.strip() == re.sub(r"[\x00-\x1f\u2028\u202e\ud800]+", " ", message).strip()


def test_nobody_is_mentioned_and_nothing_is_linked(report, build):
    text = markdown.render(build(findings=[failing("@octocat see #12, https://example.org or www.example.org")]), [])
    assert "@octocat" not in text
    assert "#12" not in text
    assert "https://" not in text
    assert "www.example" not in text
    assert "@&#8203;octocat" in text


def test_a_fence_cannot_be_closed_from_inside(build):
    text = markdown.render(build(commands=["echo '```'", "````", "</details>"]), [])
    fences = [token.content for token in PARSER.parse(text) if token.type == "fence"]
    assert fences[0] == "echo '```'\n````\n</details>\n"


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_one_line_that_reads_as_written(value):
    escaped = markdown.escape(value)
    shown = "".join(
        child.content for token in PARSER.parseInline(f"x{escaped}x") for child in token.children or ()
    ).replace(ZERO_WIDTH_SPACE, "")
    assert "\n" not in escaped
    expected = re.sub(CONTROL, " ", value).replace(ZERO_WIDTH_SPACE, "")
    assert shown == f"x{expected}x"


@pytest.mark.parametrize(("language", "message"), [("en", "@<|"), ("zh", "组📈")])
def test_a_large_experiment_stays_under_64_kilobytes(report, build, language, message):
    findings = [failing(message * 500, rollout_id=step) for step in range(2000)]
    config = {f"key {number}": "`" * 50 for number in range(1000)}
    big = build(
        findings=[*report.findings, *findings], config=config, versions={f"package {n}": "1" for n in range(3000)}
    )
    text = markdown.render(big, [PICTURE], language)
    assert len(text.encode()) < 64 * 1024
    assert tables(text)[0][1][0] == {"en": "output count", "zh": "输出数"}[language]
    assert "report.json" in text
    assert text.count("<details>") == text.count("</details>")


def test_the_same_report_is_the_same_text(report: Report):
    assert markdown.render(report, [PICTURE]) == markdown.render(report, [PICTURE])
