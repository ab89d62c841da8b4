"""Curves of runs that other trainers made: one module a source, one registry that recognises them."""

from parity.sources.curves.names import Names, load_names
from parity.sources.curves.recorded_runs import RecordedRun
from parity.sources.curves.registry import read_runs

__all__ = ["Names", "RecordedRun", "load_names", "read_runs"]
