"""Standard output of trainers, as it was saved: with colours, Ray's prefixes and grep's.

slime, Miles and Relax print ``step 12: {'train/loss': …}`` and the like (`log_rollout_data` and the train step of
each), OpenRLHF ``Global step 12: {…}``, verl ``step:12 - actor/loss:… - …`` (`LocalLogger`), prime-rl ``Step 12 |
Reward: … | …``, Transformers, TRL and ms-swift dictionaries alone, NeMo-RL a heading ``Step 12/100`` and items below,
AReaL ``Train step 12/100 done`` and a table, ROLL a JSON object before ``pipeline step 12 finished``. Dictionaries are
Python's `repr`, so that they hold bare ``nan`` and ``np.float64(…)``, may be printed twice by two processes, and may be
spread over lines.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parity.errors import InputError
from parity.metrics import Point
from parity.records.json_lines import open_plain
from parity.sources.curves.recorded_runs import COUNTERS, RecordedCurves, number, sentences, step_of

LONGEST_LINE = 1 << 20
MOST_LINES = 500
"""Lines that one dictionary may be spread over."""
MOST_OPEN = 1 << 25
"""Characters of all dictionaries that are open at once."""

# No pattern repeats without a bound where it could begin at any place: on a line of 1 MB that would take hours.
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]{0,10}[@-~]")
_ACTOR = re.compile(r"\((?P<actor>[\w.:-]{1,200} pid=\d{1,20}(?:, ip=[^)]{0,100})?)\) ?")
_HEAD = re.compile(
    r"(?<![\w/])(?P<role>critic-)?(?P<kind>step|perf|rollout|passrate|multi_turn|eval|Global step)"
    r" (?P<id>\d{1,15})(?: \[\w+\])?: \{"
)
_VERL = re.compile(r"(?<![\w/])step:(?P<id>\d{1,15}) - (?P<pairs>\S+?:.*)$")
_ENTRY = re.compile(
    r"(?P<quote>['\"])(?P<key>[^'\"]{1,300})(?P=quote)\s{0,100}:\s{0,100}"
    r"(?:(?:[A-Za-z_]{1,40}\.){0,6}[A-Za-z_]\w{0,40}\((?P<inside>[^(),]{0,300})(?:,[^()]{0,300})?\)|(?P<plain>[^\s,}]+))"
)
_PRIME = re.compile(r"\b[Ss]tep (?P<id>\d{1,15}) \| (?P<pairs>.+)$")
_PRIME_PAIR = re.compile(r"(?P<key>[^:=|]+)[:=] ?(?P<value>[^ |]+)(?: tokens/\w+)?$")
_NEMO_STEP = re.compile(r"= Step (?P<id>\d{1,15})/\d{1,15} =")
_NEMO_ITEM = re.compile(r"^\W*• (?P<key>[^:•]+): (?P<value>[^ ]+)")
_AREAL_STEP = re.compile(r"Train step (?P<id>\d{1,15})/\d+ done")
_ROLL_STEP = re.compile(r"pipeline step (?P<id>\d{1,15}) finished")
_ALONE = re.compile(r"(?<!: )\{(?P<quote>['\"])[^'\"]{1,300}(?P=quote): ")
_OF_TRAINERS = ("'loss'", "'reward'", "'grad_norm'", "'learning_rate'", "'eval_loss'")
"""One of these is in every dictionary that Transformers' trainers print of a step."""

_STREAMS = {"step": "train", "eval": "eval"}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")

_ENDS = (
    ("oom", re.compile(r"[Oo]ut of memory|OutOfMemoryError|oom-kill|oom_kill")),
    ("502", re.compile(r"50[234] Bad Gateway|50[234] Service|\b50[234]\b.{0,500}(?:Bad Gateway|/generate)")),
    ("killed", re.compile(r"SIGKILL|SIGTERM|KeyboardInterrupt|CANCELLED AT|DUE TO TIME LIMIT|\bKilled\b")),
    ("error", re.compile(r"^(?:\S+ )?Traceback \(most recent call last\)|[A-Za-z_](?:Error|Exception): ")),
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
    parts: list[str]
    depth: int


@dataclass(slots=True)
class _State:
    """What has been seen on the way through a log.

    Attributes:
        open: Dictionaries whose closing brace has not come yet, by actor.
        at: The step that a heading named, for the items below it.
        object: The last JSON object, for the step that is named after it.
        alone: Dictionaries without a step of their own, as trainers of Transformers print them.
        unread: Lines with a dictionary that no rule reads, and the first of them.
    """

    open: dict[str, _Open] = field(default_factory=dict)
    at: int | None = None
    object: dict[str, float] = field(default_factory=dict)
    alone: list[dict[str, str]] = field(default_factory=list)
    unread: int = 0
    first_unread: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    unclosed: int = 0
    ending: str | None = None
    retries: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    open_size: int = 0

    def extend(self, actor: str, text: str) -> None:
        """Adds a line to the open dictionary of an actor."""
        self.open[actor].parts.append(text)
        self.open[actor].depth += text.count("{") - text.count("}")
        self.open_size += len(text)

    def close(self, actor: str, unclosed: bool = False) -> None:
        """Takes an actor's dictionary from the open ones, if it has any."""
        if pending := self.open.pop(actor, None):
            self.open_size -= sum(map(len, pending.parts))
        self.unclosed += unclosed


def is_log(head: str) -> bool:
    """Whether a text holds a line that is read here."""
    state = _State()
    points = [point for line in map(_plain, re.split(r"[\r\n]+", head)) for point in _points(line, state)]
    return bool(points or state.alone or state.open)


def read_log(path: Path) -> list[RecordedCurves]:
    """The run that a log tells of; how it ended is what the lines after its last metrics say.

    Lines that are no metrics are passed over; a dictionary that no rule reads is counted.

    Raises:
        InputError: The file cannot be read, or has no line with metrics.
    """
    state = _State()
    points = [point for line in _lines(path) for point in _points(line, state)]
    state.unclosed += len(state.open)
    if points:
        state.unread += len(state.alone)
        state.first_unread = state.first_unread or str(next(iter(state.alone), ""))
    else:
        points = _counted(state.alone, state)
    if not points:
        raise InputError(f"{path}: no line with metrics of a trainer whose logs are read")
    skipped = list(sentences(state.left_out))
    if state.unclosed:
        skipped.append(f"{state.unclosed} dictionaries of metrics that never close: cut off")
    if state.unread:
        skipped.append(f"{state.unread} dictionaries that name no step: not read, the first {state.first_unread[:60]}")
    incidents = {"retry": state.retries} if state.retries else {}
    form = f"log of {max(state.formats, key=state.formats.__getitem__)}"
    return [RecordedCurves("", form, points, tuple(skipped), state.ending, incidents)]


def _counted(rows: Iterable[dict[str, str]], state: _State) -> list[Point]:
    """Dictionaries of Transformers' trainers as points: at the step that each names, or numbered from 1."""
    points = []
    step = 0
    for row in rows:
        named = step_of(row)
        evaluates = any(name.startswith("eval_") for name in row)
        step = named if named is not None else step + (not evaluates)
        values: dict[str, float] = {}
        for name, raw in row.items():
            _keep(name, raw, values, state)
        values.pop("epoch", None)
        points.append(Point("eval" if evaluates else "train", step, values))
        if named is None:
            state.left_out.setdefault("steps", "not printed, and numbered by line")
    state.formats["Transformers, TRL or ms-swift"] += len(points)
    return points


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
    ray = _ACTOR.search(line) if " pid=" in line else None
    actor = ray["actor"] if ray else ""
    if ": {" in line and (head := _HEAD.search(line)):
        state.close(actor, unclosed=actor in state.open)
        kind = head["kind"]
        state.formats["OpenRLHF" if kind == "Global step" else "slime, Miles or Relax"] += 1
        stream = (head["role"] or "") + _STREAMS.get(kind, "rollout")
        state.open[actor] = _Open(stream, int(head["id"]), [], 0)
        state.extend(actor, line[head.end() - 1 :])
    elif point := _by_line(line, state):
        state.ending = None
        yield point
    elif actor in state.open:
        state.extend(actor, line[ray.end() :] if ray else line)
    elif "{" in line and (alone := _ALONE.search(line)) and line.rfind("}") >= alone.end():
        _keep_alone(line, state)
    elif any(word in line for word in _INCIDENTS):
        _note_incident(line, state)
    if (pending := state.open.get(actor)) and pending.depth <= 0:
        state.close(actor)
        state.ending = None
        yield Point(pending.stream, pending.step, _values(" ".join(pending.parts), state))
    elif pending and (len(pending.parts) > MOST_LINES or state.open_size > MOST_OPEN):
        state.close(actor, unclosed=True)


def _by_line(line: str, state: _State) -> Point | None:
    """The point of a line that says all of it, or that belongs to the heading above it."""
    if "step:" in line and (verl := _VERL.search(line)):
        state.formats["verl"] += 1
        return Point("", int(verl["id"]), _verl_values(verl["pairs"], state))
    if "tep " in line:
        if " | " in line and (prime := _PRIME.search(line)):
            return _point_of(state, "prime-rl", int(prime["id"]), map(_PRIME_PAIR.match, prime["pairs"].split(" | ")))
        if "pipeline" in line and state.object and (roll := _ROLL_STEP.search(line)):
            state.formats["ROLL"] += 1
            row, state.object = state.object, {}
            return Point("", int(roll["id"]), row)
        if heading := _NEMO_STEP.search(line) or _AREAL_STEP.search(line):
            state.at = int(heading["id"])
            return None
    if state.at is not None:
        if "• " in line:
            return _point_of(state, "NeMo-RL", state.at, [_NEMO_ITEM.match(line)])
        if "│" in line:
            cells = [cell.strip() for cell in line.strip(" │").split("│")]
            values: dict[str, float] = {}
            for name, raw in zip(cells[::2], cells[1::2], strict=False):  # an odd cell is text, as a title is
                _keep(name, raw, values, state)
            state.formats["AReaL"] += bool(values)
            return Point("", state.at, values) if values else None
    if '{"' in line:
        state.object = _json_values(line[line.index('{"') :]) or state.object
    return None


def _point_of(state: _State, form: str, step: int, pairs: Iterable[re.Match[str] | None]) -> Point | None:
    values: dict[str, float] = {}
    for pair in pairs:
        if pair and (found := re.fullmatch(r"([^a-zA-Z%]+)(?:s|%)?,?", pair["value"])):
            _keep(pair["key"].strip(), found[1], values, state)
    state.formats[form] += bool(values)
    return Point("", step, values) if values else None


def _json_values(text: str) -> dict[str, float] | None:
    """The numbers of a JSON object that ends a line."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    values = {name: number(value) for name, value in row.items()} if isinstance(row, dict) else {}
    return {name: value for name, value in values.items() if value is not None}


def _keep_alone(line: str, state: _State) -> None:
    if "train_runtime" in line:  # the summary of a whole run
        return
    if not any(name in line.replace('"', "'") for name in _OF_TRAINERS):
        state.unread += 1
        state.first_unread = state.first_unread or line.strip()
        return
    entries = _ENTRY.finditer(line[line.index("{") :])
    state.alone.append({entry["key"]: _raw(entry) for entry in entries})


def _values(text: str, state: _State) -> dict[str, float]:
    values: dict[str, float] = {}
    for entry in _ENTRY.finditer(text):
        _keep(entry["key"], _raw(entry), values, state)
    return values


def _raw(entry: re.Match[str]) -> str:
    value = entry["inside"] if entry["plain"] is None else entry["plain"]
    return str(value).strip().strip("'\"")


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
        if name in values and values[name] != value:
            state.left_out[f"{name} (twice in one line)"] = "the last value counts"
        values[name] = value


def _note_incident(line: str, state: _State) -> None:
    if _RETRY.search(line):
        state.retries += 1
    elif ending := next((name for name, pattern in _ENDS if pattern.search(line)), None):
        # A cause is named once; the trace and the errors that it leads to come after it.
        state.ending = ending if state.ending in (None, "error") else state.ending
