"""The page in a real browser: opened from disk, clicked, filtered, by keyboard, with texts that want to be more."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chinese as chinese_words
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from parity.findings import Finding, Level, Status, Where, judge
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample
from parity.records.store import run_store
from parity.report import html
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

ARMS = ("per-sample", "native")
STEPS, GROUPS, SLOTS = 5, 3, 2
HOSTILE = (
    ("</script><script>window.broken = 1</script>", "</script><script>window.broken = 1</script>"),
    ('<img src=x onerror="window.broken = 1">', '<img src=x onerror="window.broken = 1">'),
    ("<!--<script>", "<!--<script>"),
    ("&lt;b&gt; {step} {constructor}", "&lt;b&gt; {step} {constructor}"),
    ("\u202egnorw\u2066 a\x00b\u2028", "\\u{202e}gnorw\\u{2066} a\\u{0}b\\u{2028}"),
    ("constructor __proto__ 回复 👍🏽", "constructor __proto__ 回复 👍🏽"),
)
"""Texts, and how they read on the page."""


def text_of(step: int, group: int, slot: int) -> str:
    return HOSTILE[(step + group * SLOTS + slot) % len(HOSTILE)][0]


def sample_of(arm: str, step: int, group: int, slot: int) -> Sample:
    ids = [10 + step, 20 + group, 30 + slot]
    if (arm, step, group, slot) == ("native", 2, 1, 1):
        ids[1] = 99
    return Sample(
        group,
        slot,
        rollout_id=step,
        prompt_ids=[1, 2, group],
        output_ids=ids,
        logprobs=[-0.25, -1.5, -4.0],
        text=text_of(step, group, slot),
        finish_reason="stop",
        reward=float(slot),
        advantage=slot - 0.5,
        loss_mask=[1, 1, 0],
        extra={"prompt": f"{HOSTILE[0][0]} {group}"},
    )


def exchange_of(arm: str, step: int, group: int) -> Exchange:
    """A group's request; one of them is a second attempt."""
    attempt = 2 if (arm, step, group) == ("native", 2, 1) else 1
    times = {"sent_at": 100.0 + group, "received_at": 100.5 + 2 * group}
    request = {"sampling_params": {"n": SLOTS}}
    return Exchange(request, 200, [], attempt=attempt, rollout_id=step, group_index=group, arm=arm, **times)


def write_runs(directory: Path) -> list[RunRecord]:
    runs = []
    for arm in ARMS:
        store = run_store(directory, f"{arm}-seed0")
        store.create()
        for step in range(STEPS):
            places = [(group, slot) for group in range(GROUPS) for slot in range(SLOTS)]
            rollout = Rollout.from_samples([sample_of(arm, step, *place) for place in places])
            store.write_step(step, rollout, [exchange_of(arm, step, group) for group in range(GROUPS)])
            reward = 0.125 * step + (arm == "native")
            huge = 1e308 * (-1) ** step
            lost = float("nan") if step == 3 else -2.0
            store.append_metrics(
                {"step": step, "rollout/raw_reward": reward, "train/loss": lost, "constructor": 1.0, "huge": huge}
            )
        for event in ("start", "retry", "constructor"):
            store.append_event(event, 1000.0, step=1, message=HOSTILE[1][0])
        runs.append(RunRecord(store.name, arm, 0, "twin", store.metrics(), {"message": HOSTILE[1][0]}, store.events()))
    return runs


TOKENIZER = {"model": {"vocab": {"Ġseven": 30, HOSTILE[1][0]: 31}}, "added_tokens": [{"id": 12, "content": "<eos>"}]}

FINDINGS = (
    Finding("output_count", Level.CONTRACT, Status.PASS, "60 samples", evidence={"checked": 60}),
    Finding("twin_rollout/rollout_log_probs_len/mean", Level.REPLAY, Status.PASS, "equal", evidence={"checked": 60}),
    Finding(
        "twin_output_ids",
        Level.REPLAY,
        Status.FAIL,
        f"{HOSTILE[0][0]} and \ud800 alone",
        Where("native-seed0", 2, 1, 1, "output_ids"),
        expected=HOSTILE[1][0],
        observed=99,
        evidence={HOSTILE[0][0]: HOSTILE[1][0]},
    ),
    Finding("curves", Level.TRAINING, Status.NOT_COMPARED, "no pair"),
    Finding("reward", Level.CONTRACT, Status.PASS, "60 rewards"),
    Finding("spread", Level.TRAINING, Status.INCONCLUSIVE, "open", Where(field="rollout/raw_reward")),
    Finding("time", Level.COST, Status.PASS, "as fast", Where(field="perf/rollout_time"), evidence={"ratio": 1.0}),
)


@dataclass
class Page:
    """An open page, and everything that the browser had to say of it."""

    tab: Any
    directory: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def go(self, view: str) -> Any:
        self.tab.evaluate("view => { location.hash = view }", view)
        self.tab.wait_for_selector(f"main[data-view={view.split('/')[0].strip('#')}]")
        return self.tab.locator("main")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, report: Report) -> Path:
    """An experiment on disk with its page, in English and Chinese."""
    made = tmp_path_factory.mktemp("experiment")
    facts = {"baseline": ARMS[0], "experiment": ARMS[1], "commands": [HOSTILE[0][0]], "versions": {"x": HOSTILE[1][0]}}
    twin = build_report(facts, write_runs(made), FINDINGS, judge(FINDINGS))
    weights = run_store(made, "native-seed0").checkpoint_path(STEPS)
    weights.mkdir()
    (weights / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    for language in ("en", "zh"):
        (made / f"{language}.html").write_bytes(html.render(twin, html.gather(twin, made), language))
    step = max(len(packed) for packed in html.gather(twin, made).packed.values())
    (made / "short.html").write_bytes(html.render(twin, html.gather(twin, made, limit=3 * step)))
    (made / "pairs.html").write_bytes(html.render(report, html.PageEvidence()))
    (made / "bare.html").write_bytes(html.render(twin, html.PageEvidence()))
    return made


Opener = Callable[..., Page]


@pytest.fixture
def opened(browser: Any, directory: Path) -> Iterator[Opener]:
    """Opens a page from disk; at the end the browser must have had nothing to say, and asked for nothing."""
    pages = []

    def opening(name: str = "en", **options: Any) -> Page:
        tab = browser.new_page(viewport={"width": 1300, "height": 900}, **options)
        page = Page(tab, directory)
        pages.append(page)
        tab.on("console", lambda message: page.said.append(message.text))
        tab.on("pageerror", lambda error: page.said.append(str(error)))
        tab.on("request", lambda request: page.asked.append(request.url))
        tab.goto((directory / f"{name}.html").as_uri())
        tab.wait_for_selector("main h2")
        return page

    yield opening
    for page in pages:
        assert page.said == []
        assert page.asked == [page.tab.url.partition("#")[0]]
        assert page.tab.evaluate("window.broken") is None
        assert page.tab.locator("img").count() == 0
        page.tab.close()


def test_every_view_opens_from_disk_by_a_click_and_has_its_heading(opened: Opener) -> None:
    page = opened()
    headings = {}
    for name in page.tab.locator("nav a").all_inner_texts():
        page.tab.click(f"nav >> text={name}")
        page.tab.wait_for_selector(f"nav a[aria-current=page] >> text={name}")
        headings[name] = page.tab.locator("main h2").first.inner_text()
    assert headings == {
        "Overview": "What failed",
        "Curves": "Curves",
        "Samples": "Samples",
        "Findings": "Findings",
        "Events": "Events",
        "Provenance": "How to reproduce",
    }


def test_the_overview_gives_the_verdict_and_the_way_from_a_number_to_its_rows_on_disk(opened: Opener) -> None:
    page = opened()
    assert page.tab.locator(".verdict").inner_text().startswith("DIFFERENT: native differs from per-sample")
    row = page.tab.locator("table.rows tbody tr", has_text="rollout_log_probs length")
    assert page.tab.locator("table.rows tbody tr").count() == 8
    failed, not_compared = (page.tab.locator(f"h2:has-text('{name}') + ul li") for name in ("failed", "not compared"))
    place = "run native-seed0, step 2, group 1, slot 1, field output_ids"
    assert failed.all_inner_texts() == [f"L2 replay twin_output_ids: {HOSTILE[0][0]} and ? alone {place}"]
    assert "L3 training curves: no pair" in not_compared.all_inner_texts()
    assert "L1 sampling: no finding" in not_compared.all_inner_texts()
    row.locator("td a", has_text="L2 pass").click()
    assert page.tab.locator("details[open] summary").inner_text().startswith("pass L2 replay twin_rollout/")
    assert "runs/*/metrics.jsonl" in page.tab.locator("details[open]").inner_text()
    rung = page.go("#overview").locator("table.ladder tbody tr", has_text="L2 replay")
    rung.locator("a", has_text="twin_output_ids").click()
    shown = page.tab.locator("details[open]").inner_text()
    (path, group, slot) = re.findall(r"(runs/native-seed0/\S+), group (\d), slot (\d)", shown)[0]
    rows = pq.read_table(page.directory / path).to_pylist()
    (found,) = (row for row in rows if (row["group_index"], row["index"]) == (int(group), int(slot)))
    assert found["output_ids"][1] == 99
    page.tab.locator("details[open] a", has_text="samples of this place").click()
    assert page.tab.locator(".sample.here.experiment .token.differs").inner_text().split() == ["99", "-1.500"]


def test_both_arms_stand_side_by_side_with_what_their_rows_on_disk_hold(opened: Opener) -> None:
    page = opened()
    page.go("#samples/twin-0/2/1")
    cards = page.tab.locator(".sample")
    assert cards.count() == 2 * SLOTS
    for card in cards.all():
        path, row = re.findall(r"(runs/\S+), row (\d+)", card.inner_text())[0]
        held = pq.read_table(page.directory / path).to_pylist()[int(row)]
        said = card.inner_text()
        assert f"reward {held['reward']:g}" in said
        assert f"advantage {held['advantage']:g}" in said
        assert "finish reason stop" in said
        ids = card.locator(".token > span").all_inner_texts()
        assert ids == list(map(str, held["output_ids"]))
        assert card.locator("pre").inner_text() == dict(HOSTILE)[held["text"]]
        assert "masked" in str(card.locator(".token").nth(2).get_attribute("class"))
    assert cards.first.locator(".token").nth(1).get_attribute("title") == "token 1: id 21, log-prob -1.500, trained"
    assert cards.first.locator(".token b").all_inner_texts() == ["<eos>", "Ġseven"]
    assert cards.last.locator(".token b").all_inner_texts() == ["<eos>", HOSTILE[1][0]]
    assert page.tab.locator(".sample .badge.fail").count() == 2
    assert page.tab.locator("pre[data-of=prompt]").inner_text() == f"{HOSTILE[0][0]} 1"


def test_requests_of_a_step_are_bars_of_both_arms_and_a_retry_is_told(opened: Opener) -> None:
    page = opened()
    page.go("#samples/twin-0/2/1")
    requests = page.tab.locator("details.requests")
    assert requests.locator("summary").inner_text() == "requests of this step: 3 + 3, 1 tried again or refused"
    requests.locator("summary").click()
    assert requests.locator("rect.request.baseline").count() == GROUPS
    assert requests.locator("rect.request.experiment").count() == GROUPS
    assert requests.locator("rect.again title").all_text_contents() == [
        "group 1: 2 samples, attempt 2, status 200, 1.5 s"
    ]
    assert "native: 3 requests in 4.5 s" in requests.inner_text()


def test_groups_are_put_in_order_and_tokens_that_differ_are_highlighted(opened: Opener) -> None:
    page = opened()
    page.go("#samples/twin-0/2/1")
    assert page.tab.locator(".token.unlike > span").all_inner_texts() == ["21", "99"]
    page.tab.get_by_label("order").select_option("length up")
    assert page.tab.locator(".groups tbody tr").count() == GROUPS


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("en", 390, "dark"), ("en", 1440, "light"), ("pairs", 390, "light"), ("pairs", 1100, "dark")],
)
def test_nothing_is_in_the_way_of_people_who_see_or_move_otherwise(
    opened: Opener, name: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
    page = opened(name, color_scheme=scheme)
    page.tab.set_viewport_size({"width": width, "height": 900})
    for view in ("#overview", "#metrics", "#samples/twin-0/2/1", "#findings/2", "#events", "#provenance"):
        page.go(view)
        page.tab.wait_for_function("document.readyState === 'complete'")
        page.tab.evaluate("document.querySelectorAll('details.requests').forEach((one) => (one.open = true))")
        found = axe.Axe().run(page.tab).response["violations"]
        assert {each["id"]: each["nodes"][0]["html"] for each in found} == {}, view
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width, view


def test_on_a_phone_the_verdict_of_every_row_stands_beside_its_name(opened: Opener) -> None:
    page = opened("pairs")
    page.tab.set_viewport_size({"width": 390, "height": 800})
    page.go("#overview")
    for cell in page.tab.locator("table.rows tbody td:nth-child(2)").all():
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= 390


def test_the_overview_has_the_scope_the_ladder_and_the_reward(opened: Opener) -> None:
    page = opened("pairs")
    assert "Scope: engine embedded" in page.tab.locator("main").inner_text()
    picture = page.tab.locator("svg.rungs")
    assert "L0 contract: pass" in str(picture.get_attribute("aria-label"))
    assert picture.locator("rect.rung").count() == 5
    assert page.tab.locator("figure[data-metric='rollout/raw_reward'] path.curve").count() == 8


def test_whatever_was_written_elsewhere_is_text_wherever_it_is_shown(opened: Opener) -> None:
    page = opened()
    seen = set()
    for step in range(STEPS):
        for group in range(GROUPS):
            page.go(f"#samples/twin-0/{step}/{group}")
            page.tab.wait_for_selector(f"h3 >> text=step {step}, group {group}")
            seen |= set(page.tab.locator("pre[data-of=response]").all_inner_texts())
    assert seen == {shown for _, shown in HOSTILE}
    page.go("#findings/2")
    assert f"{HOSTILE[0][0]} and ? alone" in page.tab.locator("details[open]").inner_text()
    assert HOSTILE[1][0] in page.tab.locator("details[open] dl").inner_text()
    assert HOSTILE[1][0] in page.go("#events").inner_text()
    assert HOSTILE[0][0] in page.go("#provenance").inner_text()
    assert HOSTILE[1][0] in page.go("#overview").locator("table.runs").inner_text()


def test_samples_are_filtered_and_walked_through_by_keyboard(opened: Opener) -> None:
    page = opened()
    page.go("#samples/twin-0/2")
    heading = page.tab.locator(".group h3")
    assert heading.inner_text() == "step 2, group 0"
    page.tab.keyboard.press("j")
    page.tab.wait_for_selector("h3 >> text=step 2, group 1")
    page.tab.keyboard.press("]")
    page.tab.wait_for_selector("h3 >> text=step 3, group 0")
    page.tab.keyboard.press("[")
    page.tab.wait_for_selector("h3 >> text=step 2, group 0")
    page.tab.get_by_text("only groups that differ").click()
    page.tab.wait_for_selector("text=1 of 3 groups")
    page.tab.get_by_text("only groups that differ").click()
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("回复")
    page.tab.wait_for_selector("text=1 of 3 groups")
    assert page.tab.locator(".groups tbody tr").count() == 1


def test_digits_open_the_views_and_a_question_mark_shows_the_keys(opened: Opener) -> None:
    page = opened()
    page.tab.keyboard.press("4")
    page.tab.wait_for_selector("main[data-view=findings]")
    page.tab.keyboard.press("?")
    assert "next and previous group" in page.tab.locator("dialog[open]").inner_text()
    page.tab.keyboard.press("Escape")
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("3twin")
    assert page.tab.locator("main[data-view=findings] input:focus").input_value() == "3twin"


def test_findings_are_filtered_by_text_level_run_and_status_worst_first(opened: Opener) -> None:
    page = opened()
    page.go("#findings")
    cards = page.tab.locator(".findings > details:not(.passing)")
    passing = sum(finding.status is Status.PASS for finding in FINDINGS)
    assert cards.count() == len(FINDINGS) - passing
    assert "twin_output_ids" in cards.first.inner_text()
    page.tab.get_by_text(f"{passing} findings that pass").click()
    page.tab.wait_for_selector("details.passing details")
    assert page.tab.locator("details.passing details").count() == passing
    page.tab.locator("label", has_text="pass").locator("input").uncheck()
    assert cards.count() == 3
    page.tab.locator("select").first.select_option("training")
    assert cards.count() == 2
    page.tab.locator("input[type=search]").fill("OPEN")
    assert cards.count() == 1
    assert page.tab.locator(".findings .note").inner_text() == f"1 of {len(FINDINGS)} findings"


def test_curves_show_their_values_and_runs_are_switched_off(opened: Opener) -> None:
    page = opened()
    page.go("#metrics")
    reward = page.tab.locator("[data-metric='rollout/raw_reward']")
    assert page.tab.locator("figure").count() == 3
    constant = page.tab.locator("details.constant")
    assert constant.inner_text() == "1 metrics that never change: constructor 1"
    constant.locator("summary").click()
    page.tab.wait_for_selector("details.constant figure")
    constant.locator("summary").click()
    assert reward.locator("path").count() == 2
    box = reward.locator("svg").bounding_box()
    middle = box["x"] + box["width"] * (62 + (540 - 62 - 12) / 2) / 540
    page.tab.mouse.move(middle, box["y"] + 60)
    assert reward.locator(".tip").inner_text().split("\n") == ["step 2", "per-sample-seed0 0.25", "native-seed0 1.25"]
    page.tab.locator("fieldset.experiment legend input").uncheck()
    assert reward.locator("path").count() == 1
    page.tab.locator("input[type=search]").fill("loss")
    assert page.tab.locator("figure figcaption").all_inner_texts() == [
        "train/loss 1 values that are NaN or infinite are not drawn"
    ]
    page.tab.get_by_text("log scale").click()
    assert "not above 0" in page.tab.locator("figcaption").inner_text()


def test_values_that_no_axis_reaches_are_told_and_break_no_path(opened: Opener) -> None:
    page = opened()
    page.go("#metrics")
    huge = page.tab.locator("[data-metric='huge']")
    assert "10 values that are NaN or infinite are not drawn" in huge.locator("figcaption").inner_text()
    drawn = page.tab.locator("figure path").evaluate_all("paths => paths.map((path) => path.getAttribute('d'))")
    assert not any("NaN" in path or "Infinity" in path for path in drawn)


def test_dragging_zooms_every_chart_and_a_click_opens_the_step(opened: Opener) -> None:
    page = opened()
    page.go("#metrics")

    def ticks() -> list[str]:
        return list(page.tab.locator("figure").first.locator("text[text-anchor=middle]").all_text_contents())

    box = page.tab.locator("figure svg").first.bounding_box()
    at = [box["x"] + box["width"] * (62 + (540 - 62 - 12) * step / (STEPS - 1)) / 540 for step in range(STEPS)]
    assert ticks() == ["0", "1", "2", "3", "4"]
    page.tab.mouse.move(at[1], box["y"] + 60)
    page.tab.mouse.down()
    page.tab.mouse.move(at[3], box["y"] + 60)
    page.tab.mouse.up()
    assert ticks() == ["1", "2", "3"]
    page.tab.get_by_text("whole range").click()
    assert ticks() == ["0", "1", "2", "3", "4"]
    page.tab.mouse.click(at[3], box["y"] + 60)
    page.tab.wait_for_selector("h3 >> text=step 3, group 0")


def test_a_chart_is_read_by_keyboard(opened: Opener) -> None:
    page = opened()
    page.go("#metrics")
    figure = page.tab.locator("[data-metric='rollout/raw_reward']")
    figure.focus()
    for _ in range(2):
        page.tab.keyboard.press("ArrowRight")
    assert figure.locator(".tip").inner_text().startswith("step 1\nper-sample-seed0 0.125")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("h3 >> text=step 1, group 0")


BANDS = """() => {
  const lines = Object.entries(data.designs.paired).flatMap(([arm, runs]) => linesOf("rollout/raw_reward", arm, runs));
  return bandsOf("rollout/raw_reward", "paired", lines);
}"""


def test_bands_are_the_margin_around_the_baseline_and_the_interval_over_runs(opened: Opener, report: Report) -> None:
    page = opened("pairs")
    page.go("#metrics")
    bands = {band["kind"]: band for band in page.tab.evaluate(BANDS)}
    values = {
        side: np.array([report.curves[f"{arm}-seed{seed}"]["rollout/raw_reward"].values for seed in (1, 2, 3)])
        for side, arm in zip(("baseline", "experiment"), ARMS, strict=True)
    }
    middle = values["baseline"].mean(axis=0)
    assert bands.pop("margin")["low"] == pytest.approx(middle - 0.1)
    for side, of_runs in values.items():
        low, high = stats.t.interval(0.9, 2, of_runs.mean(axis=0), stats.sem(of_runs))
        assert bands[f"interval {side}"]["low"] == pytest.approx(low)
        assert bands[f"interval {side}"]["high"] == pytest.approx(high)
    assert len(bands) == 2


def test_the_legend_names_what_is_drawn_and_switches_bands_off_and_paper_keeps_both(opened: Opener) -> None:
    page = opened("pairs")
    page.go("#metrics")
    legend = page.tab.locator(".legend")
    assert "margin around the baseline" in legend.inner_text()
    assert "90 % interval over runs" in legend.inner_text()
    reward = page.tab.locator("[data-metric='rollout/raw_reward']")
    assert (reward.locator(".band.margin").count(), reward.locator(".band.interval").count()) == (1, 2)
    assert page.tab.locator("[data-metric='train/loss'] .band.margin").count() == 0
    page.tab.emulate_media(media="print")
    assert legend.is_visible()
    assert reward.locator(".band.margin").is_visible()
    page.tab.emulate_media(media="screen")
    legend.get_by_text("margin around").click()
    assert (reward.locator(".band.margin").count(), reward.locator(".band.interval").count()) == (0, 2)
    page.tab.locator("label.run", has_text="native-seed3").locator("input").uncheck()
    assert reward.locator(".band.interval").count() == 0
    reward.locator("a", has_text="L3 pass").click()
    assert "training_parity" in page.tab.locator("details[open] summary").inner_text()


def test_the_first_difference_of_a_twin_is_marked_on_every_curve_and_a_sound_pair_has_none(opened: Opener) -> None:
    page = opened()
    page.go("#metrics")
    assert page.tab.locator("figure .differs").count() == page.tab.locator("figure").count() == 3
    assert "first difference (L2)" in page.tab.locator(".legend").inner_text()
    assert "margin" not in page.tab.locator(".legend").inner_text()
    sound = opened("pairs")
    sound.go("#metrics")
    assert sound.tab.locator("figure .differs").count() == 0


def test_events_are_on_a_time_line(opened: Opener) -> None:
    page = opened()
    view = page.go("#events")
    assert view.locator("svg .lane").all_text_contents() == ["per-sample-seed0", "native-seed0"]
    assert view.locator("svg .mark").count() == 6
    assert "1970-01-01 00:16:40 UTC" in view.locator("table").inner_text()


def test_dark_mode_and_paper_have_their_own_colours(opened: Opener) -> None:
    def background(page: Page) -> str:
        return str(page.tab.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = opened(color_scheme="dark")
    assert (background(opened(color_scheme="light")), background(dark)) == ("rgb(255, 255, 255)", "rgb(20, 23, 26)")
    dark.tab.emulate_media(media="print")
    assert background(dark) == "rgb(255, 255, 255)"
    assert not dark.tab.locator("nav").is_visible()


def test_paper_has_every_view_but_the_samples(opened: Opener) -> None:
    page = opened()
    page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown = page.tab.locator("main section h2").all_inner_texts()
    assert {"The eight metrics", "Curves", "Findings", "Events", "How to reproduce"} <= set(shown)
    page.tab.evaluate("dispatchEvent(new Event('afterprint'))")
    page.tab.wait_for_selector("main > h2")
    assert len(page.tab.pdf()) > 10_000


def test_no_table_is_wider_than_the_paper(opened: Opener) -> None:
    page = opened("pairs")
    page.tab.set_viewport_size({"width": 720, "height": 1000})  # A4 without its margins
    page.tab.emulate_media(media="print")
    page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.tab.wait_for_selector("main section .badge")
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 720


def test_steps_that_did_not_fit_are_told_and_the_failing_one_is_there(opened: Opener) -> None:
    page = opened("short")
    said = page.go("#samples/twin-0/1").inner_text()
    assert "holds the samples of 3 of 5 steps" in said
    assert "The samples of this step are not in this file: see runs/per-sample-seed0/rollouts." in said
    page.tab.locator("p", has_text="Steps in this file").locator("a", has_text="2").click()
    page.tab.wait_for_selector("h3 >> text=step 2, group 0")
    page.go("#samples/twin-0/2/1/1")
    page.tab.wait_for_selector(".sample.here .token.differs")
    assert "0, 2, 4" in page.go("#provenance").inner_text()


def test_a_report_of_curves_alone_says_that_it_has_no_samples(opened: Opener) -> None:
    page = opened("bare")
    assert "no samples" in page.go("#samples").inner_text()
    assert "no events" in page.go("#events").inner_text()


def test_in_chinese_the_page_has_the_terms_of_the_field(opened: Opener) -> None:
    page = opened("zh")
    assert page.tab.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.tab.locator("nav a").all_inner_texts() == ["总览", "曲线", "样本", "检查结果", "事件", "来源"]
    assert page.tab.locator("table.rows td:first-child").all_inner_texts() == chinese_words.EIGHT_ROWS
    page.tab.set_viewport_size({"width": 390, "height": 800})
    said = page.go("#samples/twin-0/2/1").inner_text()
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 390
    assert "step 2，组 1" in said  # noqa: RUF001 - the comma of Chinese
    assert "奖励 1" in said
