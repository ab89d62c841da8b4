"""A benchmark as tables on a terminal, a picture and JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.findings import quantity
from parity.metrics import Spread, spread
from parity.records.bench import BenchResult, Load, Workload
from parity.records.bench_files import to_json
from parity.records.provenance import versions
from parity.report.text import NOT_COMPARED, TIMES, number
from parity.stats import BenchReport, Ratio, Summary, name_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
"""Of Okabe and Ito, which colour-blind readers can tell apart."""
SAID_OF_RATIOS = {
    "requests": "requests",
    "seconds": "wall time",
    "group_p50": "group p50",
    "engine_cpu": "engine CPU",
    "client_cpu": "client CPU",
}
"""Of a table; response tokens/s is the inverse of wall time where the work is equal, and in the JSON."""


def document(report: BenchReport, command: str) -> dict[str, Any]:
    """Everything as JSON; `read_bench` reads it."""
    return {
        **to_json(report.result),
        "command": command,
        "versions": versions(),
        "summaries": [asdict(summary) for summary in report.summaries],
        "ratios": [asdict(ratio) for ratio in report.ratios],
        "across": [asdict(ratio) for ratio in report.across],
        "compared": [asdict(ratio) for ratio in report.compared],
        "not_in_earlier": list(report.not_earlier),
    }


def write_bench(report: BenchReport, directory: Path, command: str) -> list[Path]:
    """Writes `bench.json` and `bench.png` into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "bench.json": orjson.dumps(document(report, command), option=orjson.OPT_INDENT_2) + b"\n",
        "bench.png": draw(report),
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return [directory / name for name in files]


def print_bench(report: BenchReport, console: Console) -> None:
    """Prints what was asked, policy by policy the tables, and why any ratio was refused."""
    console.print(Text(work(report.result), style="dim"))
    for policy in report.result.config.policies:
        if policy:
            console.print(Text(f"router policy {policy}", style="bold"))
        _print_policy(report, policy, console)
    if any(ratio.ratio is not None for ratio in report.across):
        console.print(Text("router policies compared", style="bold"))
        title = f"ratio to\n{report.across[0].baseline}"
        console.print(_ratio_table(title, report.across, lambda ratio: name_of(ratio.policy, ratio.mode)))
    if any(ratio.ci95 for ratio in (*report.ratios, *report.across, *report.compared)):
        console.print(Text("Below a ratio is its 95 % interval over repeats.", style="dim"))
    if report.not_earlier:
        said = f"{NOT_COMPARED} with the earlier benchmark: {'; '.join(report.not_earlier)}, which it does not hold"
        console.print(Text(said, style="yellow"))
    for reason in report.refused:
        console.print(Text(f"no ratio of {reason}", style="yellow"))


def _print_policy(report: BenchReport, policy: str | None, console: Console) -> None:
    summaries = [summary for summary in report.summaries if summary.policy == policy]
    found = [ratio for ratio in report.ratios if ratio.policy == policy]
    compared = [ratio for ratio in report.compared if ratio.policy == policy]
    for table in (_cost_table(summaries), _time_table(summaries)):
        console.print(table)
    if any(summary.engines for summary in summaries):
        console.print(load_table([(summary.mode, summary.engines) for summary in summaries]))
    lacking = [said for said, known in _KNOWN.items() if not any(known(summary) for summary in summaries)]
    if lacking:
        console.print(Text(f"{NOT_COMPARED}: {', '.join(lacking)}", style="dim"))
    for summary in summaries:
        if summary.uncounted_requests:
            said = f"requests sent less those that engines counted is {summary.uncounted_requests:+,.0f}"
            console.print(Text(f"note: {summary.mode}: {said}", style="yellow"))
    if any(ratio.ratio is not None for ratio in found):
        console.print(_ratio_table(f"ratio to\n{found[0].baseline}", found))
    if compared:
        console.print(_ratio_table("ratio to\nearlier", compared))
        console.print(Text("The earlier benchmark did not take turns with this one.", style="dim"))


_KNOWN: Mapping[str, Callable[[Summary], bool]] = {
    "prompt tokens of each mode (the engine does not say)": lambda summary: summary.prompt_tokens is not None,
    "cached prompt tokens (the engine does not say)": lambda summary: summary.cached_share is not None,
    "engine CPU (its processes are not ours)": lambda summary: summary.engine_cpu is not None,
    "load of each engine (start several with --workers, or name what counts it with --counts)": lambda summary: bool(
        summary.engines
    ),
}
"""What may not be known of any mode, and how to tell that it is."""


def _size(asked: Workload) -> str:
    """What every rollout asks for, in numbers."""
    parts = ((asked.groups, "groups"), (asked.group_size, "samples"), (asked.new_tokens, "tokens"))
    return " x ".join(quantity(number, unit) for number, unit in parts)


def work(result: BenchResult) -> str:
    """What every rollout asked for, and how rollouts took turns."""
    asked, config = result.config.workload, result.config
    shared = f", {asked.shared_prefix:.0%} of them the same in all groups" if asked.shared_prefix else ""
    side = asked.image_side
    images = f" and {quantity(asked.images, 'images')} of {side} x {side}" if asked.images else ""
    taking_turns = "the policies and modes" if config.routers[1:] else "the modes"
    cache = "emptied before each rollout" if result.cache_emptied else "not emptied, as the engine is not under control"
    return (
        f"{_size(asked)}, prompts of {asked.prompt_tokens} random ids{shared}{images}, "
        f"at most {quantity(asked.concurrency, 'samples')} in flight. "
        f"{quantity(config.repeats, 'repeats')} after {config.warm_up} of warm-up, "
        f"{taking_turns} of a repeat in random order. "
        f"Prompts are new in every rollout; the prefix cache was {cache}."
    )


def _table(*titles: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column(titles[0], no_wrap=True)
    for title in titles[1:]:
        table.add_column(title, justify="right")
    return table


def _table_of_known(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of the columns in which a row has something."""
    kept = [at for at in range(len(titles)) if any(row[at] for row in rows)]
    table = _table(*(titles[at] for at in kept))
    for row in rows:
        table.add_row(*(row[at] for at in kept))
    return table


def _cost_table(summaries: Sequence[Summary]) -> Table:
    titles = ("requests", "wall s", "from", "to", "tokens/s", "cached", "engine CPU", "client CPU")
    rows = [
        (
            summary.mode,
            number(summary.requests),
            *(f"{value:.3g}" for value in (summary.seconds, *summary.seconds_range)),
            f"{summary.tokens_per_second:,.0f}",
            "" if summary.cached_share is None else f"{summary.cached_share:.1%}",
            *("" if value is None else f"{value:.3g}" for value in (summary.engine_cpu, summary.client_cpu)),
        )
        for summary in summaries
    ]
    return _table_of_known(("a rollout", *titles), rows)


def _time_table(summaries: Sequence[Summary]) -> Table:
    names = ("p50", "p95", "p99")
    table = _table("seconds", "request p50", "p95", "p99", "group p50", "p95", "p99")
    for summary in summaries:
        cells = [values.get(name) for values in (summary.request_seconds, summary.group_seconds) for name in names]
        table.add_row(summary.mode, *("" if value is None else f"{value:.3g}" for value in cells))
    return table


def load_table(rows: Sequence[tuple[str, Mapping[str, Load]]]) -> Table:
    """What each engine served, a row for requests and one for decode tokens, with their spread."""
    table = Table("served", "", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("by each engine", overflow="fold")
    table.add_column("CV", justify="right")
    table.add_column("max/mean", justify="right")
    for name, engines in rows:
        for what in ("requests", "decode_tokens") if engines else ():
            values: list[float | None] = [getattr(load, what) for load in engines.values()]
            known = all(value is not None for value in values)
            shown = ", ".join(f"{value:,.0f}" for value in values if value is not None) if known else NOT_COMPARED
            table.add_row(name, what.replace("_", " "), shown, *_spread_cells(spread(values)))
            name = ""
    return table


def _ratio_table(
    title: str, found: Sequence[Ratio], called: Callable[[Ratio], str] = lambda ratio: ratio.mode
) -> Table:
    """A row a mode and policy; the 95 % interval stands below each ratio."""
    rows = [
        (
            called(next(iter(row.values()))),
            *(_ratio_cell(row[metric]) if metric in row else "" for metric in SAID_OF_RATIOS),
        )
        for row in _by_mode(found).values()
    ]
    return _table_of_known((title, *SAID_OF_RATIOS.values()), rows)


def _ratio_cell(ratio: Ratio) -> str:
    if ratio.ratio is None:
        return "refused" if "unequal" in (ratio.refused or "") else ""
    low, high = (f"{end:.3g}" for end in ratio.ci95 or (ratio.ratio, ratio.ratio))
    return f"{TIMES}{ratio.ratio:.3g}" + (f"\n{low} to {high}" if low != high else "")


def ratio_lines(found: Sequence[Ratio]) -> list[str]:
    """One line a mode with the ratios that a reader asks for first."""
    lines = []
    for name, row in _by_mode(found).items():
        parts = [
            f"{said} {_ratio_cell(row[metric])}".replace("\n", " (95 % ")
            + (")" if "\n" in _ratio_cell(row[metric]) else "")
            for metric, said in SAID_OF_RATIOS.items()
            if metric in row and row[metric].ratio is not None
        ]
        lines.append(f"{name}: {', '.join(parts) or 'no ratio'}")
    return lines


def _by_mode(found: Sequence[Ratio]) -> dict[str, dict[str, Ratio]]:
    rows: dict[str, dict[str, Ratio]] = {}
    for ratio in found:
        rows.setdefault(f"{name_of(ratio.policy, ratio.mode)} to {ratio.baseline}", {})[ratio.metric] = ratio
    return rows


def _spread_cells(found: Spread | None) -> tuple[str, str]:
    return (f"{found.cv:.1%}", f"{found.max_over_mean:.2f}") if found else ("", "")


def draw(report: BenchReport) -> bytes:
    """Wall time of every rollout, times of requests and groups, and what each engine served, as a PNG."""
    loaded = [summary for summary in report.summaries if summary.engines]
    rows = 2 if loaded else 1
    figure = Figure(figsize=(11, 3.6 * rows + 0.4), dpi=130, layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    _draw_walls(axes[0, 0], report)
    _draw_times(axes[0, 1], report.summaries)
    if loaded:
        _draw_loads(axes[1, 0], loaded, "requests")
        _draw_loads(axes[1, 1], loaded, "decode_tokens")
    asked = report.result.config.workload
    figure.suptitle(f"{_size(asked)}, prompts of {asked.prompt_tokens}", fontweight="bold")
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _draw_walls(axis: Axes, report: BenchReport) -> None:
    """A dot a rollout, and the mean."""
    for at, summary in enumerate(report.summaries):
        seconds = [row.seconds for row in report.result.of(summary.policy, summary.mode)]
        axis.plot(seconds, [at] * len(seconds), "o", color=COLOURS[at % len(COLOURS)], alpha=0.6)
        axis.plot([summary.seconds], [at], "|", color="black", markersize=18)
    _name_rows(axis, report.summaries)
    axis.set_title("wall time of a rollout, s (bar: mean)", fontsize=10, loc="left")
    axis.set_xlim(left=0)


def _draw_times(axis: Axes, summaries: Sequence[Summary]) -> None:
    """Median to p99 of requests, and of groups below them."""
    for at, summary in enumerate(summaries):
        for values, offset, colour in (
            (summary.request_seconds, -0.12, COLOURS[0]),
            (summary.group_seconds, 0.12, COLOURS[1]),
        ):
            if values:
                axis.plot([values["p50"], values["p99"]], [at + offset] * 2, "-", color=colour, linewidth=3, alpha=0.5)
                axis.plot([values["p50"]], [at + offset], "o", color=colour)
    _name_rows(axis, summaries)
    axis.set_title("median to p99, s: requests (blue), groups (orange)", fontsize=10, loc="left")
    axis.set_xlim(left=0)


def _name_rows(axis: Axes, summaries: Sequence[Summary]) -> None:
    axis.set_yticks(range(len(summaries)), [name_of(summary.policy, summary.mode) for summary in summaries], fontsize=8)
    axis.set_ylim(len(summaries) - 0.5, -0.5)


def _draw_loads(axis: Axes, summaries: Sequence[Summary], what: str) -> None:
    """A bar an engine, side by side for each row of the tables."""
    width = 0.8 / len(summaries)
    for at, summary in enumerate(summaries):
        values = [getattr(load, what) for load in summary.engines.values()]
        if None in values:
            continue
        found = spread(values)
        said = f": CV {found.cv:.1%}, max/mean {found.max_over_mean:.2f}" if found else ""
        places = np.arange(len(values)) + (at - (len(summaries) - 1) / 2) * width
        axis.bar(
            places,
            values,
            width,
            color=COLOURS[at % len(COLOURS)],
            label=f"{name_of(summary.policy, summary.mode)}{said}",
        )
    if not axis.patches:
        axis.text(0.5, 0.5, NOT_COMPARED, ha="center", va="center", transform=axis.transAxes)
    else:
        axis.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    names = list(summaries[0].engines)
    axis.set_xticks(range(len(names)), names, fontsize=7, rotation=20, ha="right")
    axis.set_title(f"{what.replace('_', ' ')} by engine, all repeats", fontsize=10, loc="left")
