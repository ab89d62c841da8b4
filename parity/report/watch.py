"""What a watched run has shown so far, and its verdict, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from parity.findings import Finding, Judgement, Status, Verdict, quantity
from parity.report.colours import COLOURS
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


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What a watched recording shows: the whole contract, checked again from the files, and the evidence so far.

    Attributes:
        findings: Of both.
        counts: How many samples, groups and exchanges were checked.
        judgement: The verdict and what it rests on.
    """

    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    judgement: Judgement

    def to_json(self) -> dict[str, Any]:
        """The result in the format of `--json`."""
        return {
            "verdict": self.judgement.verdict.value,
            "reasons": list(self.judgement.reasons),
            "counts": dict(self.counts),
            "findings": [finding.to_json() for finding in self.findings],
        }


def line(seen: Seen) -> str:
    """One line for a log."""
    parts = [f"{seen.last}"]
    for policy, trajectory in seen.trajectories.items():
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
    for policy, trajectory in seen.trajectories.items():
        title = (
            f"{policy}: {trajectory.arms[1]} less {trajectory.arms[0]}, {quantity(trajectory.groups, 'groups')}, "
            "an e-value of 20 decides"
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


def print_result(result: WatchResult, seen: Seen, console: Console) -> None:
    """The evidence, what fails, and the verdict last."""
    console.print(screen(seen))
    failing = [finding for finding in result.findings if finding.fails]
    for finding in failing[:_FAILING_SHOWN]:
        console.print(Text(f"{finding.level.rung} {finding.check}: {finding.where} {finding.message}", style="red"))
    if (more := len(failing) - _FAILING_SHOWN) > 0:
        console.print(Text(f"{quantity(more, 'more failing findings')} in --json", style="red"))
    for finding in result.findings:
        if finding.check.startswith("trajectory_") and finding.status is not Status.PASS and not finding.fails:
            console.print(Text(finding.message, style="yellow"))
    for reason in result.judgement.reasons:
        console.print(Text(f"  {reason}"))
    console.print(Text(result.judgement.verdict.value, style=f"bold {COLOURS[result.judgement.verdict]}"))
