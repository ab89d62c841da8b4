"""What findings say, in the report's language.

Checks write their sentences in English. A catalogue has their templates and translations; a place in a template is
``{name}`` for any text, ``{name:word}`` for one without spaces, ``{name:number}`` for a number, and ``{name:said}`` for
a part that must have a translation itself, so that no sentence is translated by half. A template in the plural, of
"{count:number} steps", is that of "1 step" too.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources
from itertools import chain

from parity.findings import Finding, Message
from parity.report.document import Report
from parity.report.runs import Provenance
from parity.report.words import Language, speaker

_PLACES = {
    "": ".+?",
    "word": r"\S+?",
    "number": r"[+-]?(?:\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)%?",
}
_SAID = (".+?", ".+")
"""The shortest part that may stand there, and the longest."""

_PLURAL = re.compile(r"(?<=[a-z])s\b")
"""A letter that a sentence of one thing lacks: templates are about several."""

_LONG = 1_000
"""Characters of a sentence from which on it stays as it is: what engines answer may be quoted in it."""
_DEPTH = 8
"""Parts within parts."""


@cache
def sentences(language: Language) -> Mapping[str, str]:
    """The templates of a language by their English; English has none."""
    if language == "en":
        return {}
    content: dict[str, str] = json.loads((resources.files("parity.report") / f"sentences.{language}.json").read_bytes())
    return content


def in_language(report: Report, language: Language) -> Report:
    """The report with what its findings say in a language; a sentence that it lacks is quoted whole in English."""
    if language == "en":
        return report
    changed = {id(finding): replace(finding, message=_said(finding, language)) for finding in report.findings}
    return replace(
        report,
        findings=tuple(changed[id(finding)] for finding in report.findings),
        rows=tuple(
            replace(
                row,
                findings=tuple(changed[id(finding)] for finding in row.findings),
                notes=tuple(_note(note, language) for note in row.notes),
            )
            for row in report.rows
        ),
        ladder=tuple(replace(rung, strongest=rung.strongest and changed[id(rung.strongest)]) for rung in report.ladder),
        marks=tuple(replace(mark, message=_note(mark.message, language)) for mark in report.marks),
        provenance=_provenance(report.provenance, language),
    )


def _provenance(source: Provenance, language: Language) -> Provenance:
    say = speaker(language)

    def known(text: str) -> str:
        return say(text) if isinstance(text, Message) else text

    return replace(
        source,
        commit=known(source.commit),
        task=known(source.task),
        engine=known(source.engine),
        determinism=known(source.determinism),
    )


def _said(finding: Finding, language: Language) -> str:
    if isinstance(finding.message, Message):
        return speaker(language)(finding.message)
    message = translate(finding.message.removeprefix(f"{finding.check}: "), language)
    return message or speaker(language)("In English: {message}", message=finding.message)


def _note(note: str, language: Language) -> str:
    return speaker(language)(note) if isinstance(note, Message) else translate(note, language) or note


@lru_cache(maxsize=4_096)
def translate(sentence: str, language: Language, depth: int = 0) -> str | None:
    """A finding's sentence in a language; `None` where the catalogue lacks it or a part of it."""
    known = sentences(language)
    if sentence in known:
        return known[sentence]
    if len(sentence) > _LONG or depth > _DEPTH:
        return None
    for longest, pattern, translation, parts in _patterns(language):
        if longest in sentence and (match := pattern.fullmatch(sentence)):
            values: dict[str, str | None] = match.groupdict()
            values |= {name: translate(str(values[name]), language, depth + 1) for name in parts}
            if None not in values.values():
                return translation.format(**values)
    return None


@cache
def _patterns(language: Language) -> list[tuple[str, re.Pattern[str], str, tuple[str, ...]]]:
    """Of each template with places: its longest piece, its pattern and translation, and which places are said too."""
    patterns = []
    for template, translation in sentences(language).items():
        fields = list(string.Formatter().parse(template))
        if any(name for _, name, _, _ in fields):
            literals = [_PLURAL.split(literal) for literal, *_ in fields]
            longest = max(chain.from_iterable(literals), key=len)
            parts = tuple(name for _, name, kind, _ in fields if name and kind == "said")
            for said in _SAID if parts else _SAID[:1]:
                pattern = "".join(
                    "s?".join(map(re.escape, literal))
                    + (f"(?P<{name}>{_PLACES.get(kind or '', said)})" if name else "")
                    for literal, (_, name, kind, _) in zip(literals, fields, strict=True)
                )
                patterns.append((longest, re.compile(pattern, re.DOTALL), translation, parts))
    return patterns
