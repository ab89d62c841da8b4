"""Runs of somebody's own trainer, every arm and seed, as jobs on this machine or on Ray.

What the runs show is judged by `parity.commands.launch`; the reference trainer's own runs are `parity.runner`'s.
"""

from parity.launch.driver import ENDED, Launched, Watcher, drive, launched_runs, stop
from parity.launch.file import LaunchFile, RunPlan, plan_runs, read_launch_file
from parity.launch.jobs import Backend, open_backend

__all__ = [
    "ENDED",
    "Backend",
    "LaunchFile",
    "Launched",
    "RunPlan",
    "Watcher",
    "drive",
    "launched_runs",
    "open_backend",
    "plan_runs",
    "read_launch_file",
    "stop",
]
