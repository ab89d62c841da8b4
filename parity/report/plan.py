"""A plan on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.findings import quantity
from parity.report.text import number
from parity.stats import GroupPowerRow, MetricPlan, Plan, PowerRow


def print_plan(plan: Plan, console: Console) -> None:
    """Prints the designs with their costs, the power tables, what was assumed, and the cheapest design."""
    table = Table("design", "takes", "requests", "GPU-hours", "shows", box=box.SIMPLE_HEAD, pad_edge=False)
    for design in plan.designs:
        hours = "" if design.gpu_hours is None else f"{design.gpu_hours:,.3g}"
        requests = "" if design.requests is None else f"{design.requests:,}"
        table.add_row(design.name, design.amount, requests, hours, design.shows)
    console.print(table)
    for metric in plan.metrics:
        console.print(Text(f"{metric.spread.metric}: {_spread(metric)}"))
        console.print(_power(metric))
    for warning in plan.warnings:
        console.print(Text(f"note: {warning}", style="yellow"))
    console.print(Text(cheapest(plan), style="bold"))


def _spread(metric: MetricPlan) -> str:
    spread = metric.spread
    parts = [f"margin ±{number(metric.margin)}"]
    if spread.group is not None:
        parts.append(f"sd of a group's difference {number(spread.group)}")
    if metric.watched_groups is not None:
        parts.append(
            f"alone about {quantity(metric.watched_groups, 'groups')}, or {metric.fixed_groups:,} set beforehand"
        )
    if spread.run is not None:
        parts.append(f"sd between runs {number(spread.run)}")
    return f"{', '.join(parts)} ({spread.source})"


def _power(metric: MetricPlan) -> Table:
    """Shares of verdicts where the arms are equal and where they differ by the margin."""
    table = Table(
        "evidence", "if equal: PARITY", "DIFFERENT", "if apart by the margin: PARITY", "DIFFERENT", box=box.SIMPLE_HEAD
    )
    for equal, apart in zip(metric.group_power[::2], metric.group_power[1::2], strict=True):
        name: str = quantity(equal.groups, "groups")
        if equal.watched:
            name = f"watched, half by {equal.median_groups:,} groups, 9 in 10 by {equal.late_groups:,}"
        table.add_row(name, *_shares(equal, apart))
    for one, other in zip(metric.run_power[::2], metric.run_power[1::2], strict=True):
        table.add_row(f"{one.runs} + {one.runs} runs", *_shares(one, other))
    return table


def _shares(*rows: GroupPowerRow | PowerRow) -> list[str]:
    return [f"{share:.2f}" for row in rows for share in (row.parity, row.different)]


def cheapest(plan: Plan) -> str:
    """The cheapest design that shows every margin, in one sentence."""
    if plan.cheapest is None:
        return "No design is known to show the margin: say how much the metrics vary with --history or --sigma."
    design = next(one for one in plan.designs if one.name == plan.cheapest)
    cost = f", {quantity(design.requests, 'requests')}" if design.requests is not None else ""
    cost += f", {design.gpu_hours:,.3g} GPU-hours" if design.gpu_hours is not None else ""
    twin = next(one for one in plan.designs if one.name == "twin")
    return (
        f"Cheapest design that shows the margin: {design.name}: {design.amount}{cost}. First, where the engine has "
        f"reproducible seeds: twin, {twin.amount}."
    )
