"""The tests behind sampling (L1), training (L3) and cost (L4): the face of `parity.statistics`.

Every function is pure and takes values by run or by group, never by step; results are frozen and name their estimate,
intervals, p, unit, number of units, method and warnings.
"""

from __future__ import annotations

from parity.statistics.cost import RatioResult, paired_log_ratio
from parity.statistics.findings import PRIMARY_METRICS, cost_findings, training_findings
from parity.statistics.multiplicity import benjamini_hochberg, holm
from parity.statistics.runs import (
    Margin,
    RunComparison,
    compare_runs,
    margin_from_history,
    predict_one,
    runs_needed,
    tost_power,
    verdict_of,
)
from parity.statistics.values import GroupValues, Result, RunValues

__all__ = [
    "PRIMARY_METRICS",
    "GroupValues",
    "Margin",
    "RatioResult",
    "Result",
    "RunComparison",
    "RunValues",
    "benjamini_hochberg",
    "compare_runs",
    "cost_findings",
    "holm",
    "margin_from_history",
    "paired_log_ratio",
    "predict_one",
    "runs_needed",
    "tost_power",
    "training_findings",
    "verdict_of",
]
