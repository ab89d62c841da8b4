"""Several metrics at once: parity is needed in all of them, a difference in any one is corrected for their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from scipy import stats

K = TypeVar("K")


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Holm's (1979) adjusted p-values by name: one below 5 % is a difference, with a familywise error of 5 %.

    By hand, because statsmodels collects garbage at each call, which takes longer than the comparison.
    """
    values = np.array(list(p_values.values()), dtype=np.float64)
    if not len(values):
        return {}
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0)
    return dict(zip(p_values, adjusted.tolist(), strict=True))


def benjamini_hochberg(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values (Benjamini and Hochberg 1995) by name, to flag secondary metrics, which never decide."""
    adjusted = stats.false_discovery_control(list(p_values.values())) if p_values else []
    return {name: float(p) for name, p in zip(p_values, adjusted, strict=True)}
