"""PyTorch files, read without running anything that they say.

`torch.load(weights_only=True)` builds tensors and plain Python values alone. NumPy's arrays and scalars of plain
numbers are allowed besides, since reward functions return them and Miles keeps routed experts in them.
"""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from parity.errors import InputError, UsageError, install_hint

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
        UsageError: PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"{path}: PyTorch files need torch: {install_hint('train')}") from error
    try:
        with torch.serialization.safe_globals(_allowed()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: what cannot be read is an error
            return torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # a damaged or crafted pickle may fail in any way, and must end as bad input
        raise InputError(f"{path}: {_reason(error)}") from error


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
