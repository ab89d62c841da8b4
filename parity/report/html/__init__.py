"""The acceptance report as one HTML file that needs no network: see `render`."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

import numpy as np
import orjson
from scipy import stats

from parity.contract_checks import CHECKS
from parity.metrics import RunCurves
from parity.report import data, text
from parity.report.document import Report
from parity.report.html.evidence import PageEvidence, PairOfRuns, SampleRows, gather, pack
from parity.report.plots import BAND_LEVEL, COST_PANELS, CURVE_PANELS, RUNS_FOR_BAND
from parity.report.sentences import in_language
from parity.report.sources import source
from parity.report.words import TERMS, UNITS, Language, Say, speaker

__all__ = ["PageEvidence", "PairOfRuns", "SampleRows", "gather", "pack", "render"]

SCRIPTS = (
    "dom",
    "sample_data",
    "chart",
    "bands",
    "overview",
    "metrics",
    "requests",
    "sample_browser",
    "findings",
    "timeline",
    "provenance",
    "main",
)
"""The scripts in the order they are read."""

_SAID = re.compile(r'\bsay\(\s*("(?:[^"\\]|\\.)*")')


def render(report: Report, evidence: PageEvidence, language: Language = "en") -> bytes:
    """The report as one HTML page, with the samples that `evidence` holds.

    Nothing that a model or another program wrote becomes markup: it is embedded as JSON without ``<`` and inserted as
    text, and the page's policy lets no script run but its own, nor anything be loaded.
    """
    style = _asset("page.css")
    script = _script()
    page = Template(_asset("page.html")).substitute(
        language="zh-CN" if language == "zh" else language,
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:",
        title=f"rollout parity: {report.verdict.verdict.words}",
        style=style,
        script=script,
        content=_json(_content(report, evidence, language)),
        samples="\n".join(
            f'<script type="text/plain" id="samples-{pair}-{step}">{packed}</script>'
            for (pair, step), packed in evidence.packed.items()
        ),
    )
    return page.encode()


def _asset(name: str) -> str:
    return (resources.files("parity.report.html") / name).read_text("utf-8")


def _script() -> str:
    return "\n".join(_asset(f"{name}.js") for name in SCRIPTS)


def texts() -> list[str]:
    """Every text that the page's scripts have of their own, in English."""
    return [orjson.loads(literal) for literal in _SAID.findall(_script())]


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _json(content: Mapping[str, Any]) -> str:
    """JSON that ends no script element."""
    packed = orjson.dumps(data.plain(content), option=orjson.OPT_SERIALIZE_NUMPY)
    return packed.decode().replace("<", "\\u003c")


def _content(report: Report, evidence: PageEvidence, language: Language) -> dict[str, Any]:
    """The report's JSON, with findings named by their number, and what only the page shows."""
    say = speaker(language)
    original, report = report, in_language(report, language)
    number = {id(finding): place for place, finding in enumerate(report.findings)}
    document = data.document(report)
    for row, shown in zip(report.rows, document["table"], strict=True):
        shown["cells"] = text.row_cells(row, say)[:5]
        shown["findings"] = [
            {
                "number": number[id(finding)],
                "tested": text.how_tested(finding, say),
                "found": text.outcome(finding, say),
            }
            for finding in row.findings
        ]
    for rung, shown in zip(report.ladder, document["ladder"], strict=True):
        shown["question"] = say(text.QUESTIONS[rung.level])
        shown["strongest"] = None if rung.strongest is None else number[id(rung.strongest)]
    for cost, shown in zip(report.cost, document["cost"], strict=True):
        shown["cells"] = text.cost_cells(cost, say)
    for run, shown in zip(report.outcomes, document["runs"], strict=True):
        shown["cells"] = text.outcome_cells(run, say)
    for finding, shown in zip(original.findings, document["findings"], strict=True):
        shown["source"] = source(finding) if evidence.directory else ""
        shown["original"] = "" if shown["message"] == finding.message else finding.message
    return {
        **document,
        "language": language,
        "words": {name: say(name) for name in (*texts(), *TERMS, *UNITS, *(row.name for row in report.rows))},
        "headline": text.headline(report, say),
        "reasons": text.reasons(report, say),
        "failing": [number[id(finding)] for finding in report.failing],
        "rules": _rules(report, say),
        "outcome_columns": [say(column) for column in text.OUTCOME_COLUMNS],
        "verdict_words": report.verdict.verdict.words,
        "beside": text.beside(report, say),
        "margin_time": text.margin_time(report, say),
        "basis": text.basis(report, say),
        "designs": report.arms_of_design,
        "margins": _margins(report, number, say),
        "interval": _interval(report),
        "curves": {run: _curves(curves) for run, curves in report.curves.items()},
        "first_metrics": [metric for metric, _ in (*CURVE_PANELS, *COST_PANELS)],
        "directory": evidence.directory,
        "events": evidence.events,
        "tokens": evidence.tokens,
        "pairs": [
            {
                "name": pair.name,
                "design": pair.design,
                "seed": pair.seed,
                "runs": pair.runs,
                "steps": pair.steps,
                "sides": pair.sides,
                "equal": pair.equal,
            }
            for pair in evidence.pairs
        ],
    }


def _margins(report: Report, number: Mapping[int, int], say: Say) -> dict[str, dict[str, Any]]:
    """By metric, the margin that a finding of L1 or L3 holds it to, and that finding."""
    return {
        metric: {
            "margin": finding.evidence["margin"],
            "in_log": text.in_log(finding),
            "number": number[id(finding)],
            "found": text.outcome(finding, say),
        }
        for metric, finding in text.margins(report).items()
    }


def _interval(report: Report) -> dict[str, Any]:
    """The level of the interval over runs, the fewest runs that have one, and by number of runs Student's quantile."""
    most = max((len(names) for arms in report.arms_of_design.values() for names in arms.values()), default=0)
    counts = range(RUNS_FOR_BAND, most + 1)
    quantiles = {count: float(stats.t.ppf((1 + BAND_LEVEL) / 2, count - 1)) for count in counts}
    return {"level": BAND_LEVEL, "runs": RUNS_FOR_BAND, "quantiles": quantiles}


def _rules(report: Report, say: Say) -> dict[str, str]:
    """The rule of each check of the contract that was made."""
    made = {finding.check for finding in report.findings}
    return {check.name: say(check.rule) for check in CHECKS if check.name in made}


def _curves(curves: RunCurves) -> dict[str, Any]:
    return {
        metric: {"steps": curve.steps, "values": [float(value) for value in np.asarray(curve.values)]}
        for metric, curve in curves.items()
    }
