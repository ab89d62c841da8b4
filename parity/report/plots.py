"""Curves of both arms as PNG, in colours of Okabe and Ito that colour-blind readers can tell apart.

Only matplotlib's objects are used, never pyplot: no state is shared and no display is needed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from scipy import stats

from parity.findings import Finding, Level, quantity
from parity.metrics import Curve, align
from parity.report import text
from parity.report.document import ADVANTAGE, ROUNDING, Report
from parity.report.scope import SAMPLED
from parity.report.text import factor_of, in_log, margins
from parity.report.words import Say, english

BASELINE, EXPERIMENT = "#0072B2", "#D55E00"
BAND_LEVEL = 0.90
RUNS_FOR_BAND = 3
DOTS_PER_INCH = 130
WIDTH, HEAD, FOOT = 10.0, 0.6, 1.05

CURVE_PANELS = (
    ("rollout/raw_reward", "reward, mean"),
    ("rollout/response_len/mean", "response length, tokens"),
    ("rollout/truncated_ratio", "truncated, share of samples"),
    ("rollout/group_reward_std", "reward s.d. within a group, mean"),
    ("rollout/advantages", "advantage, mean"),
    ("train/loss", "loss"),
    ("train/grad_norm", "gradient norm"),
    ("train/train_rollout_logprob_abs_diff", "|trainer - engine log-prob|, nats"),
)
COST_PANELS = (
    ("perf/rollout_time", "rollout time, s"),
    ("perf/tokens_per_gpu_per_sec", "response tokens/s"),
)
NOT_NEGATIVE = frozenset(
    metric
    for metric, _ in (*CURVE_PANELS, *COST_PANELS)
    if metric not in ("rollout/raw_reward", ADVANTAGE, "train/loss")
)
FROM_ZERO = frozenset(metric for metric, _ in COST_PANELS)
"""Ratios are read off these, so that their axes start at 0."""

LARGEST_DRAWN = 1e150
"""From here on a value is as good as infinite: its square is no float."""

MARKERS = {"engine_restart": "^", "resume": ">", "abort": "s", "collapse": "X"}


@dataclass(frozen=True, slots=True)
class Picture:
    """One PNG: its file name, title, what it shows and how to read it, and its bytes."""

    file_name: str
    title: str
    caption: str
    content: bytes


def draw(report: Report, say: Say = english) -> list[Picture]:
    """The curves of each design's runs, and rollout time per step; a picture without data is left out.

    What stands inside a picture is English: matplotlib's own font has no other letters.
    """
    pictures = []
    for design, arms in report.arms_of_design.items():
        if design != SAMPLED:
            title = partial(_curves_title, report, design)
            pictures.append(_picture(report, arms, CURVE_PANELS, f"curves-{design}.png", title, say))
    timed = [run for run in report.outcomes if run.design == (report.compared_design or run.design)]
    by_arm = {arm: tuple(run.run for run in timed if run.arm == arm) for arm in (report.baseline, report.experiment)}
    pictures.append(_picture(report, by_arm, COST_PANELS, "rollout-time.png", _time_title, say))
    return [picture for picture in pictures if picture]


def _curves_title(report: Report, design: str, say: Say) -> str:
    count = sum(run.design == design for run in report.outcomes)
    return say("Curves, {design} design, {runs}", design=design, runs=quantity(count, "runs"))


def _time_title(say: Say) -> str:
    return say("Rollout time and throughput per step")


def _picture(
    report: Report,
    arms: Mapping[str, Sequence[str]],
    panels: Sequence[tuple[str, str]],
    file_name: str,
    title: Callable[[Say], str],
    say: Say,
) -> Picture | None:
    runs = [name for names in arms.values() for name in names]
    known = [(metric, label) for metric, label in panels if any(metric in report.curves[name] for name in runs)]
    shown = [(metric, label) for metric, label in known if not _is_rounding(report, runs, metric)]
    if not shown:
        return None
    rows = -(-len(shown) // 2)
    height = HEAD + 2.5 * rows + FOOT
    figure = Figure(figsize=(WIDTH, height), dpi=DOTS_PER_INCH)
    # Margins in inches leave the same space for text at any number of rows, without a second pass to solve a layout.
    figure.subplots_adjust(left=0.075, right=0.985, wspace=0.2, hspace=0.45)
    figure.subplots_adjust(top=1 - HEAD / height, bottom=FOOT / height)
    axes = figure.subplots(rows, 2, squeeze=False).ravel()
    banded = min(map(len, arms.values())) >= RUNS_FOR_BAND
    for axis, (metric, label) in zip(axes, shown, strict=False):
        _panel(axis, report, arms, metric, banded)
        axis.set_title(label, fontsize=10, loc="left")
        axis.set_xlabel("training step", fontsize=9)
        axis.set_ylabel(metric, fontsize=7, color="0.35")
        if metric in FROM_ZERO:
            axis.set_ylim(bottom=0)
    for axis in axes[len(shown) :]:
        axis.remove()
    figure.suptitle(
        f"{title(english)}: {report.baseline} and {report.experiment}",
        fontsize=12,
        fontweight="bold",
        y=1 - 0.1 / height,
    )
    handles = _legend(report, arms, [metric for metric, _ in shown], banded)
    figure.legend(handles=handles, loc="lower center", ncols=min(5, len(handles)), fontsize=9, frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    lacking = [label for metric, label in panels if (metric, label) not in known]
    held = any(_margin(report, arms, metric) for metric, _ in shown)
    caption = _caption(arms, banded, text.margin_time(report, say) if held else "", lacking, say)
    if known != shown:
        caption += " " + say("The mean advantage is 0 by construction, up to rounding, so not drawn.")
    return Picture(file_name, title(say), caption, content.getvalue())


def _is_rounding(report: Report, runs: Sequence[str], metric: str) -> bool:
    """Whether the curves are the mean of centred advantages, of which only rounding is left."""
    curves = [report.curves[name][metric] for name in runs if metric in report.curves[name]]
    return metric == ADVANTAGE and all(bool((np.abs(curve.values) < ROUNDING).all()) for curve in curves)


def _first_difference(report: Report, arms: Mapping[str, Sequence[str]]) -> int | None:
    """The first step at which L2 found these runs to differ; `None` where it found them equal."""
    drawn = {name for names in arms.values() for name in names}
    failed = [finding.where for finding in report.failing if finding.level is Level.REPLAY]
    return min((at.rollout_id for at in failed if at.run in drawn and at.rollout_id is not None), default=None)


def _panel(axis: Axes, report: Report, arms: Mapping[str, Sequence[str]], metric: str, banded: bool) -> None:
    alone = max(map(len, arms.values())) == 1
    for arm, names in arms.items():
        colour, dashes = _style(report, arm)
        curves = [report.curves[name][metric] for name in names if metric in report.curves[name]]
        for curve in curves:
            width = (3.0 if arm == report.baseline else 1.4) if alone else 0.8
            style = dashes if alone else "-"
            axis.plot(
                curve.steps, _drawable(curve.values), style, color=colour, linewidth=width, alpha=0.9 if alone else 0.45
            )
            lost = curve.steps[~np.isfinite(_drawable(curve.values))]
            axis.plot(lost, np.full(len(lost), 0.03), "x", color=colour, transform=axis.get_xaxis_transform())
            _draw_marks(axis, report, curve, colour)
        if curves and not alone:
            _draw_mean(axis, metric, curves, colour, dashes, banded)
        if curves and arm == report.baseline and (held := _margin(report, arms, metric)):
            _draw_margin(axis, curves, held)
    first = _first_difference(report, arms)
    if first is not None:
        axis.axvline(first, color="0.2", linestyle=":", linewidth=1.2)
    axis.grid(color="0.9", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    axis.yaxis.set_offset_position("right")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_mean(axis: Axes, metric: str, curves: Sequence[Curve], colour: str, dashes: str, banded: bool) -> None:
    """The mean over runs at their common steps and, where banded, its pointwise t interval over runs."""
    aligned = align(curves)
    values = _drawable(aligned.values)
    mean = values.mean(axis=0)
    axis.plot(aligned.steps, mean, dashes, color=colour, linewidth=2.2)
    if banded and len(curves) > 1:
        number = len(curves)
        error = values.std(axis=0, ddof=1) / np.sqrt(number)
        half = stats.t.ppf((1 + BAND_LEVEL) / 2, number - 1) * error
        low = np.maximum(mean - half, 0) if metric in NOT_NEGATIVE else mean - half
        axis.fill_between(aligned.steps, low, mean + half, color=colour, alpha=0.15, linewidth=0)


def _margin(report: Report, arms: Mapping[str, Sequence[str]], metric: str) -> Finding | None:
    """The finding that holds a metric of these runs to a margin."""
    if arms != report.compared_runs:
        return None
    return margins(report).get(metric)


def _draw_margin(axis: Axes, curves: Sequence[Curve], held: Finding) -> None:
    """The margin around the mean of the baseline's runs."""
    aligned = align(curves)
    middle, margin = _drawable(aligned.values).mean(axis=0), held.evidence["margin"]
    factor = factor_of(margin)
    low, high = (middle / factor, middle * factor) if in_log(held) else (middle - margin, middle + margin)
    low = np.maximum(low, 0) if aligned.metric in NOT_NEGATIVE else low
    inside, edge = (0.5, 0.5, 0.5, 0.1), (0.3, 0.3, 0.3, 0.6)
    axis.fill_between(aligned.steps, low, high, facecolor=inside, edgecolor=edge, linestyle=":", linewidth=0.8)


def _draw_marks(axis: Axes, report: Report, curve: Curve, colour: str) -> None:
    """Marks on the run's curve at their steps, or on the axis where the curve has no value there."""
    for mark in report.marks:
        if mark.run != curve.run:
            continue
        at = np.flatnonzero(curve.steps == mark.step)
        known = len(at) > 0 and np.isfinite(_drawable(curve.values)[at[0]])
        height = float(curve.values[at[0]]) if known else 0.03
        transform = axis.transData if known else axis.get_xaxis_transform()
        marker = MARKERS[mark.kind]
        axis.plot(
            [mark.step], [height], marker, color=colour, markeredgecolor="black", markersize=7, transform=transform
        )


def _drawable(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The values with NaN, which leaves a gap, in place of those that an axis cannot reach."""
    return np.where(np.abs(values) < LARGEST_DRAWN, values, np.nan)


def _style(report: Report, arm: str) -> tuple[str, Literal["-", "--"]]:
    return (BASELINE, "-") if arm == report.baseline else (EXPERIMENT, "--")


def _legend(report: Report, arms: Mapping[str, Sequence[str]], metrics: Sequence[str], banded: bool) -> list[Artist]:
    alone = max(map(len, arms.values())) == 1
    handles: list[Artist] = []
    for arm, names in arms.items():
        colour, dashes = _style(report, arm)
        label = arm if alone else f"{arm}, mean of {len(names)} runs"
        handles.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=2.2, label=label))
    if not alone:
        handles.append(Line2D([], [], color="0.4", linewidth=0.8, label="one run"))
    if banded:
        handles.append(Patch(color="0.4", alpha=0.2, label=f"{100 * BAND_LEVEL:.0f} % interval over runs"))
    if any(_margin(report, arms, metric) for metric in metrics):
        handles.append(Patch(facecolor="0.95", edgecolor="0.4", linestyle=":", label="margin around the baseline"))
    names_drawn = {name for names in arms.values() for name in names}
    for kind in sorted({mark.kind for mark in report.marks if mark.run in names_drawn}):
        label = kind.replace("_", " ")
        handles.append(
            Line2D([], [], linestyle="", marker=MARKERS[kind], color="0.6", markeredgecolor="black", label=label)
        )
    if _first_difference(report, arms) is not None:
        handles.append(Line2D([], [], color="0.2", linestyle=":", linewidth=1.2, label="first difference (L2)"))
    drawn = [report.curves[name][metric] for name in names_drawn for metric in metrics if metric in report.curves[name]]
    if not all(np.isfinite(_drawable(curve.values)).all() for curve in drawn):
        handles.append(Line2D([], [], linestyle="", marker="x", color="0.4", label="NaN or infinite"))
    return handles


def _caption(arms: Mapping[str, Sequence[str]], banded: bool, held: str, lacking: Sequence[str], say: Say) -> str:
    runs = say(" and ").join(say("{count} of {arm}", count=len(names), arm=arm) for arm, names in arms.items())
    parts = [say("Runs: {runs}; baseline solid, experiment dashed.", runs=runs)]
    if max(map(len, arms.values())) > 1:
        parts.append(say("Thin lines are runs, thick lines the mean over an arm's runs at their common steps."))
    if banded:
        parts.append(
            say(
                "The band is the pointwise {level} % t interval of that mean, over runs, not steps.",
                level=f"{100 * BAND_LEVEL:.0f}",
            )
        )
    else:
        parts.append(say("No band: one over runs takes at least {runs} runs an arm.", runs=RUNS_FOR_BAND))
    if held:
        parts.append(say("The grey band around the baseline's mean has the {margins}.", margins=held))
    if lacking:
        parts.append(say("Not recorded, so not drawn: {metrics}.", metrics="; ".join(map(say, lacking))))
    return say(" ").join(parts)
