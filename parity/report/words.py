"""The report's own words in other languages; what a check, a command or a model wrote stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Literal, get_args

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Characters that are not text: they move a cursor, turn a line's direction, or are half of one."""

Say = Callable[..., str]
"""A text of the report in its language: a template in English, and by name the values of its ``{places}``."""


@cache
def catalogue(language: Language) -> Mapping[str, str]:
    """The texts of a language by their English; English has none."""
    if language == "en":
        return {}
    content: dict[str, str] = json.loads((resources.files("parity.report") / f"words.{language}.json").read_bytes())
    return content


def speaker(language: Language) -> Say:
    """How texts are said in a language; one that its catalogue lacks is said in English."""
    words = catalogue(language)

    def say(template: str, **values: object) -> str:
        text = words.get(template, template)
        return text.format(**values) if values else text

    return say


english = speaker("en")


def one_line(value: object, longest: int = 1_000) -> str:
    """Text as one line that steers no terminal and turns no direction, cut with an ellipsis where it is too long."""
    return shortened(CONTROL.sub(" ", str(value)), longest)


def shortened(text: str, longest: int) -> str:
    """Text cut after so many characters, with an ellipsis where it was."""
    return text if len(text) <= longest else f"{text[:longest]} …"
