"""What the plug-in knows of a host: every name that it uses, and the bodies of the functions around which it works.

A host's function is known by its fingerprint, a digest of its body without comments, docstring and annotations. Bodies
that were run with the plug-in's tests are listed in `rollout_patch.hosts.known`; another one is refused by name, unless
the user allows it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import logging
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any

from rollout_patch.errors import UnsupportedHost
from rollout_patch.hosts.known import BODIES

_log = logging.getLogger("rollout_patch")


@dataclass(frozen=True, slots=True)
class Used:
    """One thing of a host's that the plug-in uses.

    Attributes:
        module: Where it is looked up.
        name: Its name there.
        body: Whether its body must be known.
        calls: Names that it must look up in its module, because the plug-in replaces them there.
    """

    module: Any
    name: str
    body: bool = False
    calls: Sequence[str] = ()


def check_host(host: str, uses: Sequence[Used], allow_unknown: bool | None) -> str | None:
    """Looks every name up, and holds every body to those known.

    Args:
        host: "slime", "miles" or "relax".
        uses: What the plug-in uses of it.
        allow_unknown: Whether bodies may be others than the known ones; `None` at the host's start, when its arguments
            are not at hand yet, and unknown bodies are only logged.

    Returns:
        What is unknown and was allowed, for logs and recordings; `None` where all is known.

    Raises:
        UnsupportedHost: A name is missing, a function no longer looks up what is replaced, or a body is unknown and
            not allowed.
    """
    missing = [f"{use.module.__name__}.{use.name}" for use in uses if not hasattr(use.module, use.name)]
    if missing:
        raise UnsupportedHost(f"{_named(host)} has no {', '.join(missing)}; known are {_known_versions(host)}")
    for use in uses:
        function = inspect.unwrap(getattr(use.module, use.name))
        if use.calls and (absent := set(use.calls) - _names_in(function.__code__)):
            what = f"{use.module.__name__}.{use.name} ({_named(host)}) no longer calls {sorted(absent)}"
            raise UnsupportedHost(f"{what}, so that the plug-in would not be asked; known are {_known_versions(host)}")
    unknown = [
        f"{use.module.__name__}.{use.name} ({found})"
        for use in uses
        if use.body
        and (found := fingerprint(getattr(use.module, use.name))) not in BODIES.get(host, {}).get(_key(use), {})
    ]
    if not unknown:
        return None
    what = f"{_named(host)} has other bodies than those that the plug-in was tested with: {', '.join(unknown)}"
    if allow_unknown:
        _log.warning("%s; allowed by rollout_patch_allow_unknown_host", what)
        return what
    refusal = f"{what}; known are {_known_versions(host)}. rollout_patch_allow_unknown_host: 1 goes on all the same"
    if allow_unknown is not None:
        raise UnsupportedHost(refusal)
    _log.warning("the first rollout will be refused: %s", refusal)
    return None


def _key(use: Used) -> str:
    return f"{use.module.__name__}.{use.name}"


@functools.lru_cache(maxsize=256)
def fingerprint(function: Callable[..., Any]) -> str:
    """Twelve hexadecimal digits that tell a function's body; "no source" where it cannot be read."""
    try:
        source = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return "no source"
    return fingerprint_of(ast.parse(textwrap.dedent(source)).body[0])


def fingerprint_of(node: ast.AST) -> str:
    """The fingerprint of a function's syntax tree, the same in every version of Python."""
    return hashlib.sha256(_form(node, top=True).encode()).hexdigest()[:12]


_LEFT_OUT = ("returns", "annotation", "type_comment", "type_params", "kind", "ctx", "decorator_list")


def _form(value: Any, top: bool = False) -> str:
    """A syntax tree as text, without what has no effect and without fields that are empty."""
    if isinstance(value, list):
        return f"[{','.join(map(_form, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = dict(ast.iter_fields(value))
    body = fields.get("body")
    if top and isinstance(body, list) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        fields["body"] = body[1:]
    kept = [
        f"{name}={_form(field)}" for name, field in fields.items() if name not in _LEFT_OUT and field not in (None, [])
    ]
    return f"{type(value).__name__}({','.join(kept)})"


@functools.cache
def _named(host: str) -> str:
    """A host with its installed version."""
    try:
        return f"{host} {version(host)}"
    except PackageNotFoundError:
        return f"{host} without an installed version"


def _known_versions(host: str) -> str:
    names = {label: None for bodies in BODIES.get(host, {}).values() for label in bodies.values()}
    return ", ".join(names) or "none"


def _names_in(code: CodeType) -> set[str]:
    """The names that a function looks up, its comprehensions included."""
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
