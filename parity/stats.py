"""The tests behind sampling (L1), training (L3) and cost (L4): the face of `parity.evidence`.

Every function is pure and takes values by run or by group, never by step; results are frozen and name their estimate,
intervals, p, unit, number of units, method and warnings.
"""

from __future__ import annotations

from parity.evidence.cost.benchmark import BenchReport, Ratio, Summary, assess_benchmark, name_of
from parity.evidence.cost.paired_ratio import RatioResult, paired_log_ratio
from parity.evidence.cost.run_cost import run_cost_findings
from parity.evidence.metric_findings import collapse_finding, cost_findings
from parity.evidence.multiplicity import benjamini_hochberg, holm
from parity.evidence.over_arms import over_arms
from parity.evidence.planning import MetricPlan, Plan
from parity.evidence.sampling.crossed import crossed_findings
from parity.evidence.sampling.margin import InsideMargin
from parity.evidence.sampling.matched import Matched, match_prompts
from parity.evidence.sampling.means import Mean
from parity.evidence.sampling.permutation import PairMeans, distance_kernel, equality_kernel, mean_excess
from parity.evidence.sampling.power import (
    GroupPowerRow,
    PowerRow,
    Stream,
    decide_many,
    simulate_groups,
    simulate_power,
)
from parity.evidence.sampling.rescored import CHECK, Rescored, rescored_findings
from parity.evidence.sampling.segments import SEGMENTS, segment_findings
from parity.evidence.sampling.sequential import ExchangeProcess, SignFlip, adjusted_log_e, normal_sequence
from parity.evidence.sampling.trajectory import (
    DrawnGroup,
    GroupBounds,
    Trajectory,
    drawn_groups,
    e_value,
    margins_in_run,
    of_drawn_arm,
    rows_of_drawn_arm,
    trajectory_findings,
)
from parity.evidence.sampling.watched import Evidence, sampling_findings
from parity.evidence.spreads import group_spreads, merged, run_spreads
from parity.evidence.training.bands import Band, curve_band
from parity.evidence.training.censoring import COMPLETE, EARLY, Ending, censoring_finding, worst_case_finding
from parity.evidence.training.collapse import Collapse, RateComparison, collapse_rates, detect_collapse
from parity.evidence.training.equivalence import secondary_findings, training_findings
from parity.evidence.training.recordings import odd_zeros, recording_findings, without_odd_zeros
from parity.evidence.two_samples import (
    Margin,
    RunComparison,
    compare_runs,
    margin_from_history,
    runs_needed,
    tost_power,
    verdict_of,
)
from parity.evidence.values import Floats, GroupValues, RunValues

__all__ = [
    "CHECK",
    "COMPLETE",
    "EARLY",
    "SEGMENTS",
    "Band",
    "BenchReport",
    "Collapse",
    "DrawnGroup",
    "Ending",
    "Evidence",
    "ExchangeProcess",
    "Floats",
    "GroupBounds",
    "GroupPowerRow",
    "GroupValues",
    "InsideMargin",
    "Margin",
    "Matched",
    "Mean",
    "MetricPlan",
    "PairMeans",
    "Plan",
    "PowerRow",
    "RateComparison",
    "Ratio",
    "RatioResult",
    "Rescored",
    "RunComparison",
    "RunValues",
    "SignFlip",
    "Stream",
    "Summary",
    "Trajectory",
    "adjusted_log_e",
    "assess_benchmark",
    "benjamini_hochberg",
    "censoring_finding",
    "collapse_finding",
    "collapse_rates",
    "compare_runs",
    "cost_findings",
    "crossed_findings",
    "curve_band",
    "decide_many",
    "detect_collapse",
    "distance_kernel",
    "drawn_groups",
    "e_value",
    "equality_kernel",
    "group_spreads",
    "holm",
    "margin_from_history",
    "margins_in_run",
    "match_prompts",
    "mean_excess",
    "merged",
    "name_of",
    "normal_sequence",
    "odd_zeros",
    "of_drawn_arm",
    "over_arms",
    "paired_log_ratio",
    "recording_findings",
    "rescored_findings",
    "rows_of_drawn_arm",
    "run_cost_findings",
    "run_spreads",
    "runs_needed",
    "sampling_findings",
    "secondary_findings",
    "segment_findings",
    "simulate_groups",
    "simulate_power",
    "tost_power",
    "training_findings",
    "trajectory_findings",
    "verdict_of",
    "without_odd_zeros",
    "worst_case_finding",
]
