"""Alarms of runs that go on: said once each, kept with the run, and posted to a webhook."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import time

from parity.contract_checks import GAP_CHECKS, check_run_curves
from parity.errors import ParityError
from parity.launch import Launched, LaunchFile
from parity.records.metric_names import REWARD
from parity.records.store import RunStore
from parity.stats import detect_collapse

ALARM = "alarm"
"""The event of a run that an alarm was raised for."""

WEBHOOK = "PARITY_WEBHOOK"
"""The variable that holds the URL to post alarms to: as a secret it stands in no file."""

_ABORTED = "rollout/finish_reason/abort"
_LATELY = 3
"""Steps that a share of aborts is the mean of."""

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that calls for somebody: the run, what it is, at which step, and a sentence."""

    run: str
    kind: str
    step: int | None
    text: str


class AlarmExit(ParityError):
    """An alarm that the launch file ends the command for; the jobs go on."""


def alarms_of(launch: LaunchFile, run: Launched, now: float) -> Iterator[Alarm]:
    """What is wrong with a run as it stands."""
    name, step, curves = run.plan.name, run.step, run.curves
    if REWARD in curves and (onset := detect_collapse(curves[REWARD]).onset) is not None:
        yield Alarm(name, "collapse", onset, f"{name}: the reward collapsed at step {onset}")
    minutes = (now - run.moved_at) / 60
    if minutes > launch.restart.hang_minutes / 2:
        text = f"{name}: no step for {minutes:.3g} minutes; it counts as hung after {launch.restart.hang_minutes:g}"
        yield Alarm(name, "stall", step, text)
    if _ABORTED in curves and (lately := float(curves[_ABORTED].values[-_LATELY:].mean())) > launch.alarms.aborts:
        text = f"{name}: {lately:.1%} of the last responses were aborted, more than {launch.alarms.aborts:.1%}"
        yield Alarm(name, "aborts", step, text)
    for finding in check_run_curves([curves]) if curves else ():
        if finding.check in GAP_CHECKS and finding.fails:
            yield Alarm(name, "gap", step, f"{name}: {finding.message}")
            return


def raise_alarms(launch: LaunchFile, runs: Sequence[Launched], note: Callable[[str], None]) -> None:
    """Says each new alarm of a running job, once an attempt.

    Raises:
        AlarmExit: One is of a kind that ends the command.
    """
    for run in (run for run in runs if run.status == "running"):
        store = RunStore(run.plan.directory)
        said: set[object] = set()
        for event in store.events():
            said = set() if event["event"] == "restart" else said | {event.get("kind")}
        for alarm in alarms_of(launch, run, time()):
            if alarm.kind in said:
                continue
            said.add(alarm.kind)
            at = {} if alarm.step is None else {"step": alarm.step}
            store.append_event(ALARM, time(), kind=alarm.kind, message=alarm.text, **at)
            note(f"ALARM {alarm.kind}: {alarm.text}")
            if url := os.environ.get(WEBHOOK):
                _post(url, alarm, note)
            if alarm.kind in launch.alarms.exit:
                raise AlarmExit(f"{alarm.kind}: {alarm.text}")


def _post(url: str, alarm: Alarm, note: Callable[[str], None]) -> None:
    """Posts an alarm as JSON, with a ``text`` as chat services show it; what fails is said and no more."""
    if not url.startswith(("http://", "https://")):
        note(f"{WEBHOOK} is no http:// or https:// URL, so nothing is posted")
        return
    body = json.dumps(asdict(alarm)).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=_SECONDS).close()
    except (OSError, ValueError, urllib.error.URLError) as error:
        note(f"{WEBHOOK}: the alarm could not be posted: {error}")
