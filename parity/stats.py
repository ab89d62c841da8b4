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
from parity.evidence.planning import MetricPlan, Plan, group_spreads, merged, run_spreads
from parity.evidence.sampling.anytime import (
    ExchangeProcess,
    NormalProcess,
    adjusted_log_e,
    normal_sequence,
)
from parity.evidence.sampling.groups import (
    PairedResult,
    groups_needed,
    neighbour_test,
    paired_events,
    paired_groups,
    slot_test,
)
from parity.evidence.sampling.monitor import Monitor, Watched
from parity.evidence.sampling.permutation import (
    PairContrasts,
    equality_kernel,
    independence_tests,
    pair_contrasts,
    prefix_kernel,
    product_kernel,
    shape_tests,
)
from parity.evidence.sampling.power import (
    GroupPowerRow,
    PowerRow,
    decide_many,
    simulate_fixed_groups,
    simulate_power,
    simulate_watched_groups,
)
from parity.evidence.sampling.rescored import CHECK, Rescored, rescored_findings
from parity.evidence.sampling.sequential import (
    ConfidenceSequence,
    EProcess,
    average_e_value,
    bernoulli_e_value,
    sequential_verdict,
)
from parity.evidence.sampling.set_size import sampling_findings
from parity.evidence.sampling.trajectory import (
    DrawnGroup,
    GroupBounds,
    Trajectory,
    drawn_groups,
    e_value,
    margins_in_run,
    of_drawn_arm,
    trajectory_findings,
)
from parity.evidence.sampling.watched import Evidence
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
    predict_one,
    runs_needed,
    tost_power,
    verdict_of,
)
from parity.evidence.values import Floats, GroupValues, Result, RunValues

__all__ = [
    "CHECK",
    "COMPLETE",
    "EARLY",
    "Band",
    "BenchReport",
    "Collapse",
    "ConfidenceSequence",
    "DrawnGroup",
    "EProcess",
    "Ending",
    "Evidence",
    "ExchangeProcess",
    "Floats",
    "GroupBounds",
    "GroupPowerRow",
    "GroupValues",
    "Margin",
    "MetricPlan",
    "Monitor",
    "NormalProcess",
    "PairContrasts",
    "PairedResult",
    "Plan",
    "PowerRow",
    "RateComparison",
    "Ratio",
    "RatioResult",
    "Rescored",
    "Result",
    "RunComparison",
    "RunValues",
    "Summary",
    "Trajectory",
    "Watched",
    "adjusted_log_e",
    "assess_benchmark",
    "average_e_value",
    "benjamini_hochberg",
    "bernoulli_e_value",
    "censoring_finding",
    "collapse_finding",
    "collapse_rates",
    "compare_runs",
    "cost_findings",
    "curve_band",
    "decide_many",
    "detect_collapse",
    "drawn_groups",
    "e_value",
    "equality_kernel",
    "group_spreads",
    "groups_needed",
    "holm",
    "independence_tests",
    "margin_from_history",
    "margins_in_run",
    "merged",
    "name_of",
    "neighbour_test",
    "normal_sequence",
    "odd_zeros",
    "of_drawn_arm",
    "pair_contrasts",
    "paired_events",
    "paired_groups",
    "paired_log_ratio",
    "predict_one",
    "prefix_kernel",
    "product_kernel",
    "recording_findings",
    "rescored_findings",
    "run_cost_findings",
    "run_spreads",
    "runs_needed",
    "sampling_findings",
    "secondary_findings",
    "sequential_verdict",
    "shape_tests",
    "simulate_fixed_groups",
    "simulate_power",
    "simulate_watched_groups",
    "slot_test",
    "tost_power",
    "training_findings",
    "trajectory_findings",
    "verdict_of",
    "without_odd_zeros",
    "worst_case_finding",
]
