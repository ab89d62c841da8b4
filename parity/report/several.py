"""Several arms, each compared with the baseline: what their reports come to together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from parity.findings import Message, Verdict, listed, quantity
from parity.records.store import write_atomically
from parity.report import SCHEMA_VERSION, text
from parity.report.data import document, plain
from parity.report.document import Report
from parity.report.markdown import escape, table
from parity.report.words import Language, Say, english, speaker


def verdict_of_several(reports: Sequence[Report]) -> Verdict:
    """DIFFERENT if one arm is, else INCONCLUSIVE if one is, else that of all."""
    verdicts = [report.verdict.verdict for report in reports]
    return next((one for one in (Verdict.DIFFERENT, Verdict.INCONCLUSIVE) if one in verdicts), verdicts[0])


def headline_of_several(reports: Sequence[Report], say: Say = english) -> str:
    """The verdict over all arms in one sentence."""
    arms = [
        Message("{arm} {verdict}", arm=report.experiment, verdict=report.verdict.verdict.words) for report in reports
    ]
    return say(
        "{verdict}: {arms} against {baseline}; wrong statements about any of the {count} are held to 5 % together",
        verdict=verdict_of_several(reports).words,
        arms=listed(arms),
        baseline=reports[0].baseline,
        count=quantity(len(reports), "arms"),
    )


def write_several(reports: Sequence[Report], directory: Path, language: Language = "en") -> list[Path]:
    """Writes report.json and report.md of all arms; the report of each has a folder of its name beside them."""
    say = speaker(language)
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict_of_several(reports).value,
        "headline": headline_of_several(reports),
        "baseline": reports[0].baseline,
        "comparisons": [document(report) for report in reports],
    }
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    write_atomically(directory / "report.json", orjson.dumps(plain(content), option=options) + b"\n")
    rows = [
        (report.experiment, report.verdict.verdict.words, text.headline(report, say), f"{report.experiment}/report.md")
        for report in reports
    ]
    blocks = [
        say("# Rollout parity: {verdict}", verdict=verdict_of_several(reports).words),
        f"**{escape(headline_of_several(reports, say))}**",
        table([say("arm"), say("verdict"), say("what it rests on"), say("report")], rows),
    ]
    write_atomically(directory / "report.md", ("\n\n".join(blocks) + "\n").encode())
    return [directory / "report.json", directory / "report.md"]
