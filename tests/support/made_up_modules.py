"""Modules that a host imports and whose names it never uses in a test."""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any


class MadeUp:
    """Stands for any class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @staticmethod
    def add_cli_args(parser: Any) -> None:
        """Adds none."""

    @staticmethod
    def _kv_pairs_to_dict(pairs: Any) -> dict[str, Any]:
        return {}


def _made_up(name: str) -> type[MadeUp]:
    if name.startswith("__"):
        raise AttributeError(name)
    return MadeUp


class _Finder:
    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        made_up = any(name == one or name.startswith(f"{one}.") for one in self._names)
        return ModuleSpec(name, self, is_package=True) if made_up else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _made_up  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@contextmanager
def made_up(names: Collection[str]) -> Iterator[None]:
    """Finds modules of these names and any below them, with any attribute, for the time of a block."""
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
