"""PyTorch files, read without running anything that they say.

`torch.load(weights_only=True)` builds tensors and plain Python values alone. NumPy's arrays and scalars of plain
numbers are allowed besides, since reward functions return them and Miles keeps routed experts in them.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from parity.errors import InputError, OverBudget, UsageError, install_hint
from parity.records.budgets import check_unpacked, exceeded

_REFUSED = re.compile(r"(?:GLOBAL|global) [`']?([\w.]+)")
_SAID = re.compile(r"WeightsUnpickler error:\s*(.+)")
_CONVERSION = (
    "to build that would run code of the file's choice. Where you trust the file, load it with torch.load(path, "
    "weights_only=False), turn such values into numbers, strings, lists or tensors, or drop their field, and write it "
    "again with torch.save"
)


def load_pickle(path: Path) -> Any:
    """The content of a PyTorch file, tensors on the CPU.

    Raises:
        InputError: The file is damaged, or asks for a class that is not of plain data.
    """
    import torch

    if zipfile.is_zipfile(path):
        check_unpacked(path)
    try:
        with torch.serialization.safe_globals(_allowed()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: what cannot be read is an error
            content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # a damaged or crafted pickle may fail in any way, and must end as bad input
        if isinstance(error, RuntimeError) and "memory" in str(error):
            raise MemoryError(str(error)) from error
        raise InputError(f"{path}: {_reason(error)}") from error
    limit = max(_ELEMENTS, _ELEMENTS_A_BYTE * path.stat().st_size)
    try:
        count = _count(content, {}, set(), path)
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply") from error
    if count > limit:
        raise OverBudget(f"{path}: {exceeded(f'what it unfolds to ({count:,} values)', limit, 'values')}")
    return content


def require_torch(path: Path) -> None:
    """Loads PyTorch.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{path}: PyTorch files need torch: {install_hint('train')}") from error


_ELEMENTS, _ELEMENTS_A_BYTE = 4_000_000, 32
"""Values that a file may unfold to: a list that many samples share, such as their prompt, is written once."""
_PLAIN = {int, float, bool, type(None)}


def _count(value: Any, known: dict[int, int], entered: set[int], path: Path) -> int:
    """The values that something unfolds to, each list that stands in several places counted in each; text by eights.

    Shared parts are walked once, so that the time is that of the parts, however often they repeat.
    """
    if isinstance(value, (str, bytes, bytearray)):
        return 1 + len(value) // 8
    if not isinstance(value, (list, tuple, set, frozenset, dict)):
        size = getattr(value, "numel", None) or getattr(value, "size", 1)
        return int(size() if callable(size) else size or 1) if hasattr(value, "dtype") else 1
    if (key := id(value)) in known:
        return known[key]
    if key in entered:
        raise InputError(f"{path}: it holds itself")
    entered.add(key)
    total = 1 + len(value)
    if isinstance(value, dict) or not set(map(type, value)) <= _PLAIN:
        parts = chain(value, value.values()) if isinstance(value, dict) else value
        total += sum(_count(part, known, entered, path) for part in parts)
    entered.discard(key)
    known[key] = total
    return total


def _reason(error: Exception) -> str:
    text = str(error)
    if refused := _REFUSED.search(text):
        return f"refused, since it holds {refused[1]}: {_CONVERSION}"
    if isinstance(error, pickle.UnpicklingError) and (said := _SAID.search(text)):
        return f"refused, since it is no plain data ({said[1].strip()[:200]}): {_CONVERSION}"
    return f"damaged or cut off: {text.partition('.')[0][:200] or type(error).__name__}"


def _allowed() -> list[Any]:
    """NumPy's builders under the names that its versions 1 and 2 pickle them by."""
    builders: tuple[Any, ...] = (np.ndarray(0).__reduce__()[0], np.float64(0).__reduce__()[0])
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")
    named = [(builder, f"{module}.{builder.__name__}") for module in modules for builder in builders]
    kinds = {type(np.dtype(code)) for code in "?bhilqBHILQefd"}
    return [*named, np.ndarray, (_plain_dtype, "numpy.dtype"), *kinds]


def _plain_dtype(code: str, *flags: Any) -> np.dtype[Any]:
    """`numpy.dtype` for numbers alone: an array of objects is no plain data."""
    kind = np.dtype(code)
    if kind.kind not in "biuf":
        raise pickle.UnpicklingError(f"a NumPy array of {kind}")
    return kind
