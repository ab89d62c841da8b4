"""What the granularity of requests costs: the same work asked for in several modes, taking turns."""

from parity.commands.bench.loads import Load, open_sources, read_loads
from parity.commands.bench.measuring import Measurement
from parity.commands.bench.running import BenchResult, Step, run_bench, whole_repeats
from parity.evidence.cost.benchmark import Ratio, Summary, compare, ratios, summarise
from parity.records.bench import PRESETS, SHARED_PREFIX, BenchConfig, Mode, Workload, parse_mode

__all__ = [
    "PRESETS",
    "SHARED_PREFIX",
    "BenchConfig",
    "BenchResult",
    "Load",
    "Measurement",
    "Mode",
    "Ratio",
    "Step",
    "Summary",
    "Workload",
    "compare",
    "open_sources",
    "parse_mode",
    "ratios",
    "read_loads",
    "run_bench",
    "summarise",
    "whole_repeats",
]
