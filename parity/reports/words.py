"""The report's own words in other languages; what a check, a command or a model wrote stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Literal, get_args

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

Say = Callable[..., str]
"""A text of the report in its language: a template in English, and by name the values of its ``{places}``."""


@cache
def catalogue(language: Language) -> Mapping[str, str]:
    """The texts of a language by their English; English has none."""
    if language == "en":
        return {}
    content: dict[str, str] = json.loads((resources.files("parity.reports") / f"words.{language}.json").read_bytes())
    return content


def speaker(language: Language) -> Say:
    """How texts are said in a language; one that its catalogue lacks is said in English."""
    words = catalogue(language)

    def say(template: str, **values: object) -> str:
        text = words.get(template, template)
        return text.format(**values) if values else text

    return say


english = speaker("en")
