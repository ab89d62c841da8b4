"""What changed between two reports of the same experiment, from their report.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from parity.errors import InputError, UsageError
from parity.findings import Status, Where
from parity.records.store import read_json
from parity.report.data import SCHEMA_VERSION

ABSENT = None
"""Stands for what one of the reports lacks."""

DECIDING = ("verdict", "finding")
"""Kinds of changes that change what a report concludes."""

_PARTS = {
    "verdict": str,
    "baseline": str,
    "experiment": str,
    "findings": list,
    "table": list,
    "cost": list,
    "runs": list,
    "provenance": dict,
}
_SIDES = ("baseline", "experiment", "difference")
_STATUSES = frozenset(status.value for status in Status)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two reports.

    Attributes:
        kind: ``verdict``, ``finding`` (its status, or whether it was made), ``message`` (of a finding with the same
            status), ``number`` (of the first table or the cost), ``run``, or ``provenance``.
        name: What differs.
        before: Its value in the first report; `None` where that lacks it.
        after: Its value in the second report.
    """

    kind: str
    name: str
    before: Any
    after: Any


def read_report(path: Path) -> dict[str, Any]:
    """Reads report.json, given itself, its directory, or the directory of the experiment.

    Raises:
        InputError: There is none, or it is not of the format that this version writes.
    """
    places = [path, path / "report.json", path / "report" / "report.json"]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(f"{path}: no report.json here nor in report/; `parity report {path}` writes one")
    report = read_json(found)
    if report.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{found}: schema_version is {report.get('schema_version')!r}, where {SCHEMA_VERSION} is read")
    for name, kind in _PARTS.items():
        if not isinstance(report.get(name), kind):
            raise InputError(f"{found}: {name} is {type(report.get(name)).__name__}, not {kind.__name__}")
        if kind is list and not all(isinstance(item, dict) for item in report[name]):
            raise InputError(f"{found}: {name} holds something that is no object")
    for row in report["table"]:
        if not all(isinstance(row.get(side), dict) for side in _SIDES):
            raise InputError(f"{found}: table: the values of row {row.get('name')!r} are no objects")
    for place, finding in enumerate(report["findings"]):
        if finding.get("status") not in _STATUSES or not isinstance(finding.get("where"), dict):
            raise InputError(f"{found}: finding {place}: its status is {finding.get('status')!r}, or it has no place")
    return report


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What changed from one report to another, deciding changes first.

    Raises:
        UsageError: The reports compare different arms, so that they are not of the same experiment.
    """
    arms = [(report["baseline"], report["experiment"]) for report in (before, after)]
    if arms[0] != arms[1]:
        said = " and ".join(f"{experiment} against {baseline}" for baseline, experiment in arms)
        raise UsageError(f"these are reports of different experiments: {said}")
    changes = [*_changed("verdict", {"verdict": before["verdict"]}, {"verdict": after["verdict"]})]
    changes += _findings(before["findings"], after["findings"])
    changes += _changed("number", _numbers(before), _numbers(after))
    changes += _changed("run", _runs(before), _runs(after))
    changes += _changed("provenance", _provenance(before), _provenance(after))
    return changes


def _changed(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    names = dict.fromkeys([*before, *after])
    pairs = [(name, before.get(name, ABSENT), after.get(name, ABSENT)) for name in names]
    return [Change(kind, name, one, two) for name, one, two in pairs if one != two]


def _findings(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Change]:
    first, second = _by_place(before), _by_place(after)
    changes = []
    for part, kind in (("status", "finding"), ("message", "message")):
        statuses = [{name: finding.get(part) for name, finding in side.items()} for side in (first, second)]
        changes += _changed(kind, *statuses)
    decided = {change.name for change in changes if change.kind == "finding"}
    return [change for change in changes if change.kind == "finding" or change.name not in decided]


def _by_place(findings: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Findings by level, check and place; of several at one place, by their order too."""
    named: dict[str, Mapping[str, Any]] = {}
    for finding in findings:
        place = Where(**{part: finding["where"].get(part) for part in Where.__slots__})
        name = f"{finding.get('level')} {finding.get('check')}{f' at {place}' if place != Where() else ''}"
        number = sum(known == name or known.startswith(f"{name} (") for known in named)
        named[f"{name} ({number + 1})" if number else name] = finding
    return named


def _numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the first table and of the cost by name."""
    values = {
        f"{row.get('name')}, {side}{f', {name}' if name not in ('mean', 'total') else ''}": value
        for row in report["table"]
        for side in _SIDES
        for name, value in row[side].items()
    }
    costs = {
        f"{row.get('name')}, {side}": row.get(side)
        for row in report["cost"]
        for side in ("baseline", "experiment", "ratio", "interval")
    }
    return values | costs


def _runs(report: Mapping[str, Any]) -> dict[str, Any]:
    shown = ("steps", "status", "message", "retries", "restarts", "resumes")
    return {f"{run.get('run')}, {part}": run.get(part) for run in report["runs"] for part in shown}


def _provenance(report: Mapping[str, Any]) -> dict[str, Any]:
    source = report["provenance"]
    return dict(_flat({name: source.get(name) for name in ("commit", "versions", "engine", "margins", "config")}))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def render(changes: Sequence[Change]) -> bytes:
    """The changes as JSON: whether what the reports conclude is the same, and every change."""
    same = not any(change.kind in DECIDING for change in changes)
    content = {"same_conclusion": same, "changes": [asdict(change) for change in changes]}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"
