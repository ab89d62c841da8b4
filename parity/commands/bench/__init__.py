"""`parity bench`: what the granularity of requests costs, as the same work asked for in several modes, taking turns."""

from parity.commands.bench.loads import open_sources, read_loads
from parity.commands.bench.running import Step, run_bench, whole_repeats

__all__ = ["Step", "open_sources", "read_loads", "run_bench", "whole_repeats"]
