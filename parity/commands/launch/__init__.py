"""`parity launch`: what the runs of somebody's own trainer show, from their curves, dumps and recordings."""

from parity.commands.launch.alarms import AlarmExit, raise_alarms
from parity.commands.launch.drawn_groups import DrawnEvidence, decided
from parity.commands.launch.judging import judge_launch

__all__ = ["AlarmExit", "DrawnEvidence", "decided", "judge_launch", "raise_alarms"]
