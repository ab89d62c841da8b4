"""Text of others in any part of a report: no output holds a secret, and none that people read steers a screen."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from parity.findings import Finding, Level, Message, Status, Where
from parity.report import comment, data, github, html, junit, markdown
from parity.report.terminal import print_report

HOSTILE = (
    "http://me:hunter2@host/x https://host/?api_key=hunter2 Authorization: Bearer hunter2hunter2 "
    "\x1b[2J \x9b1A \x00 \u202e \u2028 \ud800 \r"
)
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tabs and line breaks, separators of lines, marks of direction, halves of pairs."""


def finding(**parts):
    message = parts.pop("message", Message("it is {value}", value=3))
    return Finding("reward_recomputed", Level.CONTRACT, Status.FAIL, message, **parts)


PLACES = {
    "message": {"findings": [finding(message=Message("{name} is {value}", name=HOSTILE, value=3))]},
    "run": {"findings": [finding(where=Where(run=HOSTILE, rollout_id=0))]},
    "field": {"findings": [finding(where=Where(field=HOSTILE))]},
    "expected": {"findings": [finding(expected=HOSTILE)]},
    "observed": {"findings": [finding(observed={HOSTILE: [HOSTILE]})]},
    "evidence": {"findings": [finding(evidence={"checked": 1, "method": HOSTILE})]},
    "command": {"commands": [HOSTILE]},
    "engine": {"engine": HOSTILE},
    "task": {"task": HOSTILE},
    "version": {"versions": {"torch": HOSTILE}},
    "setting": {"config": {"training": {"optimizer": HOSTILE}}},
}


@pytest.mark.parametrize("place", PLACES)
def test_no_output_holds_a_secret_or_steers_a_screen(build, place):
    report = build(**PLACES[place])
    screen = io.StringIO()
    print_report(report, Console(file=screen, width=120), "en")
    outputs = {
        "the terminal": screen.getvalue(),
        "report.md": markdown.render(report, []),
        "comment.md": comment.render(report, "en"),
        "annotations": "\n".join(github.workflow_commands(report)),
        "junit.xml": junit.render(report).decode(),
        "report.json": data.render(report).decode(),
        "report.html": html.render(report, html.PageEvidence()).decode(),
    }
    assert not [name for name, content in outputs.items() if "hunter2" in content]
    read = {name: content for name, content in outputs.items() if name not in ("report.json", "report.html")}
    steered = {name: found[0] for name, content in read.items() if (found := STEERING.search(content))}
    assert not steered
