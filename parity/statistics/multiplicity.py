"""Several metrics at once: parity is needed in all of them, a difference in any one is corrected for their number."""

from __future__ import annotations

from collections.abc import Mapping

from statsmodels.stats.multitest import multipletests


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's (1979) adjusted p-values by name: one below 5 % is a difference, with a familywise error of 5 %."""
    return _adjusted(p_values, "holm")


def benjamini_hochberg(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values (Benjamini and Hochberg 1995) by name, to flag secondary metrics, which never decide."""
    return _adjusted(p_values, "fdr_bh")


def _adjusted(p_values: Mapping[str, float], method: str) -> dict[str, float]:
    if not p_values:
        return {}
    adjusted = multipletests(list(p_values.values()), method=method)[1]
    return {name: float(p) for name, p in zip(p_values, adjusted, strict=True)}
