"""Findings: the result of each check or test, and how findings become a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import PurePath
from typing import Any

from parity.errors import shown

Progress = Callable[[int, int, str], object]
"""Shows how far some work is: called with the parts done, the parts in all, and what is under way."""


class Message(str):
    """A sentence for a person: a template, which is its id in the catalogues, and the values of its places.

    It is its English text; `translated` gives that of another language. Values may be messages themselves.

    >>> Message("{failed} of {groups} differ", failed=2, groups=quantity(8, "groups"))
    '2 of 8 groups differ'
    """

    template: str
    values: Mapping[str, object]

    def __new__(cls, template: str, /, **values: object) -> Message:
        """The message of a template in the form of `str.format`; texts among the values as they may be shown."""
        values = {name: _shown_value(value) for name, value in values.items()}
        return _message(template.format(**values), template, values)

    def __reduce__(self) -> tuple[Callable[..., Message], tuple[object, ...]]:
        return _message, (str(self), self.template, self.values)

    def translated(self, catalogue: Callable[[str], str]) -> Message:
        """The same with its text by a catalogue, which gives the template of another language for the English one."""
        values = {
            name: value.translated(catalogue) if isinstance(value, Message) else value
            for name, value in self.values.items()
        }
        template = catalogue(self.template)
        if template == self.template and values == self.values:
            return self  # with the singular that a quantity of one has
        return _message(template.format(**values), self.template, self.values)


def _shown_value(value: object) -> object:
    quoted = isinstance(value, (str, PurePath)) and not isinstance(value, (Message, Enum))
    return shown(value) if quoted else value


def _message(text: str, template: str, values: Mapping[str, object]) -> Message:
    message = str.__new__(Message, text)
    message.template = template
    message.values = values
    return message


def listed(parts: Iterable[str], separator: str = ", ") -> Message:
    """Several messages, or other texts, as one."""
    values = {f"part{number}": part for number, part in enumerate(parts)}
    return Message("{separator}".join(f"{{{name}}}" for name in values), separator=Message(separator), **values)


def term(text: str) -> Message:
    """A word or a sentence of a table as a message; the catalogues have those of the tables by name."""
    return Message(text)


def quantity(number: int, unit: str) -> Message:
    """A number of units, which are named in the plural: ``1,024 samples``, ``1 sample``.

    Its template, ``{number:,} samples``, is that of any number.
    """
    text = f"{number:,} {unit if number != 1 else unit.removesuffix('s')}"
    return _message(text, f"{{number:,}} {unit}", {"number": number})


class Level(str, Enum):
    """The rungs of the ladder of evidence, lowest first."""

    CONTRACT = "contract"
    SAMPLING = "sampling"
    REPLAY = "replay"
    TRAINING = "training"
    COST = "cost"

    @property
    def rung(self) -> str:
        """The short name, ``L0`` to ``L4``."""
        return f"L{list(Level).index(self)}"

    @property
    def word(self) -> Message:
        """Its name as a message."""
        return Message(self.value)


class Status(str, Enum):
    """What one check or test found."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARED = "not_compared"

    @property
    def words(self) -> Message:
        """Its name as a message."""
        return Message(self.value.replace("_", " "))


class Severity(str, Enum):
    """Whether a failure makes training wrong (`ERROR`) or merely surprises (`WARNING`)."""

    ERROR = "error"
    WARNING = "warning"


class Verdict(str, Enum):
    """The outcome of a comparison of two arms, or of a check (`PASS` and `FAIL`)."""

    PARITY = "PARITY"
    CURVES_AGREE = "CURVES_AGREE"
    """Of recorded curves alone, which can falsify parity and never show it."""
    DIFFERENT = "DIFFERENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    PASS = "PASS"
    FAIL = "FAIL"

    @property
    def words(self) -> str:
        """As sentences have it."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Where:
    """The place a finding speaks of; `None` where it speaks of everything.

    `run` is the run's name (``native-seed0``), `rollout_id` its training step, `group_index` the prompt group inside
    the rollout, `index` the slot inside the group (0-based), `field` the field of the sample, exchange or metric.
    """

    run: str | None = None
    rollout_id: int | None = None
    group_index: int | None = None
    index: int | None = None
    field: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The parts that are known, as `{"rollout_id": 0, …}`."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in parts.items() if value is not None}

    @property
    def words(self) -> Message:
        """The parts that are known as a message: ``step 3, group 0, slot 1``."""
        parts = {
            "run": Message("run {run}", run=self.run),
            "rollout_id": Message("step {step}", step=self.rollout_id),
            "group_index": Message("group {group}", group=self.group_index),
            "index": Message("slot {slot}", slot=self.index),
            "field": Message("field {field}", field=self.field),
        }
        return listed(parts[name] for name in self.to_json())

    def __str__(self) -> str:
        return str(self.words)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check or test.

    Attributes:
        check: The check's name, stable across versions (``output_count``).
        level: The rung of the ladder it belongs to.
        status: What it found.
        message: One sentence for a person, with its numbers.
        where: The place, or an empty `Where` for a finding about everything checked.
        expected: The value the rule demands, JSON-compatible.
        observed: The value found, JSON-compatible.
        severity: Only a failed finding of severity `ERROR` fails a verdict.
        evidence: Numbers behind the message by name, JSON-compatible: estimate, interval, p, units and their number,
        method.
    """

    check: str
    level: Level
    status: Status
    message: Message
    where: Where = Where()
    expected: Any = None
    observed: Any = None
    severity: Severity = Severity.ERROR
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether this finding alone decides against the change."""
        return self.status is Status.FAIL and self.severity is Severity.ERROR

    def in_run(self, run: str) -> Finding:
        """The same finding, at its place in a run."""
        return replace(self, where=replace(self.where, run=run))

    def to_json(self) -> dict[str, Any]:
        """The finding in the format of `--json`."""
        return {
            "check": self.check,
            "level": self.level.value,
            "status": self.status.value,
            "severity": self.severity.value,
            "where": self.where.to_json(),
            "expected": self.expected,
            "observed": self.observed,
            "message": self.message,
            "evidence": dict(self.evidence),
        }


def short_repr(value: object, longest: int = 60) -> str:
    """A value as Python writes it, cut to so many characters."""
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the sentences that it rests on, and what would decide it where it is inconclusive."""

    verdict: Verdict
    reasons: Sequence[Message]
    open_question: str = ""


def status_of_level(findings: Iterable[Finding], level: Level) -> Status:
    """The status of one rung: fail if any error fails, else inconclusive if any is, else pass or not compared.

    A warning never fails a rung. A finding that was not compared counts only when nothing else on the rung was
    compared.
    """
    on_level = [finding for finding in findings if finding.level is level]
    if any(finding.fails for finding in on_level):
        return Status.FAIL
    statuses = {finding.status for finding in on_level}
    if Status.INCONCLUSIVE in statuses:
        return Status.INCONCLUSIVE
    if Status.PASS in statuses or Status.FAIL in statuses:
        return Status.PASS
    return Status.NOT_COMPARED


def judge(findings: Sequence[Finding]) -> Judgement:
    """Combines the rungs into a verdict.

    DIFFERENT if any of contract, sampling, replay or training fails. PARITY if contract passes and at least one of
    sampling and replay passes, with neither inconclusive: the verdict rests on the lower rungs, and training curves can
    only falsify it. INCONCLUSIVE otherwise. Cost never decides.
    """
    deciding = (Level.CONTRACT, Level.SAMPLING, Level.REPLAY, Level.TRAINING)
    status = {level: status_of_level(findings, level) for level in deciding}
    reasons = []
    for level in deciding:
        of_level = [finding for finding in findings if finding.level is level]
        failed = [finding for finding in of_level if finding.fails]
        compared = sum(finding.status is not Status.NOT_COMPARED for finding in of_level)
        detail = (
            _failure(failed[0])
            if failed
            else Message(
                "{compared} of {findings} compared", compared=compared, findings=quantity(len(of_level), "findings")
            )
        )
        reasons.append(
            Message(
                "{rung} {level}: {status} ({detail})",
                rung=level.rung,
                level=level.word,
                status=status[level].words,
                detail=detail,
            )
        )
    if Status.FAIL in status.values():
        return Judgement(Verdict.DIFFERENT, reasons)
    identity = {status[Level.SAMPLING], status[Level.REPLAY]}
    if status[Level.CONTRACT] is Status.PASS and Status.PASS in identity and Status.INCONCLUSIVE not in identity:
        return Judgement(Verdict.PARITY, reasons)
    return Judgement(Verdict.INCONCLUSIVE, reasons)


def _failure(finding: Finding) -> Message:
    """A failing finding with its place."""
    if not finding.where.to_json():
        return finding.message
    return Message("{message} at {place}", message=finding.message, place=finding.where.words)
