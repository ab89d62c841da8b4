"""Where on disk the rows are that a finding speaks of."""

from __future__ import annotations

from pathlib import Path

from parity.findings import Finding
from parity.records.store import run_store

_OF_EXCHANGES = ("exchange_", "requests_", "twin_requests")


def source(finding: Finding) -> str:
    """The files of an experiment, by their path in its directory, and the rows in them that a finding speaks of.

    A finding about a metric points to a line of ``metrics.jsonl`` (1-based), one about requests to the exchanges of a
    step, any other to the rows of samples with a group and a slot. A finding about several runs points to all files.
    """
    where = finding.where
    store = run_store(Path(), where.run or "*")
    step = where.rollout_id
    if "/" in (where.field or "") or "/" in finding.check:
        line = "" if step is None else f", line {step + 1}"
        return f"{(store.path / 'metrics.jsonl').as_posix()}{line}"
    exchanges = finding.check.startswith(_OF_EXCHANGES)
    path = (store.exchanges_path if exchanges else store.rollout_path)(step or 0)
    if step is None:
        return f"{path.parent.as_posix()}/*"
    names = {"group_index": "group", "index": "slot"}
    return ", ".join([path.as_posix(), *(f"{names[key]} {at}" for key, at in where.to_json().items() if key in names)])
