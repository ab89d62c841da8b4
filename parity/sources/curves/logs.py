"""Standard output of slime, Miles, Relax and verl, as it was saved: with colours, Ray's prefixes and grep's.

slime, Miles and Relax print ``step 12: {'train/loss': …}`` and the like (`log_rollout_data` and the train step of
each), verl ``step:12 - actor/loss:… - …`` (`LocalLogger`). Dictionaries are Python's `repr`, so that they hold bare
``nan`` and ``np.float64(…)``, may be printed twice by two processes, and may be spread over lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parity.errors import InputError
from parity.metrics import Point
from parity.sources.curves.recorded_runs import COUNTERS, RecordedCurves, number, sentences
from parity.sources.json_lines import open_plain

LONGEST_LINE = 1 << 20
MOST_LINES = 500
"""Lines that one dictionary may be spread over."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_ACTOR = re.compile(r"\((?P<actor>[\w.:-]+ pid=\d+(?:, ip=[^)]*)?)\) ?")
_HEAD = re.compile(
    r"(?<![\w/])(?P<role>critic-)?(?P<kind>step|perf|rollout|passrate|multi_turn|eval) (?P<id>\d{1,15}): \{"
)
_VERL = re.compile(r"(?<![\w/])step:(?P<id>\d{1,15}) - (?P<pairs>\S+?:.*)$")
_ENTRY = re.compile(
    r"(?P<quote>['\"])(?P<key>[^'\"]+)(?P=quote)\s*:\s*"
    r"(?:(?:[A-Za-z_]+\.)*[A-Za-z_]\w*\((?P<inside>[^(),]*)[^()]*\)|(?P<plain>[^\s,}]+))"
)
_STREAMS = {"step": "train", "eval": "eval"}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")

_ENDS = (
    ("oom", re.compile(r"[Oo]ut of memory|OutOfMemoryError|oom-kill|oom_kill")),
    ("502", re.compile(r"50[234] Bad Gateway|50[234] Service|'?\b50[234]\b'?.*(?:Bad Gateway|/generate)")),
    ("killed", re.compile(r"SIGKILL|SIGTERM|KeyboardInterrupt|CANCELLED AT|DUE TO TIME LIMIT|\bKilled\b")),
    ("error", re.compile(r"^(?:\S+ )?Traceback \(most recent call last\)|\w+(?:Error|Exception): ")),
)
_RETRY = re.compile(r"retrying\.\.\. \(attempt \d+")
_INCIDENTS = (
    "retrying",
    "emory",
    "oom",
    "OOM",
    "50",
    "SIG",
    "Killed",
    "CANCEL",
    "LIMIT",
    "Interr",
    "Trace",
    "Error",
    "Exc",
)
"""One of these is in every line that `_ENDS` and `_RETRY` match; most lines of a log have none."""


@dataclass(slots=True)
class _Open:
    """A dictionary whose closing brace has not come yet."""

    stream: str
    step: int
    text: str
    lines: int = 1


@dataclass(slots=True)
class _State:
    """What has been seen on the way through a log."""

    open: dict[str, _Open] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    unclosed: int = 0
    ending: str | None = None
    retries: int = 0
    format: str = ""


def is_log(head: str) -> bool:
    """Whether a text holds a line that is read here."""
    return any(_HEAD.search(line) or _VERL.search(line) for line in map(_plain, re.split(r"[\r\n]+", head)))


def read_log(path: Path) -> list[RecordedCurves]:
    """The run that a log tells of; lines that are no metrics are passed over.

    How it ended is what the last lines after its last metrics say.

    Raises:
        InputError: The file cannot be read, or has no line with metrics.
    """
    state = _State()
    points = [point for line in _lines(path) for point in _points(line, state)]
    state.unclosed += len(state.open)
    if not points:
        raise InputError(f"{path}: no line with metrics of slime, Miles, Relax or verl")
    skipped = list(sentences(state.left_out))
    if state.unclosed:
        skipped.append(f"{state.unclosed} dictionaries of metrics that never close: cut off")
    incidents = {"retry": state.retries} if state.retries else {}
    names = "verl" if state.format == "verl" else ""
    form = "log of verl" if state.format == "verl" else "log of slime, Miles or Relax"
    return [RecordedCurves("", form, points, names, tuple(skipped), state.ending, incidents)]


def _lines(path: Path) -> Iterator[str]:
    """The lines without colours; a carriage return, as progress bars print it, ends one too."""
    try:
        with open_plain(path) as file:
            while raw := file.readline(LONGEST_LINE):
                yield from filter(None, map(_plain, raw.decode(errors="replace").split("\r")))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _plain(line: str) -> str:
    return (_COLOUR.sub("", line) if "\x1b" in line else line).rstrip()


def _points(line: str, state: _State) -> Iterator[Point]:
    # A search for text is many times faster than one by a pattern, and most lines of a log hold none of these.
    found = _ACTOR.search(line) if " pid=" in line else None
    actor = found["actor"] if found else ""
    if ": {" in line and (head := _HEAD.search(line)):
        state.unclosed += actor in state.open
        stream = (head["role"] or "") + _STREAMS.get(head["kind"], "rollout")
        state.open[actor] = _Open(stream, int(head["id"]), line[head.end() - 1 :])
    elif "step:" in line and (verl := _VERL.search(line)):
        state.format, state.ending = "verl", None
        yield Point("", int(verl["id"]), _verl_values(verl["pairs"], state))
    elif actor in state.open:
        state.open[actor].text += " " + (line[found.end() :] if found else line)
        state.open[actor].lines += 1
    elif any(word in line for word in _INCIDENTS):
        _note_incident(line, state)
    if (pending := state.open.get(actor)) and _closed(pending.text):
        del state.open[actor]
        state.ending = None
        yield Point(pending.stream, pending.step, _values(pending.text, state))
    elif pending and pending.lines > MOST_LINES:
        del state.open[actor]
        state.unclosed += 1


def _closed(text: str) -> bool:
    return text.count("{") <= text.count("}")


def _values(text: str, state: _State) -> dict[str, float]:
    values: dict[str, float] = {}
    for entry in _ENTRY.finditer(text):
        raw = entry["inside"] if entry["plain"] is None else entry["plain"]
        _keep(entry["key"], raw.strip().strip("'\""), values, state)
    return values


def _verl_values(pairs: str, state: _State) -> dict[str, float]:
    values: dict[str, float] = {}
    for pair in pairs.split(" - "):
        name, _, raw = pair.rpartition(":")
        wrapped = re.fullmatch(r"[\w.]+\((.*)\)", raw.strip())
        _keep(name.strip(), wrapped[1] if wrapped else raw.strip(), values, state)
    return values


def _keep(name: str, raw: str, values: dict[str, float], state: _State) -> None:
    value = float(raw) if _NUMBER.fullmatch(raw) else number(raw)
    if name in COUNTERS or not name:
        return
    if value is None:
        state.left_out.setdefault(name, "not a number")
    else:
        values[name] = value


def _note_incident(line: str, state: _State) -> None:
    if _RETRY.search(line):
        state.retries += 1
    elif ending := next((name for name, pattern in _ENDS if pattern.search(line)), None):
        # A cause is named once; the trace and the errors that it leads to come after it.
        state.ending = ending if state.ending in (None, "error") else state.ending
