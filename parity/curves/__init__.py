"""Curves of runs that other trainers made: one module a source, one registry that recognises them."""

from parity.curves.names import Names, load_names
from parity.curves.registry import read_runs
from parity.curves.runs import RecordedRun

__all__ = ["Names", "RecordedRun", "load_names", "read_runs"]
