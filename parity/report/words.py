"""The languages of reports: for each but English a catalogue of gettext, with a report's words and all messages."""

from __future__ import annotations

import gettext
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Literal, get_args

from parity.errors import without_secrets
from parity.findings import Level, Message, Status

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Characters that are not text: they move a cursor, turn a line's direction, or are half of one."""

Say = Callable[..., str]
"""A text of the report in its language: a message, or a template in English with the values of its ``{places}``."""


@cache
def catalogue(language: Language) -> Callable[[str], str]:
    """The template of a language for an English one, which stays as it is where the catalogue lacks it."""
    if language == "en":
        return str
    name = f"locale/{language}/LC_MESSAGES/parity.mo"
    with (resources.files("parity.report") / name).open("rb") as file:
        translations = gettext.GNUTranslations(file)
    return lambda template: translations.gettext(template) if template else template  # that of "" is the file's header


@cache
def speaker(language: Language) -> Say:
    """How texts are written in a language; one that its catalogue lacks stays English."""
    known = catalogue(language)

    def say(text: str, /, **values: object) -> str:
        if values:
            text = Message(text, **values)
        return text.translated(known) if isinstance(text, Message) else known(text)

    return say


english = speaker("en")

TERMS = (
    *(level.word for level in Level),
    *(status.words for status in Status),
    *("start", "step", "retry", "engine restart", "resume", "abort", "end", "collapse"),
    *("training parity", "collapse rate", "trajectory difference", "tokens per second"),  # checks without a method
    *("completed", "complete", "early", "aborted", "not recorded"),
)
"""What events, runs and findings are named by: words of reports that stand in no template."""

UNITS = (
    *("samples", "groups", "exchanges", "requests", "prompts", "prompt groups", "tokens", "runs", "pairs", "steps"),
    *(
        "interleaved steps",
        "answers",
        "outputs",
        "streams",
        "curves",
        "metrics",
        "fields",
        "finish reasons",
        "rollouts",
    ),
)
"""What is counted in evidence."""


def one_line(value: object, longest: int = 1_000) -> str:
    """Text as one line that holds no secret and steers no terminal, cut with an ellipsis where it is too long."""
    return shortened(CONTROL.sub(" ", without_secrets(str(value))), longest)


def shortened(text: str, longest: int) -> str:
    """Text cut after so many characters, with an ellipsis where it was."""
    return text if len(text) <= longest else f"{text[:longest]} …"
