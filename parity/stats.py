"""The tests behind sampling (L1), training (L3) and cost (L4): the face of `parity.evidence`.

Every function is pure and takes values by run or by group, never by step; results are frozen and name their estimate,
intervals, p, unit, number of units, method and warnings.
"""

from __future__ import annotations

from parity.evidence.cost.paired_ratio import RatioResult, paired_log_ratio
from parity.evidence.metric_findings import collapse_finding, cost_findings
from parity.evidence.multiplicity import benjamini_hochberg, holm
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
from parity.evidence.sampling.rescored import Rescored, rescored_findings
from parity.evidence.sampling.sequential import (
    ConfidenceSequence,
    EProcess,
    average_e_value,
    bernoulli_e_value,
    sequential_verdict,
)
from parity.evidence.sampling.set_size import SAMPLING_MARGINS, sampling_findings
from parity.evidence.sampling.watched import Evidence
from parity.evidence.training.bands import Band, curve_band
from parity.evidence.training.collapse import Collapse, RateComparison, collapse_rates, detect_collapse
from parity.evidence.training.equivalence import secondary_findings, training_findings
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
from parity.evidence.values import GroupValues, Result, RunValues

__all__ = [
    "SAMPLING_MARGINS",
    "Band",
    "Collapse",
    "ConfidenceSequence",
    "EProcess",
    "Evidence",
    "ExchangeProcess",
    "GroupPowerRow",
    "GroupValues",
    "Margin",
    "Monitor",
    "NormalProcess",
    "PairContrasts",
    "PairedResult",
    "PowerRow",
    "RateComparison",
    "RatioResult",
    "Rescored",
    "Result",
    "RunComparison",
    "RunValues",
    "Watched",
    "adjusted_log_e",
    "average_e_value",
    "benjamini_hochberg",
    "bernoulli_e_value",
    "collapse_finding",
    "collapse_rates",
    "compare_runs",
    "cost_findings",
    "curve_band",
    "decide_many",
    "detect_collapse",
    "equality_kernel",
    "groups_needed",
    "holm",
    "independence_tests",
    "margin_from_history",
    "neighbour_test",
    "normal_sequence",
    "pair_contrasts",
    "paired_events",
    "paired_groups",
    "paired_log_ratio",
    "predict_one",
    "prefix_kernel",
    "product_kernel",
    "rescored_findings",
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
    "verdict_of",
]
