"""What a watched run has shown so far, and its verdict, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from parity.findings import Finding, Level, Status, Verdict, quantity
from parity.report.colours import COLOURS
from parity.report.document import Report
from parity.report.terminal import print_findings, print_verdict
from parity.report.words import english
from parity.stats import Trajectory, e_value

_STATE = {Verdict.PARITY: "inside margin", Verdict.DIFFERENT: "different", Verdict.INCONCLUSIVE: "open"}
_FAILING_SHOWN = 5


class Seen(Protocol):
    """What is shown: the evidence by policy, the contract findings that fail, and the last step seen."""

    @property
    def trajectories(self) -> Mapping[str, Trajectory]: ...  # noqa: D102
    @property
    def failing(self) -> tuple[Finding, ...]: ...  # noqa: D102
    @property
    def last(self) -> str: ...  # noqa: D102


def line(seen: Seen) -> str:
    """One line for a log."""
    parts = [f"{seen.last}"]
    several = len({trajectory.arms[1] for trajectory in seen.trajectories.values()}) > 1
    for trajectory in seen.trajectories.values():
        policy = f"{trajectory.policy}, {trajectory.arms[1]}" if several else trajectory.policy
        inside = sum(verdict is Verdict.PARITY for verdict in trajectory.verdicts.values())
        largest = max(trajectory.largest.values(), default=0.0)
        parts.append(
            f"{policy}: {quantity(trajectory.groups, 'groups')}, largest e-value {e_value(largest)}, "
            f"{inside} of {quantity(len(trajectory.means), 'metrics')} inside their margins"
        )
    if not seen.trajectories:
        parts.append("no group's arm was drawn so far")
    parts.append(f"contract: {len(seen.failing)} failing" if seen.failing else "contract: nothing fails")
    return "; ".join(parts)


def screen(seen: Seen) -> RenderableType:
    """The evidence as tables, one a policy."""
    tables = []
    needed = 20 * len({trajectory.arms[1] for trajectory in seen.trajectories.values()})
    for trajectory in seen.trajectories.values():
        title = (
            f"{trajectory.policy}: {trajectory.arms[1]} less {trajectory.arms[0]}, "
            f"{quantity(trajectory.groups, 'groups')}, an e-value of {needed} decides"
        )
        table = Table("metric", "difference", "equal within", "margin", "e-value", "", box=box.SIMPLE_HEAD, title=title)
        for name, mean in trajectory.means.items():
            proven = mean.smallest_margin
            within = "not proven yet" if proven is None else f"±{proven:.3g}"
            cells = (name, f"{mean.estimate:+.4f}", within, f"±{mean.allowed:.3g}")
            verdict = trajectory.verdicts[name]
            log_e = trajectory.largest.get(name, 0.0)
            table.add_row(*cells, e_value(log_e), _STATE[verdict], style=COLOURS[verdict])
        tables.append(table)
    failing = [Text(f"contract: {finding.check}: {finding.message}", style="red") for finding in seen.failing]
    return Group(*tables, *failing[:_FAILING_SHOWN], Text(line(seen), style="dim"))


def print_result(report: Report, seen: Seen, console: Console) -> None:
    """Prints the evidence, what fails or is open, and the verdict with its scope."""
    console.print(screen(seen))
    print_findings(report.failing, "more failing", console, english)
    undecided = [one for one in report.findings if one.status in (Status.INCONCLUSIVE, Status.NOT_COMPARED)]
    of_sampling = [one for one in undecided if one.level is Level.SAMPLING or one.status is Status.INCONCLUSIVE]
    print_findings(of_sampling, "more inconclusive", console, english)
    print_verdict(report, console, english)
