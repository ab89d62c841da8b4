"""What changed between two reports of the same experiment, from their report.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from parity.errors import InputError, UsageError
from parity.findings import Severity, Status, Where
from parity.records.store import read_json
from parity.report import SCHEMA_VERSION

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
        kind: ``verdict``, ``finding`` (what a check came to, or whether it was made), ``message`` (of a check that came
            to the same), ``number`` (of the first table or the cost), ``run``, or ``provenance``.
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
    if isinstance(several := report.get("comparisons"), list):
        arms = [str(one.get("experiment")) for one in several if isinstance(one, dict)]
        raise InputError(f"{found} is of several arms: name the folder of one of them beside it, {', '.join(arms)}")
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
        names = " and ".join(f"{experiment} against {baseline}" for baseline, experiment in arms)
        raise UsageError(f"these are reports of different experiments: {names}")
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
    """A change of each check, however many places it names: what it came to, or else where and in which words."""
    first, second = _by_check(before), _by_check(after)
    changes = []
    for name in dict.fromkeys([*first, *second]):
        one, two = first.get(name, []), second.get(name, [])
        if _worst(one) != _worst(two):
            changes.append(Change("finding", name, _in_words(one), _in_words(two)))
        elif (messages := _messages(one)) != (others := _messages(two)):
            changes.append(Change("message", name, _first_unlike(messages, others), _first_unlike(others, messages)))
    return sorted(changes, key=lambda change: change.kind != "finding")


def _by_check(findings: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Findings by level and check."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        named.setdefault(f"{finding.get('level')} {finding.get('check')}", []).append(finding)
    return named


_WORST_FIRST = ("fail", "warning", "inconclusive", "not_compared", "pass")


def _status(finding: Mapping[str, Any]) -> str:
    """A finding's status; what fails as a warning is one."""
    warns = finding["status"] == Status.FAIL.value and finding.get("severity") == Severity.WARNING.value
    return "warning" if warns else str(finding["status"])


def _worst(findings: Sequence[Mapping[str, Any]]) -> str | None:
    """What a check came to; `None` where it was not made."""
    return min(map(_status, findings), key=_WORST_FIRST.index, default=ABSENT)


def _place(finding: Mapping[str, Any]) -> str:
    return str(Where(**{part: finding["where"].get(part) for part in Where.__slots__}))


def _in_words(findings: Sequence[Mapping[str, Any]]) -> str | None:
    """What a check came to, with the first place where it did and the number of such places."""
    worst = _worst(findings)
    places = [place for finding in findings if _status(finding) == worst and (place := _place(finding))]
    if not worst or not places:
        return worst
    return f"{worst} at {places[0]}" + (f" and {len(places) - 1} more" if places[1:] else "")


def _messages(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a check says, each with its place, in order of text."""
    return sorted(
        f"{finding.get('message')}{f' at {place}' if (place := _place(finding)) else ''}" for finding in findings
    )


def _first_unlike(messages: Sequence[str], others: Sequence[str]) -> str | None:
    unlike = [message for message in messages if message not in others]
    return f"{unlike[0]}{f' and {len(unlike) - 1} more' if unlike[1:] else ''}" if unlike else ABSENT


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
