"""The report as JSON: the envelope of a check's result, with table, ladder, cost, runs and provenance beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from parity.errors import without_secrets
from parity.report import SCHEMA_VERSION, text
from parity.report.document import Report


def render(report: Report) -> bytes:
    """The report as JSON; a number that is not finite is the text ``NaN``, ``Infinity`` or ``-Infinity``."""
    return orjson.dumps(plain(document(report)), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def document(report: Report) -> dict[str, Any]:
    """The report as report.schema.json describes it, but for numbers that JSON lacks."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": report.verdict.verdict.value,
        "headline": text.headline(report),
        "scope": asdict(report.scope),
        "plants": report.plants,
        "reasons": text.reasons(report),
        "baseline": report.baseline,
        "experiment": report.experiment,
        "counts": report.counts,
        "findings": [finding.to_json() for finding in report.findings],
        "table": [
            {
                "name": row.name,
                "metric": row.metric,
                "summary": row.summary,
                "baseline": row.baseline,
                "experiment": row.experiment,
                "difference": row.difference,
                "findings": [finding.to_json() for finding in row.findings],
                "notes": row.notes,
            }
            for row in report.rows
        ],
        "compared": {"design": report.compared_design, "runs": report.compared_runs},
        "ladder": [
            {
                "level": rung.level.value,
                "status": rung.status.value,
                "compared": rung.compared,
                "total": rung.total,
                "strongest": rung.strongest.to_json() if rung.strongest else None,
            }
            for rung in report.ladder
        ],
        "cost": [asdict(row) | {"status": row.status.value} for row in report.cost],
        "runs": [asdict(run) for run in report.outcomes],
        "marks": [asdict(mark) for mark in report.marks],
        "provenance": asdict(report.provenance),
    }


def plain(value: Any) -> Any:
    """A value without secrets; keys and numbers that JSON lacks are text, and what is no character is ``?``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return without_secrets(value).encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    return value
